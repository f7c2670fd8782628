"""Persistence of the extrema of values on a grid: union-find over their basins, in the order of the saddles."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.surface.descent import Descent, corner_steps, descend, face_steps

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
        """The distance between birth and death."""
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
    flow = descend(finite_in_order(values), values.shape, face_steps(values.ndim))
    return _pairs(values, flow, death=np.inf)


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
    points = np.concatenate([[values.size], finite_in_order(values)[::-1]])
    flow = descend(points, values.shape, corner_steps(values.ndim))
    return _pairs(values, flow, death=-np.inf)


def finite_in_order(values: Floats) -> NDArray[np.intp]:
    """The numbers of the finite points, ascending by value; of equal ones the first comes first."""
    flat = values.ravel()
    order = np.argsort(flat, kind="stable")
    return order[np.isfinite(flat[order])]


def _pairs(values: Floats, flow: Descent, *, death: float) -> list[PersistencePair]:
    """The pairs of all extrema but the outside, the most persistent first; `death` of those without a saddle."""
    merged = _merged(flow)
    births = _places(flow.points[flow.extrema], values.shape)
    saddles = _places(flow.points[[saddle for _, saddle, _ in merged]], values.shape)
    outside = 0 if len(flow.points) and flow.points[0] == values.size else None
    pairs = []
    for (gone, _, elder), saddle in zip(merged, saddles, strict=True):
        outlasting = None if elder == outside else births[elder]
        pairs.append(
            PersistencePair(births[gone], saddle, outlasting, float(values[births[gone]]), float(values[saddle]))
        )
    alone = set(range(len(births))) - {gone for gone, _, _ in merged} - {outside}
    pairs += [PersistencePair(births[each], None, None, float(values[births[each]]), death) for each in alone]
    return sorted(pairs, key=lambda pair: (-pair.persistence, pair.extremum))


def _merged(flow: Descent) -> list[tuple[int, int, int]]:
    """Basins that join an elder one, in the order of their saddles: the basin, the rank of the saddle, the elder."""
    parent = list(range(len(flow.extrema)))
    merged: list[tuple[int, int, int]] = []
    for at, meetings in itertools.groupby(flow.meetings, key=lambda meeting: meeting[0]):
        eldest, *younger = sorted({_root(parent, basin) for _, *both in meetings for basin in both})
        for each in younger:
            parent[each] = eldest
            merged.append((each, at, eldest))
    return merged


def _root(parent: list[int], basin: int) -> int:
    """The eldest basin that a basin has joined; the path to it is halved on the way."""
    while parent[basin] != basin:
        parent[basin] = parent[parent[basin]]
        basin = parent[basin]
    return basin


def _places(numbers: NDArray[np.intp], shape: Index) -> list[Index]:
    """The indices of points; the outside, which has none, gets those of the first point."""
    if not len(numbers):
        return []
    parts = np.unravel_index(numbers % int(np.prod(shape)), shape)
    return [*zip(*(part.tolist() for part in parts), strict=True)]
