"""Pictures of a study with matplotlib: planes on one scale, lines over one another, curves of training."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from landscape.core.grid import Floats
from landscape.surface.surface import Surface
from landscape.views.draw.style import PATH_COLOURS as PATH_COLOURS
from landscape.views.prepare.words import fitting_title
from studies.shown import Picture

SIDE = 3.3  # inches of a plane
DPI = 90
MOST_ACROSS = 3
LOSS = "loss, nats"
# What the legend says of a kind of picture.
WHAT = {"contour": "contour lines: loss in nats", "surface": "height and colour: loss in nats"}
FEW_LETTERS = 20  # of a label, which stands beside a small picture
COLOURS = (*PATH_COLOURS, "#2b8a3e")  # so that a curve has the colour of the path of the same network
STYLES = ("-", "--", "-.", ":", (0, (3, 1, 1, 1, 1, 1)))


def planes(
    surfaces: Mapping[str, Surface], *, shared: bool = True, kind: str = "contour", across: int = MOST_ACROSS,
    wide: float = 1.0, **options: Any,
) -> Picture:  # fmt: skip
    """Planes side by side, each below its label.

    Args:
        shared: all on one scale, so that they can be compared; else each on its own.
        across: how many stand in a row at most.
        wide: multiplies their size.
        options: of `Surface.plot`.
    """
    across = min(len(surfaces), across)
    flat = [min(1.0, _steepness(surface)) for surface in surfaces.values()]
    in_space = kind == "surface"
    heights = [1.0 if in_space else max(flat[start : start + across]) for start in range(0, len(flat), across)]
    side = SIDE * wide
    figure, axes = _figure(
        side * across + 0.4, sum(side * height + 0.75 for height in heights) + 0.5, len(heights), across,
        gridspec_kw={"height_ratios": heights}, **({"subplot_kw": {"projection": "3d"}} if in_space else {}),
    )  # fmt: skip
    ends = one_scale(list(surfaces.values())) if shared else {}
    for place, (label, surface) in zip(axes, surfaces.items(), strict=False):
        surface.plot(place, kind, **{**ends, "colour_bar": kind == "topographic", **options})
        place.set_title(label, fontsize="medium")
        for axis in (place.xaxis, place.yaxis):
            words, share = fitting_title(axis.get_label_text(), FEW_LETTERS)
            axis.set_label_text(words, fontsize=share * axis.label.get_size())
        place.tick_params(labelsize="small")
        place.locator_params(axis="x", nbins=5)
        place.locator_params(axis="y", nbins=5)
        if in_space:
            place.tick_params(axis="both", pad=-1)
    for place in axes[len(surfaces) :]:
        place.remove()
    _name_marks(figure, axes[: len(surfaces)], WHAT.get(kind, ""))
    return _picture(figure, "; ".join(surfaces))


def _steepness(surface: Surface) -> float:
    """How high a plane is drawn, over its width."""
    return float(np.ptp(surface.beta) / np.ptp(surface.alpha))


def _name_marks(figure: Any, axes: Sequence[Any], title: str) -> None:
    """Below the planes a legend of their marks; what is counted in several of them is named without its count."""
    named: dict[str, Any] = {}
    for place in axes:
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True):
            named.setdefault(label if len(axes) == 1 else label.partition(" (")[0], handle)
    if named:
        figure.legend(named.values(), named.keys(), title=title, loc="outside lower center", ncols=4, frameon=False,
                      fontsize="small", title_fontsize="small")  # fmt: skip


def one_scale(surfaces: Sequence[Surface]) -> dict[str, Any]:
    """The options that give several surfaces one scale: the ends of all their losses, logarithmic over two decades."""
    losses = np.concatenate([surface.loss[np.isfinite(surface.loss)].ravel() for surface in surfaces])
    low, high = float(losses.min()), float(losses.max())
    return {"zmin": low, "zmax": high, "log": bool(low > 0 and high / low > 100)}


def lines(
    surfaces: Mapping[str, Surface | Sequence[Surface]], *, observable: str = "loss", log: bool = False,
    xlabel: str = "alpha", marks: Mapping[str, float] | None = None,
) -> Picture:  # fmt: skip
    """Landscapes of one axis over one another; several of one label have one colour.

    Args:
        marks: places on the axis that have a name.
    """
    figure, (place,) = _figure(6.4, 3.4, 1, 1)
    for number, (label, one_or_more) in enumerate(surfaces.items()):
        several = [one_or_more] if isinstance(one_or_more, Surface) else one_or_more
        for count, surface in enumerate(several):
            name = {} if count else {"label": label}
            place.plot(surface.alpha, surface[observable], color=COLOURS[number % len(COLOURS)], lw=1.4, **name,
                       linestyle=STYLES[number % len(STYLES)], alpha=1 if len(several) == 1 else 0.75)  # fmt: skip
    _name_places(place, marks or {})
    _finish(place, xlabel, LOSS if observable == "loss" else observable, log)
    return _picture(figure, "; ".join(surfaces))


def curves(
    values: Mapping[str, Sequence[tuple[Floats, Floats]]], *, xlabel: str, ylabel: str, log: bool = False
) -> Picture:
    """Curves of training; those of one label, such as of several seeds, have one colour."""
    figure, (place,) = _figure(6.4, 3.4, 1, 1)
    for number, (label, several) in enumerate(values.items()):
        for count, (x, y) in enumerate(several):
            name = {} if count else {"label": label}
            place.plot(x, y, color=COLOURS[number % len(COLOURS)], linestyle=STYLES[number % len(STYLES)], lw=1.3,
                       alpha=0.8, **name)  # fmt: skip
    _finish(place, xlabel, ylabel, log)
    return _picture(figure, f"{ylabel} over {xlabel}: {'; '.join(values)}")


def measured(
    values: Mapping[str, tuple[Floats, Floats, Floats]], *, xlabel: str, ylabel: str, decades: bool = True
) -> Picture:
    """Points with the halves of their intervals, on a logarithmic axis; `decades`: on two of them."""
    figure, (place,) = _figure(6.4, 3.4, 1, 1)
    for number, (label, (x, y, half)) in enumerate(values.items()):
        place.errorbar(x, y, half, label=label, color=COLOURS[number % len(COLOURS)], marker="o", markersize=4,
                       linestyle=STYLES[number % len(STYLES)], lw=1.3, capsize=3)  # fmt: skip
    if decades:
        place.set_xscale("log")
    _finish(place, xlabel, ylabel, log=True)
    return _picture(figure, f"{ylabel} over {xlabel}: {'; '.join(values)}")


def smoothed(values: tuple[Floats, Floats], width: int) -> tuple[Floats, Floats]:
    """A curve as means of `width` neighbouring values, each at the last of them."""
    x, y = values
    width = max(1, min(width, len(y)))
    return x[width - 1 :], np.convolve(y, np.full(width, 1 / width), "valid")


def _figure(width: float, height: float, down: int, across: int, **options: Any) -> tuple[Any, list[Any]]:
    # Not pyplot: a figure of its own needs no window, and changes no settings of the reader's.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(down, across, squeeze=False, **options).ravel())


def _finish(place: Any, xlabel: str, ylabel: str, log: bool) -> None:
    place.set(xlabel=xlabel, ylabel=ylabel)
    if log:
        place.set_yscale("log")
    place.grid(alpha=0.25)
    place.legend(fontsize="small")


def _name_places(place: Any, marks: Mapping[str, float]) -> None:
    """The names of places on the axis, above it, where no curve runs."""
    for name, at in marks.items():
        place.axvline(at, color="#868e96", linewidth=0.8)
        place.annotate(name, (at, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
                       ha="center", va="bottom", fontsize="small", color="#495057")  # fmt: skip


def _picture(figure: Any, says: str) -> Picture:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})  # the same bytes by any version's name
    return Picture(file.getvalue(), says)
