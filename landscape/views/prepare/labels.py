"""Where labels of snapshots stand, for plotly and matplotlib: beside their marks, over no line, mark, word or frame.

All lengths are in one unit, pixels or points, from the lower left corner of the plot area.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats

Boxes = NDArray[np.float64]  # [n, 4]: left, bottom, right, top

GAP = 0.15  # between a label and the mark that it belongs to, in heights of the label
RINGS = (0.0, 0.45)  # farther than this from its mark, in heights of the label, a number may be read as a neighbour's
RINGS_OF_ENDS = (*RINGS, 1.0, 1.8)  # of first, last and named marks: there is one of each
ANGLES = tuple(math.radians(degrees) for degrees in (90, 0, 180, 270, 45, 135, 315, 225, *range(22, 360, 45)))
MOST_TRIED = 300  # labels; a picture has room for fewer


@dataclass(frozen=True, eq=False)
class Track:
    """Marks on paper that may have labels, and the line through them.

    Attributes:
        points: [n, 2]; a point that is not finite breaks the line.
        sizes: the width and the height of each label, [n, 2]; zeros for marks and lines that have none.
        radii: of the marks, [n].
        width: of the line, with its edges; 0 for marks without a line.
        named: whether the labels are names, all of which are placed before the numbers of others.
    """

    points: Floats
    sizes: Floats
    radii: Floats
    width: float = 0.0
    named: bool = False

    @classmethod
    def of_line(cls, points: Floats, width: float) -> Track:
        """A line without marks and labels."""
        return cls(points, np.zeros((len(points), 2)), np.zeros(len(points)), width)

    @property
    def has_labels(self) -> bool:
        """Whether any mark has a label."""
        return bool(self.sizes.any())


@dataclass(frozen=True)
class Spot:
    """The centre of the label of one mark."""

    index: int
    x: float
    y: float


def place_labels(
    tracks: Sequence[Track], area: tuple[float, float], taken: Sequence[tuple[float, float, float, float]] = ()
) -> list[list[Spot]]:
    """The labels that fit, per track in order: names come first, then firsts, lasts, and the farthest from all before.

    A label fits if its box lies within the area and touches no line, mark, taken box or other label. Of the places
    around its mark it takes the nearest ring with a free one, and there the one farthest from lines and marks.

    Args:
        area: width and height of the plot.
        taken: boxes (left, bottom, right, top) of what else is there: a legend, a cross.

    >>> track = Track(np.array([[20.0, 20.0], [80.0, 20.0]]), np.full((2, 2), 10.0), np.full(2, 3.0), width=2.0)
    >>> [(spot.index, spot.x, spot.y) for spot in place_labels([track], (100.0, 40.0))[0]]
    [(0, 20.0, 29.5), (1, 80.0, 29.5)]
    """
    scene = _Scene(tracks, area, taken)
    kept: list[list[Spot]] = [[] for _ in tracks]
    for number, index, rings in scene.first():
        scene.try_label(kept, number, index, rings)
    while (following := scene.farthest()) is not None:
        scene.try_label(kept, *following, RINGS)
    return [sorted(spots, key=lambda spot: spot.index) for spots in kept]


def free_boxes(
    boxes: Boxes,
    tracks: Sequence[Track],
    area: tuple[float, float],
    taken: Sequence[tuple[float, float, float, float]] = (),
) -> NDArray[np.bool_]:
    """Which boxes [n, 4] lie within the area and touch no line, mark or taken box."""
    scene = _Scene(tracks, area, taken)
    return scene.free(boxes, np.concatenate(scene.boxes))


class _Scene:
    """What lies on the paper, and which marks were tried."""

    def __init__(
        self, tracks: Sequence[Track], area: tuple[float, float], taken: Sequence[tuple[float, float, float, float]]
    ) -> None:
        self.tracks, self.area = tracks, area
        self.boxes: list[Boxes] = [np.array(taken, np.float64).reshape(-1, 4), *map(_mark_boxes, tracks)]
        ends = [_segments(track) for track in tracks]
        self.starts, self.ends = (np.concatenate([np.empty((0, 2)), *(pair[k] for pair in ends)]) for k in (0, 1))
        halves = [np.full(len(pair[0]), track.width / 2) for pair, track in zip(ends, tracks, strict=True)]
        self.halves = np.concatenate([np.empty(0), *halves])
        numbers = [np.full(len(track.points), k) for k, track in enumerate(tracks)]
        self.owner = np.concatenate([np.empty(0, int), *numbers]).astype(int)
        self.index = np.concatenate([np.empty(0, int), *(np.arange(len(track.points)) for track in tracks)]).astype(int)
        self.points = np.concatenate([np.empty((0, 2)), *(track.points for track in tracks)])
        self.height = max((float(track.sizes[:, 1].max(initial=0)) for track in tracks), default=0.0)
        inside = np.isfinite(self.points).all(1) & (self.points >= 0).all(1) & (self.points <= area).all(1)
        labelled = np.concatenate([np.empty(0, bool), *(track.sizes.any(1) for track in tracks)]).astype(bool)
        self.away = np.where(inside & labelled, np.inf, -1.0)  # of each mark from the nearest that was tried
        self.tried = 0

    def first(self) -> list[tuple[int, int, tuple[float, ...]]]:
        """Names, then the first mark of each path, then the last ones."""
        labelled = [(k, track) for k, track in enumerate(self.tracks) if track.has_labels]
        paths = [(k, len(track.points)) for k, track in labelled if not track.named]
        names = [(k, i) for k, track in labelled if track.named for i in range(len(track.points))]
        ends = [*((k, 0) for k, _ in paths), *((k, count - 1) for k, count in paths if count > 1)]
        return [(k, i, RINGS_OF_ENDS) for k, i in (*names, *ends)]

    def farthest(self) -> tuple[int, int] | None:
        """The mark that is farthest from all that were tried; None if all are close to one, so that none would fit."""
        if not len(self.away) or self.tried >= MOST_TRIED:
            return None
        at = int(np.argmax(self.away))
        return None if self.away[at] < self.height else (int(self.owner[at]), int(self.index[at]))

    def try_label(self, kept: list[list[Spot]], number: int, index: int, rings: Sequence[float]) -> None:
        """Place the label of a mark if it fits."""
        at = int(np.flatnonzero((self.owner == number) & (self.index == index))[0])
        if self.away[at] < 0:
            return
        self.tried += 1
        point, track = self.points[at], self.tracks[number]
        self.away = np.minimum(self.away, np.where(self.away < 0, self.away, np.hypot(*(self.points - point).T)))
        self.away[at] = -1.0
        place = self._free_place(point, track.sizes[index], float(track.radii[index]), rings)
        if place is not None:
            kept[number].append(Spot(index, float(place[0]), float(place[1])))
            self.boxes.append(_boxes(place[None], track.sizes[index]))

    def _free_place(self, point: Floats, size: Floats, radius: float, rings: Sequence[float]) -> Floats | None:
        height = float(size[1])
        steps = np.array([[math.cos(angle), math.sin(angle)] for angle in ANGLES]).round(12)
        reach = np.abs(steps) @ (size / 2)  # so that a line separates the label from its mark
        taken = np.concatenate(self.boxes)
        for ring in rings:
            centres = point + steps * (radius + (GAP + ring) * height + reach)[:, None]
            boxes = _boxes(centres, size)
            free = self.free(boxes, taken)
            if free.any():
                centres, boxes = centres[free], boxes[free]
                return np.asarray(centres[int(np.argmax(self._clearance(boxes, point, height)))])
        return None

    def free(self, boxes: Boxes, taken: Boxes) -> NDArray[np.bool_]:
        """Which boxes lie within the area, and over nothing that is there."""
        free = np.asarray((boxes[:, :2] >= 0).all(1) & (boxes[:, 2:] <= self.area).all(1))
        free[free] &= ~_overlap(boxes[free], taken)
        free[free] &= ~_crossed(boxes[free], self.starts, self.ends, self.halves)
        return free

    def _clearance(self, boxes: Boxes, point: Floats, height: float) -> NDArray[np.int64]:
        """The distance of each box from the nearest other mark or middle of a line's piece, in halves of a height.

        At most 3, since more is no clearer: then the first of the angles counts.
        """
        things = np.concatenate([self.points[(self.points != point).any(1)], (self.starts + self.ends) / 2])
        things = things[np.isfinite(things).all(1)]
        near = np.maximum(np.maximum(boxes[:, None, :2] - things, things - boxes[:, None, 2:]), 0.0)
        least = np.hypot(near[..., 0], near[..., 1]).min(axis=1, initial=np.inf)
        return np.asarray(np.minimum(2 * least / height + 1e-9, 3), np.int64)


def _boxes(centres: Floats, size: Floats) -> Boxes:
    return np.concatenate([centres - size / 2, centres + size / 2], axis=1)


def _mark_boxes(track: Track) -> Boxes:
    known = np.isfinite(track.points).all(1) & (track.radii > 0)
    points, radii = track.points[known], track.radii[known][:, None]
    return np.concatenate([points - radii, points + radii], axis=1)


def _segments(track: Track) -> tuple[Floats, Floats]:
    """The starts and the ends of the pieces of a track's line."""
    if track.width <= 0:
        return np.empty((0, 2)), np.empty((0, 2))
    starts, ends = track.points[:-1], track.points[1:]
    known = np.isfinite(starts).all(1) & np.isfinite(ends).all(1)
    return starts[known], ends[known]


def _overlap(boxes: Boxes, taken: Boxes) -> NDArray[np.bool_]:
    """Which boxes share an area with a taken one."""
    apart = (boxes[:, None, :2] >= taken[None, :, 2:]) | (boxes[:, None, 2:] <= taken[None, :, :2])
    return np.asarray(np.any(~np.any(apart, axis=2), axis=1), bool)


def _crossed(boxes: Boxes, starts: Floats, ends: Floats, halves: Floats) -> NDArray[np.bool_]:
    """Which boxes a segment of half width `halves` passes through, by the slabs of Kay and Kajiya (1986)."""
    step = ends - starts
    step = np.where(step == 0, 1e-12, step)
    low = (boxes[:, None, :2] - halves[:, None] - starts) / step
    high = (boxes[:, None, 2:] + halves[:, None] - starts) / step
    enter = np.minimum(low, high).max(axis=2)
    leave = np.maximum(low, high).min(axis=2)
    return np.asarray(np.any((enter <= leave) & (leave >= 0) & (enter <= 1), axis=1), bool)
