"""Isosurfaces of a field over three axes, by marching tetrahedra; cubes with a missing corner are left open.

Plotly's own isosurface draws nothing at all as soon as one value is missing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

# Six tetrahedra around the cube's diagonal 0-7; corner c is at offset (c & 1, c >> 1 & 1, c >> 2).
TETRAHEDRA = np.array([[0, 1, 3, 7], [0, 3, 2, 7], [0, 2, 6, 7], [0, 6, 4, 7], [0, 4, 5, 7], [0, 5, 1, 7]])


def isosurface(values: Floats, axes: tuple[Floats, Floats, Floats], level: float) -> tuple[Floats, Indices]:
    """Where the linearly interpolated `values` [z, y, x] equal `level`, over the coordinates `axes` (x, y, z).

    Returns:
        Vertices [n, 3] and, per triangle, the numbers of its corners [m, 3].
    """
    flat = values.ravel()
    corners = _tetrahedra(values)
    inside = flat[corners] < level
    count = inside.sum(axis=1)
    order = np.argsort(~inside, axis=1, kind="stable")  # inner corners first
    corners = np.take_along_axis(corners, order, axis=1)
    one, two, three = (corners[count == k] for k in (1, 2, 3))
    edges = [
        _triangles(one, ((0, 1), (0, 2), (0, 3))),
        _triangles(three, ((3, 0), (3, 1), (3, 2))),
        _triangles(two, ((0, 2), (0, 3), (1, 3))),
        _triangles(two, ((0, 2), (1, 3), (1, 2))),
    ]
    ends = np.sort(np.concatenate(edges).reshape(-1, 2), axis=1)
    unique, index = np.unique(ends, axis=0, return_inverse=True)
    return _on_edges(unique, flat, values.shape, axes, level), index.reshape(-1, 3)


def _tetrahedra(values: Floats) -> Indices:
    """Point numbers [t, 4] of all tetrahedra in cubes whose eight corners are finite."""
    depth, height, width = values.shape
    numbers = np.arange(values.size).reshape(values.shape)
    windows = [
        (
            slice(c >> 2, depth - 1 + (c >> 2)),
            slice(c >> 1 & 1, height - 1 + (c >> 1 & 1)),
            slice(c & 1, width - 1 + (c & 1)),
        )
        for c in range(8)
    ]
    cubes = np.stack([numbers[window].ravel() for window in windows], axis=1)
    whole = np.isfinite(values.ravel()[cubes]).all(axis=1)
    return cubes[whole][:, TETRAHEDRA].reshape(-1, 4)


def _triangles(corners: Indices, edges: tuple[tuple[int, int], ...]) -> Indices:
    """[t, 3, 2]: each triangle's corners as the two ends of the edge they lie on."""
    return np.stack([corners[:, edge] for edge in map(list, edges)], axis=1)


def _on_edges(
    ends: Indices, flat: Floats, shape: tuple[int, ...], axes: tuple[Floats, Floats, Floats], level: float
) -> Floats:
    low, high = flat[ends[:, 0]], flat[ends[:, 1]]
    share = ((level - low) / np.where(high == low, 1.0, high - low))[:, None]
    places = [
        np.stack(
            [axis[index] for axis, index in zip(axes, reversed(np.unravel_index(ends[:, k], shape)), strict=True)],
            axis=1,
        )
        for k in (0, 1)
    ]
    return places[0] + share * (places[1] - places[0])
