"""The grid of a surface as cells and triangles, for isolines on it and for meshes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def triangulated(alpha: Floats, beta: Floats, height: Floats) -> tuple[Floats, Indices]:
    """The height field [beta, alpha] as triangles; grid squares with a corner that is not finite are left out.

    Returns:
        Points [n, 3] and, per triangle, the numbers of its corners [m, 3], counter-clockwise from above.
    """
    quads = grid_cells(height.shape)
    quads = quads[np.isfinite(height.ravel()[quads]).all(axis=1)]
    triangles = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    used, index = np.unique(triangles, return_inverse=True)
    y, x = np.meshgrid(beta, alpha, indexing="ij")
    points = np.stack([x.ravel(), y.ravel(), height.ravel()], axis=1)[used]
    return points, index.reshape(-1, 3)


def grid_cells(shape: tuple[int, ...]) -> Indices:
    """The corners of every cell of a grid with `shape` points, in VTK's order: around the bottom, then around the top.

    Returns:
        [cells, 2], [cells, 4] or [cells, 8] numbers of points, for a grid of 1, 2 or 3 axes in C order.
    """
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    if len(shape) == 1:
        return np.stack([numbers[:-1], numbers[1:]], axis=1)
    if len(shape) == 2:
        corners = [numbers[:-1, :-1], numbers[:-1, 1:], numbers[1:, 1:], numbers[1:, :-1]]
    else:
        low, high = numbers[:-1], numbers[1:]
        corners = [layer[:, rows, columns] for layer in (low, high) for rows, columns in _square()]
    return np.stack([corner.ravel() for corner in corners], axis=1)


def _square() -> list[tuple[slice, slice]]:
    near, far = slice(None, -1), slice(1, None)
    return [(near, near), (near, far), (far, far), (far, near)]
