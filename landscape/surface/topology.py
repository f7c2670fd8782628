"""The minima, maxima and basins of a surface that stand above its noise, with their places and depths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from landscape.surface.basins import basins_of
from landscape.surface.persistence import Index, PersistencePair, maximum_pairs, minimum_pairs
from landscape.surface.surface import OK, Surface

Floats = NDArray[np.float64]
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
