"""The path between its snapshots on a 3-D surface: straight in the plane, in height it follows the surface."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

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

    Moved upwards alone, points on a steep slope would hardly leave the surface. Beside a missing value they are.

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
    """The path over the surface `height` [beta, alpha], at exactly the heights `ends` in its n snapshots.

    Between two snapshots the surface's height is shifted so that it meets both ends. Where the surface is not known,
    the path is a straight line; where the height of an end is not known, nothing is drawn.

    Args:
        places: x and y of the snapshots, [n] each.

    Returns:
        [(n − 1)·PIECES + 1, 3] points.
    """
    if len(ends) < 2:
        return np.stack([*places, ends], axis=1)
    t = np.arange(len(ends) * PIECES - PIECES + 1) / PIECES
    whole = np.arange(len(ends), dtype=np.float64)
    x, y, chord = (np.interp(t, whole, each) for each in (*places, ends))
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
