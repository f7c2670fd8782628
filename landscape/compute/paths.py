"""The runs whose paths a landscape draws: found, given labels, and refused where they are not of one network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from landscape.compute.weights import Weights
from landscape.core.errors import JobError, shown
from landscape.core.folders import locate, open_folder, real_place, run_labels
from landscape.core.validation import OF_RUN, ranges
from landscape.job.directions.base import RunPath, RunSnapshot
from landscape.job.job import Job
from landscape.job.landscape import LONGEST_LABEL, Landscape
from landscape.model.packed_file import part_of
from landscape.model.parameters import State
from landscape.model.run_files import read_network
from landscape.model.snapshots import Trajectory

TRACKED = re.compile(r"(^|\.)num_batches_tracked$")  # of which a network may have one or not


def network_of(job: Job, landscapes: Sequence[Landscape]) -> Mapping[str, Any]:
    """The options that the training of the job's run made its network with; else those of the first path drawn."""
    named = [job.run_path, *(locate(path.run, job.folder) for spec in landscapes for path in spec.paths or ())]
    outside = (run for run in named if part_of(run) is None)  # a portable problem needs no options
    return next((options for run in outside if (options := read_network(run))), {})


def paths_of(spec: Landscape, weights: Weights) -> tuple[RunPath, ...]:
    """The paths that a landscape draws, by the snapshots that their runs hold now; none where its job names none.

    Raises:
        JobError: a run holds no snapshot, or not one that is named; one is drawn twice; or two have one label.
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
                f"paths: must have labels of their own, and {shown(label)} stands {count} times; name others"
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
        raise JobError(f"paths: run {shown(place)} {why}; {remedy}")
    return trajectory.select(snapshots)


def _refuse_twice(places: list[str], chosen: list[Trajectory]) -> None:
    """Refuse a snapshot that two paths have: different names may lead to one run."""
    for k, trajectory in enumerate(chosen):
        for place, other in zip(places[:k], chosen[:k], strict=True):
            if place == places[k] and set(other.numbers) & set(trajectory.numbers):
                raise JobError(
                    f"paths: must name each run once, or different snapshots of it; {shown(place)} stands twice"
                )


def _label(k: int, names: list[str], chosen: list[Trajectory]) -> str:
    """The end of the run's folder, of a long name its last letters; its snapshots where it stands more than once."""
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
    """Refuse by the first tensor in which two runs differ; nothing where they hold the same ones."""
    one, two = (_tensors(path.snapshots[0], weights) for path in (first, other))
    for name in dict.fromkeys([*weights.model.state_dict(), *one, *two]):
        shapes = [tuple(state[name].shape) if name in state else None for state in (one, two)]
        if shapes[0] != shapes[1] and not TRACKED.search(name):
            words = [f"{name} {shape}" if shape is not None else f"no {name}" for shape in shapes]
            raise JobError(
                f"paths: must be of one network; run {shown(first.named)} has {words[0]}, and run {shown(other.named)} "
                f"{words[1]}; draw them on landscapes of their own"
            )


def _tensors(snapshot: RunSnapshot, weights: Weights) -> State:
    return weights.run(snapshot.run).snapshot(snapshot.number).load()
