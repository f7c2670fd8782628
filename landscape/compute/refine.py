"""Refine landscapes level by level where their values require it; existing levels are repaired.

A level is chosen when the earlier levels are complete, from the stored values alone: the number of workers, their order
and interruptions change no block.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from landscape.compute import serial
from landscape.compute.recorded_job import job_of, parts_of, recorded_fields
from landscape.core.grid import Floats, Index, tile_counts
from landscape.core.progress import Observer, show_progress
from landscape.core.text import digest
from landscape.core.validation import MAX_SIZE
from landscape.evaluation.tuning.choices import Limits
from landscape.job.job import Job
from landscape.job.landscape_options import Refine
from landscape.store.commit import finish_move
from landscape.store.landscape import LandscapeStore, named_landscape
from landscape.store.levels import Box, Finer, levels_left, refinable
from landscape.store.results import Run, open_run, writing
from landscape.store.runs import refuse_unwritable
from landscape.surface.record_parts import LevelRecord
from landscape.surface.refinement import (
    BLOCK,
    MOST_LEVELS,
    BlockValues,
    Mask,
    WantedBlocks,
    blocks_of_tiles,
    finer_shape,
    from_stretches,
    next_blocks,
    tile_shape,
    tiles_of_blocks,
    to_stretches,
)
from landscape.surface.surface import NOT_COMPUTED, QUARANTINED, RISE_STDERR, Surface
from landscape.surface.topology import topology_of
from landscape.views.prepare.figure import suggests_log

log = logging.getLogger("landscape")


# ----------------------------------------------------------------------------------------------------
# Refining a landscape in a box, or everywhere: each level halves the steps and keeps every known point.
#
# The points of a level have the same bits as those of a job that asks for the finer grid at once. A level lies in its
# landscape's folder, and holds whole blocks of it; `landscape.surface.refinement` has their geometry.


def refine(
    run: str | Path | Surface,
    name: str | None = None,
    *,
    factor: int = 2,
    box: Box | None = None,
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    compute: Callable[[Job], Run] | None = None,
    progress: bool = True,
) -> Run:
    """Make a landscape of a run finer; interrupted, the same call goes on.

    Args:
        run: the run, or a surface of it.
        name: the landscape; default: that of the surface.
        factor: 2 or 4: the divisor of its steps.
        box: [low, high] of each axis, widened to whole blocks of 8 cells; default: everywhere.
        problem: the callback; default: the one that the landscape was computed with, by its name.
        folder: where the callback is looked up first; default: where it was then.
        compute: what computes a job, such as `cluster.run`, and shows its progress; default: this process.
        progress: show the progress of this process.

    Returns:
        The run, opened for reading; unchanged if the landscape is as fine as that already.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: the landscape cannot be refined in this way; says why.
        Interrupted: the same call goes on.
    """
    finer = Finer(factor, box)
    run, name = named_landscape(run, name)
    path = open_run(run).path
    refuse_unwritable(path)
    levels_left(path, name, finer)  # so that a refusal leaves no lock in the run
    with writing(path):
        finish_move(path)
    jobs = [level_job(run, name, level, problem, folder) for level in levels_left(path, name, finer)]
    with serial.computing_by(compute, progress) as compute_job:
        for job in jobs:
            opened, level = compute_job(job), job.level
            assert level is not None
            left = LandscapeStore.open(path, name, level=level.number).counts()
            if left[NOT_COMPUTED] or left[QUARANTINED]:
                return opened  # partial: the level lists its failures
    return open_run(run)


def level_job(
    run: str | Path,
    name: str,
    level: LevelRecord,
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    extends: str | None = None,
) -> Job:
    """The job that computes a level; `landscape plan` shows its plan and cost.

    Args:
        extends: the landscape whose same level is extended by it; None if none is.

    Raises:
        JobError: the landscape cannot be refined.
    """
    path = open_run(run).path
    store = refinable(path, name)
    found = recorded_fields(path, store, problem, folder)
    changed = {"engine": "auto", "batch_size": None, "tile": [BLOCK], "keep_samples": None}
    return job_of(found.fields | changed).refining(level, found.folder, extends)


def run(
    job: Job,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    limits: Limits | None = None,
    *,
    accept_origin: bool = False,
    progress: bool = True,
) -> Run:
    """Compute a job serially, in this process, or resume it.

    Args:
        observer: is called with the `Progress` after every task, and nothing else shows it then.
        stop: is called between points; if it returns true, the current tile is dropped and `Interrupted` raised.
        limits: how long the search for the fastest engine may take; other processes compute beside this one meanwhile.
        accept_origin: continue, with a warning that the landscape keeps, if the callback's own model has another loss
            at the origin, or at one point beside it, by its own forward pass; by default that is an error.
        progress: show the progress, on stderr: a bar on a terminal and in a notebook, elsewhere a line for every 10 %.

    Returns:
        The run, opened for reading.
    """
    with show_progress(observer, progress) as display:
        return with_levels(job, lambda part: serial.run(part, display, stop, limits, accept_origin=accept_origin))


def with_levels(job: Job, compute: Callable[[Job], Run]) -> Run:
    """Compute a job, then its levels of refinement one after another, each as a job.

    Levels that the job asks for are computed, and levels that `refine` has begun are completed and repaired.

    Args:
        compute: computes one job; returns its run, opened for reading.
    """
    for part in parts_of(job):
        opened = compute(part)
    asked = [] if job.extends is not None else [(spec.name, spec.refine) for spec in job.landscapes]
    for name, refine in asked:
        for level in _levels_of(job, name, refine):
            opened = compute(level)
    return opened


def _levels_of(job: Job, name: str, asked: Refine | None) -> Iterator[Job]:
    while (level := _next_level(job.run_path, name, asked)) is not None:
        yield level_job(job.run_path, name, level, job.problem, job.folder)
        if not LandscapeStore.open(job.run_path, name, level=level.number).examine().complete:
            return  # partial: the level lists its failures


def _next_level(run: str, name: str, asked: Refine | None) -> LevelRecord | None:
    """The level to compute next: an interrupted or damaged one, else a new choice; None if there is none.

    Args:
        asked: how further levels are chosen; None if the job asks for none.
    """
    store = LandscapeStore.open(run, name)
    levels = store.levels()
    if (asked is None and not levels) or not store.examine().complete:
        return None
    for level in levels:
        if level.record.level is not None and not level.examine().complete:
            return level.record.level
    if asked is None:
        return None
    surface = store.read_surface()
    values = values_of(surface)
    if not levels:
        _warn_of_noise(surface, asked.tolerance)
    spent = store.arrays.points + sum(level.arrays.points for level in levels)
    budget = None if asked.points is None else max(0, asked.points - spent)
    most = sum(max(finer_shape(store.shape, 2**number)) <= MAX_SIZE for number in range(1, MOST_LEVELS + 1))
    chosen = next_blocks(values, asked.tolerance, budget, most)
    return None if chosen is None else _record(chosen, finer_shape(store.shape, 2**chosen.level), values, asked)


def values_of(surface: Surface) -> BlockValues:
    """The known values of a landscape, for the choice of blocks; in log10 if its figure is logarithmic."""
    in_log = suggests_log(surface)
    base = replace(surface, levels=())
    merged = [replace(base, levels=surface.levels[:count]).merged() for count in range(len(surface.levels) + 1)]
    nothing = np.full(base.status.shape, np.nan)
    losses = [whole.loss for whole in merged]
    errors = [whole.observables.get(RISE_STDERR, nothing) for whole in merged]
    drawn = [_on_drawn_scale(loss, in_log) for loss in losses]
    levels = [(level.record.level, level.status.shape) for level in surface.levels if level.record.level is not None]
    held = [_held_blocks(record, shape) for record, shape in levels]
    finite = drawn[0][np.isfinite(drawn[0])]
    relief = float(np.subtract(*np.percentile(finite, [95, 5]))) if finite.size else 0.0
    return BlockValues(drawn, losses, errors, held, relief, _marked_points(merged[-1]))


def _held_blocks(level: LevelRecord, shape: Index) -> Mask:
    """The blocks that a level of this shape holds."""
    return blocks_of_tiles(from_stretches(level.blocks, tile_counts(shape, tile_shape(shape))), shape)


def _on_drawn_scale(losses: Floats, in_log: bool) -> Floats:
    if not in_log:
        return losses
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(losses)


def _marked_points(surface: Surface) -> list[Index]:
    """Points of interest: minima and saddles above the noise, and the snapshots of the path."""
    found = topology_of(surface)
    kept = [pair for pair in found.pairs if pair.persistence > found.threshold]
    places = [place for pair in kept for place in (pair.extremum, pair.saddle) if place is not None]
    if surface.path is None:
        return places
    snapshots = zip(*(surface.path.coordinates[name] for name in surface.dimensions), strict=True)
    axes = [surface.axis(name).coordinates for name in surface.dimensions]
    inside = (
        snapshot
        for snapshot in snapshots
        if all(axis[0] <= place <= axis[-1] for axis, place in zip(axes, snapshot, strict=True))
    )
    nearest = (tuple(int(np.abs(axis - at).argmin()) for axis, at in zip(axes, one, strict=True)) for one in inside)
    return [*places, *nearest]


def _record(chosen: WantedBlocks, shape: Index, values: BlockValues, asked: Refine) -> LevelRecord:
    """The record of the level: its blocks, and the rule that chose them."""
    tiles = tiles_of_blocks(chosen.blocks, shape)
    of_tiles = np.pad(
        chosen.eta, [(0, more - has) for more, has in zip(tiles.shape, chosen.eta.shape, strict=True)], "edge"
    )
    known = hashlib.sha256()
    for array in (*values.losses, *values.errors):
        known.update(np.ascontiguousarray(array).tobytes())
    rule = {"tolerance": asked.tolerance} | ({} if asked.points is None else {"points": asked.points})
    return LevelRecord(
        number=chosen.level, stride=2**chosen.level, blocks=to_stretches(tiles), eta=tuple(of_tiles[tiles].tolist()),
        rule=rule, chosen_by=digest({"values": known.hexdigest(), "rule": rule}),
    )  # fmt: skip


def _warn_of_noise(surface: Surface, tolerance: float) -> None:
    """Warn if the tolerance is below the noise of the samples."""
    errors = surface.observables.get(RISE_STDERR, np.full(1, np.nan))
    there = surface.loss[(surface.status != NOT_COMPUTED) & np.isfinite(surface.loss)]
    if not np.isfinite(errors).any() or not there.size:
        return
    allowed = tolerance * float(np.subtract(*np.percentile(there, [95, 5])))
    noise = 2 * float(np.median(errors[np.isfinite(errors)]))
    if allowed < noise:
        log.warning(
            "refine: tolerance %.3g of the relief of landscape %r is %.3g, below two standard errors of its rise "
            "(%.3g): finer detail is that of these samples; take more samples, or a larger tolerance",
            tolerance, surface.name, allowed, noise,
        )  # fmt: skip
