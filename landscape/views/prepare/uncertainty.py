"""Uncertainty by samples and seed: errors, extrema above the noise, the band of other seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.core.text import count_text, number_text, percent_text
from landscape.surface.derived import RISE
from landscape.surface.record_entries import Check
from landscape.surface.surface import NOT_COMPUTED, QUARANTINED, RISE_STDERR, Surface
from landscape.surface.topology import Basin, PersistencePair, Topology, topology_of
from landscape.views.prepare import words as wording
from landscape.views.prepare.paths import origin_index
from landscape.views.prepare.scale import is_evaluated

CLEAR = 10.0  # a larger ratio means no more, and a steep rise would bend the outline between two points


def rise_over_origin(surface: Surface, observable: str) -> tuple[Floats | None, Floats | None]:
    """L(point) − L(origin) and its standard error, of the loss; None if they were not kept."""
    error = surface.observables.get(RISE_STDERR)
    if observable != "loss" or error is None or not np.isfinite(surface.origin_loss):
        return None, None
    return np.asarray(surface.loss, np.float64) - surface.origin_loss, np.asarray(error, np.float64)


def standard_error(surface: Surface, observable: str) -> Floats | None:
    """The standard error of the mean per point; None if it was not kept."""
    error = surface.observables.get(f"{observable}_stderr")
    return None if error is None else np.asarray(error, np.float64)


def where_evaluated(surface: Surface, error: Floats | None) -> Floats | None:
    """The errors without those of interpolated points, which also have an interpolation error."""
    return error if error is None else np.where(is_evaluated(surface), error, np.nan)


def difference_in_errors(surface: Surface, observable: str) -> Floats | None:
    """Each value's distance from that at the origin in units of two standard errors: |difference| / (2·error).

    Below 1, the value cannot be told from that of the origin. The error of the rise is used if it was kept: over the
    same samples, the part common to all points cancels. Otherwise the sum of both errors is used, an upper bound.

    Returns:
        An array of the surface's shape, at most 10, NaN if the value is not known; None without errors, or without a
        value at the origin.
    """
    observable = "loss" if observable == RISE else observable  # the same difference
    rise, error = rise_over_origin(surface, observable)
    if rise is None or error is None:
        value, at_origin = _at_origin(surface, observable)
        own = standard_error(surface, observable)
        if own is None or not (math.isfinite(value) and math.isfinite(at_origin)):
            return None
        rise, error = np.asarray(surface[observable], np.float64) - value, own + at_origin
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = np.abs(rise) / (2 * error)
    ratio = np.where(rise == 0, 0.0, ratio)
    return np.where(np.isfinite(rise), np.minimum(np.nan_to_num(ratio, nan=CLEAR, posinf=CLEAR), CLEAR), np.nan)


def _at_origin(surface: Surface, observable: str) -> tuple[float, float]:
    """The value at the origin and its standard error; NaN if they are not known."""
    if observable == "loss" and math.isfinite(surface.origin_loss):
        return surface.origin_loss, surface.origin_loss_stderr
    index, error = origin_index(surface), standard_error(surface, observable)
    if index is None or error is None:
        return math.nan, math.nan
    return float(surface[observable][index]), float(error[index])


# ----------------------------------------------------------------------------------------------------
# Minima and the saddles between them for figures: marks with their words, the bars of a barcode, a table.

Row = tuple[str, str]

OF_THIS_SLICE = "a minimum of this slice is not a minimum of the network"
MINIMA_SO_FAR, SADDLES_SO_FAR = "minima of the computed points", "merge saddles of the computed points"
MOST_MARKS = 500  # minima that a figure marks: more cannot be told apart
MOST_BARS = 40  # bars of a barcode: more would be thinner than the gaps between them
MOST_SHARES = 6  # basins whose share of the points a table gives


@dataclass(frozen=True, eq=False)
class Marks:
    """Points that a figure marks, the most persistent first.

    `places` are their coordinates, one array per axis. `height` is their value in drawn units, NaN without a logarithm.
    `name` is their legend entry, empty if the landscape has none, and `hover` the pointer's text of each, in plotly's
    markup.
    """

    name: str
    places: tuple[Floats, ...]
    height: Floats
    hover: tuple[str, ...]

    def where(self, chosen: NDArray[np.bool_]) -> Marks:
        """The chosen marks."""
        hover = tuple(words for words, is_chosen in zip(self.hover, chosen, strict=True) if is_chosen)
        return replace(
            self, places=tuple(place[chosen] for place in self.places), height=self.height[chosen], hover=hover
        )


@dataclass(frozen=True, eq=False)
class Bars:
    """The bars of a barcode, the most persistent minimum first.

    `persistence` is the length of each bar, inf for a minimum that merges with no lower one, and `values` are those at
    the minima. `is_clear` says which bars exceed the `threshold` of noise. `below` counts the others, of which
    `left_out` have no bar, for want of room.
    """

    persistence: Floats
    values: Floats
    is_clear: NDArray[np.bool_]
    hover: tuple[str, ...]
    threshold: float
    below: int
    left_out: int


@dataclass(frozen=True, eq=False)
class Extrema:
    """The minima of a landscape above the noise, the saddles at which they merge, and notes for the caption."""

    minima: Marks
    saddles: Marks
    bars: Bars
    notes: tuple[str, ...]

    def in_slice(self, coordinates: Floats, k: int) -> Extrema:
        """The extrema whose nearest coordinate on the third axis is the `k`-th one."""
        here = [np.abs(coordinates[:, None] - marks.places[2]).argmin(0) == k for marks in (self.minima, self.saddles)]
        return replace(self, minima=self.minima.where(here[0]), saddles=self.saddles.where(here[1]))


def prepare_extrema(surface: Surface, observable: str, log: bool) -> Extrema:
    """The extrema over all points of a surface, even those that a figure leaves out.

    Args:
        log: drawn units are log10 of the values.
    """
    surface = surface.merged()
    found = topology_of(surface, observable)
    clear = found.pairs[: len(found.basins)]
    marked = [*zip(clear, found.basins, strict=True)][:MOST_MARKS]
    whole = not points_missing(surface)  # else minima are marked, and not counted
    names = [f"minimum {k + 1} of {len(clear)}" if len(clear) > 1 and whole else "minimum" for k in range(len(clear))]
    merging = [(pair, name) for (pair, _), name in zip(marked, names, strict=False) if pair.saddle is not None]
    minima = Marks(
        "" if not clear else f"{counted(len(clear), 'minimum', 'minima')} above the noise" if whole else MINIMA_SO_FAR,
        _places(surface, [pair.extremum for pair, _ in marked]),
        _drawn([pair.birth for pair, _ in marked], log),
        tuple(
            _minimum_words(surface, found, pair, basin, name)
            for (pair, basin), name in zip(marked, names, strict=False)
        ),
    )
    saddles = Marks(
        "" if not merging else counted(len(merging), "merge saddle", "merge saddles") if whole else SADDLES_SO_FAR,
        _places(surface, [pair.saddle for pair, _ in merging if pair.saddle is not None]),
        _drawn([pair.death for pair, _ in merging], log),
        tuple(_saddle_words(surface, observable, pair, name) for pair, name in merging),
    )
    return Extrema(minima, saddles, _bars(surface, found), _notes(surface, found))


def topology_rows(surface: Surface, observable: str = "loss") -> list[Row]:
    """The minima above the noise, the deepest basin beside that of the lowest one, sizes and depths of basins."""
    surface = surface.merged()
    found = topology_of(surface, observable)
    if not found.basins:
        return []
    if missing := points_missing(surface):
        return [("minima above the noise", f"not counted, as {missing}")]
    below = f" ({found.dropped} below it left out)" if found.dropped else ""
    rows = [
        ("minima above the noise", f"{len(found.basins)}, persistence over {number_text(found.threshold, 3)}{below}")
    ]
    rows.append(("deepest other basin", _basin_text(found.basins[1]) if len(found.basins) > 1 else "none"))
    rows.append(("points per basin", _shares_text(surface, found)))
    rows.append(("mean depth of the basins (SMAD)", number_text(found.smad(), 3)))
    return [*rows, ("to read it", OF_THIS_SLICE)]


def points_missing(surface: Surface) -> str:
    """How many points are missing, such as '540 of 1 600 points are missing'; '' if the landscape is whole."""
    missing = int(np.isin(surface.status, (NOT_COMPUTED, QUARANTINED)).sum())
    if not missing and surface.unfinished:
        return f"{counted(surface.unfinished, 'point', 'points')} of finer levels are missing"
    return f"{count_text(missing)} of {count_text(surface.status.size)} points are missing" if missing else ""


def counted(count: int, one: str, many: str) -> str:
    """A count with its noun.

    >>> counted(1, "minimum", "minima"), counted(2, "minimum", "minima")
    ('1 minimum', '2 minima')
    """
    return f"{count_text(count)} {one if count == 1 else many}"


def _basin_text(basin: Basin) -> str:
    minimum = basin.minimum
    text = f"{number_text(minimum.value, 5)} at {_place_text(minimum.place)}"
    if minimum.saddle is None:
        return f"{text}; missing points part it from the others"
    return f"{text}; barrier {number_text(minimum.barrier, 3)}, saddle at {_place_text(minimum.saddle)}"


def _shares_text(surface: Surface, found: Topology) -> str:
    index = origin_index(surface)
    own = -1 if index is None else int(found.labels[index])
    shares = [
        percent_text(basin.share) + (" (with the origin)" if place == own and len(found.basins) > 1 else "")
        for place, basin in enumerate(found.basins)
    ]
    more = len(shares) - MOST_SHARES
    return ", ".join(shares[:MOST_SHARES]) + (f" and {more} more" if more > 0 else "")


def _place_text(place: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number_text(value, 3)}" for name, value in place.items())


def _place(surface: Surface, index: Sequence[int]) -> dict[str, float]:
    return {axis.name: float(axis.coordinates[k]) for axis, k in zip(surface.axes, reversed(index), strict=True)}


def _places(surface: Surface, indices: Sequence[Sequence[int]]) -> tuple[Floats, ...]:
    """The coordinates of points by axis, alpha first."""
    columns = np.array(indices, dtype=np.intp).reshape(-1, len(surface.axes)).T[::-1]
    return tuple(axis.coordinates[column] for axis, column in zip(surface.axes, columns, strict=True))


def _drawn(values: Sequence[float] | Floats, log: bool) -> Floats:
    array = np.array(values, dtype=np.float64)
    return np.log10(np.where(array > 0, array, np.nan)) if log else array


def _minimum_words(surface: Surface, found: Topology, pair: PersistencePair, basin: Basin, name: str) -> str:
    """The pointer's text for a minimum."""
    lines = [
        f"<b>{name}</b>",
        _place_text(basin.minimum.place),
        f"{_title(found.observable)} {_value_text(surface, found.observable, pair.birth, pair.extremum)}",
        _persistence_text(surface, pair),
        f"basin: {percent_text(basin.share)} of the points",
    ]
    lines += _edge_text(surface, found, pair.extremum)
    if surface.interpolated is not None and surface.interpolated[pair.extremum]:
        lines.append("between points that were evaluated")
    return "<br>".join(lines)


def _saddle_words(surface: Surface, observable: str, pair: PersistencePair, name: str) -> str:
    """The pointer's text for a saddle."""
    assert pair.saddle is not None
    lines = [
        f"<b>saddle of {name}</b>",
        _place_text(_place(surface, pair.saddle)),
        f"{_title(observable)} {_value_text(surface, observable, pair.death, pair.saddle)}",
        f"{number_text(pair.persistence, 3)} above that minimum (its persistence)",
    ]
    return "<br>".join(lines)


def _persistence_text(surface: Surface, pair: PersistencePair) -> str:
    if pair.saddle is None:
        return "no way leads to a lower one"
    return f"persistence {number_text(pair.persistence, 3)}, saddle at {_place_text(_place(surface, pair.saddle))}"


def _value_text(surface: Surface, observable: str, value: float, index: Sequence[int]) -> str:
    """The value at a point with its error, as captions have it; the value alone between points that were evaluated."""
    error = where_evaluated(surface, standard_error(surface, observable))
    return wording.value_with_error(value, math.nan if error is None else float(error[tuple(index)]))


def _title(observable: str) -> str:
    return escape(wording.observable_title(observable), quote=False)


def _edge_text(surface: Surface, found: Topology, index: Sequence[int]) -> list[str]:
    """The note on a minimum at the edge of the known points, which may be none."""
    if any(k in (0, size - 1) for k, size in zip(index, surface.status.shape, strict=True)):
        return ["on the rim: what lies beyond is not known"]
    around = found.labels[tuple(slice(k - 1, k + 2) for k in index)]
    return ["beside missing points: what lies there is not known"] if (around < 0).any() else []


def _bars(surface: Surface, found: Topology) -> Bars:
    shown = found.pairs[:MOST_BARS]
    return Bars(
        persistence=np.array([pair.persistence for pair in shown]),
        values=np.array([pair.birth for pair in shown]),
        is_clear=np.arange(len(shown)) < len(found.basins),
        hover=tuple(_bar_words(surface, found.observable, pair) for pair in shown),
        threshold=found.threshold,
        below=found.dropped,
        left_out=found.dropped - max(0, len(shown) - len(found.basins)),
    )


def _bar_words(surface: Surface, observable: str, pair: PersistencePair) -> str:
    """The pointer's text for a bar."""
    lines = [
        f"{_title(observable)} {_value_text(surface, observable, pair.birth, pair.extremum)} at "
        + _place_text(_place(surface, pair.extremum)),
        _persistence_text(surface, pair),
    ]
    return "<br>".join(lines)


def _notes(surface: Surface, found: Topology) -> tuple[str, ...]:
    """The caption's notes on the extrema; empty if no value is known."""
    count = len(found.basins)
    if not count:
        return ()
    below = f", {count_text(found.dropped)} below it left out" if found.dropped else ""
    above = f"above the noise (persistence over {number_text(found.threshold, 3)})"
    missing = points_missing(surface)
    said = (
        f"minima are not counted, as {missing}" if missing else f"{counted(count, 'minimum', 'minima')} {above}{below}"
    )
    notes = [said, OF_THIS_SLICE]
    parts = sum(pair.saddle is None for pair in found.pairs[:count])
    if parts > 1 and not missing:
        notes.append(f"missing points part the grid: {parts} minima are the lowest of their parts")
    notes += [f"the {MOST_MARKS} most persistent are marked"] if count > MOST_MARKS else []
    notes += ["minima beside missing points may be none"] if missing else []
    return tuple(notes)


# ----------------------------------------------------------------------------------------------------
# The edges between coarser and finer cells of a refined landscape.

Map = NDArray[np.uint8]
Nodes = NDArray[np.intp]


def cell_levels(interpolated: Map) -> Map:
    """Per square of 2×2 neighbouring points, the level of its cell, counted from the finest one.

    Args:
        interpolated: [y, x], of each point, as `Surface.interpolated`; a square is as coarse as its coarsest corner.
    """
    corners = [interpolated[:-1, :-1], interpolated[1:, :-1], interpolated[:-1, 1:], interpolated[1:, 1:]]
    coarsest: Map = np.maximum.reduce(corners)
    return coarsest


def finer_edges(interpolated: Map) -> list[tuple[Nodes, Nodes]]:
    """The straight lines between cells of different levels, each as the rows and the columns of its points in order.

    >>> edges = finer_edges(np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0]], np.uint8))
    >>> [(rows.tolist(), columns.tolist()) for rows, columns in edges]
    [([1, 1], [0, 1]), ([0, 1], [1, 1])]
    """
    if interpolated.ndim != 2 or min(interpolated.shape) < 2:
        return []
    cells = cell_levels(interpolated)
    edges = [(np.full(end - first + 1, row), np.arange(first, end + 1)) for row, first, end in _runs(cells)]
    return edges + [(np.arange(first, end + 1), np.full(end - first + 1, row)) for row, first, end in _runs(cells.T)]


def _runs(cells: Map) -> list[tuple[int, int, int]]:
    """The lines between differing cells of two rows: the row, and the points where the line begins and ends."""
    runs = []
    for row in np.flatnonzero((cells[:-1] != cells[1:]).any(1)).tolist():
        differs = np.concatenate([[False], cells[row] != cells[row + 1], [False]]).astype(np.int8)
        changes = np.flatnonzero(np.diff(differs)).tolist()
        runs += [(row + 1, first, end) for first, end in zip(changes[::2], changes[1::2], strict=True)]
    return runs


def evaluated_text(surface: Surface) -> str:
    """How many points of a refined landscape were evaluated, such as '1 090 of 4 225 points'; '' for all."""
    done = is_evaluated(surface)
    between = surface.interpolated is not None and bool((surface.interpolated > 0).any())
    return f"{count_text(done.sum())} of {count_text(done.size)} points" if between else ""


def shared_text(interpolated: Map | None) -> str:
    """The text after the size of a difference: at how many points both were evaluated; '' for all."""
    count = 0 if interpolated is None else int((interpolated == 0).sum())
    return "" if interpolated is None else f", at {count_text(count)} of which both were evaluated"


NUMBER = "7"  # of the check that evaluates lines of other seeds
NAME = "99 % of other seeds"


@dataclass(frozen=True, eq=False)
class SeedBand:
    """The interval that holds the loss of 99 % of random lines, at places along the axis in ascending order."""

    at: Floats
    low: Floats
    high: Floats


def prepare_seeds(surface: Surface, observable: str) -> SeedBand | None:
    """The band of a line: mean ± prediction interval of the lines of other seeds.

    Returns:
        None for other observables, for planes and volumes, for a line that is not random, and without a check.
    """
    checks = surface.record.checks
    if checks is None or observable != "loss" or len(surface.axes) != 1:
        return None
    if surface.axes[0].record.kind != "random":
        return None
    found = next((result for result in checks.results if result.number == NUMBER), None)
    band = None if found is None else _band(found)
    if band is None or not math.isfinite(surface.origin_loss):
        return band
    return _with_origin(band, surface.origin_loss)


def _band(check: Check) -> SeedBand | None:
    """The numbers of a check as a band; None if the document holds something else."""
    given: Any = check.numbers.get("band")
    columns: list[Any] = [given.get(name) for name in ("at", "low", "high")] if isinstance(given, dict) else []
    if not columns or not all(map(_are_numbers, columns)) or len({len(column) for column in columns}) > 1:
        return None
    order = np.argsort(columns[0])
    at, low, high = (np.asarray(column, np.float64)[order] for column in columns)
    return SeedBand(at, low, high)


def _are_numbers(column: object) -> bool:
    return isinstance(column, Sequence) and all(
        isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < 1e300 for value in column
    )


def _with_origin(band: SeedBand, loss: float) -> SeedBand:
    """The band pinched at the origin, through which all lines run."""
    place = int(np.searchsorted(band.at, 0.0))
    return SeedBand(np.insert(band.at, place, 0.0), np.insert(band.low, place, loss), np.insert(band.high, place, loss))
