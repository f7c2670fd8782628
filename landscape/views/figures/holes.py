"""Marks for points that have nothing to draw: hatched cells on a plane, symbols in space, each with its legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from landscape.surface import OK
from landscape.views.figures.theme import DARK_HATCH, HATCH
from landscape.views.prepared.scale import STATES

Floats = NDArray[np.float64]
Rectangle = tuple[int, int, int, int]  # first row, row after the last, first column, column after the last


def rectangles(mask: NDArray[np.bool_]) -> list[Rectangle]:
    """Disjoint rectangles that cover exactly the true cells: runs of a row, joined over rows that repeat them."""
    done: list[Rectangle] = []
    open_runs: dict[tuple[int, int], int] = {}
    for row in range(mask.shape[0] + 1):
        runs = _runs(mask[row]) if row < mask.shape[0] else []
        ended = [each for each in open_runs if each not in runs]
        done += [(open_runs.pop(run), row, *run) for run in ended]
        for run in runs:
            open_runs.setdefault(run, row)
    return sorted(done)


def _runs(row: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def square_states(states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Per square between 2×2 neighbouring points: OK where all four can be drawn, else a hole's state.

    Nothing can be drawn in a square with a corner missing; of several reasons the rarer kind wins.
    """
    square = np.full((states.shape[0] - 1, states.shape[1] - 1), OK, np.uint8)
    for code in STATES:
        at = states == code
        square[at[:-1, :-1] | at[1:, :-1] | at[:-1, 1:] | at[1:, 1:]] = code
    return square


def present_states(states: NDArray[np.uint8]) -> list[int]:
    """The kinds of holes that occur."""
    return [code for code in STATES if bool((states == code).any())]


def hatched(
    states: NDArray[np.uint8], x: Floats, y: Floats, codes: Sequence[int], theme: str = "light", **place: Any
) -> list[go.Scatter]:
    """One filled and hatched trace per kind of hole in `codes`; `states` is [y, x], per point."""
    squares = square_states(states)
    return [
        _hatch(code, squares == code, hole_name(code, int((states == code).sum())), x, y, theme, place)
        for code in codes
    ]


def hole_names(states: NDArray[np.uint8]) -> list[str]:
    """The legend entries that the holes bring."""
    return [hole_name(code, int((states == code).sum())) for code in present_states(states)]


def hole_name(code: int, count: int) -> str:
    return f"{STATES[code]}: {count} point{'s' * (count != 1)}"


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
        meta={"role": "hole", "patterns": patterns},
        **place,
    )


def symbols(states: NDArray[np.uint8], axes: tuple[Floats, ...], floor: float | None, most: int = 4000) -> list[Any]:
    """One symbol per hole in space: at the point itself, or on the `floor` under a two-axis surface."""
    traces = []
    for code in present_states(states):
        index = np.nonzero(states == code)
        every = -(-len(index[0]) // most)
        places = [axis[where[::every]] for axis, where in zip(axes, reversed(index), strict=True)]
        if floor is not None:
            places.append(np.full(places[0].shape, floor))
        look = HATCH[code]
        traces.append(
            go.Scatter3d(
                x=places[0],
                y=places[1],
                z=places[2],
                mode="markers",
                marker={"size": 3, "symbol": look["symbol"], "color": look["solid"], "opacity": 0.8},
                name=hole_name(code, index[0].size),
                hovertemplate="alpha %{x:.4g}<br>beta %{y:.4g}<extra>" + STATES[code] + "</extra>",
                showlegend=True,
                meta={"role": "hole"},
            )
        )
    return traces


def any_drawn(states: NDArray[np.uint8]) -> bool:
    """Whether there is any point to draw at all."""
    return bool((states == OK).any())
