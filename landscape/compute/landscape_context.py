"""The weights and paths that a landscape names, each read once, and the context of its directions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from landscape.core.errors import JobError, LandscapeError, NotFoundError, quoted
from landscape.core.folders import locate, open_folder, real_place, run_labels
from landscape.core.validation import OF_RUN, ranges
from landscape.evaluation.model_state import private_copy
from landscape.evaluation.running_model import give_memory
from landscape.job.directions.base import DirectionSpec, RunPath, RunSnapshot, Spectrum, Workers, in_this_process
from landscape.job.job import Job
from landscape.job.landscape import LONGEST_LABEL, Landscape
from landscape.model.packed_file import part_of
from landscape.model.packed_snapshots import logged_beyond, trajectory_at
from landscape.model.parameters import (
    LARGE,
    ParameterInfo,
    State,
    is_large,
    match_state,
    on_meta,
    state_digest,
    state_of,
    targets_of,
)
from landscape.model.run_files import read_network
from landscape.model.shards import is_sharded
from landscape.model.snapshots import Snapshot, Trajectory
from landscape.model.weight_files import ReadFile, load_weights
from landscape.problem.batches import Batch, Samples
from landscape.problem.mesh import refuse_without_file
from landscape.problem.terms import Problem

# ----------------------------------------------------------------------------------------------------
# The sets of weights that a job may name: the callback's own, snapshots of its run and of others, files.


class Weights:
    """Weights by their name in the job: `problem`, `last`, `first`, a number, RUN@last, a file.

    Each set is read and matched once.
    """

    def __init__(self, problem: Problem, trajectory: Trajectory, folder: Path) -> None:
        """
        Args:
            folder: the base of relative paths of files and runs.
        """
        self.model, self.trajectory, self.folder = problem.model, trajectory, folder
        self._problem = problem
        self._known: dict[int | str | RunSnapshot, dict[str, torch.Tensor]] = {}
        self._digests: dict[int | str | RunSnapshot, str] = {}
        self._went_on_to: dict[int | RunSnapshot, str] = {}
        self._runs: dict[str, Trajectory] = {trajectory.run: trajectory}

    def run(self, place: str) -> Trajectory:
        """The trajectory of the run at an absolute folder or a URL, read once."""
        if place not in self._runs:
            self._runs[place] = trajectory_at(place)
        return self._runs[place]

    def resolve(self, reference: int | str | RunSnapshot) -> int | str | RunSnapshot:
        """`last` and `first`, also of another run, as the number of their snapshot; other references unchanged.

        Raises:
            JobError: the run has no snapshot.
        """
        if isinstance(reference, str) and (of_run := self._of_run(reference)) is not None:
            return of_run
        if reference not in ("last", "first"):
            return reference
        if not self.trajectory.numbers:
            raise JobError(
                f"origin: {quoted(reference)} needs a trajectory, and the run has none; use origin: problem or a file"
            )
        return self.trajectory.numbers[-1 if reference == "last" else 0]

    def _of_run(self, reference: str) -> RunSnapshot | None:
        """The snapshot named by a reference such as RUN@last; None for a file, or any other reference."""
        match = OF_RUN.fullmatch(reference)
        place = "" if match is None else real_place(locate(match[1], self.folder))
        if match is None or Path(locate(reference, self.folder)).is_file():
            return None
        numbers = self.run(place).numbers
        if not numbers:
            raise JobError(f"{quoted(reference)}: run {quoted(place)} holds no snapshots; name a run that holds some")
        number = numbers[{"first": 0, "last": -1}[match[2]]] if match[2] in ("first", "last") else int(match[2])
        return RunSnapshot(place, number)

    def state(self, reference: int | str | RunSnapshot) -> dict[str, torch.Tensor]:
        """The weights of that name, as a state of the model.

        Raises:
            LandscapeError: there are none, or they do not fit the model.
        """
        key = self.resolve(reference)
        if key not in self._known:
            self._known[key] = self._read(key)
        return self._known[key]

    def digest(self, reference: int | str | RunSnapshot) -> str:
        """The digest of the weights of that name."""
        key = self.resolve(reference)
        if key not in self._digests:
            state = self.state(key)
            self._digests[key] = state.digest if isinstance(state, ReadState) else state_digest(state)
        return self._digests[key]

    def went_on_to(self, reference: int | str | RunSnapshot) -> str:
        """How far a training's log goes beyond a snapshot, by `logged_beyond`; empty for other weights."""
        key = self.resolve(reference)
        if isinstance(key, str):
            return ""
        if key not in self._went_on_to:
            trajectory, snapshot = self._snapshot(key)
            self._went_on_to[key] = logged_beyond(trajectory, snapshot)
        return self._went_on_to[key]

    def _snapshot(self, key: int | RunSnapshot) -> tuple[Trajectory, Snapshot]:
        """A snapshot of the job's own run or of another, and the trajectory that it is part of."""
        if isinstance(key, RunSnapshot):
            trajectory = self.run(key.run)
            return trajectory, trajectory.snapshot(key.number)
        return self.trajectory, self.trajectory.snapshot(key)

    def label(self, reference: int | str | RunSnapshot) -> str:
        """The name of these weights in figures and errors, such as `epoch 3`, or `sgd epoch 3` of another run."""
        key = self.resolve(reference)
        if isinstance(key, RunSnapshot):
            return f"{run_labels([key.run])[0]} {self.run(key.run).unit} {key.number}"
        return f"{self.trajectory.unit} {key}" if isinstance(key, int) else key

    def _read(self, key: int | str | RunSnapshot) -> dict[str, torch.Tensor]:
        if key == "problem":
            return own_state(self._problem)
        if not isinstance(key, str):
            trajectory, snapshot = self._snapshot(key)
            run = f"run {quoted(key.run)}, " if isinstance(key, RunSnapshot) else ""
            state = match_state(self.model, snapshot.load(), f"{run}{trajectory.unit} {snapshot.number}")
            return FileState.if_large(state, snapshot.path)
        place = locate(key, self.folder)
        try:
            tensors = load_weights(place)
        except LandscapeError as error:
            hint = "; a snapshot of a run is RUN@last, RUN@first or RUN@12"
            hint = hint if "@" in key and isinstance(error, NotFoundError) else ""
            raise type(error)(f"origin or target {quoted(key)}: {error}{hint}") from None
        state = FileState.if_large(match_state(self.model, tensors, f"file {quoted(key)}"), place)
        return state if isinstance(state, FileState) else _copied(state)


def _copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of tensors that may be views of a file which others write to; snapshots are never written to again."""
    return {name: tensor.clone() for name, tensor in state.items()}


class ReadState(dict[str, torch.Tensor]):
    """Large weights that other processes have or read themselves: they are not sent.

    Attributes:
        read_from: the file of which the tensors are views, and which may not be written to; None if there is none.
    """

    def __init__(self, state: State, path: str | Path | None) -> None:
        super().__init__(state)
        self.read_from = None if path is None else ReadFile.if_mapped(path)

    @cached_property
    def digest(self) -> str:
        """The digest by which a process sees that it has the same weights."""
        return state_digest(self)


class OwnState(ReadState):
    """The weights of a large problem, which every process has that calls the problem's callback."""


class FileState(ReadState):
    """The weights of a large file of this machine, which another process may read too.

    Attributes:
        path: of the file, or the folder of shards.
        is_matched: whether they are a state of the model, else as they lie in the file.
    """

    def __init__(self, state: State, path: str | Path, *, is_matched: bool = True) -> None:
        self.path, self.is_matched = str(Path(path).absolute()), is_matched
        super().__init__(state, path)

    @classmethod
    def if_large(cls, state: dict[str, torch.Tensor], path: str, *, is_matched: bool = True) -> dict[str, torch.Tensor]:
        """Weights that were read from a file; as they are if they are small, or the file is not on a disk."""
        is_large = sum(tensor.nbytes for tensor in state.values()) > LARGE
        return cls(state, path, is_matched=is_matched) if is_large and Path(path).exists() else state


def own_state(problem: Problem) -> dict[str, torch.Tensor]:
    """The weights of a problem: those of its file, else a copy of the model's; a large model's own tensors."""
    model, file = problem.model, problem.weights
    if is_sharded(model):
        refuse_without_file(file)
    if file is not None:
        state = match_state(model, load_weights(file), f"weights {quoted(str(file))}")
    elif is_large(model):
        state = {name: tensor.detach().cpu() for name, tensor in targets_of(model).items()}
    else:
        return state_of(model)
    return OwnState(state, file) if is_large(model) else _copied(state)


def in_memory(problem: Problem) -> Problem:
    """The problem with a model that holds its weights, if they are in a file alone."""
    if is_sharded(problem.model):
        raise JobError("problem: a model over several processes cannot be brought into one; return it whole for this")
    if not on_meta(problem.model):
        return problem
    model = private_copy(problem.model)[0]
    give_memory(model, torch.device("cpu"))
    targets = targets_of(model)
    with torch.no_grad():
        for name, tensor in own_state(problem).items():
            targets[name].copy_(tensor)
    return replace(problem, model=model, weights=None)


TRACKED = re.compile(r"(^|\.)num_batches_tracked$")  # snapshots of one network may lack these


def network_of(job: Job, landscapes: Sequence[Landscape]) -> Mapping[str, Any]:
    """The network options recorded by the training of the job's run, else by that of its first drawn path."""
    named = [job.run_path, *(locate(path.run, job.folder) for spec in landscapes for path in spec.paths or ())]
    outside = (run for run in named if part_of(run) is None)  # a portable problem needs no options
    return next((options for run in outside if (options := read_network(run))), {})


def paths_of(spec: Landscape, weights: Weights) -> tuple[RunPath, ...]:
    """The paths that a landscape draws, with the snapshots that their runs hold now; empty if the job names none.

    Raises:
        JobError: a run holds no snapshot or lacks a named one, a snapshot is drawn twice, or two paths share a label.
    """
    asked = spec.paths or ()
    places = [real_place(locate(path.run, weights.folder)) for path in asked]
    chosen = [_chosen(place, path.snapshots, weights) for place, path in zip(places, asked, strict=True)]
    _refuse_twice(places, chosen)
    names = run_labels(places)
    labels = [path.label or _label(k, names, chosen) for k, path in enumerate(asked)]
    for label, count in Counter(labels).items():
        if count > 1:
            raise JobError(
                f"paths: must have labels of their own, and {quoted(label)} stands {count} times; name others"
            )
    return tuple(
        RunPath(
            label, place, path.run, trajectory.unit, trajectory.numbers, own=place == real_place(weights.trajectory.run)
        )
        for label, place, path, trajectory in zip(labels, places, asked, chosen, strict=True)
    )


def _chosen(place: str, snapshots: Any, weights: Weights) -> Trajectory:
    trajectory = weights.run(place)
    if not trajectory.numbers:
        why = "holds no snapshots" if open_folder(place).exists() else "does not exist"
        remedy = "name one that was trained with a collector, or `landscape import` checkpoints into it"
        if OF_RUN.fullmatch(place):
            remedy = "a part of a run is written {run: …, snapshots: [12]}"
        raise JobError(f"paths: run {quoted(place)} {why}; {remedy}")
    return trajectory.select(snapshots)


def _refuse_twice(places: list[str], chosen: list[Trajectory]) -> None:
    """Refuse a snapshot in two paths: different names may lead to one run."""
    for k, trajectory in enumerate(chosen):
        for place, other in zip(places[:k], chosen[:k], strict=True):
            if place == places[k] and set(other.numbers) & set(trajectory.numbers):
                raise JobError(
                    f"paths: must name each run once, or different snapshots of it; {quoted(place)} stands twice"
                )


def _label(k: int, names: list[str], chosen: list[Trajectory]) -> str:
    """The end of the run's folder, shortened if long; with its snapshots if the run occurs more than once."""
    name = names[k] if len(names[k]) <= LONGEST_LABEL else f"…{names[k][1 - LONGEST_LABEL :]}"
    if names.count(names[k]) == 1:
        return name
    return f"{name}, {chosen[k].unit}s {ranges(chosen[k].numbers)}"


def check_paths(paths: tuple[RunPath, ...], weights: Weights) -> None:
    """Refuse paths of different networks, before all of their snapshots are read.

    Raises:
        JobError: names both runs and the first tensor that differs.
    """
    for path in paths:
        try:
            weights.state(path.snapshots[0])
        except JobError:
            if path is not paths[0]:
                _refuse_another_network(paths[0], path, weights)
            raise


def _refuse_another_network(first: RunPath, other: RunPath, weights: Weights) -> None:
    """Raises JobError with the first tensor in which two runs differ; nothing if their tensors agree."""
    one, two = (_tensors(path.snapshots[0], weights) for path in (first, other))
    for name in dict.fromkeys([*weights.model.state_dict(), *one, *two]):
        shapes = [tuple(state[name].shape) if name in state else None for state in (one, two)]
        if shapes[0] != shapes[1] and not TRACKED.search(name):
            words = [f"{name} {shape}" if shape is not None else f"no {name}" for shape in shapes]
            raise JobError(
                f"paths: must be of one network; run {quoted(first.named)} has {words[0]}, and run "
                f"{quoted(other.named)} {words[1]}; draw them on landscapes of their own"
            )


def _tensors(snapshot: RunSnapshot, weights: Weights) -> State:
    return weights.run(snapshot.run).snapshot(snapshot.number).load()


# ----------------------------------------------------------------------------------------------------
# The context of one landscape's directions: the weights of its run, its problem and its samples.

T = TypeVar("T")

SolveHere = Callable[[tuple[int, ...], int, int], Spectrum]  # `Context.spectrum` of one origin


@dataclass(frozen=True)
class LandscapeContext:
    """The `landscape.job.directions.base.Context` of one landscape, which describes the members.

    Attributes:
        spec: the landscape, with the defaults of the time when it was begun.
        weights: reads the weights that it may name.
    """

    spec: Landscape
    weights: Weights
    infos: Sequence[ParameterInfo]
    problem: Problem
    chosen: Samples
    workers: Workers = in_this_process
    solve: SolveHere | None = None
    _known: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def reference(self) -> int | str | RunSnapshot:
        """The origin by its name in the job, `first` and `last` as the number of their snapshot.

        The default is the last snapshot of the job's first path, else the last one that a direction is made from, else
        the last one of the run, else the weights that the callback returns.
        """
        if self.spec.origin is not None:
            return self.weights.resolve(self.spec.origin)
        if self.paths:
            return self.paths[0].snapshots[-1]
        numbers = self.snapshots(self.spec.snapshots or "all")
        return numbers[-1] if numbers else "problem"

    @property
    def meant(self) -> dict[str, int]:
        """The snapshot numbers that `first`, `last` and RUN@last mean, by these words."""
        named = (self.spec.origin, *(name for axis in self.axes for name in axis.weights))
        words = [name for name in named if isinstance(name, str) and name.rpartition("@")[2] in ("first", "last")]
        keys = {name: self.weights.resolve(name) for name in words}
        numbers = {name: key.number if isinstance(key, RunSnapshot) else key for name, key in keys.items()}
        return {name: number for name, number in numbers.items() if isinstance(number, int)}  # others are files

    @property
    def origin(self) -> State:
        """The weights at the origin, read when they are first asked for."""
        return self.weights.state(self.reference)

    @property
    def axes(self) -> Sequence[DirectionSpec]:
        """The directions of the landscape."""
        return self.spec.directions

    @property
    def samples(self) -> Batch:
        """All samples as one batch."""
        return self.once("samples", lambda: self.chosen.batch(0, self.chosen.length))

    @property
    def unit(self) -> str:
        """`step` or `epoch`, as the run counts its snapshots."""
        return self.weights.trajectory.unit

    def spectrum(self, ranks: tuple[int, ...], steps: int, seed: int) -> Spectrum:
        """Eigenpairs of the Hessian at the origin, as the solver of the job computes them."""
        assert self.solve is not None, "a landscape that is prepared has one"
        return self.solve(ranks, steps, seed)

    @cached_property
    def paths(self) -> tuple[RunPath, ...]:
        """The runs whose paths the landscape draws."""
        return paths_of(self.spec, self.weights)

    def state(self, reference: int | str | RunSnapshot) -> State:
        """The weights of that name, read once for all landscapes of the job."""
        return self.weights.state(reference)

    def digest(self, reference: int | str | RunSnapshot) -> str:
        """Their digest."""
        return self.weights.digest(reference)

    def name(self, reference: int | str | RunSnapshot) -> str:
        """The name of these weights in labels; a snapshot on a drawn path gets the label of the path."""
        key = self.weights.resolve(reference)
        drawn = next((path for path in self.paths if key in path.snapshots), None)
        if drawn is not None and isinstance(key, RunSnapshot):
            return f"{drawn.label} {drawn.unit} {key.number}"
        return self.weights.label(key)

    def snapshots(self, selection: Sequence[int] | Literal["all"]) -> tuple[int, ...]:
        """The selected snapshots of the run by their numbers, ascending."""
        return self.weights.trajectory.select(selection).numbers

    def tensors(self, path: str) -> dict[str, Tensor]:
        """The tensors of a file, read anew each time, so that a large file is not held in memory."""
        place = locate(path, self.weights.folder)
        return FileState.if_large(load_weights(place), place, is_matched=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned when this key was first asked for."""
        if key not in self._known:
            self._known[key] = make()
        return cast(T, self._known[key])
