"""Isolines of a height field with missing values, by marching triangles.

Plotly draws isolines on a 3-D surface itself, but takes many seconds as soon as values are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from landscape.views.prepare.triangles import triangulated

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def isolines(alpha: Floats, beta: Floats, height: Floats, levels: Sequence[float]) -> Floats:
    """The lines where the linearly interpolated `height` [beta, alpha] equals one of `levels`.

    Returns:
        [n, 3]: the points of each line in order, and then a row of NaN, which lifts the pen.
    """
    points, triangles = triangulated(alpha, beta, height)
    pen_up = np.full((1, 3), np.nan)
    parts = [part for level in levels for line in _lines(points, triangles, level) for part in (line, pen_up)]
    return np.concatenate(parts) if parts else np.empty((0, 3))


def refined(axis: Floats, factor: int) -> Floats:
    """The coordinates of an axis with each step divided into `factor` equal ones."""
    whole = np.arange(len(axis), dtype=np.float64)
    return np.interp(np.arange((len(axis) - 1) * factor + 1) / factor, whole, axis)


def _lines(points: Floats, triangles: Indices, level: float) -> Iterator[Floats]:
    """The lines of one level, each as its points [n, 3] in order; a closed one ends where it begins."""
    inside = points[triangles, 2] < level if len(triangles) else np.empty((0, 3), bool)
    crossed = inside.any(axis=1) & ~inside.all(axis=1)
    corners, inside = triangles[crossed], inside[crossed]
    # Of three corners one lies alone on its side: the line crosses the two edges that meet there.
    alone = np.where(inside.sum(axis=1) == 1, inside.argmax(axis=1), (~inside).argmax(axis=1))
    rows = np.arange(len(corners))
    peak = corners[rows, alone]
    edges = [np.stack([peak, corners[rows, (alone + turn) % 3]], axis=1) for turn in (1, 2)]
    ends = np.sort(np.concatenate(edges), axis=1)
    unique, numbers = np.unique(ends, axis=0, return_inverse=True)
    low, high = points[unique[:, 0]], points[unique[:, 1]]
    share = (level - low[:, 2]) / np.where(high[:, 2] == low[:, 2], 1.0, high[:, 2] - low[:, 2])
    places = low + share[:, None] * (high - low)
    places[:, 2] = level
    first, second = numbers.reshape(2, -1)
    yield from (places[line] for line in joined(first.tolist(), second.tolist()))


def joined(first: Sequence[int], second: Sequence[int]) -> Iterator[list[int]]:
    """The segments from `first` to `second`, joined to lines as long as possible; each end is in at most two segments.

    >>> list(joined([1, 5, 2], [2, 6, 3]))
    [[1, 2, 3], [5, 6]]
    >>> list(joined([1, 2, 3], [2, 3, 1]))
    [[1, 3, 2, 1]]
    """
    beside: dict[int, list[int]] = {}
    for one, other in zip(first, second, strict=True):
        beside.setdefault(one, []).append(other)
        beside.setdefault(other, []).append(one)
    open_ends = [end for end, others in beside.items() if len(others) == 1]
    for start in (*open_ends, *beside):
        line = [start]
        while others := beside[line[-1]]:
            following = others.pop()
            beside[following].remove(line[-1])
            line.append(following)
        if len(line) > 1:
            yield line
