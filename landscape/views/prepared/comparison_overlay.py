"""Several landscapes over one another, or beside one another on one scale: what each shows, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from landscape.surface import Surface
from landscape.views.prepared import wording
from landscape.views.prepared.comparable import Comparable
from landscape.views.prepared.comparison import Compared, check_mode, contrasts
from landscape.views.prepared.figure_data import AxisView, FigureData, prepare_figure
from landscape.views.prepared.scale import choose_scale, drawn_values, point_states

Floats = NDArray[np.float64]

LOG_DECADES = 2.0  # values that span more are drawn on a logarithmic scale, unless another is asked for
NAMED_IN_TITLE = 3
OVERLAY_LEVELS = 8  # contour lines of each: fewer than of one landscape alone, as there are several sets


@dataclass(frozen=True)
class SharedScale(Comparable):
    """What figures of several landscapes have in common: the ends of the range in real values, or None, and `log`."""

    log: bool
    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class OverlayData(Comparable):
    """Several landscapes in one figure: `fields` are what each shows, and `labels` their names in the legend.

    `frame` has the title, the caption, and axes that reach over all of them; its values are those of the first.
    `origins` are the drawn values at the origin, NaN where the value there is not known.
    """

    labels: tuple[str, ...]
    fields: tuple[FigureData, ...]
    frame: FigureData
    origins: tuple[float, ...]


def share_scale(
    items: Sequence[Compared],
    observable: str = "loss",
    log: bool | None = None,
    *,
    zmin: float | None = None,
    zmax: float | None = None,
) -> SharedScale:
    """The scale on which all landscapes can be compared: that of all their values together.

    Args:
        log: logarithmic; default where the values span more than two decades and all have a logarithm.
        zmin, zmax: the ends of the range where they are given, in real values.

    Raises:
        JobError: zmin or zmax is impossible, or a landscape has no such observable.
    """
    values = [np.asarray(item.surface[observable], np.float64) for item in items]
    log = spans_decades(values) if log is None else log
    drawn = []
    for item, one in zip(items, values, strict=True):
        states = point_states(one, item.surface.status, log)
        drawn.append(drawn_values(one, states, log).ravel())
    together = np.concatenate(drawn) if drawn else np.empty(0)
    scale = choose_scale(together, log, zmin, zmax)
    if not np.isfinite(together).any():
        return SharedScale(log, zmin, zmax)
    low, high = scale.real(scale.low), scale.real(scale.high)
    return SharedScale(log, low if zmin is None else zmin, high if zmax is None else zmax)


def spans_decades(values: Sequence[Floats]) -> bool:
    """Whether the finite values of all arrays are above zero and span more than two decades."""
    finite = np.concatenate([array[np.isfinite(array)] for array in values]) if values else np.empty(0)
    return bool(finite.size and finite.min() > 0 and np.log10(finite.max()) - np.log10(finite.min()) > LOG_DECADES)


def prepare_overlay(
    items: Sequence[Compared],
    observable: str = "loss",
    *,
    log: bool | None = None,
    levels: int | None = None,
    zmin: float | None = None,
    zmax: float | None = None,
    lock: bool = True,
    path: bool = True,
    max_points: int | None = None,
) -> OverlayData:
    """Everything that a figure of several landscapes over one another shows.

    Args:
        log: as in `share_scale`; one figure has one height.
        levels: number of contour lines of each; default about 8 at round values.
        lock: whether all have the same contour lines; else each has lines that suit its own values.
        path: prepare the trajectories as well.
        max_points: points per axis to draw at most.

    Raises:
        JobError: the landscapes cannot be drawn over one another, or zmin, zmax or levels is impossible.
    """
    check_mode("overlay", items, observable)
    shared = share_scale(items, observable, log, zmin=zmin, zmax=zmax)
    low, high = (shared.low, shared.high) if lock else (zmin, zmax)
    fields = tuple(
        prepare_figure(
            item.surface,
            observable,
            log=shared.log,
            zmin=low,
            zmax=high,
            levels=levels or OVERLAY_LEVELS,
            path=path,
            max_points=max_points,
        )
        for item in items
    )
    whole = prepare_figure(
        items[0].surface, observable, log=shared.log, zmin=shared.low, zmax=shared.high, levels=levels, path=False
    )
    frame = replace(
        whole,
        name=", ".join(item.label for item in items),
        title=f"{_names(items)}: {wording.observable_title(observable)}",
        caption=tuple(_caption(items, fields, observable)),
        axes=tuple(_common_axis(fields, k) for k in range(len(whole.axes))),
    )
    origins = tuple(_origin(field, item.surface) for field, item in zip(fields, items, strict=True))
    return OverlayData(tuple(item.label for item in items), fields, frame, origins)


def _names(items: Sequence[Compared]) -> str:
    labels = [item.label for item in items]
    return " and ".join(labels) if len(labels) <= NAMED_IN_TITLE else f"{len(labels)} landscapes"


def _common_axis(fields: Sequence[FigureData], k: int) -> AxisView:
    """An axis from the lowest to the highest coordinate of all; its title only where it is that of all."""
    axes = [field.axes[k] for field in fields]
    ends = np.array([min(axis.coordinates[0] for axis in axes), max(axis.coordinates[-1] for axis in axes)])
    titles = {axis.title for axis in axes}
    return AxisView(axes[0].name, axes[0].title if len(titles) == 1 else axes[0].name, ends)


def _origin(field: FigureData, surface: Surface) -> float:
    """The drawn value at the origin: the loss that was evaluated there, or the value of the grid point at 0."""
    value = surface.origin_loss if field.observable == "loss" else float("nan")
    if not np.isfinite(value):
        zeros = [np.flatnonzero(axis.coordinates == 0) for axis in field.axes]
        if all(places.size for places in zeros):
            value = float(field.values[tuple(int(places[0]) for places in reversed(zeros))])
    if not np.isfinite(value) or (field.scale.log and value <= 0):
        return float("nan")
    return float(np.log10(value)) if field.scale.log else value


def _caption(items: Sequence[Compared], fields: Sequence[FigureData], observable: str) -> list[str]:
    """What a reader must know: what all have in common, what sets them apart, then each in a sentence of its own."""
    samplings = list(dict.fromkeys(wording.sampling(item.surface, observable) for item in items))
    facts = [samplings[0]] if len(samplings) == 1 else []
    facts += contrasts(items)
    facts += ["logarithmic scale"] if fields[0].scale.log else []
    sentences = [fact[:1].upper() + fact[1:] for fact in facts]
    for item, field in zip(items, fields, strict=True):
        parts = [wording.resolution(item.surface)]
        parts += [wording.sampling(item.surface, observable)] if len(samplings) > 1 else []
        at_origin = wording.origin_text(item.surface) if observable == "loss" else ""
        parts += [f"loss at the origin {at_origin}"] if at_origin else []
        parts += [wording.state_text(item.surface), *field.scale.notes]
        sentences.append(f"{item.label}: {', '.join(parts)}")
    return sentences
