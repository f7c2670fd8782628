"""Results with named axes, as numpy arrays, and values derived from them.

Values only: files that read a store or draw a figure import this file, never the other way round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, LandscapeError, nearest, quoted
from landscape.core.grid import Floats, Index, overlap, tile_at
from landscape.core.late_imports import provided
from landscape.surface.barriers import Barrier, Barriers, barriers_of, loss_barrier
from landscape.surface.record import NOT_COMPUTED as NOT_COMPUTED
from landscape.surface.record import NOT_FINITE as NOT_FINITE
from landscape.surface.record import OK as OK
from landscape.surface.record import QUARANTINED as QUARANTINED
from landscape.surface.record import Along as Along
from landscape.surface.record import Axis as Axis
from landscape.surface.record import ProjectedPath as ProjectedPath
from landscape.surface.record import Record
from landscape.surface.refinement import merge_all, points_left

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import xarray


# ----------------------------------------------------------------------------------------------------
# The losses of single samples over a landscape, read from the store when they are indexed.

# Arrays of the store: the losses over the grid and the samples, and the arrays over the samples alone.
LOSS_SAMPLES, ORIGIN_SAMPLES, SAMPLE_WEIGHTS = "loss_samples", "origin_loss_samples", "sample_weights"
OVER_SAMPLES = (ORIGIN_SAMPLES, SAMPLE_WEIGHTS)

ReadChunk = Callable[[Index], NDArray[np.float32] | None]


class SampleLosses:
    """The loss of every sample at every point: float32, the dimensions of the grid and then the samples.

    Index it like a numpy array, by whole numbers and slices of step 1; this reads the chunks of the window. NaN where
    not computed.

    >>> stored = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    >>> losses = SampleLosses("bowl", (2, 2, 3), (1, 2, 3), lambda index: stored[index[:1]][None], {})
    >>> losses.shape, losses.nbytes, losses[1, 0]
    ((2, 2, 3), 48, array([6., 7., 8.], dtype=float32))
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self, name: str, shape: Index, chunks: Index, read: ReadChunk,
        over_samples: Mapping[str, Callable[[], NDArray[Any] | None]],
    ) -> None:  # fmt: skip
        """
        Args:
            name: of the landscape.
            shape: the points of the grid, the last axis first, then the samples.
            chunks: of the same dimensions; one over the samples.
            read: returns a chunk by its index, cut off at the array's end; None if it is absent or damaged.
            over_samples: functions that read the arrays over the samples, by their names; they return None for an
                array that cannot be read.
        """
        self.name, self.shape, self._chunks = name, shape, chunks
        self._read, self._over_samples = read, over_samples

    def __repr__(self) -> str:
        points = " x ".join(map(str, self.shape[:-1]))
        return f"SampleLosses({quoted(self.name)}, {points} points, {self.shape[-1]} samples)"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all losses in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def weights(self) -> Floats:
        """How much each sample counts [samples]; 1 where the problem's `observe` returns no weight.

        Raises:
            LandscapeError: they are not written yet, or damaged.
        """
        return self._over(SAMPLE_WEIGHTS)

    @property
    def origin(self) -> NDArray[np.float32]:
        """The loss of each sample at the origin, float32 [samples]; NaN where it is not known.

        Raises:
            LandscapeError: they are not written yet, or damaged.
        """
        return self._over(ORIGIN_SAMPLES)

    def _over(self, name: str) -> NDArray[Any]:
        values = self._over_samples[name]()
        if values is None:
            raise LandscapeError(
                f"landscape {quoted(self.name)}: {name} is not written yet, or damaged; run its job, which writes it"
            )
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[...], dtype)

    def __getitem__(self, window: Any) -> NDArray[np.float32]:
        starts, stops, single = self._bounds(window if isinstance(window, tuple) else (window,))
        values = np.full([max(0, b - a) for a, b in zip(starts, stops, strict=True)], np.nan, np.float32)
        if values.size:
            ranges = [range(a // n, -(-b // n)) for a, b, n in zip(starts, stops, self._chunks, strict=True)]
            for index in itertools.product(*ranges):
                self._fill(values, index, starts, stops)
        return values.reshape([size for size, is_single in zip(values.shape, single, strict=True) if not is_single])

    def slabs(self, most: int = 1 << 24) -> Iterator[slice]:
        """Windows of the first dimension that cover the whole grid, each with at most `most` losses where possible."""
        height, row = self._chunks[0], int(np.prod(self.shape[1:], dtype=np.int64))
        step = max(1, most // max(1, row * height)) * height
        return (slice(start, min(start + step, len(self))) for start in range(0, len(self), step))

    def _fill(self, values: NDArray[np.float32], index: Index, starts: Sequence[int], stops: Sequence[int]) -> None:
        """Copy the part of a chunk that lies in a window into the values of the window."""
        chunk = self._read(index)
        if chunk is None:
            return
        in_window, in_chunk = overlap(starts, stops, tile_at(index, self.shape, self._chunks))
        values[in_window] = chunk[in_chunk]

    def _bounds(self, window: tuple[Any, ...]) -> tuple[list[int], list[int], list[bool]]:
        """The start and the stop of a window in each dimension, and whether it is a single place there."""
        if Ellipsis in window:
            place = window.index(Ellipsis)
            rest = (slice(None),) * (len(self.shape) - len(window) + 1)
            window = (*window[:place], *rest, *window[place + 1 :])
        if len(window) > len(self.shape):
            raise IndexError(f"loss_samples: has {len(self.shape)} dimensions, not {len(window)}")
        window = (*window, *(slice(None),) * (len(self.shape) - len(window)))
        starts, stops, single = [], [], []
        for part, size in zip(window, self.shape, strict=True):
            start, stop, is_single = _bounds_of(part, size)
            starts.append(start)
            stops.append(stop)
            single.append(is_single)
        return starts, stops, single


def _bounds_of(part: Any, size: int) -> tuple[int, int, bool]:
    """The start and the stop of a window in one dimension, and whether it is a single place."""
    if isinstance(part, slice):
        start, stop, step = part.indices(size)
        if step != 1:
            raise IndexError(f"loss_samples: a slice must have step 1, not {step}; index the array that is read")
        return start, max(start, stop), False
    if isinstance(part, (bool, np.bool_)) or not isinstance(part, (int, np.integer)):
        raise IndexError(
            f"loss_samples: must be indexed by whole numbers and slices, not {quoted(part)}; index what is read"
        )
    place = int(part) + size if part < 0 else int(part)
    if not 0 <= place < size:
        raise IndexError(f"loss_samples: {part} is out of bounds for a dimension of {size}")
    return place, place + 1, True


def paired_stderr(differences: Floats, weights: Floats) -> Floats:
    """The standard error of the weighted mean m of differences d [..., samples] → [...]; NaN for one sample.

    √(Σw²(d - m)²) / Σw · √(n / (n - 1)), as for the mean of one quantity: the pairs are the sample.
    """
    count = differences.shape[-1]
    if count < 2:
        return np.full(differences.shape[:-1], np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = (weights * differences).sum(-1, keepdims=True) / weights.sum()
        spread = (np.square(weights * (differences - mean))).sum(-1)
        return np.asarray(np.sqrt(spread * (count / (count - 1.0))) / weights.sum(), np.float64)


def places_of_same(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.intp] | None:
    """For each sample of the first its place among those of the second, by their numbers in the data.

    Returns:
        None unless both have the same numbers.

    >>> places_of_same(np.array([7, 2, 9]), np.array([9, 7, 2]))
    array([1, 2, 0])
    """
    of_first, of_second = (np.argsort(numbers, kind="stable") for numbers in (first, second))
    if not np.array_equal(first[of_first], second[of_second]):
        return None
    places = np.empty(len(first), np.intp)
    places[of_first] = of_second
    return places


# ----------------------------------------------------------------------------------------------------

MOMENTS, PATH_MOMENTS = "moments", "path_moments"  # arrays that an extension continues from
SAMPLE_INDEX = "sample_index"  # the array of the samples' places in the data
MOMENT_PARTS = 6  # numbers stored per row of moments
# Arrays of a landscape with an accuracy: the expected error of interpolation, 0 at evaluated points and elsewhere how
# coarse the cell around is, and how many samples each evaluated point knows.
INTERPOLATION_ERROR, INTERPOLATED, SAMPLES_KNOWN = "loss_interpolation_error", "interpolated", "samples_known"
RISE_STDERR = "loss_rise_stderr"  # the array beside the observables, see `Surface.rise_stderr`
STATUS_NAMES = ("not computed", "ok", "not finite", "quarantined")


def check_observable(landscape: str, observable: str, known: Collection[str]) -> None:
    """Refuse an observable that is not among those of the landscape.

    Raises:
        JobError: lists the known ones.
    """
    if observable not in known:
        raise JobError(f"observable: {quoted(landscape)} has no {quoted(observable)}; {nearest(observable, known)}")


def _nan_if_none(value: float | None) -> float:
    return float("nan") if value is None else value


@dataclass(frozen=True)
class Surface:
    """One landscape. Arrays are indexed by the axes in reverse: [alpha], [beta, alpha] or [gamma, beta, alpha].

    `observables` are means over the samples and their standard errors, `NAME_stderr`; NaN where not computed.
    `status` is per point one of NOT_COMPUTED, OK, NOT_FINITE, QUARANTINED. `attributes` are the entries of the
    landscape's record: the job, the samples, the engine, the progress. `sample_index` are the places of the samples in
    the data, and `loss_samples` their losses, if the job has kept them, read when they are indexed. `levels` are those
    of a refined landscape, see `at` and `merged`. In a merged surface, `interpolated` is 0 where a point was evaluated,
    and `unfinished` is the number of points that its levels still lack. `networks` are the three networks of a plane,
    with the loss at each. `run` is the folder or URL of the run that it was read from.

    >>> axes = (Axis("alpha", np.array([-1.0, 0.0, 1.0])), Axis("beta", np.array([0.0, 0.5])))
    >>> surface = Surface("bowl", axes, {"loss": np.zeros((2, 3))}, status=np.full((2, 3), OK, np.uint8))
    >>> surface
    Surface('bowl', 3 x 2 points, observables=['loss'])
    >>> surface.dimensions, surface["loss"].shape
    (('beta', 'alpha'), (2, 3))
    >>> surface["acuracy"]
    Traceback (most recent call last):
    landscape.core.errors.JobError: observable: 'bowl' has no 'acuracy'; known: loss
    """

    name: str
    axes: tuple[Axis, ...]
    observables: Mapping[str, Floats]
    status: NDArray[np.uint8]
    path: ProjectedPath | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    loss_samples: SampleLosses | None = field(default=None, repr=False, compare=False)
    sample_index: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    levels: tuple[Surface, ...] = field(default=(), repr=False, compare=False)
    interpolated: NDArray[np.uint8] | None = field(default=None, repr=False, compare=False)
    networks: ProjectedPath | None = field(default=None, repr=False, compare=False)
    unfinished: int = field(default=0, repr=False, compare=False)
    run: str | None = field(default=None, repr=False, compare=False)

    @property
    def paths(self) -> tuple[ProjectedPath, ...]:
        """The paths that are drawn, one per run; `path` holds the snapshots of all of them."""
        return () if self.path is None else self.path.parts()

    def along(self, path: ProjectedPath) -> Along:
        """The losses along one of `paths`, the losses at its projections, and the errors of the nearest points."""
        names, noise = [f"{path.unit} {int(step)}" for step in path.step], np.full(len(path.step), np.nan)
        if RISE_STDERR in self.observables and all(name in path.coordinates for name in self.dimensions):
            places = [(path.coordinates[axis.name], axis.coordinates) for axis in reversed(self.axes)]
            nearest = tuple(np.abs(at[:, None] - grid).argmin(axis=1) for at, grid in places)
            noise = np.where(np.isfinite(self._known_loss[nearest]), self.rise_stderr[nearest], np.nan)
        return Along(names, *path.losses, self.relief, noise)

    @cached_property
    def relief(self) -> float:
        """The 95th percentile of the loss less the 5th; for a line, max − min, as it has few points; NaN if empty."""
        known = self._known_loss[np.isfinite(self._known_loss)]
        if not known.size:
            return float("nan")
        return float(np.ptp(known)) if len(self.axes) == 1 else float(np.subtract(*np.percentile(known, [95, 5])))

    @property
    def _known_loss(self) -> Floats:
        return np.where(self.status == OK, self.loss, np.nan)

    def __repr__(self) -> str:
        size = " x ".join(str(len(axis.coordinates)) for axis in self.axes)
        return f"Surface({self.name!r}, {size} points, observables={list(self.observables)})"

    @cached_property
    def record(self) -> Record:
        """The attributes as a typed value; malformed ones count as absent."""
        return Record.of(self.attributes)

    def __getitem__(self, observable: str) -> Floats:
        check_observable(self.name, observable, self.observables)
        return self.observables[observable]

    @property
    def loss(self) -> Floats:
        """Mean loss per point; NaN where not computed."""
        return self["loss"]

    @property
    def accuracy(self) -> Floats:
        """Mean accuracy per point, if the problem observes it; NaN where not computed."""
        return self["accuracy"]

    def stderr(self, observable: str = "loss") -> Floats:
        """Standard error of the mean per point: √(Σw²(ℓ−m)²)/Σw · √(n/(n−1)); s/√n for samples of equal weight.

        Raises:
            JobError: there is no such observable, or its standard error was not stored.
        """
        return self[f"{observable}_stderr"]

    @property
    def rise_stderr(self) -> Floats:
        """Standard error of the rise L(point) − L(origin) per point.

        It is the error of the mean of ℓᵢ(p) − ℓᵢ(0) over the same samples i. All points share their samples, so judge
        a shape by this error, not by `stderr`.

        Raises:
            JobError: the surface does not have it.
        """
        return self[RISE_STDERR]

    @property
    def stated_error(self) -> Floats:
        """The standard error of the loss at each point of a landscape with an accuracy, interpolation included.

        0 for a fixed grid, whose points are what they are.
        """
        if self.record.accuracy is None:
            return np.zeros(self.loss.shape)
        return np.hypot(self["loss_stderr"], self[INTERPOLATION_ERROR])

    @property
    def origin_loss(self) -> float:
        """The loss at the origin, which need not be a point of the grid; NaN if it is unknown or not finite."""
        return _nan_if_none(self.record.origin_loss)

    @property
    def origin_loss_stderr(self) -> float:
        """The standard error of `origin_loss`."""
        return _nan_if_none(self.record.origin_loss_stderr)

    def at(self, level: int) -> Surface:
        """A level of a refined landscape by itself: over its whole grid, NaN where it holds no point.

        Args:
            level: 0 for the landscape itself; each next level has half the steps.

        Raises:
            JobError: there is no such level.
        """
        if not 0 <= level <= len(self.levels):
            raise JobError(
                f"level: must be 0 to {len(self.levels)}, which {quoted(self.name)} has, not {quoted(level)}"
            )
        return self.levels[level - 1] if level else replace(self, levels=())

    def merged(self) -> Surface:
        """All levels of a refined landscape on the finest grid; the surface itself if it is not refined.

        A point that was not evaluated has the bilinear value in the smallest known cell around it, and `interpolated`
        counts the levels from the finest one up to the level of that cell. The seconds are those of all levels
        together; the state is that of the last level if a level is unfinished.
        """
        if not self.levels:
            return self
        levels, last = (self, *self.levels), self.levels[-1]
        values, status, interpolated = merge_all(
            [level.observables for level in levels], [level.status for level in levels]
        )
        unfinished = sum(
            points_left(record.blocks, level.status > 0) for level in levels if (record := level.record.level)
        )
        seconds = sum(level.record.progress.seconds or 0.0 for level in levels) or None
        progress = replace((last if unfinished else self).record.progress, seconds=seconds)
        return replace(
            self, axes=last.axes, observables=values, status=status, loss_samples=None, levels=(),
            unfinished=unfinished, attributes=self.record.changed(progress=progress).attributes,
            interpolated=interpolated,
        )  # fmt: skip

    def axis(self, name: str) -> Axis:
        """The axis of that name.

        Raises:
            JobError: there is none.
        """
        named = {axis.name: axis for axis in self.axes}
        if name in named:
            return named[name]
        raise JobError(f"axis: {quoted(self.name)} has no {quoted(name)}; {nearest(str(name), list(named))}")

    @property
    def alpha(self) -> Floats:
        """The coordinates along the first axis."""
        return self.axis("alpha").coordinates

    @property
    def beta(self) -> Floats:
        """The coordinates along the second axis; a `JobError` if there is one axis only."""
        return self.axis("beta").coordinates

    @property
    def gamma(self) -> Floats:
        """The coordinates along the third axis; a `JobError` if there are fewer."""
        return self.axis("gamma").coordinates

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Axis names in the order of the arrays' dimensions."""
        return tuple(axis.name for axis in reversed(self.axes))

    def minimum(self, observable: str = "loss") -> dict[str, float]:
        """The lowest finite value and its coordinates.

        Returns:
            {"loss": …, "alpha": …, …}; empty if no value is finite.

        Raises:
            JobError: there is no such observable.

        >>> loss = np.array([[4.0, 1.0, np.nan], [5.0, 2.0, 3.0]])  # [beta, alpha]
        >>> axes = (Axis("alpha", np.array([-1.0, 0.0, 1.0])), Axis("beta", np.array([0.0, 0.5])))
        >>> surface = Surface("bowl", axes, {"loss": loss}, status=np.where(np.isfinite(loss), OK, NOT_FINITE))
        >>> surface.minimum()
        {'loss': 1.0, 'alpha': 0.0, 'beta': 0.0}
        """
        values = self[observable]
        if not np.isfinite(values).any():
            return {}
        index = np.unravel_index(int(np.nanargmin(np.where(np.isfinite(values), values, np.nan))), values.shape)
        place = {axis.name: float(axis.coordinates[i]) for axis, i in zip(self.axes, reversed(index), strict=True)}
        return {observable: float(values[index]), **place}

    def barrier(self) -> float:
        """The height of `find_barrier`; NaN if that is None."""
        barrier = self.find_barrier()
        return float("nan") if barrier is None else barrier.height

    def find_barrier(self) -> Barrier | None:
        """Entezari's barrier of a line, see `landscape.surface.barriers.loss_barrier`; None for other surfaces.

        >>> axis = Axis("alpha", np.array([0.0, 0.5, 1.0]))
        >>> line = Surface("line", (axis,), {"loss": np.array([1.0, 3.0, 2.0])}, status=np.ones(3, np.uint8))
        >>> line.find_barrier()
        Barrier(height=1.5, alpha=0.5, stderr=nan)
        """
        errors = self.observables.get(RISE_STDERR)
        return loss_barrier(self.alpha, self.loss, errors, self.origin_loss) if len(self.axes) == 1 else None

    def find_barriers(self) -> Barriers | None:
        """The barrier of a line by each of three definitions; None where `find_barrier` returns None."""
        if len(self.axes) != 1:
            return None
        return barriers_of(self.alpha, self.observables, self.origin_loss, self.loss_samples)

    def to_xarray(self) -> xarray.Dataset:
        """The surface as an xarray Dataset with named dimensions and coordinates.

        Raises:
            JobError: xarray is not installed.
        """
        try:
            import xarray
        except ImportError:
            raise JobError("to_xarray: needs the package xarray; `pip install xarray`") from None
        data: dict[str, Any] = {name: (self.dimensions, values) for name, values in self.observables.items()}
        meanings = " ".join(name.replace(" ", "_") for name in STATUS_NAMES)  # in the form of the CF conventions
        flags = {"flag_values": list(range(len(STATUS_NAMES))), "flag_meanings": meanings}
        data["status"] = (self.dimensions, self.status, flags)
        data |= {} if self.interpolated is None else {"interpolated": (self.dimensions, self.interpolated)}
        data |= {} if self.path is None else self.path.variables()
        coordinates = {axis.name: (axis.name, axis.coordinates, dict(axis.attributes)) for axis in self.axes}
        return xarray.Dataset(data, coordinates, attrs=dict(self.attributes))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """This surface in a notebook: the figure, a static picture, text."""
        bundle: dict[str, Any] = provided("views").surface_bundle(self)
        return bundle

    def weights(self, *point: float) -> dict[str, Any]:
        """The weights at a point, `weights(alpha, beta)`, as a state dict of the model, tied weights and buffers too.

        They are those that the loss there was evaluated with; the point need not be one of the grid. Every call makes
        the problem again.

        Raises:
            JobError: the surface is of no run, its problem cannot be made again, or the point lacks a coordinate.
        """
        found: dict[str, Any] = provided("surface_run").weights_at(self, point)
        return found

    def job(self, path: str | Path = "job.yaml") -> Path:
        """Write the job file of this landscape, for `landscape run` and `landscape submit`; returns its path.

        A problem in memory is packed into a file beside it, and so are weights that were given as tensors. A file that
        this has written before is replaced.

        Raises:
            JobError: the surface is of no run, was imported, or its problem cannot be packed; or another program or a
                person has written a file of this name.
            LandscapeError: the file cannot be written.
        """
        written: Path = provided("surface_run").write_job(self, path)
        return written

    def plot(self, ax: Any = None, kind: str | None = None, **options: Any) -> Any:
        """Draw this surface with matplotlib, on `ax` or on the axes of a new figure; see `landscape.views.plots`.

        Returns:
            The axes.

        Raises:
            JobError: an unknown kind or option, or one that does not fit this surface or these axes.
        """
        return provided("views").plot(self, ax, kind, **options)

    def caption(self, kind: str | None = None, *, latex: bool = False, **options: Any) -> str:
        """The caption of a figure or plot of this surface as text, or in LaTeX; see `landscape.views.caption`.

        Args:
            kind: as for `figure`.
            options: those of the figure or plot that it stands beside.
        """
        return str(provided("views").caption(self, kind, latex=latex, **options))

    def figure(self, kind: str | None = None, **options: Any) -> go.Figure:
        """A plotly figure of this surface; see `landscape.views.figure` for kinds and options.

        Raises:
            JobError: an unknown kind or option, or one that does not fit this surface.
        """
        return provided("views").figure(self, kind, **options)


# ----------------------------------------------------------------------------------------------------
# The paired error of two landscapes, from the losses of the same samples that both store.


def stored_stderr(first: Surface, second: Surface, *, rises: bool = False) -> Floats | None:
    """The paired error of the difference at every point of a grid; NaN where not computed.

    Of losses it is the standard error of the mean of bᵢ(p) − aᵢ(p) over the samples i; of rises, that of the mean of
    bᵢ(p) − bᵢ(0) − aᵢ(p) + aᵢ(0).

    Samples that were drawn in another order, such as by another seed, are paired by their numbers in the data.

    Returns:
        None if a landscape stores no losses, or if they are not known to be of the same samples.
    """
    one, two, places = first.loss_samples, second.loss_samples, _places_of_same(first, second)
    if one is None or two is None or one.shape != two.shape or places is None:
        return None
    at_origins = two.origin[places].astype(np.float64) - one.origin if rises else 0.0
    errors = [
        paired_stderr(two[slab][..., places].astype(np.float64) - one[slab] - at_origins, one.weights)
        for slab in one.slabs()
    ]
    return np.concatenate(errors)


def _places_of_same(first: Surface, second: Surface) -> NDArray[np.intp] | slice | None:
    """For each sample of the first its place among those of the second; None if they are not the same, or unknown."""
    digests = [getattr(surface.record.identity, "samples", None) for surface in (first, second)]
    if digests[0] is not None and digests[0] == digests[1]:
        return slice(None)
    numbers, losses = (first.sample_index, second.sample_index), first.loss_samples
    if not first.record.has_samples_of(second.record) or losses is None or numbers[0] is None or numbers[1] is None:
        return None
    # Of batches that stay whole the numbers are those of the batches.
    return places_of_same(numbers[0], numbers[1]) if len(numbers[0]) == losses.shape[-1] else None
