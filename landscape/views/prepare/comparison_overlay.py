"""Several landscapes over one another, or beside one another on one scale: what each shows, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import OK
from landscape.views.prepare import words
from landscape.views.prepare.comparable import Comparable
from landscape.views.prepare.comparison import Compared, check_mode, contrasts
from landscape.views.prepare.figure import AxisView, FigureData, prepare_figure
from landscape.views.prepare.paths import path_notes
from landscape.views.prepare.scale import LOG_DECADES, Scale, choose_scale, drawn_values, point_states, spanned_decades

Floats = NDArray[np.float64]

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

    `frame` has the title, the caption, and axes that reach over all of them, and no values of its own.
    """

    labels: tuple[str, ...]
    fields: tuple[FigureData, ...]
    frame: FigureData


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
    if log is None:
        log = _suggests_log(items, values, observable)
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


def _suggests_log(items: Sequence[Compared], values: Sequence[Floats], observable: str) -> bool:
    """Whether all values together span over two decades; fractions such as the accuracy stay linear."""
    known = np.concatenate([one[item.surface.status == OK] for item, one in zip(items, values, strict=True)])
    a_fraction = observable != "loss" and not observable.endswith("_stderr") and known.max(initial=0.0) <= 1
    return not a_fraction and spanned_decades(known) > LOG_DECADES


def prepare_overlay(
    items: Sequence[Compared],
    observable: str = "loss",
    *,
    log: bool | None = None,
    levels: int | None = None,
    exact_levels: bool = False,
    zmin: float | None = None,
    zmax: float | None = None,
    lock: bool = True,
    path: bool = True,
    max_points: int | None = None,
) -> OverlayData:
    """Everything that a figure of several landscapes over one another shows.

    Args:
        log: as in `share_scale`; one figure has one height.
        levels: number of contour lines of each; default about 8.
        exact_levels: exactly that number of lines, evenly spaced, and not at round values.
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
            exact_levels=exact_levels,
            path=path,
            max_points=max_points,
        )
        for item in items
    )
    axes = tuple(_common_axis(fields, k) for k in range(len(fields[0].axes)))
    nothing = np.full((2,) * len(axes), np.nan)
    frame = replace(
        fields[0],
        name=", ".join(item.label for item in items),
        title=f"{words.capitalised(words.observable_title(observable))} of {_names(items)}",
        caption=tuple(_caption(items, fields, axes, observable)),
        axes=axes,
        values=nothing,
        drawn=nothing,
        states=np.full(nothing.shape, OK, np.uint8),
        scale=_common_scale(fields),
        origin=next((field.origin for field in fields if field.origin is not None), None),
        error=None,
        paths=(),
        rise=None,
        rise_error=None,
        difference=None,
        interpolated=None,
    )
    return OverlayData(tuple(item.label for item in items), fields, frame)


def _common_scale(fields: Sequence[FigureData]) -> Scale:
    """The scale of the first, from the lowest to the highest end of all."""
    scales = [field.scale for field in fields]
    low, high = min(scale.low for scale in scales), max(scale.high for scale in scales)
    return replace(scales[0], low=low, high=high)


def _names(items: Sequence[Compared]) -> str:
    labels = [item.label for item in items]
    if len(labels) > NAMED_IN_TITLE:
        return f"{len(labels)} landscapes"
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def _common_axis(fields: Sequence[FigureData], k: int) -> AxisView:
    """An axis from the lowest to the highest coordinate of all; its title only where it is that of all."""
    axes = [field.axes[k] for field in fields]
    ends = np.array([min(axis.coordinates[0] for axis in axes), max(axis.coordinates[-1] for axis in axes)])
    same = len({axis.meaning for axis in axes}) == 1
    title, meaning = (axes[0].title, axes[0].meaning) if same else (axes[0].name, axes[0].name)
    return AxisView(axes[0].name, title, ends, meaning)


def _caption(
    items: Sequence[Compared], fields: Sequence[FigureData], axes: Sequence[AxisView], observable: str
) -> list[str]:
    """What a reader must know: what all have in common, what sets them apart, then each in a sentence of its own."""
    samplings = list(dict.fromkeys(words.sampling(item.surface, observable) for item in items))
    facts = [samplings[0]] if len(samplings) == 1 else []
    facts += contrasts(items)
    facts += [axis.meaning for axis in axes if axis.meaning != axis.title]
    facts += ["logarithmic scale"] if fields[0].scale.log else []
    sentences = [words.capitalised(fact) for fact in facts]
    for item, field in zip(items, fields, strict=True):
        parts = [words.resolution(item.surface)]
        parts += [words.sampling(item.surface, observable)] if len(samplings) > 1 else []
        at_origin = words.origin_text(item.surface) if observable == "loss" else ""
        parts += [f"loss at the origin {at_origin}"] if at_origin else []
        parts += [words.state_text(item.surface), *field.scale.notes]
        parts += path_notes(item.surface, field.paths, observable, field.scale)
        sentences.append(f"{item.label}: {', '.join(parts)}")
    return sentences
