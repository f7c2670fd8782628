"""From a Surface to the numbers and words of one figure: frozen, comparable, without any plotly in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.surface import Axis, Surface
from landscape.views.prepared import wording
from landscape.views.prepared.comparable import Comparable
from landscape.views.prepared.scale import Scale, choose_scale, drawn_values, point_states
from landscape.views.prepared.track import Track, prepare_track

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
        return float(self.coordinates[-1] - self.coordinates[0])


@dataclass(frozen=True, eq=False)
class Grid(Comparable):
    """A 1-, 2- or 3-axis landscape of one observable, ready to draw.

    `values` are as computed and `drawn` what the scale shows of them (log10, NaN for a hole), indexed by the
    axes in reverse; `states` say why a hole is one; `error` is the standard error or None. `rise` is the loss over
    that of the origin and `rise_error` its standard error, paired over the same samples; None where not known.
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
    track: Track | None
    rise: Floats | None = None
    rise_error: Floats | None = None

    @property
    def shape_error(self) -> Floats | None:
        """The error to judge the shape by: that of the rise, as what all points share moves them together."""
        return self.error if self.rise_error is None else self.rise_error

    @property
    def ratio(self) -> float:
        """Height over width of the first two axes where a unit is equally long on both."""
        return self.axes[1].span / self.axes[0].span

    @property
    def equal(self) -> bool:
        """Whether both axes can be drawn to one scale without a needle of a picture."""
        return 1 / EXTREME_RATIO <= self.ratio <= EXTREME_RATIO


def prepare(
    surface: Surface,
    observable: str = "loss",
    *,
    log: bool = False,
    zmin: float | None = None,
    zmax: float | None = None,
    levels: int | None = None,
    path: bool = True,
    max_points: int | None = None,
) -> Grid:
    """Everything that a figure of `observable` shows. `surface[observable]` refuses unknown names."""
    surface[observable]
    full = surface
    surface = thinned(surface, max_points or MAX_POINTS[len(surface.axes)])
    values = np.asarray(surface[observable], np.float64)
    states = point_states(values, surface.status, log)
    drawn = drawn_values(values, states, log)
    scale = choose_scale(drawn, log, zmin, zmax, levels)
    track = prepare_track(surface, observable, log) if path else None
    rise, rise_error = rise_over_origin(surface, observable)
    axes = tuple(AxisView(axis.name, wording.axis_title(axis), axis.coordinates) for axis in surface.axes)
    notes = [*_thinning_note(full, surface), *scale.notes]
    notes += ["logarithmic scale"] if log else []
    if len(axes) > 1 and not 1 / EXTREME_RATIO <= axes[1].span / axes[0].span <= EXTREME_RATIO:
        notes.append(f"axes not to one scale: they span {axes[0].span:.3g} and {axes[1].span:.3g}")
    notes += _path_note(track, observable)
    return Grid(
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
        track=track,
        rise=rise,
        rise_error=rise_error,
    )


def rise_over_origin(surface: Surface, observable: str) -> tuple[Floats | None, Floats | None]:
    """L(point) − L(origin) and its standard error, of the loss; None where they were not kept."""
    found = surface.observables.get("loss_rise_stderr")
    if observable != "loss" or found is None or not np.isfinite(surface.origin_loss):
        return None, None
    return np.asarray(surface.loss, np.float64) - surface.origin_loss, np.asarray(found, np.float64)


def standard_error(surface: Surface, observable: str) -> Floats | None:
    """The standard error of the mean per point, None where it was not kept."""
    found = surface.observables.get(f"{observable}_stderr")
    return None if found is None else np.asarray(found, np.float64)


def means(surface: Surface) -> list[str]:
    """The observables that are means, `loss` first: all but the standard errors."""
    names = [name for name in surface.observables if not name.endswith("_stderr")]
    return sorted(names, key=lambda name: (name != "loss", name))


def thinned(surface: Surface, limit: int) -> Surface:
    """At most `limit` points per axis, evenly picked with both ends; the values picked are untouched."""
    picks = [_pick(len(axis.coordinates), limit) for axis in surface.axes]
    if all(len(pick) == len(axis.coordinates) for pick, axis in zip(picks, surface.axes, strict=True)):
        return surface
    index = np.ix_(*reversed(picks))
    axes = tuple(
        Axis(axis.name, axis.coordinates[pick], axis.attributes) for axis, pick in zip(surface.axes, picks, strict=True)
    )
    observables = {name: np.asarray(values)[index] for name, values in surface.observables.items()}
    return Surface(surface.name, axes, observables, surface.status[index], surface.path, surface.attributes)


def _pick(size: int, limit: int) -> NDArray[np.intp]:
    if size <= limit:
        return np.arange(size)
    return np.unique(np.round(np.linspace(0, size - 1, limit)).astype(np.intp))


def _thinning_note(full: Surface, shown: Surface) -> list[str]:
    if full is shown:
        return []
    return [f"drawn from {wording.resolution(shown)} of them"]


def _path_note(track: Track | None, observable: str) -> list[str]:
    if track is None or observable != "loss" or np.isfinite(track.height).all():
        return []
    count = int(np.isfinite(track.height).sum())
    return [f"loss on the path known at {count} of {len(track.numbers)} points"]
