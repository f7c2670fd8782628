"""What the directions of one landscape ask for: the weights of its run, its problem and its samples."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, cast

from torch import Tensor

from landscape.compute.paths import paths_of
from landscape.compute.weights import Weights
from landscape.core.folders import locate
from landscape.job.directions.base import DirectionSpec, RunPath, RunSnapshot, Spectrum, Workers, in_this_process
from landscape.job.landscape import Landscape
from landscape.model.parameters import ParameterInfo, State
from landscape.model.weight_files import load_weights
from landscape.problem.batches import Batch
from landscape.problem.samples import Samples
from landscape.problem.terms import Problem

T = TypeVar("T")
SolveHere = Callable[[tuple[int, ...], int, int], Spectrum]  # `Context.spectrum` of one origin


@dataclass(frozen=True)
class LandscapeContext:
    """The `landscape.job.directions.base.Context` of one landscape; there its members are described.

    Attributes:
        spec: the landscape, under the defaults that held when it was begun.
        weights: what it may name weights by, each read once.
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

        A job that leaves it out means the last snapshot of the first of its paths, else the last that a direction is
        made from, else the last of the run, else the weights that the callback returns.
        """
        if self.spec.origin is not None:
            return self.weights.resolve(self.spec.origin)
        if self.paths:
            return self.paths[0].snapshots[-1]
        numbers = self.snapshots(self.spec.snapshots or "all")
        return numbers[-1] if numbers else "problem"

    @property
    def meant(self) -> dict[str, int]:
        """The numbers of the snapshots that `first`, `last` and RUN@last stand for, by these words."""
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
        """What labels call them; those of a run whose path is drawn by the label of that."""
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
        return load_weights(locate(path, self.weights.folder))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned when this key was first asked for."""
        if key not in self._known:
            self._known[key] = make()
        return cast(T, self._known[key])
