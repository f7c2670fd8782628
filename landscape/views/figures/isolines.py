"""Isolines of a height field with holes, by marching triangles.

Plotly draws isolines on a 3-D surface itself, but takes many seconds as soon as values are missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def isolines(alpha: Floats, beta: Floats, height: Floats, levels: Sequence[float]) -> Floats:
    """Points [n, 3] of segments where the interpolated height equals a level; a row of NaN after each segment."""
    points, triangles = relief(alpha, beta, height)
    found = [_segments(points, triangles, level) for level in levels] if len(triangles) else []
    return np.concatenate(found) if found else np.empty((0, 3))


def _segments(points: Floats, triangles: NDArray[np.int64], level: float) -> Floats:
    inside = points[triangles, 2] < level
    crossed = inside.any(axis=1) & ~inside.all(axis=1)
    corners, inside = triangles[crossed], inside[crossed]
    # Of three corners one lies alone on its side: the line crosses the two edges that meet there.
    alone = np.where(inside.sum(axis=1) == 1, inside.argmax(axis=1), (~inside).argmax(axis=1))
    rows = np.arange(len(corners))
    peak = points[corners[rows, alone]]
    ends = []
    for turn in (1, 2):
        other = points[corners[rows, (alone + turn) % 3]]
        share = (level - peak[:, 2]) / (other[:, 2] - peak[:, 2])
        ends.append(peak + share[:, None] * (other - peak))
    return np.stack([*ends, np.full(peak.shape, np.nan)], axis=1).reshape(-1, 3)


def relief(alpha: Floats, beta: Floats, height: Floats) -> tuple[Floats, Indices]:
    """Points and triangles, counter-clockwise from above, of the squares whose four corners are finite."""
    quads = grid_cells(height.shape)
    quads = quads[np.isfinite(height.ravel()[quads]).all(axis=1)]
    triangles = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    used, index = np.unique(triangles, return_inverse=True)
    y, x = np.meshgrid(beta, alpha, indexing="ij")
    points = np.stack([x.ravel(), y.ravel(), height.ravel()], axis=1)[used]
    return points, index.reshape(-1, 3)


def grid_cells(shape: tuple[int, ...]) -> Indices:
    """Corner numbers of every cell, in VTK's order: around the bottom, then around the top."""
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    if len(shape) == 1:
        return np.stack([numbers[:-1], numbers[1:]], axis=1)
    if len(shape) == 2:
        around = [numbers[:-1, :-1], numbers[:-1, 1:], numbers[1:, 1:], numbers[1:, :-1]]
    else:
        low, high = numbers[:-1], numbers[1:]
        around = [layer[:, rows, columns] for layer in (low, high) for rows, columns in _square()]
    return np.stack([each.ravel() for each in around], axis=1)


def _square() -> list[tuple[slice, slice]]:
    near, far = slice(None, -1), slice(1, None)
    return [(near, near), (near, far), (far, far), (far, near)]
