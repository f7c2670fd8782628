"""Isolines of a height field with missing values, by marching triangles.

Plotly draws isolines on a 3-D surface itself, but takes many seconds as soon as values are missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from landscape.views.prepared.triangles import triangulated

Floats = NDArray[np.float64]


def isolines(alpha: Floats, beta: Floats, height: Floats, levels: Sequence[float]) -> Floats:
    """The lines where the linearly interpolated `height` [beta, alpha] equals one of `levels`.

    Returns:
        [n, 3]: the two ends of each segment and then a row of NaN, which lifts the pen.
    """
    points, triangles = triangulated(alpha, beta, height)
    segments = [_segments(points, triangles, level) for level in levels] if len(triangles) else []
    return np.concatenate(segments) if segments else np.empty((0, 3))


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
