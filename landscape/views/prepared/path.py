"""The trajectory as it is drawn: places, labels that do not overlap, and what the pointer shows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.surface import ProjectedPath, Surface
from landscape.views.prepared.comparable import Comparable
from landscape.views.prepared.levels import number

Floats = NDArray[np.float64]

LABEL_DISTANCE = 0.055  # of the plot's width: closer labels would run into each other


@dataclass(frozen=True)
class Label:
    """The number beside one snapshot; `angle` points away from the path, in radians, y upwards."""

    index: int
    text: str
    angle: float


@dataclass(frozen=True, eq=False)
class DrawnPath(Comparable):
    """The snapshots of a trajectory as drawn, in order; `unit` is what `numbers` count, step or epoch.

    `places` are their coordinates, one array per axis. `height` is the loss at the projection of each on the axes, in
    drawn units, and NaN where it is not known or has no logarithm. `loss` is the loss at the snapshots themselves,
    which lie off the plane.
    """

    unit: str
    numbers: tuple[int, ...]
    places: tuple[Floats, ...]
    height: Floats
    loss: Floats
    hover: tuple[str, ...]
    labels: tuple[Label, ...]

    @property
    def end_name(self) -> str:
        """The legend entry of the last snapshot, such as 'convergence point (epoch 20)'."""
        return f"convergence point ({self.unit} {self.numbers[-1]})"

    @property
    def start_name(self) -> str:
        """The legend entry of the first snapshot, such as 'start (epoch 0)'."""
        return f"start ({self.unit} {self.numbers[0]})"


def prepare_path(surface: Surface, observable: str, log: bool) -> DrawnPath | None:
    """The path of `surface` as a figure of `observable` shows it.

    Returns:
        None where the surface has no path, or the path has no place on one of the axes.
    """
    path = surface.path
    names = [axis.name for axis in surface.axes]
    if path is None or len(path.step) == 0 or not all(name in path.coordinates for name in names):
        return None
    places = tuple(np.asarray(path.coordinates[name], np.float64) for name in names)
    if not all(np.isfinite(place).all() for place in places):
        return None
    spans = [float(np.ptp(axis.coordinates)) or 1.0 for axis in surface.axes]
    scaled = [place / max(spans) for place in places]
    flat = np.stack([scaled[0], scaled[1] if len(scaled) > 1 else np.zeros_like(scaled[0])], axis=1)
    return DrawnPath(
        unit=path.unit,
        numbers=tuple(int(step) for step in path.step),
        places=places,
        height=_height(path, observable, log),
        loss=np.asarray(path.loss, np.float64),
        hover=tuple(_hover(path, names, k) for k in range(len(path.step))),
        labels=tuple(place_labels(flat, [str(int(step)) for step in path.step])),
    )


def path_note(path: DrawnPath | None, observable: str) -> list[str]:
    """At how many of its points the loss is known, where it is not at all of them."""
    if path is None or observable != "loss" or np.isfinite(path.height).all():
        return []
    count = int(np.isfinite(path.height).sum())
    return [f"loss on the path known at {count} of {len(path.numbers)} points"]


def _height(path: ProjectedPath, observable: str, log: bool) -> Floats:
    """The drawn loss at the projections; NaN throughout for other observables, which are not known along the path."""
    values = np.asarray(path.projected_loss, np.float64)
    if observable != "loss":
        return np.full(values.shape, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = np.log10(np.where(values > 0, values, np.nan)) if log else values
    return np.where(np.isfinite(drawn), drawn, np.nan)


def _hover(path: ProjectedPath, names: Sequence[str], k: int) -> str:
    last = " (convergence point)" if k == len(path.step) - 1 else " (start)" if k == 0 else ""
    lines = [f"<b>{path.unit} {int(path.step[k])}</b>{last}"]
    lines += [f"{name} {number(float(path.coordinates[name][k]))}" for name in names]
    facts = (
        ("loss", path.loss),
        ("loss at its projection", path.projected_loss),
        ("distance off the plane", path.distance),
    )
    for name, values in facts:
        value = float(values[k])
        lines.append(f"{name} {number(value, 5) if math.isfinite(value) else 'not known'}")
    return "<br>".join(lines)


def place_labels(points: Floats, texts: Sequence[str], distance: float = LABEL_DISTANCE) -> list[Label]:
    """Labels beside some of the points [n, 2], in units of the plot's width, that do not overlap.

    The last and the first point have theirs first; then the points half-way between labelled ones, and so on, as far
    as there is room.

    Args:
        texts: one per point.
        distance: between two labels at least.
    """
    kept: list[Label] = []
    spots: list[Floats] = []
    for index in _coarse_to_fine(len(points)):
        angle = _away_from_path(points, index)
        spot = points[index] + 0.03 * np.array([math.cos(angle), math.sin(angle)])
        if all(np.linalg.norm(spot - other) >= distance for other in spots):
            kept.append(Label(index, texts[index], angle))
            spots.append(spot)
    return sorted(kept, key=lambda label: label.index)


def _coarse_to_fine(count: int) -> list[int]:
    order = [count - 1, 0] if count > 1 else [0]
    step = 2 ** max(0, math.ceil(math.log2(max(count - 1, 1))) - 1)
    while step >= 1:
        order += [k for k in range(step, count - 1, step) if k not in order]
        step //= 2
    return order


def _away_from_path(points: Floats, index: int) -> float:
    """The direction, one of eight, in which a label is furthest from the path nearby; in radians."""
    others = points[max(0, index - 6) : index + 7]
    segments = [a + (b - a) * t for a, b in itertools.pairwise(others) for t in (0.0, 0.25, 0.5, 0.75)]
    along = np.array([*segments, others[-1]])
    angles = [k * math.pi / 4 for k in (2, 6, 0, 4, 1, 3, 5, 7)]

    def clearance(angle: float) -> float:
        spot = points[index] + 0.03 * np.array([math.cos(angle), math.sin(angle)])
        return float(np.linalg.norm(along - spot, axis=1).min())

    return max(angles, key=lambda angle: round(clearance(angle), 6))
