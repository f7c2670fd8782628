"""The minima, maxima and basins of a surface that stand above its noise, with their places and depths."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.surface.surface import OK, Surface

# ----------------------------------------------------------------------------------------------------
# Steepest descent on a grid: the extremum that each point flows to, and the points where two basins meet.

Ranks = NDArray[np.int64]
Step = tuple[int, ...]
Meeting = tuple[int, int, int]


@dataclass(frozen=True)
class Descent:
    """Points by rank, their place in an order in which each extremum comes before the points that flow to it.

    Attributes:
        points: by rank, the number of the point in C order; the outside of the grid has the number after the last.
        extrema: the ranks of the extrema, ascending.
        basin: by rank, the place in `extrema` of the extremum that the point flows to.
        meetings: for each two basins that meet, the rank of the first such point, and the two basins; ascending.
    """

    points: NDArray[np.intp]
    extrema: Ranks
    basin: Ranks
    meetings: tuple[Meeting, ...]


def descend(points: NDArray[np.intp], shape: Sequence[int], steps: Iterable[Step]) -> Descent:
    """Let each point flow to the lowest rank among its neighbours, until no neighbour is lower.

    Args:
        points: the numbers of points, the lowest first; points that are not listed are walls. If the first number is
            the size of the grid, it stands for the outside of the grid, and walls are part of the outside.
        steps: from a point to its neighbours.
    """
    size, count = int(np.prod(shape)), len(points)
    wall = 0 if count and points[0] == size else count
    ranks = np.full(size + 1, wall, dtype=np.int64)
    ranks[points] = np.arange(count)
    own = ranks[:size].reshape(shape)
    padded = np.pad(own, 1, constant_values=wall)
    neighbours = [padded[tuple(slice(1 + k, 1 + k + n) for k, n in zip(step, shape, strict=True))] for step in steps]
    lowest = own
    for neighbour in neighbours:
        lowest = np.minimum(lowest, neighbour)
    target = np.arange(count)
    flows = own != wall
    target[own[flows]] = lowest[flows]
    while not np.array_equal(further := target[target], target):
        target = further
    extrema, basin = np.unique(target, return_inverse=True)
    return Descent(points, extrema, basin, _first_meetings(own, flows, neighbours, basin))


def _first_meetings(
    own: Ranks, flows: NDArray[np.bool_], neighbours: Sequence[Ranks], basin: NDArray[np.intp]
) -> tuple[Meeting, ...]:
    """The first point at which each two adjacent basins meet."""
    at, higher, lower = [], [], []
    for neighbour in neighbours:
        below = flows & (neighbour < own)
        high, low = own[below], neighbour[below]
        apart = basin[high] != basin[low]
        at.append(high[apart])
        higher.append(basin[high[apart]])
        lower.append(basin[low[apart]])
    ranks, first, second = (np.concatenate(parts) for parts in (at, higher, lower))
    order = np.argsort(ranks, kind="stable")
    pairs = np.minimum(first, second) * (len(basin) + 1) + np.maximum(first, second)
    earliest = np.sort(order[np.unique(pairs[order], return_index=True)[1]])
    earliest = earliest[np.argsort(ranks[earliest], kind="stable")]
    return tuple(zip(*(part[earliest].tolist() for part in (ranks, first, second)), strict=True))


def face_steps(dimensions: int) -> list[Step]:
    """The steps to points that differ by 1 along one axis."""
    return [step for step in corner_steps(dimensions) if sum(map(abs, step)) == 1]


def corner_steps(dimensions: int) -> list[Step]:
    """The steps to points that differ by at most 1 along each axis."""
    return [step for step in itertools.product((-1, 0, 1), repeat=dimensions) if any(step)]


# ----------------------------------------------------------------------------------------------------
# Persistence of the extrema of values on a grid: union-find over their basins, in the order of the saddles.

Index = tuple[int, ...]


@dataclass(frozen=True)
class PersistencePair:
    """An extremum, and the saddle at which its component joins that of a more extreme one.

    Attributes:
        extremum: its index in the array.
        saddle: the index of the saddle; None for the extremum that no other one outlasts.
        elder: the extremum that outlasts it there; None without a saddle, or if the outside outlasts it.
        birth: the value at the extremum.
        death: the value at the saddle; without one, inf for a minimum and -inf for a maximum.
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

    As t grows, a component appears at every minimum; where two components meet, the one with the higher minimum ends.
    Points are joined with those that differ by 1 along one axis. Of equal values, the first in C order is the lower.
    Edelsbrunner and Harer 2010, "Computational Topology", chapter VII.

    Args:
        values: f of any number of dimensions; points that are not finite are walls, which belong to no component.

    Returns:
        A pair for each minimum, the most persistent first. The first has no saddle; if walls divide the grid, each part
        has one such minimum. Empty if no value is finite.

    >>> [(pair.extremum, pair.birth, pair.death) for pair in minimum_pairs(np.array([0.0, 3.0, 1.0, 2.0]))]
    [((0,), 0.0, inf), ((2,), 1.0, 3.0)]
    """
    flow = descend(finite_in_order(values), values.shape, face_steps(values.ndim))
    return _pairs(values, flow, death=np.inf)


def maximum_pairs(values: Floats) -> list[PersistencePair]:
    """The persistence of the superlevel sets {x : f(x) ≥ t}, dual to the loops of the sublevel sets.

    Points are joined with all that differ by at most 1 along each axis, so that no path of a sublevel set crosses one
    of a superlevel set. The outside of the grid and walls are higher than all points: a rim that falls outwards nowhere
    has no maximum. With the outside as one more maximum, on a plane without walls #minima − #saddles + #maxima = 2, as
    on a sphere.

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
    """The numbers of the finite points, ascending by value, and by number if values are equal."""
    flat = values.ravel()
    order = np.argsort(flat, kind="stable")
    return order[np.isfinite(flat[order])]


def _pairs(values: Floats, flow: Descent, *, death: float) -> list[PersistencePair]:
    """The pairs of all extrema but the outside, the most persistent first; `death` of those without a saddle."""
    merged = _merge_basins(flow)
    births = _places(flow.points[flow.extrema], values.shape)
    saddles = _places(flow.points[[saddle for _, saddle, _ in merged]], values.shape)
    outside = 0 if len(flow.points) and flow.points[0] == values.size else None
    pairs = []
    for (basin, _, elder), saddle in zip(merged, saddles, strict=True):
        birth, outlasting = births[basin], None if elder == outside else births[elder]
        pairs.append(PersistencePair(birth, saddle, outlasting, float(values[birth]), float(values[saddle])))
    alone = set(range(len(births))) - {basin for basin, _, _ in merged} - {outside}
    pairs += [PersistencePair(births[basin], None, None, float(values[births[basin]]), death) for basin in alone]
    return sorted(pairs, key=lambda pair: (-pair.persistence, pair.extremum))


def _merge_basins(flow: Descent) -> list[tuple[int, int, int]]:
    """Basins that join an elder one, in the order of their saddles: the basin, the rank of the saddle, the elder."""
    parent = list(range(len(flow.extrema)))
    merged: list[tuple[int, int, int]] = []
    for at, meetings in itertools.groupby(flow.meetings, key=lambda meeting: meeting[0]):
        eldest, *younger = sorted({_root(parent, basin) for _, *pair in meetings for basin in pair})
        for basin in younger:
            parent[basin] = eldest
            merged.append((basin, at, eldest))
    return merged


def _root(parent: list[int], basin: int) -> int:
    """The eldest basin that a basin has joined; halves the path to it."""
    while parent[basin] != basin:
        parent[basin] = parent[parent[basin]]
        basin = parent[basin]
    return basin


def _places(numbers: NDArray[np.intp], shape: Index) -> list[Index]:
    """The indices of points; the outside, which has none, gets the index of the first point."""
    if not len(numbers):
        return []
    parts = np.unravel_index(numbers % int(np.prod(shape)), shape)
    return [*zip(*(part.tolist() for part in parts), strict=True)]


# ----------------------------------------------------------------------------------------------------
# The basins of minima: the minimum that each point flows down to.


def basins_of(values: Floats, pairs: Sequence[PersistencePair], minima: Sequence[PersistencePair]) -> NDArray[np.intp]:
    """The number in `minima` of the minimum to which each point belongs; -1 where the value is not finite.

    A point belongs to the minimum that steepest descent reaches, over neighbours along the axes. A minimum that is not
    in `minima` belongs to the one that it joins at its saddle.

    Args:
        pairs: all minima of the values.
        minima: those of them that have a basin: all above some persistence.
    """
    points = finite_in_order(values)
    flow = descend(points, values.shape, face_steps(values.ndim))
    target = _targets(pairs, {pair.extremum: number for number, pair in enumerate(minima)})
    extrema = zip(*(part.tolist() for part in np.unravel_index(points[flow.extrema], values.shape)), strict=True)
    labels = np.full(values.size, -1, dtype=np.intp)
    if len(points):
        labels[points] = np.array([target[extremum] for extremum in extrema])[flow.basin]
    return labels.reshape(values.shape)


def _targets(pairs: Sequence[PersistencePair], numbers: dict[Index, int]) -> dict[Index, int]:
    """For each minimum, the number of the minimum with a basin that it belongs to; -1 if it joins none."""
    elders = {pair.extremum: pair.elder for pair in pairs}

    def target(minimum: Index) -> int:
        at: Index | None = minimum
        while at is not None and at not in numbers:
            at = elders[at]
        return -1 if at is None else numbers[at]

    return {pair.extremum: target(pair.extremum) for pair in pairs}


# ----------------------------------------------------------------------------------------------------

Place = Mapping[str, float]

STANDARD_ERRORS = 4.0  # of the rise: the most persistent of 4,721 minima of white noise on 512² points reached this
SHARE_OF_RELIEF = 0.005  # narrower than a contour line of a figure


@dataclass(frozen=True)
class Extremum:
    """A minimum or a maximum that stands above the noise.

    Attributes:
        place: its coordinates by the names of the axes.
        value: of the observable there.
        saddle: the coordinates of the saddle to the more extreme extremum that outlasts it; None if there is none.
        barrier: the difference between its value and that at the saddle, its persistence; inf without a saddle.
    """

    place: Place
    value: float
    saddle: Place | None
    barrier: float


@dataclass(frozen=True)
class Basin:
    """The points that flow down to a minimum above the noise.

    Attributes:
        minimum: its lowest point.
        share: of the finite points of the surface, from 0 to 1.
        depth: the height of the first saddle out of the basin above the minimum; inf for the only basin.
    """

    minimum: Extremum
    share: float
    depth: float


@dataclass(frozen=True)
class Topology:
    """The topology of a surface. A minimum of this slice need not be a minimum of the network.

    Attributes:
        threshold: extrema of a smaller persistence count as noise, and are left out of `basins` and `maxima`.
        basins: one for each minimum above the threshold, the most persistent first.
        maxima: those above the threshold, the most persistent first.
        dropped: how many minima are below the threshold.
        pairs: all minima with their saddles, also those below the threshold, as a barcode shows them.
        labels: for each point, the number of its basin; -1 where the value is not finite.
    """

    observable: str
    threshold: float
    basins: tuple[Basin, ...]
    maxima: tuple[Extremum, ...]
    dropped: int
    pairs: tuple[PersistencePair, ...]
    labels: NDArray[np.intp]

    @property
    def saddles(self) -> tuple[Place, ...]:
        """The saddles between basins."""
        return tuple(basin.minimum.saddle for basin in self.basins if basin.minimum.saddle is not None)

    def smad(self) -> float:
        """The mean depth of the basins, 0 if there is only one: 1/k · Σ (f(first saddle) − f(minimum)).

        The saddle-minimum average distance of Landscaper (arXiv 2602.07135), of the merge tree without noise.
        """
        depths = [basin.depth for basin in self.basins if np.isfinite(basin.depth)]
        return float(np.mean(depths)) if depths else 0.0


def topology_of(surface: Surface, observable: str = "loss", threshold: float | None = None) -> Topology:
    """The extrema of a surface by persistence, and those of them that stand above the noise.

    For a refined landscape, all levels are merged on the finest grid.

    Args:
        observable: of the surface; each of its points that is not finite or not computed is a wall.
        threshold: the least persistence that counts; default: see `noise_threshold`.

    Raises:
        JobError: there is no such observable.
    """
    surface = surface.merged()
    values = np.where(surface.status == OK, surface[observable], np.nan)
    least = noise_threshold(surface, observable) if threshold is None else threshold
    pairs = minimum_pairs(values)
    minima = [pair for pair in pairs if pair.persistence > least]
    labels = basins_of(values, pairs, minima)
    counts = np.bincount(labels[labels >= 0], minlength=len(minima))
    ways_out = _ways_out(minima)
    basins = tuple(
        Basin(_extremum(surface, pair), float(count / counts.sum()), ways_out[pair.extremum] - pair.birth)
        for pair, count in zip(minima, counts, strict=True)
    )
    maxima = [_extremum(surface, pair) for pair in maximum_pairs(values) if pair.persistence > least]
    return Topology(observable, least, basins, tuple(maxima), len(pairs) - len(minima), tuple(pairs), labels)


def noise_threshold(surface: Surface, observable: str = "loss") -> float:
    """max(4 · median standard error of the rise, 0.5 % of the relief): persistence below it is not shown.

    For observables other than the loss, the error of the rise is not stored, and the standard error of the mean is used
    instead, which is larger near the origin. If no error is known, the relief alone decides.
    """
    name = "loss_rise_stderr" if observable == "loss" else f"{observable}_stderr"
    computed = surface.status == OK
    values = surface[observable][computed]
    values = values[np.isfinite(values)]
    relief = float(np.subtract(*np.percentile(values, [95, 5]))) if values.size else 0.0
    errors = surface.observables.get(name, np.full(surface.status.shape, np.nan))[computed]
    errors = errors[np.isfinite(errors)]
    noise = float(np.median(errors)) if errors.size else 0.0
    return max(STANDARD_ERRORS * noise, SHARE_OF_RELIEF * relief)


def _extremum(surface: Surface, pair: PersistencePair) -> Extremum:
    saddle = None if pair.saddle is None else _place(surface, pair.saddle)
    return Extremum(_place(surface, pair.extremum), pair.birth, saddle, pair.persistence)


def _place(surface: Surface, index: Index) -> Place:
    return {axis.name: float(axis.coordinates[k]) for axis, k in zip(surface.axes, reversed(index), strict=True)}


def _ways_out(minima: Sequence[PersistencePair]) -> dict[Index, float]:
    """The value at the first saddle out of each minimum's basin: its own saddle, or that of a basin that joins it."""
    lowest = {pair.extremum: pair.death for pair in minima}
    for pair in minima:
        if pair.elder is not None:
            lowest[pair.elder] = min(lowest[pair.elder], pair.death)
    return lowest
