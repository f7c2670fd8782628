"""Marks for points without a value to draw: hatched cells on a plane, symbols in space, each with its legend entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.views.draw.theme import DARK_HATCH, DARK_SOLID, HATCH, themed
from landscape.views.prepare.missing import legend_name, missing_states, rectangles, square_states
from landscape.views.prepare.scale import STATES

Floats = NDArray[np.float64]


def hatched(
    states: NDArray[np.uint8], x: Floats, y: Floats, codes: Sequence[int], theme: str = "light", **place: Any
) -> list[go.Scatter]:
    """One filled and hatched trace per code, also where nothing is missing for that reason.

    Args:
        states: [y, x], the state of each point.
        codes: the reasons to draw; frames of an animation need the same traces, also where one is empty.
        place: the panel, as plotly's `xaxis` and `yaxis`.
    """
    squares = square_states(states)
    return [
        _hatch(code, squares == code, legend_name(code, int((states == code).sum())), x, y, theme, place)
        for code in codes
    ]


def _hatch(
    code: int, mask: NDArray[np.bool_], name: str, x: Floats, y: Floats, theme: str, place: dict[str, Any]
) -> go.Scatter:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for top, bottom, left, right in rectangles(mask):
        xs += [x[left], x[right], x[right], x[left], x[left], None]
        ys += [y[top], y[top], y[bottom], y[bottom], y[top], None]
    look = HATCH[code]
    patterns = {"light": {key: look[key] for key in ("fgcolor", "bgcolor")}, "dark": DARK_HATCH[code]}
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines",
        line={"width": 0, "color": look["solid"]},
        fill="toself",
        fillpattern=patterns[theme] | {"shape": look["shape"], "size": 7, "solidity": 0.3},
        name=name,
        hoverinfo="name",
        hoveron="fills",
        showlegend=True,
        meta={"role": "missing", "code": code, "patterns": patterns},
        **place,
    )


def symbols(
    states: NDArray[np.uint8],
    axes: tuple[Floats, ...],
    floor: float | None,
    theme: str = "light",
    most: int = 4000,
) -> list[Any]:
    """One trace per reason, with a symbol per missing point: at the point itself, or on the `floor` under a surface.

    Args:
        states: [y, x] or [z, y, x], the state of each point; `axes` are their coordinates, x first.
        floor: the height of the symbols; None where a point has a place of its own on three axes.
        most: symbols per reason to draw; where more points are missing, every k-th has one.
    """
    traces = []
    for code in missing_states(states):
        index = np.nonzero(states == code)
        every = -(-len(index[0]) // most)
        places = [axis[where[::every]] for axis, where in zip(axes, reversed(index), strict=True)]
        if floor is not None:
            places.append(np.full(places[0].shape, floor))
        look = {"size": 3, "symbol": HATCH[code]["symbol"], "opacity": 0.8}
        colours = {"light": HATCH[code]["solid"], "dark": DARK_SOLID[code]}
        markers = {paper: {"marker": look | {"color": colour}} for paper, colour in colours.items()}
        traces.append(
            go.Scatter3d(
                x=places[0],
                y=places[1],
                z=places[2],
                mode="markers",
                name=legend_name(code, index[0].size),
                hovertemplate="alpha %{x:.4g}<br>beta %{y:.4g}<extra>" + STATES[code] + "</extra>",
                showlegend=True,
                **themed(markers, theme, role="missing", code=code, floor=floor),
            )
        )
    return traces
