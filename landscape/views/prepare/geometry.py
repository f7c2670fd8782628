"""Geometry of fields with missing values: isolines by marching triangles, isosurfaces by marching tetrahedra.

Plotly's own isolines on a 3-D surface take many seconds as soon as values are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats

# ----------------------------------------------------------------------------------------------------
# The grid of a surface as cells and triangles, for isolines on it and for meshes.

Indices = NDArray[np.int64]
Outline = list[float | None]  # coordinates of polygons, None after each


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


# ----------------------------------------------------------------------------------------------------


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
    # One of the three corners is alone on its side of the level: the line crosses the two edges that meet there.
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


def region_below(alpha: Floats, beta: Floats, values: Floats, limit: float) -> tuple[Outline, Outline]:
    """The region where `values` [beta, alpha], linear along the edges of grid squares, are at most `limit`.

    Returns:
        The x and the y of closed polygons, with None after each; squares with a missing corner belong to none.

    >>> region_below(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([[0.0, 2.0], [0.0, 2.0]]), 1.0)
    ([0.0, 0.5, 0.5, 0.0, 0.0, None], [0.0, 0.0, 1.0, 1.0, 0.0, None])
    """
    corners = np.stack([values[:-1, :-1], values[:-1, 1:], values[1:, 1:], values[1:, :-1]], axis=-1)
    inside, known = corners <= limit, np.isfinite(corners).all(axis=-1)
    x: Outline = []
    y: Outline = []

    def add(across: Sequence[float], up: Sequence[float]) -> None:
        x.extend([*across, across[0], None])
        y.extend([*up, up[0], None])

    whole = np.asarray(inside.all(axis=-1) & known)
    for j, run in enumerate(whole):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], run.astype(np.int8), [0]])))
        for i, end in zip(edges[::2], edges[1::2], strict=True):
            west, east, south, north = map(float, (alpha[i], alpha[end], beta[j], beta[j + 1]))
            add([west, east, east, west], [south, south, north, north])
    for j, i in zip(*np.nonzero(inside.any(axis=-1) & ~whole & known), strict=True):
        places = [(alpha[i], beta[j]), (alpha[i + 1], beta[j]), (alpha[i + 1], beta[j + 1]), (alpha[i], beta[j + 1])]
        part: list[tuple[float, float]] = []
        for k, (one, other) in enumerate(zip(places, [*places[1:], places[0]], strict=True)):
            height, following = corners[j, i, k], corners[j, i, (k + 1) % 4]
            part += [one] if height <= limit else []
            if (height <= limit) != (following <= limit):
                share = (limit - height) / (following - height)
                part.append((one[0] + share * (other[0] - one[0]), one[1] + share * (other[1] - one[1])))
        add([float(place[0]) for place in part], [float(place[1]) for place in part])
    return x, y


# ----------------------------------------------------------------------------------------------------
# Isosurfaces of a field over three axes, by marching tetrahedra; cubes with a missing corner are left open.
#
# Plotly's own isosurface draws nothing at all as soon as one value is missing.

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


# ----------------------------------------------------------------------------------------------------
# The path between its snapshots on a 3-D surface: straight in the plane; its height follows the surface.

PIECES = 12  # per stretch between two snapshots


def bilinear(alpha: Floats, beta: Floats, height: Floats, x: Floats, y: Floats) -> Floats:
    """The `height` [beta, alpha] at the points (x, y); NaN outside the grid and beside a missing value."""
    i = np.clip(np.searchsorted(alpha, x, side="right") - 1, 0, len(alpha) - 2)
    j = np.clip(np.searchsorted(beta, y, side="right") - 1, 0, len(beta) - 2)
    u, v = (x - alpha[i]) / (alpha[i + 1] - alpha[i]), (y - beta[j]) / (beta[j + 1] - beta[j])
    low = (1 - u) * height[j, i] + u * height[j, i + 1]
    high = (1 - u) * height[j + 1, i] + u * height[j + 1, i + 1]
    inside = (u >= 0) & (u <= 1) & (v >= 0) & (v <= 1)
    return np.where(inside, (1 - v) * low + v * high, np.nan)


def along_normals(
    points: Floats, alpha: Floats, beta: Floats, height: Floats, lift: float, scale: Sequence[float]
) -> Floats:
    """Points [n, 3] of the surface `height` [beta, alpha], moved by `lift` along its upward normal.

    Moving points only upwards would hardly lift them off a steep slope. Beside a missing value they move upwards.

    Args:
        lift: in the units of the drawing.
        scale: the length of one unit of each axis in the drawing.
    """
    steep_y, steep_x = np.nan_to_num(np.array(np.gradient(height, beta, alpha)))
    x, y = (np.clip(part, axis[0], axis[-1]) for part, axis in zip(points.T, (alpha, beta), strict=False))
    slopes = [bilinear(alpha, beta, part, x, y) for part in (steep_x, steep_y)]
    normal = np.stack([*(-slope * scale[2] / scale[k] for k, slope in enumerate(slopes)), np.ones(len(points))], axis=1)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    moved: Floats = points + lift * normal / np.array(scale)
    return moved


def path_on_surface(places: tuple[Floats, Floats], ends: Floats, alpha: Floats, beta: Floats, height: Floats) -> Floats:
    """The path over the surface `height` [beta, alpha], with exactly the heights `ends` at its n snapshots.

    Between two snapshots the surface's height is shifted to meet both ends. If the surface is not known there, the path
    is a straight line; if the height of an end is not known, nothing is drawn.

    Args:
        places: x and y of the snapshots, [n] each.

    Returns:
        [(n − 1)·PIECES + 1, 3] points.
    """
    if len(ends) < 2:
        return np.stack([*places, ends], axis=1)
    t = np.arange(len(ends) * PIECES - PIECES + 1) / PIECES
    whole = np.arange(len(ends), dtype=np.float64)
    x, y, chord = (np.interp(t, whole, values) for values in (*places, ends))
    start = np.minimum(t.astype(int), len(ends) - 2)
    share = t - start
    below = bilinear(alpha, beta, height, x, y)
    at_ends = bilinear(alpha, beta, height, *places)
    bend = below - ((1 - share) * at_ends[start] + share * at_ends[start + 1])
    z = chord + np.where(np.isfinite(bend), bend, 0.0)
    known = np.isfinite(ends)
    z = np.where(known[start] & known[start + 1], z, np.nan)
    z[::PIECES] = ends
    return np.stack([x, y, z], axis=1)
