"""Twenty paths of different shapes, and an independent measure of what the boxes of labels lie on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

Box = tuple[float, float, float, float]  # left, bottom, right, top


def shapes() -> dict[str, np.ndarray]:
    """Paths [n, 2] within [-1, 1] × [-1, 1], as trainings draw them on planes."""
    rng = np.random.default_rng(0)

    def spiral(count: int, turns: float) -> np.ndarray:
        t = np.linspace(1, 0, count)
        return 0.9 * np.stack([t * np.cos(turns * t), t * np.sin(turns * t)], axis=1)

    def walk(count: int, size: float) -> np.ndarray:
        steps = rng.standard_normal((count, 2)).cumsum(axis=0)
        return size * steps / np.abs(steps).max()

    t = np.linspace(-1, 1, 12)
    return {
        "spiral": spiral(10, 2.5),
        "dense spiral": spiral(120, 12.0),
        "long spiral": spiral(600, 20.0),
        "straight": np.stack([t, 0 * t], axis=1) * 0.9,
        "upright": np.stack([0 * t, t], axis=1) * 0.9,
        "diagonal": np.stack([t, t], axis=1) * 0.9,
        "along the frame": np.stack([t, 0 * t + 0.99], axis=1) * 0.99,
        "into a corner": np.stack([t, t**3], axis=1),
        "zigzag": np.stack([t, 0.3 * (-1.0) ** np.arange(12)], axis=1) * 0.9,
        "hairpin": np.concatenate([np.stack([t, 0 * t], axis=1), np.stack([-t, 0 * t + 0.05], axis=1)]) * 0.9,
        "parabola": np.stack([t, t**2 - 0.5], axis=1) * 0.9,
        "horseshoe": np.stack([np.sin(2.8 * t), np.cos(2.8 * t)], axis=1) * 0.8,
        "circle": np.stack([np.sin(np.pi * t), np.cos(np.pi * t)], axis=1) * 0.8,
        "walk": walk(30, 0.9),
        "long walk": walk(400, 0.9),
        "tiny": walk(20, 0.02),
        "one point many times": np.zeros((15, 2)),
        "one snapshot": np.array([[0.3, 0.2]]),
        "two snapshots": np.array([[-0.5, 0.5], [0.5, -0.5]]),
        "settling": np.concatenate([np.array([[-0.9, 0.8], [-0.3, 0.1]]), walk(40, 0.06)]),
    }


def overlap(one: Box, other: Box, rim: float = 1e-6) -> bool:
    """Whether two boxes share more than a rim."""
    return min(one[2], other[2]) - max(one[0], other[0]) > rim and min(one[3], other[3]) - max(one[1], other[1]) > rim


def overlapping(boxes: Sequence[Box], rim: float = 1e-6) -> list[tuple[int, int]]:
    """The pairs of boxes that overlap."""
    return [(a, b) for a, b in itertools.combinations(range(len(boxes)), 2) if overlap(boxes[a], boxes[b], rim)]


def on_line(box: Box, line: np.ndarray, half: float = 0.0) -> bool:
    """Whether a line [n, 2] of this half width runs through a box: by points on it, a quarter of a unit apart."""
    return any(box[0] - half < x < box[2] + half and box[1] - half < y < box[3] + half for x, y in _points_on(line))


def _points_on(line: np.ndarray) -> Iterator[tuple[float, float]]:
    for start, end in itertools.pairwise(line):
        for share in np.linspace(0, 1, 2 + int(4 * np.hypot(*(end - start)))):
            yield tuple(start + share * (end - start))
