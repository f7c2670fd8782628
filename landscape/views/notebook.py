"""Surfaces and runs in a notebook: live with plotly's renderer, else as a static picture."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import LandscapeError
from landscape.core.grid import Floats
from landscape.core.text import number_text
from landscape.surface.surface import Surface
from landscape.views.draw.figure import figure
from landscape.views.draw.paths import FEW, own_colours
from landscape.views.draw.style import CURVES, INK, config, line_colours, line_shades, path_look
from landscape.views.figure_spec import choose_kind, figure_name
from landscape.views.prepare.figure import (
    FigureData,
    prepare_figure,
    rectangles,
    slice_at,
    slice_nearest,
    square_states,
)
from landscape.views.prepare.geometry import isolines
from landscape.views.prepare.words import resolution, state_text

# ----------------------------------------------------------------------------------------------------
# A small picture of a surface as SVG, without a browser or plotly, for lists and notebooks.


POINTS = 65  # per axis; odd, as for grids whose every second point belongs to a coarser one
MISSING = {0: "#e3e6ea", 2: "#3b3f46", 3: "#f6c9a0", 4: "#cdd3da"}  # by the reason for a missing point


@dataclass(frozen=True)
class Canvas:
    """A picture of `width` by `height` pixels that shows [low, high] of two coordinates."""

    width: float
    height: float
    low: tuple[float, float]
    high: tuple[float, float]

    def x(self, values: Floats | float) -> Any:
        """The first coordinate in pixels from the left."""
        return (values - self.low[0]) / ((self.high[0] - self.low[0]) or 1.0) * self.width

    def y(self, values: Floats | float) -> Any:
        """The second coordinate in pixels from the top."""
        return self.height - (values - self.low[1]) / ((self.high[1] - self.low[1]) or 1.0) * self.height

    def line(self, x: Floats, y: Floats, colour: str, width: float) -> str:
        """A line through points; NaN lifts the pen."""
        parts: list[str] = []
        pen = "M"
        for across, down in zip(self.x(x).tolist(), self.y(y).tolist(), strict=True):
            if across != across or down != down:
                pen = "M"
                continue
            parts.append(f"{pen}{across:.1f} {down:.1f}")
            pen = "L"
        return f'<path d="{"".join(parts)}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>' if parts else ""

    def dot(self, x: float, y: float, colour: str, edge: str) -> str:
        """A point with an edge."""
        at = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}"'
        return f'<circle {at} r="2.2" fill="{colour}" stroke="{edge}" stroke-width="0.9"/>'


def small_svg(surface: Surface, width: int = 160) -> str:
    """The loss as a curve or contour lines (for three axes the slice nearest 0), with missing parts, path and origin.

    Returns:
        An SVG document.
    """
    data = prepare_figure(surface.merged(), max_points=POINTS)
    data = slice_at(data, slice_nearest(data)) if len(data.axes) == 3 else data
    canvas, shapes = _curve(data, width) if len(data.axes) == 1 else _plane(data, width)
    size = f'width="{canvas.width:g}" height="{canvas.height:.0f}" viewBox="0 0 {canvas.width:g} {canvas.height:.0f}"'
    body = "".join(shapes)
    title = f"<title>{escape(data.title)}</title>"
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{title}{ground}{body}</svg>'


def _plane(data: FigureData, width: int) -> tuple[Canvas, list[str]]:
    x, y = (axis.coordinates for axis in data.axes)
    ratio = min(max(data.ratio, 0.4), 1.4) if data.equal else 0.8
    canvas = Canvas(width, round(width * ratio), (float(x[0]), float(y[0])), (float(x[-1]), float(y[-1])))
    shapes = _missing(canvas, data.states, x, y)
    colours = line_colours(None, data.scale, "light")
    for level, (_, colour) in zip(data.scale.ticks, colours, strict=False):
        points = isolines(x, y, data.drawn, (level,))
        shapes.append(canvas.line(points[:, 0], points[:, 1], colour, 1))
    for path in data.paths:
        colour = path_look(path.number).colour
        shapes.append(canvas.line(path.places[0], path.places[1], colour, 1.5))
        fills = own_colours(path, line_shades(None, data.scale, "light")) if len(path.numbers) <= FEW else []
        shapes += [
            canvas.dot(float(across), float(up), fill, colour)
            for across, up, fill in zip(path.places[0], path.places[1], fills, strict=False)
        ]
    if data.origin is not None:
        arm = 0.04 * float(x[-1] - x[0])
        ends = np.array([-arm, arm, np.nan, 0, 0]), np.array([0, 0, np.nan, -arm, arm])
        shapes.append(canvas.line(*ends, INK["light"], 1))
    return canvas, shapes


def _curve(data: FigureData, width: int) -> tuple[Canvas, list[str]]:
    x, low, high = data.axes[0].coordinates, data.scale.low, data.scale.high
    pad = 0.06 * (high - low)
    canvas = Canvas(width, round(0.6 * width), (float(x[0]), low - pad), (float(x[-1]), high + pad))
    ends = np.array([low - pad, high + pad])
    shapes = _missing(canvas, np.stack([data.states, data.states]), x, ends)
    return canvas, [*shapes, canvas.line(x, data.drawn, CURVES[0], 1.5)]


def _missing(canvas: Canvas, states: NDArray[np.uint8], x: Floats, y: Floats) -> list[str]:
    squares, shapes = square_states(states), []
    across, down = canvas.x(x), canvas.y(y)
    for code, colour in MISSING.items():
        for top, bottom, left, right in rectangles(squares == code):
            size = f'width="{across[right] - across[left]:.1f}" height="{down[top] - down[bottom]:.1f}"'
            shapes.append(f'<rect x="{across[left]:.1f}" y="{down[bottom]:.1f}" {size} fill="{colour}"/>')
    return shapes


# ----------------------------------------------------------------------------------------------------

PLOTLY = "application/vnd.plotly.v1+json"  # JupyterLab, VS Code and Colab draw this with plotly
MOST_POINTS = {1: 2001, 2: 161, 3: 25}  # per axis, since a notebook's file stores its outputs
MOST_ROWS = 30  # of a run's table


def surface_bundle(surface: Surface) -> dict[str, Any]:
    """A surface in the forms that a notebook can choose from: plotly's figure, a static picture, text.

    The static picture is a PNG by matplotlib if that is installed, which every notebook viewer shows, otherwise a small
    SVG: a browser would take seconds.
    """
    bundle: dict[str, Any] = {"text/plain": repr(surface)}
    try:
        drawn = figure(surface, max_points=MOST_POINTS[len(surface.axes)])
        settings = config(figure_name(surface))
        bundle[PLOTLY] = json.loads(drawn.to_json()) | {"config": settings}
        bundle |= _static(surface)
    except LandscapeError:  # only the text: displaying a value must not fail
        pass
    return bundle


def _static(surface: Surface) -> dict[str, Any]:
    if find_spec("matplotlib") is None:
        return {"image/svg+xml": small_svg(surface, 480)}
    from landscape.views.plots.plot import png_picture

    picture = png_picture(surface, choose_kind(surface, None), MOST_POINTS[len(surface.axes)])
    return {"image/png": base64.b64encode(picture).decode("ascii")}


def run_bundle(run: Mapping[str, Surface]) -> dict[str, Any]:
    """A run as a table of its landscapes with small pictures, and as text."""
    names = list(run)
    rows = [_row(run, name) for name in names[:MOST_ROWS]]
    more = f"<p>… and {len(names) - MOST_ROWS} more landscapes</p>" if len(names) > MOST_ROWS else ""
    unreadable: Mapping[str, str] = getattr(run, "unreadable", {})
    rows += [_cells("", name, "", reason, "") for name, reason in unreadable.items()]
    heads = "".join(f"<th>{head}</th>" for head in ("", "landscape", "points", "state", "lowest loss"))
    title = f"<p><b>{escape(str(getattr(run, 'path', '')))}</b></p>"
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    empty = "<p>no landscapes yet</p>"
    return {"text/plain": repr(run), "text/html": title + (table if rows else empty) + more}


def _row(run: Mapping[str, Surface], name: str) -> str:
    try:
        surface = run[name].merged()
        picture = base64.b64encode(small_svg(surface, 120).encode()).decode("ascii")
    except LandscapeError as error:
        return _cells("", name, "", str(error), "")
    lowest = surface.minimum().get("loss")
    image = f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{picture}"/>'
    return _cells(image, name, resolution(surface), state_text(surface), "" if lowest is None else number_text(lowest))


def _cells(image: str, *words: str) -> str:
    return f"<tr><td>{image}</td>{''.join(f'<td>{escape(word)}</td>' for word in words)}</tr>"
