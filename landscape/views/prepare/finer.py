"""Where the steps of a refined landscape get finer: the edges between cells of coarser and of finer grids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.surface.surface import Surface
from landscape.views.prepare.statuses import is_evaluated
from landscape.views.prepare.words import whole

Map = NDArray[np.uint8]
Nodes = NDArray[np.intp]


def cell_levels(interpolated: Map) -> Map:
    """Per square of 2×2 neighbouring points, how many levels above the finest one the cell lies that it is drawn from.

    Args:
        interpolated: [y, x], of each point, as `Surface.interpolated`; a square is as coarse as its coarsest corner.
    """
    corners = [interpolated[:-1, :-1], interpolated[1:, :-1], interpolated[:-1, 1:], interpolated[1:, 1:]]
    coarsest: Map = np.maximum.reduce(corners)
    return coarsest


def finer_edges(interpolated: Map) -> list[tuple[Nodes, Nodes]]:
    """The straight lines between cells of different levels, each as the rows and the columns of its points in order.

    >>> edges = finer_edges(np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0]], np.uint8))
    >>> [(rows.tolist(), columns.tolist()) for rows, columns in edges]
    [([1, 1], [0, 1]), ([0, 1], [1, 1])]
    """
    if interpolated.ndim != 2 or min(interpolated.shape) < 2:
        return []
    cells = cell_levels(interpolated)
    edges = [(np.full(end - first + 1, row), np.arange(first, end + 1)) for row, first, end in _runs(cells)]
    return edges + [(np.arange(first, end + 1), np.full(end - first + 1, row)) for row, first, end in _runs(cells.T)]


def _runs(cells: Map) -> list[tuple[int, int, int]]:
    """The lines between two rows of cells that differ: the number of each, and the points where it begins and ends."""
    runs = []
    for row in np.flatnonzero((cells[:-1] != cells[1:]).any(1)).tolist():
        differs = np.concatenate([[False], cells[row] != cells[row + 1], [False]]).astype(np.int8)
        changes = np.flatnonzero(np.diff(differs)).tolist()
        runs += [(row + 1, first, end) for first, end in zip(changes[::2], changes[1::2], strict=True)]
    return runs


def evaluated_text(surface: Surface) -> str:
    """How many points of a refined landscape were evaluated, such as '1 090 of 4 225 points'; '' where all were."""
    done = is_evaluated(surface)
    between = surface.interpolated is not None and bool((surface.interpolated > 0).any())
    return f"{whole(done.sum())} of {whole(done.size)} points" if between else ""


def shared_text(interpolated: Map | None) -> str:
    """At how many points of a difference nothing is interpolated, to stand after its size; '' where at all of them."""
    count = 0 if interpolated is None else int((interpolated == 0).sum())
    return "" if interpolated is None else f", at {whole(count)} of which both were evaluated"
