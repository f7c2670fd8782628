"""What was evaluated on the line and on the curve between two networks, as rows of tables and as numbers to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from landscape.surface.barriers import within_error
from landscape.surface.record_entries import BarrierRecord, ConnectionRecord, WayRecord
from landscape.surface.surface import Surface
from landscape.views.prepare.levels import number
from landscape.views.prepare.words import percent, value_with_error

COLUMNS = ("way", "lowest", "highest", "mean", "integral", "Entezari", "Git Re-Basin", "Frankle (error)")
PLACES, HEIGHTS = ("least", "largest", "mean", "integral"), ("entezari", "git_re_basin", "frankle")
LINE = "straight line"


@dataclass(frozen=True)
class DrawnWay:
    """The loss on one way.

    Attributes:
        values: at the places `t`; None where it is not finite.
    """

    title: str
    t: Sequence[float]
    values: Sequence[float | None]


def connection_rows(surface: Surface) -> list[tuple[str, str]]:
    """How high the line and the curve rise, and how much of the barrier is gone; none of other landscapes."""
    known = surface.record.connection
    if known is None:
        return []
    rows = [
        (f"{title}: highest loss, barrier (Entezari)", f"{_column(way, 'largest')}, {_height(way, 'entezari')}")
        for title, way in ((LINE, known.on_line), (f"{known.curve} curve", known.on_curve))
    ]
    return [*rows, ("of the line's barrier is gone", _gone(known))]


def connection_table(surface: Surface) -> list[tuple[str, ...]]:
    """A row for the line and one for the curve, under `COLUMNS`; none of other landscapes."""
    known = surface.record.connection
    if known is None:
        return []
    ways = ((LINE, known.on_line), (f"{known.curve} curve", known.on_curve))
    return [
        (title, *(_column(way, name) for name in PLACES), *(_height(way, name) for name in HEIGHTS))
        for title, way in ways
    ]


def drawn_ways(surface: Surface) -> list[DrawnWay]:
    """The loss on the line and on the curve; none of other landscapes, or where it is not whole."""
    known = surface.record.connection
    if known is None:
        return []
    ways = ((LINE, known.on_line), (f"{known.curve} curve", known.on_curve))
    drawn = [DrawnWay(title, known.t, way.values.get("loss", ())) for title, way in ways]
    return drawn if all(len(way.values) == len(way.t) > 1 for way in drawn) else []


def _gone(known: ConnectionRecord) -> str:
    barrier = known.on_line.barriers.get("entezari")
    if barrier is not None and within_error(barrier.height, barrier.stderr):
        return "it is within its error"
    return "it has none" if known.gone is None else percent(known.gone)


def _column(way: WayRecord, name: str) -> str:
    value = way.columns.get(name)
    return "–" if value is None else number(value)


def _height(way: WayRecord, name: str) -> str:
    barrier = way.barriers.get(name)
    return "–" if barrier is None else _with_error(barrier)


def _with_error(barrier: BarrierRecord) -> str:
    if not barrier.height:
        return "0"
    return value_with_error(barrier.height, float("nan") if barrier.stderr is None else barrier.stderr)
