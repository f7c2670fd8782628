"""What the addresses of the page ask for, parsed once: every value is checked here, and trusted from then on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from landscape.core.errors import JobError, nearest, quoted
from landscape.views.figure_spec import COLOUR_SCALES, THEMES, FigureSpec

T = TypeVar("T")

LONGEST_QUERY = 16_384  # characters
MOST_ITEMS = 64  # landscapes or runs of one question
MOST_LEVELS = 500
MOST_POINTS = 100_000  # per axis
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,4})?")
COLOUR = re.compile(r"#[0-9a-fA-F]{6}")


class AddressQuery:
    """The parameters of one address; asking for one marks it as known, so that the others can be refused."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)
        self._known: set[str] = set()

    def all(self, name: str) -> tuple[str, ...]:
        """Every value of a parameter that may be repeated, in order.

        Raises:
            JobError: there are more than `MOST_ITEMS`.
        """
        self._known.add(name)
        values = self._values.get(name, [])
        if len(values) > MOST_ITEMS:
            raise JobError(f"{name}: must be given at most {MOST_ITEMS} times, not {len(values)}; choose fewer")
        return tuple(values)

    def text(self, name: str, default: str = "") -> str:
        """The value of a parameter; `default` where it is absent or empty.

        Raises:
            JobError: it is given twice.
        """
        values = self.all(name)
        if len(values) > 1:
            raise JobError(f"{name}: must be given once, not {len(values)} times")
        return values[0] if values and values[0] else default

    def needed(self, name: str, what: str) -> str:
        """The value of a parameter that must be there; `what` it is, for the message."""
        value = self.text(name)
        if not value:
            raise JobError(f"{name}: must name {what}")
        return value

    def number(self, name: str) -> float | None:
        """A finite number; None where it is absent."""
        text = self.text(name)
        return as_number(name, text) if text else None

    def count(self, name: str, least: int, most: int) -> int | None:
        """A whole number from `least` to `most`; None where it is absent."""
        text = self.text(name)
        if not text:
            return None
        if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= most:
            raise JobError(f"{name}: must be a whole number from {least} to {most}, not {quoted(text)}")
        return int(text)

    def flag(self, name: str) -> bool:
        """0 or 1; absent means 0."""
        return self.choice(name, ("0", "1"), "0") == "1"

    def choice(self, name: str, known: Collection[str], default: str) -> str:
        """One of the names that are known."""
        value = self.text(name, default)
        if value not in known:
            raise JobError(f"{name}: unknown {quoted(value)}; {nearest(value, known)}")
        return value

    def named(self, name: str, known: Collection[str]) -> str | None:
        """One of the names that are known; None where it is absent."""
        return self.choice(name, known, "") if self.text(name) else None

    def refuse_others(self) -> None:
        """Refuse the parameters that nothing has asked for.

        Raises:
            JobError: names one of them.
        """
        others = [name for name in self._values if name not in self._known]
        if others:
            raise JobError(f"{quoted(others[0])} is no parameter here; {nearest(others[0], sorted(self._known))}")


def as_number(name: str, text: str) -> float:
    """A finite number as it is written in an address.

    Raises:
        JobError: it is none; the message names the parameter.
    """
    if len(text) <= 40 and NUMBER.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    raise JobError(f"{name}: must be a finite number, not {quoted(text)}")


@dataclass(frozen=True)
class FigureQuery:
    """A figure as it is asked for, of `most` points per axis; None where the values decide that."""

    run: str
    landscape: str
    most: int | None
    spec: FigureSpec


def figure_query(query: AddressQuery) -> FigureQuery:
    """The parameters of `api/figure` and `api/csv`.

    Raises:
        JobError: one of them is wrong; the message names it.
    """
    asked = FigureQuery(
        run=query.needed("run", "a run by its identifier"),
        landscape=query.needed("landscape", "a landscape of the run"),
        most=query.count("max", 2, MOST_POINTS),
        spec=FigureSpec(
            zmin=query.number("zmin"),
            zmax=query.number("zmax"),
            clip=query.number("clip"),
            uncertainty=query.flag("uncertainty"),
            extrema=query.flag("extrema"),
            title=False,
            caption=False,
            **look_of(query),
        ),
    )
    query.refuse_others()
    return asked


def look_of(query: AddressQuery) -> dict[str, Any]:
    """The options that figures of one landscape and comparisons have in common."""
    return {
        "kind": query.text("kind") or None,
        "observable": query.text("observable", "loss"),
        "log": log_of(query),
        "levels": query.count("levels", 1, MOST_LEVELS),
        "exact_levels": query.flag("exact"),
        "colour_scale": query.named("scale", COLOUR_SCALES),
        "theme": query.choice("theme", THEMES, "light"),
    }


def log_of(query: AddressQuery) -> bool | None:
    """The scale that is asked for: None for `auto`, where the values decide."""
    return {"auto": None, "0": False, "1": True}[query.choice("log", ("auto", "0", "1"), "auto")]


@dataclass(frozen=True)
class Item:
    """One landscape of one run, as the comparison names it: `ID|LANDSCAPE`."""

    run: str
    landscape: str

    @property
    def text(self) -> str:
        """As it stands in an address."""
        return f"{self.run}|{self.landscape}"


def items_of(query: AddressQuery) -> tuple[Item, ...]:
    """The landscapes that are to be compared, each once, in the order of the address.

    Raises:
        JobError: there is none, or one is malformed.
    """
    parts = [value.partition("|") for value in query.all("item")]
    if not parts or not all(run and name for run, _, name in parts):
        raise JobError("item: must name landscapes as RUN|LANDSCAPE, once or more often")
    return tuple(dict.fromkeys(Item(run, name) for run, _, name in parts))


def parsed(pairs: Sequence[tuple[str, str]], parse: Callable[[AddressQuery], T]) -> T:
    """What `parse` makes of the parameters of an address."""
    return parse(AddressQuery(pairs))
