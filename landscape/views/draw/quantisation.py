"""The figures of the steps of rounding on a patch: heat maps and surfaces, not rounded beside rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.views.draw.layout import one_line, sentence, wrapped
from landscape.views.draw.style import DEFAULT_SCALE, colour_scale
from landscape.views.draw.theme import TEMPLATES, typed
from landscape.views.prepare.quantisation import StepPatch

Floats = NDArray[np.float64]

TITLE = "The steps of rounding around the origin"
PANEL, GAP, LEFT, RIGHT, ABOVE, BELOW = 390, 46, 84, 104, 84, 110  # pixels; of heat maps
SPACE, SPACE_HIGH, SIDE, SPACE_BELOW = 470, 400, 24, 60  # of surfaces
BAR = {"title": {"text": "rise of<br>the loss"}, "exponentformat": "power", "thickness": 14}
HEIGHT = 0.5  # of a surface, over its sides
CAMERA = {"eye": {"x": 1.03, "y": -1.25, "z": 1.1}, "center": {"x": -0.02, "y": 0, "z": -0.11}}
LIGHT = {"ambient": 0.72, "diffuse": 0.5, "specular": 0.08, "roughness": 0.85, "fresnel": 0.05}


def draw_patch(patch: StepPatch, theme: str = "light") -> go.Figure:
    """Heat maps of both networks side by side, in one scale of colours."""
    width, height = LEFT + 2 * PANEL + GAP + RIGHT, ABOVE + PANEL + BELOW
    inner = width - LEFT - RIGHT
    traces = [
        go.Heatmap(
            x=patch.at[0], y=patch.at[1], z=typed(rise), zmin=patch.low, zmax=patch.high, name=title,
            colorscale=colour_scale(DEFAULT_SCALE), colorbar=BAR, showscale=k == 1,
            xaxis=f"x{k + 1}", yaxis=f"y{k + 1}",
        )
        for k, (title, rise) in enumerate(zip(patch.titles, patch.rises, strict=True))
    ]  # fmt: skip
    layout = _layout(patch, theme, width, height, BELOW)
    for k, title in enumerate(patch.titles):
        begin = k * (PANEL + GAP) / inner
        number = str(k + 1) if k else ""
        axis = {"exponentformat": "power", "nticks": 6, "zeroline": False, "constrain": "domain"}
        layout[f"xaxis{number}"] = {
            **axis, "title": {"text": one_line(patch.axes[0], PANEL)}, "domain": [begin, begin + PANEL / inner],
            "anchor": f"y{number}",
        }  # fmt: skip
        layout[f"yaxis{number}"] = {**axis, "anchor": f"x{number}", "showticklabels": k == 0}
        if k == 0:
            layout["yaxis"]["title"] = {"text": one_line(patch.axes[1], PANEL)}
        layout["annotations"].append(_heading(title, begin + PANEL / inner / 2))
    return go.Figure(traces, layout)


def draw_terraces(patch: StepPatch, theme: str = "light") -> go.Figure:
    """Surfaces of both networks side by side, in one scale: every point is a level square, with walls between them."""
    width, height = SIDE + 2 * SPACE + RIGHT, ABOVE + SPACE_HIGH + SPACE_BELOW
    x, y = (_edges_twice(places) for places in patch.at)
    quiet = {"highlight": False}
    traces = [
        go.Surface(
            x=x, y=y, z=typed(np.repeat(np.repeat(rise, 2, axis=0), 2, axis=1)), cmin=patch.low, cmax=patch.high,
            colorscale=colour_scale(DEFAULT_SCALE), colorbar=BAR, showscale=k == 1, name=title, lighting=LIGHT,
            contours={"x": quiet, "y": quiet, "z": quiet}, scene="scene2" if k else "scene",
        )
        for k, (title, rise) in enumerate(zip(patch.titles, patch.rises, strict=True))
    ]  # fmt: skip
    layout = _layout(patch, theme, width, height, SPACE_BELOW)
    layout["margin"] |= {"l": SIDE}
    share, span = 0.5, patch.high - patch.low
    for k, title in enumerate(patch.titles):
        few = {"exponentformat": "power", "nticks": 4}
        layout["scene2" if k else "scene"] = {
            "domain": {"x": [k * share, (k + 1) * share], "y": [0, 1]},
            "xaxis": {"title": {"text": one_line(patch.axes[0], 260, 12)}, **few},
            "yaxis": {"title": {"text": one_line(patch.axes[1], 260, 12)}, **few},
            "zaxis": {"title": {"text": ""}, "range": [patch.low - 0.04 * span, patch.high + 0.04 * span], **few},
            "aspectmode": "manual",
            "aspectratio": {"x": 1, "y": 1, "z": HEIGHT},
            "camera": CAMERA,
        }
        layout["annotations"].append(_heading(title, (k + 0.5) * share))
    return go.Figure(traces, layout)


def _edges_twice(places: Floats) -> Floats:
    """Both edges of the cell of every place, one after the other: [2 places]."""
    half = (places[1] - places[0]) / 2
    return np.stack([places - half, places + half], -1).ravel()


def _heading(title: str, x: float) -> dict[str, Any]:
    place = {"xref": "paper", "yref": "paper", "x": x, "y": 1.0, "xanchor": "center", "yanchor": "bottom"}
    return {"text": title, "showarrow": False, "font": {"size": 13}, "yshift": 6, **place}


def _layout(patch: StepPatch, theme: str, width: int, height: int, below: int) -> dict[str, Any]:
    caption = {
        "text": wrapped(sentence(list(patch.caption)), width - 120, 11),
        "showarrow": False,
        "align": "left",
        "font": {"size": 11},
    }
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": 0, "xanchor": "left", "yanchor": "top"}
    return {
        "template": TEMPLATES[theme],
        "width": width,
        "height": height,
        "margin": {"l": LEFT, "r": RIGHT, "t": ABOVE, "b": below},
        "title": {"text": TITLE, "y": 1 - 26 / height, "yanchor": "middle"},
        "annotations": [caption | place | {"yshift": 44 - below}],
    }
