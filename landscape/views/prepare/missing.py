"""Where a drawing has nothing to show: the grid squares beside missing points, and the legend entry of each kind."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import OK
from landscape.views.prepare.scale import STATES

Rectangle = tuple[int, int, int, int]  # first row, row after the last, first column, column after the last


def rectangles(mask: NDArray[np.bool_]) -> list[Rectangle]:
    """Disjoint rectangles that cover exactly the true cells: runs of a row, joined over rows that repeat them."""
    done: list[Rectangle] = []
    open_runs: dict[tuple[int, int], int] = {}
    for row in range(mask.shape[0] + 1):
        runs = _runs(mask[row]) if row < mask.shape[0] else []
        ended = [run for run in open_runs if run not in runs]
        done += [(open_runs.pop(run), row, *run) for run in ended]
        for run in runs:
            open_runs.setdefault(run, row)
    return sorted(done)


def _runs(row: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def square_states(states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Per square of 2×2 neighbouring points: OK where all four can be drawn, else why one of them cannot.

    Where the corners of a square are missing for several reasons, the last one in `STATES` counts, as it is the rarest.

    Returns:
        [rows − 1, columns − 1] of `states` [rows, columns].
    """
    square = np.full((states.shape[0] - 1, states.shape[1] - 1), OK, np.uint8)
    for code in STATES:
        at = states == code
        square[at[:-1, :-1] | at[1:, :-1] | at[:-1, 1:] | at[1:, 1:]] = code
    return square


def why_empty(states: NDArray[np.uint8]) -> str:
    """A sentence to stand where the picture would be, where the points that are known make no picture; else ''.

    A line needs two neighbouring values, a plane four around a square, a volume eight around a cube.
    """
    whole = states == OK
    for axis in range(states.ndim):
        neighbours = np.moveaxis(whole, axis, 0)
        whole = np.moveaxis(neighbours[:-1] & neighbours[1:], 0, axis)
    if whole.any():
        return ""
    known = int((states == OK).sum())
    if known:
        needed = ("no two of them are neighbours", "no four surround a square", "no eight surround a cube")
        return f"{known} of {states.size} points have a value, but {needed[states.ndim - 1]}: nothing to draw yet."
    reasons = [f"{int((states == code).sum())} {STATES[code]}" for code in missing_states(states)]
    return f"No point has a value to draw: {', '.join(reasons)}."


def missing_states(states: NDArray[np.uint8]) -> list[int]:
    """The reasons that occur for a point to be missing, as codes of `STATES`."""
    return [code for code in STATES if bool((states == code).any())]


def legend_name(code: int, count: int) -> str:
    """The legend entry of one reason, such as 'not computed: 80 points'."""
    return f"{STATES[code]}: {count} point{'s' * (count != 1)}"


def missing_names(states: NDArray[np.uint8]) -> list[str]:
    """The legend entries of all reasons that occur."""
    return [legend_name(code, int((states == code).sum())) for code in missing_states(states)]
