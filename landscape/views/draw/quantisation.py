"""The figures of rounding: its steps on a patch as heat maps and surfaces, the loss by bits, and a short line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from landscape.core.grid import Floats
from landscape.views.draw.layout import SCENE_TITLE, axis_title, sentence, wrapped
from landscape.views.draw.style import CURVES, DARK_CURVES, TEMPLATES, colour_scale, typed
from landscape.views.figure_spec import DEFAULT_SCALE
from landscape.views.prepare.quantisation import BitCurve, StepLine, StepPatch
from landscape.views.prepare.scale import nice_ticks

TITLE = "The steps of rounding around the origin"
PANEL, GAP, LEFT, RIGHT, PATCH_ABOVE, PATCH_BELOW = 390, 46, 84, 104, 84, 110  # pixels; of heat maps
SPACE, SPACE_HIGH, SIDE, SPACE_BELOW = 470, 400, 24, 60  # of surfaces
BAR = {"title": {"text": "rise of<br>the loss"}, "exponentformat": "power", "thickness": 14}
PATCH_HEIGHT = 0.5  # of a surface, over its sides
CAMERA = {"eye": {"x": 1.03, "y": -1.25, "z": 1.1}, "center": {"x": -0.02, "y": 0, "z": -0.11}}
LIGHT = {"ambient": 0.72, "diffuse": 0.5, "specular": 0.08, "roughness": 0.85, "fresnel": 0.05}


def draw_patch(patch: StepPatch, theme: str = "light") -> go.Figure:
    """Heat maps of both networks side by side, with one colour scale."""
    width, height = LEFT + 2 * PANEL + GAP + RIGHT, PATCH_ABOVE + PANEL + PATCH_BELOW
    inner = width - LEFT - RIGHT
    traces = [
        go.Heatmap(
            x=patch.at[0], y=patch.at[1], z=typed(rise), zmin=patch.low, zmax=patch.high, name=title,
            colorscale=colour_scale(DEFAULT_SCALE), colorbar=BAR, showscale=k == 1,
            xaxis=f"x{k + 1}", yaxis=f"y{k + 1}",
        )
        for k, (title, rise) in enumerate(zip(patch.titles, patch.rises, strict=True))
    ]  # fmt: skip
    layout = _patch_layout(patch, theme, width, height, PATCH_BELOW)
    for k, title in enumerate(patch.titles):
        begin = k * (PANEL + GAP) / inner
        number = str(k + 1) if k else ""
        axis = {"exponentformat": "power", "nticks": 6, "zeroline": False, "constrain": "domain"}
        layout[f"xaxis{number}"] = {
            **axis, "title": axis_title(patch.axes[0], PANEL), "domain": [begin, begin + PANEL / inner],
            "anchor": f"y{number}",
        }  # fmt: skip
        layout[f"yaxis{number}"] = {**axis, "anchor": f"x{number}", "showticklabels": k == 0}
        if k == 0:
            layout["yaxis"]["title"] = axis_title(patch.axes[1], PANEL)
        layout["annotations"].append(_heading(title, begin + PANEL / inner / 2))
    return go.Figure(traces, layout)


def draw_terraces(patch: StepPatch, theme: str = "light") -> go.Figure:
    """Surfaces of both networks side by side, with one colour scale: a level square per point, with walls between."""
    width, height = SIDE + 2 * SPACE + RIGHT, PATCH_ABOVE + SPACE_HIGH + SPACE_BELOW
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
    layout = _patch_layout(patch, theme, width, height, SPACE_BELOW)
    layout["margin"] |= {"l": SIDE}
    share, span = 0.5, patch.high - patch.low
    for k, title in enumerate(patch.titles):
        few = {"exponentformat": "power", "nticks": 4}
        layout["scene2" if k else "scene"] = {
            "domain": {"x": [k * share, (k + 1) * share], "y": [0, 1]},
            "xaxis": {"title": axis_title(patch.axes[0], *SCENE_TITLE), **few},
            "yaxis": {"title": axis_title(patch.axes[1], *SCENE_TITLE), **few},
            "zaxis": {"title": {"text": ""}, "range": [patch.low - 0.04 * span, patch.high + 0.04 * span], **few},
            "aspectmode": "manual",
            "aspectratio": {"x": 1, "y": 1, "z": PATCH_HEIGHT},
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


def _patch_layout(patch: StepPatch, theme: str, width: int, height: int, below: int) -> dict[str, Any]:
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
        "margin": {"l": LEFT, "r": RIGHT, "t": PATCH_ABOVE, "b": below},
        "title": {"text": TITLE, "y": 1 - 26 / height, "yanchor": "middle"},
        "annotations": [caption | place | {"yshift": 44 - below}],
    }


# ----------------------------------------------------------------------------------------------------
# The figures of rounding: the loss at the origin over the bits, and the steps near the origin.

WIDTH, HEIGHT, ABOVE, BELOW = 720, 440, 54, 118


def draw_bits(curve: BitCurve, theme: str = "light") -> go.Figure:
    """The loss over the bits, with the unrounded network's loss as a horizontal line."""
    first, second = (DARK_CURVES if theme == "dark" else CURVES)[:2]
    traces = [
        go.Scatter(
            x=[min(curve.bits) - 0.4, max(curve.bits) + 0.4],
            y=[curve.plain, curve.plain],
            mode="lines",
            name="not rounded",
            line={"color": second, "dash": "dash", "width": 1.6},
        ),
        go.Scatter(
            x=list(curve.bits),
            y=curve.loss,
            error_y={"type": "data", "array": np.nan_to_num(curve.error), "thickness": 1.4, "width": 4},
            mode="lines+markers",
            name="rounded",
            line={"color": first, "width": 1.6},
            marker={"size": 8},
        ),
    ]
    layout = _layout(curve.title, curve.caption, theme)
    layout["xaxis"] = {"title": {"text": "bits"}, "tickmode": "array", "tickvals": list(curve.bits)}
    layout["yaxis"] = {"title": {"text": "loss"}, "type": "log" if curve.log else "linear"}
    if curve.log:
        finite = np.log10([value for value in (*curve.loss, curve.plain) if np.isfinite(value) and value > 0])
        ticks, texts = nice_ticks(float(finite.min()), float(finite.max()), log=True)
        layout["yaxis"] |= {"tickmode": "array", "tickvals": [10.0**tick for tick in ticks], "ticktext": texts}
        layout["yaxis"]["title"]["text"] = "loss (logarithmic)"
    return go.Figure(traces, layout)


def draw_steps(line: StepLine, theme: str = "light") -> go.Figure:
    """Both losses on the short line."""
    first, second = (DARK_CURVES if theme == "dark" else CURVES)[:2]
    traces = [
        go.Scatter(
            x=line.at, y=line.plain, mode="lines", name="not rounded",
            line={"color": second, "dash": "dash", "width": 1.6},
        ),
        go.Scatter(
            x=line.at, y=line.rounded, mode="lines+markers", name="rounded",
            line={"color": first, "width": 1.4, "shape": "hvh"}, marker={"size": 4},
        ),
    ]  # fmt: skip
    layout = _layout(line.title, line.caption, theme)
    layout["xaxis"] = {"title": {"text": line.axis}, "exponentformat": "power"}
    layout["yaxis"] = {"title": {"text": "rise of the loss"}, "exponentformat": "power"}
    return go.Figure(traces, layout)


def _layout(title: str, caption: Sequence[str], theme: str) -> dict[str, Any]:
    return {
        "template": TEMPLATES[theme],
        "width": WIDTH,
        "height": HEIGHT + ABOVE + BELOW,
        "margin": {"l": 78, "r": 24, "t": ABOVE, "b": BELOW},
        "title": {"text": title},
        "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"},
        "annotations": [
            {
                "text": wrapped(sentence(list(caption)), WIDTH - 110, 11),
                "showarrow": False,
                "xref": "paper",
                "yref": "paper",
                "x": 0,
                "y": -58 / HEIGHT,
                "xanchor": "left",
                "yanchor": "top",
                "align": "left",
                "font": {"size": 11},
            }
        ],
    }
