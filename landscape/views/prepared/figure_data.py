"""From a surface to the numbers and words of one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from landscape.surface import RISE_STDERR, Axis, Surface
from landscape.views.prepared import wording
from landscape.views.prepared.comparable import Comparable
from landscape.views.prepared.path import DrawnPath, prepare_path
from landscape.views.prepared.scale import Scale, choose_scale, drawn_values, point_states

Floats = NDArray[np.float64]

EXTREME_RATIO = 5.0
MAX_POINTS = {1: 100_000, 2: 1024, 3: 48}  # per axis, by number of axes: more than a screen shows


@dataclass(frozen=True, eq=False)
class AxisView(Comparable):
    """One axis as drawn."""

    name: str
    title: str
    coordinates: Floats

    @property
    def span(self) -> float:
        """The last coordinate less the first."""
        return float(self.coordinates[-1] - self.coordinates[0])


@dataclass(frozen=True, eq=False)
class FigureData(Comparable):
    """One observable of a landscape with 1, 2 or 3 axes, ready to draw: all that a figure shows, and no more.

    Arrays are indexed by the axes in reverse, as those of a surface are. `values` are as computed; `drawn` is what the
    scale shows of them: the value or its log10, NaN where there is nothing to draw, for which `states` has the reason.
    `error` is the standard error of `values`. `rise` is the loss over that of the origin and `rise_error` its standard
    error, over the same samples. Each of these three is None where it is not known. `beside` are further observables,
    each for a panel of its own.
    """

    name: str
    observable: str
    title: str
    caption: tuple[str, ...]
    axes: tuple[AxisView, ...]
    values: Floats
    drawn: Floats
    error: Floats | None
    states: NDArray[np.uint8]
    scale: Scale
    path: DrawnPath | None
    rise: Floats | None = None
    rise_error: Floats | None = None
    beside: tuple[FigureData, ...] = ()

    @property
    def shape_error(self) -> Floats | None:
        """The error to judge the shape by: that of the rise, since a shift that all points share is no shape."""
        return self.error if self.rise_error is None else self.rise_error

    @property
    def ratio(self) -> float:
        """Height over width of the first two axes where a unit is equally long on both."""
        return self.axes[1].span / self.axes[0].span

    @property
    def equal(self) -> bool:
        """Whether a unit can be equally long on both axes without one of them being too short to see."""
        return 1 / EXTREME_RATIO <= self.ratio <= EXTREME_RATIO


def prepare_figure(
    surface: Surface,
    observable: str = "loss",
    *,
    log: bool = False,
    zmin: float | None = None,
    zmax: float | None = None,
    levels: int | None = None,
    path: bool = True,
    max_points: int | None = None,
    beside: Sequence[str] = (),
) -> FigureData:
    """Everything that a figure of `observable` shows.

    Args:
        log: draw log10 of the values.
        zmin, zmax: ends of the range drawn, in real values; default: chosen from the values.
        levels: number of contour lines; default about 12 at round numbers.
        path: prepare the trajectory as well, where the surface has one.
        max_points: points per axis to draw at most; default `MAX_POINTS`.
        beside: observables to prepare along with the loss, as far as the surface has them.

    Raises:
        JobError: the surface has no such observable, or zmin, zmax or levels is impossible.

    Example:
        >>> axis = Axis("alpha", np.array([0.0, 1.0, 2.0]))
        >>> surface = Surface("line", (axis,), {"loss": np.array([0.01, 1.0, np.inf])}, np.array([1, 1, 2], np.uint8))
        >>> data = prepare_figure(surface, log=True)
        >>> data.title, data.drawn, data.caption[-1]
        ('line: loss', array([-2.,  0., nan]), 'Logarithmic scale')
    """
    data = _one_observable(surface, observable, log, zmin, zmax, levels, path, max_points)
    names = [name for name in beside if observable == "loss" and name in means(surface)]
    # Linear, whatever the loss is: what stands beside it are fractions such as the accuracy.
    panels = [_one_observable(surface, name, False, None, None, levels, path, max_points) for name in names]
    return replace(data, beside=tuple(panels))


def _one_observable(
    full: Surface,
    observable: str,
    log: bool,
    zmin: float | None,
    zmax: float | None,
    levels: int | None,
    path: bool,
    max_points: int | None,
) -> FigureData:
    full[observable]  # refuses an unknown name
    surface = thinned(full, max_points or MAX_POINTS[len(full.axes)])
    values = np.asarray(surface[observable], np.float64)
    states = point_states(values, surface.status, log)
    drawn = drawn_values(values, states, log)
    scale = choose_scale(drawn, log, zmin, zmax, levels)
    drawn_path = prepare_path(surface, observable, log) if path else None
    rise, rise_error = rise_over_origin(surface, observable)
    axes = tuple(AxisView(axis.name, wording.axis_title(axis), axis.coordinates) for axis in surface.axes)
    notes = [*_thinning_note(full, surface), *scale.notes, *_axes_notes(log, axes), *_path_note(drawn_path, observable)]
    return FigureData(
        name=surface.name,
        observable=observable,
        title=f"{surface.name}: {wording.observable_title(observable)}",
        caption=wording.caption(full, observable, tuple(notes)),
        axes=axes,
        values=values,
        drawn=drawn,
        error=standard_error(surface, observable),
        states=states,
        scale=scale,
        path=drawn_path,
        rise=rise,
        rise_error=rise_error,
    )


def slice_at(data: FigureData, k: int) -> FigureData:
    """The plane of the first two axes at the `k`-th coordinate of the third, on the scale of the whole grid."""
    return replace(
        data,
        caption=(*data.caption, f"Slices across {data.axes[2].title}"),
        axes=data.axes[:2],
        values=data.values[k],
        drawn=data.drawn[k],
        error=None if data.error is None else data.error[k],
        rise=None if data.rise is None else data.rise[k],
        rise_error=None if data.rise_error is None else data.rise_error[k],
        states=data.states[k],
    )


def rise_over_origin(surface: Surface, observable: str) -> tuple[Floats | None, Floats | None]:
    """L(point) − L(origin) and its standard error, of the loss; None where they were not kept."""
    error = surface.observables.get(RISE_STDERR)
    if observable != "loss" or error is None or not np.isfinite(surface.origin_loss):
        return None, None
    return np.asarray(surface.loss, np.float64) - surface.origin_loss, np.asarray(error, np.float64)


def standard_error(surface: Surface, observable: str) -> Floats | None:
    """The standard error of the mean per point, None where it was not kept."""
    error = surface.observables.get(f"{observable}_stderr")
    return None if error is None else np.asarray(error, np.float64)


def means(surface: Surface) -> list[str]:
    """The observables that are means, `loss` first: all but the standard errors."""
    names = [name for name in surface.observables if not name.endswith("_stderr")]
    return sorted(names, key=lambda name: (name != "loss", name))


def thinned(surface: Surface, limit: int) -> Surface:
    """At most `limit` points per axis, evenly picked with both ends; the values picked are untouched."""
    picks = [picked(len(axis.coordinates), limit) for axis in surface.axes]
    if all(len(pick) == len(axis.coordinates) for pick, axis in zip(picks, surface.axes, strict=True)):
        return surface
    index = np.ix_(*reversed(picks))
    axes = tuple(
        Axis(axis.name, axis.coordinates[pick], axis.attributes) for axis, pick in zip(surface.axes, picks, strict=True)
    )
    observables = {name: np.asarray(values)[index] for name, values in surface.observables.items()}
    return Surface(surface.name, axes, observables, surface.status[index], surface.path, surface.attributes)


def picked(size: int, limit: int) -> NDArray[np.intp]:
    """At most `limit` of `size` indices, evenly spread, with both ends."""
    if size <= limit:
        return np.arange(size)
    return np.unique(np.round(np.linspace(0, size - 1, limit)).astype(np.intp))


def _thinning_note(full: Surface, shown: Surface) -> list[str]:
    if full is shown:
        return []
    return [f"drawn from {wording.resolution(shown)} of them"]


def _axes_notes(log: bool, axes: tuple[AxisView, ...]) -> list[str]:
    notes = ["logarithmic scale"] if log else []
    if len(axes) > 1 and not 1 / EXTREME_RATIO <= axes[1].span / axes[0].span <= EXTREME_RATIO:
        notes.append(f"axes not to one scale: they span {axes[0].span:.3g} and {axes[1].span:.3g}")
    return notes


def _path_note(path: DrawnPath | None, observable: str) -> list[str]:
    if path is None or observable != "loss" or np.isfinite(path.height).all():
        return []
    count = int(np.isfinite(path.height).sum())
    return [f"loss on the path known at {count} of {len(path.numbers)} points"]
