"""Curves between two networks with one bend: what each of their points has of the ends and of the bend."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Curve = Literal["bezier", "polyline"]


def curve_shares(kind: Curve, t: Floats) -> Floats:
    """The shares of w₁, w₂ and the bend θ in each point of a curve: [n, 3], each row adding to 1.

    Bezier: φ(t) = (1−t)²·w₁ + 2t(1−t)·θ + t²·w₂. Polyline: from w₁ straight to θ over t in [0, ½], and from there
    to w₂. Garipov et al. 2018, section 3.2.

    Args:
        t: [n], from 0 to 1.

    >>> curve_shares("bezier", np.array([0.0, 0.5, 1.0])).tolist()
    [[1.0, 0.0, 0.0], [0.25, 0.25, 0.5], [0.0, 1.0, 0.0]]
    """
    if kind == "bezier":
        return np.stack([(1 - t) ** 2, t**2, 2 * t * (1 - t)], axis=1)
    return np.stack([np.maximum(1 - 2 * t, 0), np.maximum(2 * t - 1, 0), 1 - np.abs(2 * t - 1)], axis=1)


def curve_places(kind: Curve, corners: Floats, t: Floats) -> Floats:
    """The coordinates [n, axes] of a curve's points where its ends and its bend have the coordinates `corners`.

    Args:
        corners: [3, axes], of w₁, w₂ and the bend.
    """
    return curve_shares(kind, t) @ corners
