"""Extend a landscape by samples, observables or a wider range, reusing every known value.

The result has the same bits as a job that asks for all of it at once, with the same plan. It is computed beside the
landscape, under another name, level by level where the landscape is refined, and replaces it when it is complete.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from landscape.compute.plans import within_tile_bytes
from landscape.compute.recorded_job import job_of, recorded_fields
from landscape.compute.refine import level_job
from landscape.compute.serial import computing_by
from landscape.core.errors import JobError, quoted
from landscape.core.grid import AXIS_NAMES, Grid, as_written, axis_coordinates
from landscape.core.lock import living_measurement
from landscape.core.validation import check_whole
from landscape.job.job import Job
from landscape.store.commit import finish_move
from landscape.store.landscape import LandscapeStore, named_landscape
from landscape.store.levels import why_incomplete
from landscape.store.results import (
    Run,
    extension_name,
    open_run,
    remove_landscape,
    replace_landscape,
    writing,
)
from landscape.store.runs import refuse_unwritable
from landscape.surface.surface import NOT_COMPUTED, QUARANTINED, Surface

log = logging.getLogger("landscape")


BY_ROUNDS = "accuracy: goes on by further rounds alone; leave out the other options"


@dataclass(frozen=True)
class More:
    """What an extension adds; None means no change.

    Attributes:
        num_samples: the new number of samples.
        observables: names that `observe` returns now and the landscape does not hold.
        ranges: one [low, high] for all axes, or one per axis.

    Raises:
        JobError: a value is malformed.
    """

    num_samples: int | None = None
    observables: Sequence[str] = ()
    ranges: Ranges | None = None

    def __post_init__(self) -> None:
        count, names = self.num_samples, self.observables
        if count is not None:
            check_whole("num_samples", count, 1)
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise JobError(f"observables: must be a list of names, such as ['accuracy'], not {quoted(names)}")
        if self.ranges is not None:
            object.__setattr__(self, "ranges", parse_ranges(self.ranges))

    def one_by_one(self) -> Iterator[More]:
        """The same as steps that change one attribute each."""
        # Observables first: the later steps evaluate everything that `observe` returns.
        if self.observables:
            yield More(observables=self.observables)
        if self.num_samples is not None:
            yield More(num_samples=self.num_samples)
        if self.ranges is not None:
            yield More(ranges=self.ranges)


def extend(
    run: str | Path | Surface,
    name: str | None = None,
    *,
    num_samples: int | None = None,
    observables: Sequence[str] = (),
    ranges: Ranges | None = None,
    accuracy: str | float | None = None,
    budget: str | None = None,
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
    compute: Callable[[Job], Run] | None = None,
    progress: bool = True,
) -> Run:
    """Extend a landscape of a run; interrupted, the same call goes on.

    Args:
        run: the run, or a surface of it.
        name: the landscape; default: that of the surface.
        num_samples: the new number of samples, more than before.
        observables: names that `observe` returns now and the landscape does not hold yet.
        ranges: a range that is wider by whole steps: one [low, high] for all axes, or one per axis.
        accuracy: how true the picture of a landscape with an accuracy shall become, such as `0.5%`.
        budget: what it may cost in all, such as `10 min` or `1e6 evaluations`; default: no limit.
        problem: the callback; default: the one that the landscape was computed with, by its name.
        folder: where the callback is looked up first; default: where it was then.
        compute: what computes a job, such as `cluster.run`, and shows its progress; default: this process.
        progress: show the progress of this process.

    Returns:
        The run, opened for reading; unchanged if the landscape has all of this already.

    Raises:
        NotFoundError: there is no such run or landscape.
        JobError: the landscape cannot be extended in this way; says why.
        Interrupted: the same call goes on.
    """
    run, name = named_landscape(run, name)
    path = open_run(run).path
    refuse_unwritable(path)
    if accuracy is not None or budget is not None:
        if num_samples is not None or observables or ranges is not None:
            raise JobError(BY_ROUNDS)
        job = truer_job(path, name, accuracy, budget, problem, folder)
        _finish_extension(path)
        with computing_by(compute, progress) as compute_job:
            return compute_job(job)
    more = More(num_samples, observables, ranges)
    return _extend_by_steps(path, name, more, problem, folder, computing_by(compute, progress))


def _finish_extension(path: str) -> None:
    """Finish what a process left that was killed while an extension replaced its landscape."""
    with writing(path):
        finish_move(path)


def _extend_by_steps(
    path: str, name: str, more: More, problem: str | Callable[[], Any] | None, folder: Path | None,
    computing: AbstractContextManager[Callable[[Job], Run]],
) -> Run:  # fmt: skip
    """Extend a fixed grid: by samples, by observables and by its range, one after another."""
    steps_left(path, name, more)  # so that a refusal leaves no lock in the run
    if measurement := living_measurement(path):
        log.warning(
            "run %s is being measured by %s; both go on, each slower where they share a device%s", quoted(path, 300),
            measurement, "; measures of more samples replace these" if more.num_samples is not None else "",
        )  # fmt: skip
    _finish_extension(path)
    steps = steps_left(path, name, more)
    for step in steps[1:]:  # refuse later steps before computing the first
        extension_job(path, name, step, problem, folder)
    with computing as compute:
        for step in steps:
            for job in _jobs_of(path, name, step, problem, folder):
                opened, level = _compute_or_drop(job, compute), job.level.number if job.level else 0
                left = LandscapeStore.open(path, extension_name(name), level=level).counts()
                if left[NOT_COMPUTED] or left[QUARANTINED]:
                    return opened  # partial: it lists the failures, and the landscape stays as it is
            with writing(path):
                replace_landscape(path, extension_name(name), name)
    return open_run(path)


def truer_job(
    run: str | Path,
    name: str,
    accuracy: str | float | None,
    budget: str | None = None,
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
) -> Job:
    """The job that goes on with the rounds of a landscape until its picture is so true; every value is kept.

    Args:
        accuracy: default: what was asked for last.

    Raises:
        JobError: the landscape is a fixed grid, or the accuracy or the budget is malformed.
    """
    path = open_run(run).path
    store = _open_computed(path, name)
    if store.record.accuracy is None:
        raise JobError(
            f"accuracy: landscape {quoted(name)} is a fixed grid, all of whose points have the same samples; compute "
            "one with accuracy under another name"
        )
    found = recorded_fields(path, store, problem, folder)
    last = store.record.accuracy
    wanted = {"error": last.error, "relative": last.relative} if accuracy is None else {"error": accuracy}
    spec = {**found.fields["landscapes"][0], "budget": budget, "accuracy": wanted | {"scale": last.scale}}
    return job_of(found.fields | {"landscapes": [spec]}).in_folder(found.folder)


def _jobs_of(
    run: str, name: str, step: More, problem: str | Callable[[], Any] | None, folder: Path | None
) -> Iterator[Job]:
    """The jobs of a step: of the landscape, then of each level of its refinement; each needs the ones before it."""
    yield extension_job(run, name, step, problem, folder)
    for level in LandscapeStore.open(run, name).levels():
        assert level.record.level is not None, "found complete"
        yield level_job(run, extension_name(name), level.record.level, problem, folder, extends=name)


def _compute_or_drop(job: Job, compute: Callable[[Job], Run]) -> Run:
    """Compute a job; if it is refused, drop the landscape that it began if that holds no value yet."""
    staged = job.landscapes[0].name
    before = LandscapeStore.find(job.run_path, staged)
    try:
        return compute(job)
    except JobError:
        begun = LandscapeStore.find(job.run_path, staged) if before is None else None
        if begun is not None and not begun.counts()[NOT_COMPUTED + 1 :].any():
            remove_landscape(job.run_path, staged)
        raise


def steps_left(run: str | Path, name: str, more: More) -> list[More]:
    """The steps of an extension that are not done yet: it may have been interrupted between two steps, or complete.

    Raises:
        JobError: nothing is asked for, or no job computed the landscape.
    """
    store = _open_computed(open_run(run).path, name)
    asked = list(more.one_by_one())
    if not asked:
        raise JobError("extend: needs at least one of samples, observable, range, accuracy and budget")
    return [step for step in asked if not _is_done(store, step)]


def _open_computed(path: str, name: str) -> LandscapeStore:
    """Open a landscape that a job has computed.

    Raises:
        NotFoundError: there is no landscape of this name.
        JobError: the landscape was imported.
    """
    store = LandscapeStore.open(path, name)
    if store.record.is_imported and store.record.imported is not None:
        file = quoted(store.record.imported.file or "a file")
        raise JobError(
            f"landscape {quoted(name)} cannot be extended: it was imported from {file}, and no job computed it; "
            "compute a landscape of your own under another name"
        )
    return store


def _is_done(store: LandscapeStore, step: More) -> bool:
    if step.num_samples is not None:
        # Batches that cannot be cut may hold a few more samples than asked for.
        has, asked = store.identity.num_samples or 0, store.job.whole.get("num_samples")
        return has == step.num_samples or (has > step.num_samples and asked == step.num_samples)
    if step.observables:
        return set(step.observables) <= set(store.observables)
    grid = store.grid()
    ends = [] if grid is None else [(float(axis[0]), float(axis[-1])) for axis in grid.coordinates]
    return ends == per_axis(step.ranges or (), len(store.shape))


def extension_job(
    run: str | Path,
    name: str,
    step: More,
    problem: str | Callable[[], Any] | None = None,
    folder: Path | None = None,
) -> Job:
    """The job that computes one step of an extension; `landscape plan` shows its plan and cost.

    Raises:
        JobError: the landscape cannot be extended in this way.
    """
    path = open_run(run).path
    store = _open_computed(path, name)
    _refuse(store, step)
    found = recorded_fields(path, store, problem, folder)
    recorded = found.fields
    spec = recorded["landscapes"][0] | {"name": extension_name(name)}
    if step.ranges is not None:
        spec |= _wider_axes(store, step.ranges)
    if step.num_samples is not None:
        recorded["num_samples"] = step.num_samples
    # The same tiles, unless the losses of more samples need smaller ones; workers share them, so not those of a
    # compacted landscape.
    tile = within_tile_bytes(store.computed_tile, recorded["num_samples"] if store.record.keep_samples else 0)
    recorded |= {"landscapes": [spec], "engine": "auto", "batch_size": None, "tile": list(reversed(tile))}
    job = job_of(recorded)
    if step.num_samples is not None:
        _refuse_axes_of_samples(name, job)
    return job.extending(name, found.folder, tuple(step.observables))


def _refuse_axes_of_samples(name: str, job: Job) -> None:
    """Refuse more samples for a landscape whose axes depend on its samples."""
    kinds = [axis.kind for axis in job.landscapes[0].directions if axis.follows_samples]
    if kinds:
        raise JobError(
            f"num_samples: landscape {quoted(name)} has axes of kind {kinds[0]}, which are others for more samples; "
            "compute it again under another name"
        )


def _refuse(store: LandscapeStore, step: More) -> None:
    """Raises JobError, with the reason, for a landscape that cannot be extended by this step."""
    record, name = store.record, quoted(store.name)
    if store.refusal:
        raise JobError(store.refusal)
    if not store.job.landscapes:
        raise JobError(f"landscape {name} cannot be extended: its record holds no job; compute it again")
    if record.accuracy is not None:
        raise JobError(
            f"landscape {name} has an accuracy, by which points and samples are chosen: extend it by accuracy, or "
            "compute it under another name with the other range or observables"
        )
    levels = store.levels()
    if levels and step.ranges is not None:
        raise JobError(
            f"ranges: landscape {name} has been refined, in blocks that are counted from its first point, and a wider "
            "range would have others; compute the wider range under another name, and refine that"
        )
    for part in (store, *levels):
        if (why := why_incomplete(part)) is not None:
            of_level = f"of its level {part.level}, " if part.level else ""
            raise JobError(f"landscape {name} cannot be extended: {of_level}{why}; run its own job first")
    if step.num_samples is not None and record.of_points:
        what = "eigenvalues" if record.convexity is not None else "layers"
        raise JobError(
            f"landscape {name} cannot be extended by samples: its {what} would all be computed again; compute it "
            "under another name"
        )
    if step.num_samples is not None:
        if record.batch_norm != "eval":
            raise JobError(
                f"num_samples: landscape {name} has batch_norm: {record.batch_norm}, whose values depend on all "
                "samples of a batch; compute it again under another name"
            )
        if record.quantisation is not None and record.quantisation.activations:
            raise JobError(
                f"num_samples: landscape {name} has activations calibrated over its samples, whose ranges would be "
                "others over more; compute it again under another name"
            )
        has = store.identity.num_samples or 0
        if step.num_samples < has:
            raise JobError(f"num_samples: must be more than the {has} of landscape {name}, not {step.num_samples}")


def _wider_axes(store: LandscapeStore, ranges: Ranges) -> dict[str, Any]:
    """The range and the size of the wider grid.

    Raises:
        JobError: a range is not wider by whole steps.
    """
    grid = store.grid()
    if grid is None:
        raise JobError(
            f"landscape {quoted(store.name)} cannot be extended: its coordinates are damaged; mend them first"
        )
    limits = per_axis(ranges, len(store.shape))
    return {"range": [list(ends) for ends in limits], "size": wider_sizes(store.name, grid, limits)}


# ----------------------------------------------------------------------------------------------------
# Ranges of an extension, which continue the existing coordinates by whole steps.

Ranges = Sequence[tuple[float, float]]

FARTHEST = 64  # steps that are tried to find a range to propose


def parse_ranges(ranges: Any) -> list[tuple[float, float]]:
    """Ranges as pairs of floats.

    Raises:
        JobError: they are not pairs of finite numbers, the lower one first.
    """
    try:
        pairs = [(float(low), float(high)) for low, high in ranges]
    except (TypeError, ValueError, OverflowError):
        pairs = []
    if not pairs or not all(low < high and math.isfinite(low) and math.isfinite(high) for low, high in pairs):
        raise JobError(f"ranges: must be pairs of finite numbers, low < high, such as [(-2, 2)], not {quoted(ranges)}")
    return pairs


def per_axis(ranges: Ranges, axes: int) -> list[tuple[float, float]]:
    """One range per axis.

    Raises:
        JobError: there is neither one range nor one per axis.
    """
    if len(ranges) not in (1, axes):
        raise JobError(f"ranges: must be one for all axes or one per axis ({axes}), not {len(ranges)}")
    return (list(ranges) * axes)[:axes]


def wider_sizes(name: str, grid: Grid, ranges: Ranges) -> list[int]:
    """The number of points of each axis over wider ranges.

    Args:
        name: of the landscape, for messages.
        ranges: one per axis.

    Raises:
        JobError: a range is not wider by whole steps, or the coordinates of an axis have no even steps to continue.
    """
    return [
        _wider_size(name, axis, coordinates, limits)
        for axis, coordinates, limits in zip(AXIS_NAMES, grid.coordinates, ranges, strict=False)
    ]


def _wider_size(name: str, axis: str, coordinates: np.ndarray, limits: tuple[float, float]) -> int:
    first, last = (_exact(end) for end in (coordinates[0], coordinates[-1]))
    size = len(coordinates)
    step = (last - first) / (size - 1)
    low, high = map(_exact, limits)
    below, above = (first - low) / step, (high - last) / step
    if low == first and high == last:
        return size
    if not np.array_equal(axis_coordinates(size, float(first), float(last)), coordinates):
        raise JobError(
            f"ranges: landscape {quoted(name)} cannot be extended along {axis}: its coordinates were fitted, and no "
            f"range continues them; leave [{', '.join(map(as_written, coordinates[[0, -1]]))}], or compute the "
            "wider range under another name"
        )
    if below < 0 or above < 0 or below.denominator != 1 or above.denominator != 1:
        near = (_nearest_writable(first, -step, below), _nearest_writable(last, step, above))
        has, asked, proposed = (", ".join(map(as_written, ends)) for ends in (coordinates[[0, -1]], limits, near))
        raise JobError(
            f"ranges: must be wider than [{has}] along {axis} by whole steps of {float(step):g}, not [{asked}]; such "
            f"as [{proposed}]"
        )
    return size + int(below) + int(above)


def _exact(number: float) -> Fraction:
    """The number as the user wrote it, as `axis_coordinates` does."""
    return Fraction(repr(float(number)))


def _nearest_writable(end: Fraction, step: Fraction, wanted: Fraction) -> float:
    """The end moved by at least `wanted` whole steps, to a number with a finite decimal form."""
    about = max(0, math.ceil(wanted))  # the range must not be narrower than asked for
    tried = sorted(range(max(0, about - FARTHEST), about + FARTHEST), key=lambda steps: abs(steps - about))
    exact = (float(end + steps * step) for steps in tried if _exact(float(end + steps * step)) == end + steps * step)
    return next(exact, float(end))
