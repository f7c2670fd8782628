"""Persistence of the extrema of values on a grid: union-find over its points, in the order of their values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Index = tuple[int, ...]


@dataclass(frozen=True)
class PersistencePair:
    """An extremum, and the saddle at which its component joins that of a more extreme one.

    Attributes:
        extremum: its index in the array.
        saddle: the index of the saddle; None for the extremum that no other one outlasts.
        elder: the extremum that outlasts it there; None where there is no saddle, or where it is the outside.
        birth: the value at the extremum.
        death: the value at the saddle; inf (of a minimum) or -inf (of a maximum) where there is none.
    """

    extremum: Index
    saddle: Index | None
    elder: Index | None
    birth: float
    death: float

    @property
    def persistence(self) -> float:
        """|death − birth|."""
        return abs(self.death - self.birth)


def minimum_pairs(values: Floats) -> list[PersistencePair]:
    """The 0-dimensional persistence of the sublevel sets {x : f(x) ≤ t}, by the elder rule.

    As t grows, a component appears at every minimum; where two meet, the one whose minimum is higher ends. Points are
    joined with those that differ by 1 along one axis. Of equal values the one that comes first in C order is the lower.
    Edelsbrunner and Harer 2010, "Computational Topology", chapter VII.

    Args:
        values: f of any number of dimensions; points that are not finite are walls, which belong to no component.

    Returns:
        A pair for each minimum, the most persistent one first, which has no saddle; where walls part the grid, one
        such for each part. Empty where no value is finite.

    >>> [(pair.extremum, pair.birth, pair.death) for pair in minimum_pairs(np.array([0.0, 3.0, 1.0, 2.0]))]
    [((0,), 0.0, inf), ((2,), 1.0, 3.0)]
    """
    shape = values.shape
    order = finite_in_order(values)
    pairs = _merge(order, values.size, face_neighbours(shape))
    return _most_persistent_first([_pair(values, *each, death=np.inf) for each in pairs])


def maximum_pairs(values: Floats) -> list[PersistencePair]:
    """The persistence of the superlevel sets {x : f(x) ≥ t}, dual to the loops of the sublevel sets.

    Points are joined with all that differ by at most 1 along each axis, so that no path of a sublevel set crosses one
    of a superlevel set. What lies outside the grid is higher than all of it, and so are walls: a rim that falls
    outwards nowhere has no maximum. With that outside as one more maximum, on a plane without walls
    #minima − #saddles + #maxima = 2, as on a sphere.

    Args:
        values: f of any number of dimensions; points that are not finite count as higher than all others.

    Returns:
        A pair for each maximum, the most persistent one first. The outside is not among them, so all have a saddle.

    >>> maximum_pairs(np.array([[0.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 0.0]]))
    [PersistencePair(extremum=(1, 1), saddle=(1, 2), elder=None, birth=2.0, death=1.0)]
    """
    shape, outside = values.shape, values.size
    order = finite_in_order(values)[::-1]
    near = _corner_neighbours(shape)
    rim = _on_rim(shape)
    walls = ~np.isfinite(values.ravel())

    def neighbours(point: int) -> list[int]:
        if point == outside:
            return []  # it comes first
        beside = [outside if walls[each] else each for each in near(point)]
        return [*beside, outside] if rim[point] else beside

    pairs = _merge(np.concatenate([[outside], order]), values.size + 1, neighbours)
    return _most_persistent_first([_pair(values, *each, death=-np.inf) for each in pairs if each[0] != outside])


def finite_in_order(values: Floats) -> NDArray[np.intp]:
    """The numbers of the finite points, ascending by value; of equal ones the first comes first."""
    flat = values.ravel()
    order = np.argsort(flat, kind="stable")
    return order[np.isfinite(flat[order])]


def _merge(
    order: NDArray[np.intp], points: int, neighbours: Callable[[int], Sequence[int]]
) -> list[tuple[int, int | None, int | None]]:
    """Extremum, saddle and elder, by their numbers, of every component that appears when points come in `order`."""
    come = np.full(points, -1, dtype=np.int64)
    come[order] = np.arange(len(order))
    rank = come.tolist()
    parent = [-1] * points  # a root is the first point of its component; -1: the point has not come yet
    pairs: list[tuple[int, int | None, int | None]] = []
    roots = set()
    for point in order.tolist():
        parent[point] = point
        joined = {_root(parent, each) for each in neighbours(point) if parent[each] >= 0} - {point}
        if not joined:
            roots.add(point)
            continue
        eldest, *younger = sorted(joined, key=rank.__getitem__)
        parent[point] = eldest
        for each in younger:
            parent[each] = eldest
            roots.discard(each)
            pairs.append((each, point, eldest))
    return pairs + [(each, None, None) for each in sorted(roots, key=rank.__getitem__)]


def _root(parent: list[int], point: int) -> int:
    """The root of a point's component; the path to it is halved on the way."""
    while parent[point] != point:
        parent[point] = parent[parent[point]]
        point = parent[point]
    return point


def _pair(values: Floats, extremum: int, saddle: int | None, elder: int | None, *, death: float) -> PersistencePair:
    flat = values.ravel()

    def place(number: int | None) -> Index | None:
        if number is None or number == values.size:  # the outside
            return None
        return tuple(int(k) for k in np.unravel_index(number, values.shape))

    at = place(extremum)
    assert at is not None
    return PersistencePair(
        at, place(saddle), place(elder), float(flat[extremum]), death if saddle is None else float(flat[saddle])
    )


def _most_persistent_first(pairs: list[PersistencePair]) -> list[PersistencePair]:
    return sorted(pairs, key=lambda pair: (-pair.persistence, pair.extremum))


def face_neighbours(shape: Index) -> Callable[[int], list[int]]:
    """The numbers of the points that differ by 1 along one axis."""
    steps = [step for step in _steps(len(shape)) if sum(map(abs, step)) == 1]
    return _neighbours(shape, steps)


def _corner_neighbours(shape: Index) -> Callable[[int], list[int]]:
    """The numbers of the points that differ by at most 1 along each axis."""
    return _neighbours(shape, _steps(len(shape)))


def _steps(dimensions: int) -> list[Index]:
    return [step for step in itertools.product((-1, 0, 1), repeat=dimensions) if any(step)]


def _neighbours(shape: Index, steps: Sequence[Index]) -> Callable[[int], list[int]]:
    """The neighbours of a point, in a grid with a rim around it that belongs to none of its points."""
    padded = np.full([n + 2 for n in shape], -1, dtype=np.int64)
    inner = tuple(slice(1, -1) for _ in shape)
    padded[inner] = np.arange(int(np.prod(shape))).reshape(shape)
    numbers = padded.ravel().tolist()
    place = np.arange(padded.size).reshape(padded.shape)[inner].ravel().tolist()
    strides = [int(np.prod(padded.shape[k + 1 :])) for k in range(len(shape))]
    offsets = [sum(a * b for a, b in zip(step, strides, strict=True)) for step in steps]

    def of(point: int) -> list[int]:
        centre = place[point]
        return [each for each in (numbers[centre + offset] for offset in offsets) if each >= 0]

    return of


def _on_rim(shape: Index) -> list[bool]:
    rim = np.ones(shape, dtype=bool)
    rim[tuple(slice(1, -1) for _ in shape)] = False
    return rim.ravel().tolist()
