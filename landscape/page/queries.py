"""The queries in the page's addresses: every parameter is parsed once, by one table, and trusted from then on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from landscape.core.errors import JobError, nearest, quoted
from landscape.core.validation import MAX_SIZE
from landscape.views.figure_spec import (
    COLOUR_SCALES,
    KIND_TABLE,
    MODE_TABLE,
    PROPORTIONS,
    THEMES,
    ComparisonSpec,
    FigureSpec,
)
from landscape.views.prepare.history import UNITS

T = TypeVar("T")

LONGEST_QUERY = 16_384  # characters
MOST_ITEMS = 64  # landscapes or runs of one query
MOST_LEVELS = 500
MOST_POINTS = 100_000  # per axis
MOST_ACROSS, MOST_ALONG = 128, 2048  # points of a patch along each axis: of several, and of one
DIGITS = 12  # significant digits of the ends of a box
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,4})?")


class AddressQuery:
    """The parameters of one address; reading a parameter marks it as known, so that the others can be refused."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)
        self._known: set[str] = set()

    def all(self, name: str) -> tuple[str, ...]:
        """All values of a repeatable parameter, in order.

        Raises:
            JobError: there are more than `MOST_ITEMS`.
        """
        self._known.add(name)
        values = self._values.get(name, [])
        if len(values) > MOST_ITEMS:
            raise JobError(f"{name}: must be given at most {MOST_ITEMS} times, not {len(values)}; choose fewer")
        return tuple(values)

    def text(self, name: str, default: str = "") -> str:
        """The value of a parameter; `default` if it is absent or empty.

        Raises:
            JobError: it is given twice.
        """
        values = self.all(name)
        if len(values) > 1:
            raise JobError(f"{name}: must be given once, not {len(values)} times")
        return values[0] if values and values[0] else default

    def needed(self, name: str, what: str) -> str:
        """The value of a required parameter; `what` describes it in the message."""
        value = self.text(name)
        if not value:
            raise JobError(f"{name}: must name {what}")
        return value

    def number(self, name: str) -> float | None:
        """A finite number; None if it is absent."""
        text = self.text(name)
        return as_number(name, text) if text else None

    def count(self, name: str, least: int, most: int) -> int | None:
        """A whole number from `least` to `most`; None if it is absent."""
        text = self.text(name)
        if not text:
            return None
        if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= most:
            raise JobError(f"{name}: must be a whole number from {least} to {most}, not {quoted(text)}")
        return int(text)

    def flag(self, name: str, default: str = "0") -> bool:
        """0 or 1."""
        return self.choice(name, ("0", "1"), default) == "1"

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """One of the known names."""
        value = self.text(name, default)
        if value not in known:
            raise JobError(f"{name}: unknown {quoted(value)}; {nearest(value, known)}")
        return value

    def named(self, name: str, known: Collection[str]) -> str | None:
        """One of the known names; None if it is absent."""
        return self.choice(name, known, "") if self.text(name) else None

    def refuse_others(self) -> None:
        """Raises JobError for a parameter that was never read."""
        others = [name for name in self._values if name not in self._known]
        if others:
            raise JobError(f"{quoted(others[0])} is no parameter here; {nearest(others[0], sorted(self._known))}")


def as_number(name: str, text: str) -> float:
    """A finite number in an address.

    Raises:
        JobError: the text is no finite number; the message names the parameter.
    """
    if len(text) <= 40 and NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    raise JobError(f"{name}: must be a finite number, not {quoted(text)}")


@dataclass(frozen=True)
class Item:
    """One landscape of one run in a comparison: `ID|LANDSCAPE`."""

    run: str
    landscape: str

    @property
    def text(self) -> str:
        """Its form in an address."""
        return f"{self.run}|{self.landscape}"


def items_of(query: AddressQuery) -> tuple[Item, ...]:
    """The landscapes to compare, without repetitions, in the order of the address.

    Raises:
        JobError: there is none, or one is malformed.
    """
    parts = [value.partition("|") for value in query.all("item")]
    if not parts or not all(run and name for run, _, name in parts):
        raise JobError("item: must name landscapes as RUN|LANDSCAPE, once or more often")
    return tuple(dict.fromkeys(Item(run, name) for run, _, name in parts))


def _runs(query: AddressQuery) -> tuple[str, ...]:
    """The runs whose histories are drawn, without repetitions.

    Raises:
        JobError: there is none.
    """
    runs = tuple(dict.fromkeys(filter(None, query.all("run"))))
    if not runs:
        raise JobError("run: must name a run by its identifier, once or more often")
    query.text("landscape")  # allowed, but only the page's script uses it
    return runs


def _log(query: AddressQuery) -> bool | None:
    return {"auto": None, "0": False, "1": True}[query.choice("log", ("auto", "0", "1"), "auto")]


def _figure_spec(query: AddressQuery) -> FigureSpec:
    """The options of a figure; absent ones have their defaults."""
    return FigureSpec(
        kind=query.text("kind") or None,
        **_shared_options(query),
        zmin=query.number("zmin"),
        zmax=query.number("zmax"),
        clip=query.number("clip"),
        uncertainty=query.flag("uncertainty"),
        extrema=query.flag("extrema"),
        title=False,
        caption=False,
    )


def _comparison_spec(query: AddressQuery) -> ComparisonSpec:
    """The options of a comparison; its kind is checked before its landscapes are read."""
    return ComparisonSpec(
        kind=query.choice("kind", ("", *KIND_TABLE), "") or None,
        **_shared_options(query),
        lock=query.flag("lock", "1"),
        rise={"auto": None, "0": False, "1": True}[query.choice("rise", ("auto", "0", "1"), "auto")],
        zmin=query.number("zmin"),
        zmax=query.number("zmax"),
        title=False,
        caption=False,
        animate=True,
    )


def _shared_options(query: AddressQuery) -> dict[str, Any]:
    """The common options of figures and comparisons."""
    return {
        "observable": query.text("observable", "loss"),
        "log": _log(query),
        "levels": query.count("levels", 1, MOST_LEVELS),
        "exact_levels": query.flag("exact"),
        "colour_scale": query.named("scale", COLOUR_SCALES),
        "proportions": query.choice("proportions", PROPORTIONS, "true"),
        "theme": query.choice("theme", THEMES, "light"),
    }


def _coordinates(name: str) -> Callable[[AddressQuery], tuple[float, ...]]:
    """A parser of a coordinate per axis."""

    def parse_coordinates(query: AddressQuery) -> tuple[float, ...]:
        texts = query.needed(name, "a coordinate for each axis, such as 0.5,-1").split(",")
        if len(texts) > 3:
            raise JobError(f"{name}: must be a coordinate for each axis, not {len(texts)}")
        return tuple(as_number(name, text.strip()) for text in texts)

    return parse_coordinates


def _patch_shape(query: AddressQuery) -> tuple[int, ...]:
    texts = query.needed("shape", "points along each axis").split(",")
    sizes = tuple(int(text) if text.isdecimal() and len(text) < 6 else 0 for text in texts)
    most = MOST_ALONG if sum(size > 1 for size in sizes) < 2 else MOST_ACROSS
    if not all(1 <= size <= most for size in sizes):
        raise JobError(f"shape: must be whole numbers from 1 to {most}, not {quoted(','.join(texts))}")
    return sizes


def _box(query: AddressQuery) -> tuple[tuple[float, float], ...]:
    texts = query.needed("box", "the ends of the ranges, such as -1,1,-0.5,0.5").split(",")
    if len(texts) not in (2, 4, 6):
        raise JobError(f"box: must have two numbers for each axis, not {len(texts)}")
    ends = [round_end(as_number("box", text.strip())) for text in texts]
    pairs = tuple((min(pair), max(pair)) for pair in zip(ends[::2], ends[1::2], strict=True))
    if any(low == high for low, high in pairs):
        raise JobError(f"box: must have different ends on each axis, not {quoted(texts)}")
    return pairs


def _box_sizes(query: AddressQuery) -> tuple[int, ...]:
    texts = [text for text in query.text("size").split(",") if text]
    for text in texts:
        if not text.isdecimal() or len(text) > 6 or not 3 <= int(text) <= MAX_SIZE:
            raise JobError(f"size: must be whole numbers from 3 to {MAX_SIZE}, not {quoted(text)}")
    return tuple(map(int, texts))


def round_end(value: float) -> float:
    """The end of a box, rounded to the digits of a job file."""
    return float(f"{value:.{DIGITS}g}")


# The parser of each field of a query; the parameter has the field's name, unless this table says otherwise.
PARAMETERS: Mapping[str, Callable[[AddressQuery], Any]] = {
    "run": lambda query: query.needed("run", "a run by its identifier"),
    "runs": _runs,
    "followed_run": lambda query: query.text("run"),
    "landscape": lambda query: query.needed("landscape", "a landscape of the run"),
    "followed_landscape": lambda query: query.text("landscape"),
    "items": items_of,
    "mode": lambda query: query.choice("mode", tuple(MODE_TABLE), "tiled"),
    "spec": _figure_spec,
    "comparison": _comparison_spec,
    "observable": lambda query: query.text("observable", "loss"),
    "log": _log,
    "log_history": lambda query: query.flag("log"),
    "theme": lambda query: query.choice("theme", THEMES, "light"),
    "most": lambda query: query.count("max", 2, MOST_POINTS),
    "unit": lambda query: query.choice("unit", ("", *UNITS), ""),
    "at": _coordinates("at"),
    "low": _coordinates("low"),
    "high": _coordinates("high"),
    "shape": _patch_shape,
    "box": _box,
    "size": _box_sizes,
}


def parse_query(query: AddressQuery, form: type[T]) -> T:
    """The query of an address as an instance of a dataclass.

    Raises:
        JobError: a parameter is wrong, or is no field of the dataclass; the message names it.
    """
    parsed = {field.name: PARAMETERS[field.name](query) for field in fields(form)}  # type: ignore[arg-type]
    query.refuse_others()
    return form(**parsed)


# ----------------------------------------------------------------------------------------------------
# The queries. Fields are parsed in their order.


@dataclass(frozen=True)
class NoQuery:
    """An address without parameters."""


@dataclass(frozen=True)
class RunQuery:
    """A run."""

    run: str


@dataclass(frozen=True)
class FigureQuery:
    """A figure, or its table; at most `most` points per axis are drawn, None for the default."""

    run: str
    landscape: str
    spec: FigureSpec
    most: int | None


@dataclass(frozen=True)
class ThumbnailQuery:
    """A small picture of a landscape."""

    run: str
    landscape: str
    observable: str


@dataclass(frozen=True)
class HistoryQuery:
    """A figure of the training history of several runs; `unit` is '' for the runs' default."""

    runs: tuple[str, ...]
    unit: str
    log_history: bool
    theme: str


@dataclass(frozen=True)
class CompareQuery:
    """A comparison."""

    items: tuple[Item, ...]
    mode: str
    comparison: ComparisonSpec


@dataclass(frozen=True)
class DifferencesQuery:
    """Landscapes whose differences are listed."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class BoxQuery:
    """A box of a landscape: [low, high] of its first axes, and points per axis, () for the landscape's own."""

    run: str
    landscape: str
    box: tuple[tuple[float, float], ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class PointQuery:
    """A point of a landscape, a coordinate for each axis."""

    run: str
    landscape: str
    at: tuple[float, ...]


@dataclass(frozen=True)
class PatchQuery:
    """A patch of a landscape: its ends and its number of points along each axis."""

    run: str
    landscape: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.low) == len(self.high) == len(self.shape):
            raise JobError(f"shape: must be as many as low and high have, {len(self.low)}, not {len(self.shape)}")
        for size, first, last in zip(self.shape, self.low, self.high, strict=True):
            if (size == 1) != (first == last) or first > last:
                raise JobError(
                    "high: must be above low where there are several points, and equal to it where there is one"
                )


@dataclass(frozen=True)
class EventsQuery:
    """A stream of events: of the list, or of a run if one is named, with the tiles of one of its landscapes."""

    followed_run: str
    followed_landscape: str
    observable: str
    log: bool | None
    most: int | None
