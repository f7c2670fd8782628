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
# Steepest descent on a grid: which extremum each point flows to, and where what flows to two of them meets.

Ranks = NDArray[np.int64]
Step = tuple[int, ...]
Meeting = tuple[int, int, int]


@dataclass(frozen=True)
class Descent:
    """Points by their ranks: their places in an order in which each extremum comes before what flows to it.

    Attributes:
        points: of each rank, the number of its point in C order; the outside of the grid has the number after the last.
        extrema: the ranks of the extrema, ascending.
        basin: of each rank, the place in `extrema` of the one that it flows to.
        meetings: where two basins meet first, ascending: the rank of that point, and the two basins.
    """

    points: NDArray[np.intp]
    extrema: Ranks
    basin: Ranks
    meetings: tuple[Meeting, ...]


def descend(points: NDArray[np.intp], shape: Sequence[int], steps: Iterable[Step]) -> Descent:
    """Let each point flow to the one of lowest rank among its neighbours, until none is lower.

    Args:
        points: the numbers of points, the lowest first; those that are not named are walls. Where the first is the size
            of the grid, it is all that lies outside of it, and walls are part of that.
        steps: from a point to its neighbours.
    """
    size, count = int(np.prod(shape)), len(points)
    wall = 0 if count and points[0] == size else count
    ranks = np.full(size + 1, wall, dtype=np.int64)
    ranks[points] = np.arange(count)
    own = ranks[:size].reshape(shape)
    padded = np.pad(own, 1, constant_values=wall)
    beside = [padded[tuple(slice(1 + k, 1 + k + n) for k, n in zip(step, shape, strict=True))] for step in steps]
    lowest = own
    for neighbour in beside:
        lowest = np.minimum(lowest, neighbour)
    target = np.arange(count)
    flows = own != wall
    target[own[flows]] = lowest[flows]
    while not np.array_equal(further := target[target], target):
        target = further
    extrema, basin = np.unique(target, return_inverse=True)
    return Descent(points, extrema, basin, _first_meetings(own, flows, beside, basin))


def _first_meetings(
    own: Ranks, flows: NDArray[np.bool_], beside: Sequence[Ranks], basin: NDArray[np.intp]
) -> tuple[Meeting, ...]:
    """Where the points of two basins are neighbours first, of each two basins that have neighbours."""
    at, one, other = [], [], []
    for neighbour in beside:
        below = flows & (neighbour < own)
        high, low = own[below], neighbour[below]
        apart = basin[high] != basin[low]
        at.append(high[apart])
        one.append(basin[high[apart]])
        other.append(basin[low[apart]])
    ranks, first, second = (np.concatenate(parts) for parts in (at, one, other))
    order = np.argsort(ranks, kind="stable")
    pairs = np.minimum(first, second) * (len(basin) + 1) + np.maximum(first, second)
    earliest = np.sort(order[np.unique(pairs[order], return_index=True)[1]])
    earliest = earliest[np.argsort(ranks[earliest], kind="stable")]
    return tuple(zip(*(part[earliest].tolist() for part in (ranks, first, second)), strict=True))


def face_steps(dimensions: int) -> list[Step]:
    """To the points that differ by 1 along one axis."""
    return [step for step in corner_steps(dimensions) if sum(map(abs, step)) == 1]


def corner_steps(dimensions: int) -> list[Step]:
    """To the points that differ by at most 1 along each axis."""
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


# ----------------------------------------------------------------------------------------------------
# The basins of minima: which minimum each point flows down to.


def basins_of(values: Floats, pairs: Sequence[PersistencePair], kept: Sequence[PersistencePair]) -> NDArray[np.intp]:
    """The number in `kept` of the minimum to which each point belongs; -1 where the value is not finite.

    A point belongs to the minimum that steepest descent leads to, over neighbours along the axes. A minimum that is not
    kept belongs to the one which it joins at its saddle.

    Args:
        pairs: all minima of the values.
        kept: those of them that have a basin, all of a persistence greater than those that are not kept.
    """
    points = finite_in_order(values)
    flow = descend(points, values.shape, face_steps(values.ndim))
    target = _targets(pairs, {pair.extremum: number for number, pair in enumerate(kept)})
    minima = zip(*(part.tolist() for part in np.unravel_index(points[flow.extrema], values.shape)), strict=True)
    labels = np.full(values.size, -1, dtype=np.intp)
    if len(points):
        labels[points] = np.array([target[minimum] for minimum in minima])[flow.basin]
    return labels.reshape(values.shape)


def _targets(pairs: Sequence[PersistencePair], kept: dict[Index, int]) -> dict[Index, int]:
    """Of each minimum, the number of the kept one that it belongs to; -1 where it joins none."""
    elders = {pair.extremum: pair.elder for pair in pairs}

    def target(minimum: Index) -> int:
        at: Index | None = minimum
        while at is not None and at not in kept:
            at = elders[at]
        return -1 if at is None else kept[at]

    return {pair.extremum: target(pair.extremum) for pair in pairs}


# ----------------------------------------------------------------------------------------------------

Place = Mapping[str, float]

STANDARD_ERRORS = 4.0  # of the rise; the tallest of 4,721 minima that white noise made on 512² points stood at this
SHARE_OF_RELIEF = 0.005  # less than a line of a figure's contours is wide


@dataclass(frozen=True)
class Extremum:
    """A minimum or a maximum that stands above the noise.

    Attributes:
        place: its coordinates by the names of the axes.
        value: of the observable there.
        saddle: the coordinates of the saddle to the more extreme one that outlasts it; None where there is none.
        barrier: the distance between the value and that at the saddle, its persistence; inf where there is no saddle.
    """

    place: Place
    value: float
    saddle: Place | None
    barrier: float


@dataclass(frozen=True)
class Basin:
    """What flows down to a minimum above the noise.

    Attributes:
        minimum: its lowest point.
        share: of the finite points of the surface, from 0 to 1.
        depth: by how much the first saddle that leads out of it is higher than the minimum; inf of an only one.
    """

    minimum: Extremum
    share: float
    depth: float


@dataclass(frozen=True)
class Topology:
    """The topology of a surface. A minimum of this slice need not be a minimum of the network.

    Attributes:
        threshold: extrema of a smaller persistence count as noise, and are left out of `basins` and `maxima`.
        basins: one for each minimum above it, the most persistent first.
        maxima: those above it, the most persistent first.
        dropped: how many minima are below it.
        pairs: all minima with their saddles, those below the threshold too, as a barcode shows them.
        labels: of each point, the number of its basin; -1 where the value is not finite.
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
        """The mean depth of the basins, 0 where there is one alone: 1/k · Σ (f(first saddle) − f(minimum)).

        The saddle-minimum average distance of Landscaper (arXiv 2602.07135), of the merge tree without noise.
        """
        depths = [basin.depth for basin in self.basins if np.isfinite(basin.depth)]
        return float(np.mean(depths)) if depths else 0.0


def topology_of(surface: Surface, observable: str = "loss", threshold: float | None = None) -> Topology:
    """The extrema of a surface by persistence, and which of them stand above the noise.

    Of a refined landscape, all levels count, merged on the grid of the finest.

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
    kept = [pair for pair in pairs if pair.persistence > least]
    labels = basins_of(values, pairs, kept)
    counts = np.bincount(labels[labels >= 0], minlength=len(kept))
    ways_out = _ways_out(kept)
    basins = tuple(
        Basin(_extremum(surface, pair), float(count / counts.sum()), ways_out[pair.extremum] - pair.birth)
        for pair, count in zip(kept, counts, strict=True)
    )
    tops = [_extremum(surface, pair) for pair in maximum_pairs(values) if pair.persistence > least]
    return Topology(observable, least, basins, tuple(tops), len(pairs) - len(kept), tuple(pairs), labels)


def noise_threshold(surface: Surface, observable: str = "loss") -> float:
    """max(4 · median standard error of the rise, 0.5 % of the relief): persistence below it is not shown.

    Of observables but the loss, the standard error of their mean stands for that of their rise, which is not kept; it
    is the larger one near the origin. Where neither is known the relief alone decides.
    """
    name = "loss_rise_stderr" if observable == "loss" else f"{observable}_stderr"
    there = surface.status == OK
    values = surface[observable][there]
    values = values[np.isfinite(values)]
    relief = float(np.subtract(*np.percentile(values, [95, 5]))) if values.size else 0.0
    errors = surface.observables.get(name, np.full(surface.status.shape, np.nan))[there]
    errors = errors[np.isfinite(errors)]
    noise = float(np.median(errors)) if errors.size else 0.0
    return max(STANDARD_ERRORS * noise, SHARE_OF_RELIEF * relief)


def _extremum(surface: Surface, pair: PersistencePair) -> Extremum:
    saddle = None if pair.saddle is None else _place(surface, pair.saddle)
    return Extremum(_place(surface, pair.extremum), pair.birth, saddle, pair.persistence)


def _place(surface: Surface, index: Index) -> Place:
    return {axis.name: float(axis.coordinates[k]) for axis, k in zip(surface.axes, reversed(index), strict=True)}


def _ways_out(kept: Sequence[PersistencePair]) -> dict[Index, float]:
    """The value at the first saddle that leads out of each minimum's basin: its own, or that of one which joins it."""
    lowest = {pair.extremum: pair.death for pair in kept}
    for pair in kept:
        if pair.elder is not None:
            lowest[pair.elder] = min(lowest[pair.elder], pair.death)
    return lowest
