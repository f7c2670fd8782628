"""The data of figures of rounding: the loss at the origin by bits, and its steps on a line and on a patch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from landscape.core.grid import Floats
from landscape.core.text import number_text, percent_text
from landscape.surface.barriers import within_error
from landscape.surface.record_entries import BarrierRecord, ComparedRecord, ConnectionRecord, WayRecord
from landscape.surface.surface import Surface
from landscape.views.prepare.words import value_with_error


@dataclass(frozen=True, eq=False)
class BitCurve:
    """The loss at the origin by bits.

    Attributes:
        bits, loss: one of each per width.
        error: two standard errors of the difference from the unrounded network.
        plain: the loss of the unrounded network; NaN if not known.
        log: whether the losses span more than a decade.
    """

    title: str
    caption: tuple[str, ...]
    bits: tuple[int, ...]
    loss: Floats
    error: Floats
    plain: float
    log: bool


@dataclass(frozen=True, eq=False)
class StepLine:
    """Both losses on a short line through the origin, each minus its own loss at the origin."""

    title: str
    caption: tuple[str, ...]
    axis: str
    at: Floats
    plain: Floats
    rounded: Floats


@dataclass(frozen=True, eq=False)
class StepPatch:
    """Both losses on a small patch of the plane, each minus its own loss at the origin.

    Attributes:
        titles: of the unrounded and the rounded network.
        axes, at: names of the first and the second axis, and the coordinates along them.
        rises: [second axis, first axis] of both.
        low, high: the smallest and the largest rise of both; 0 and 1 if none is finite.
    """

    titles: tuple[str, str]
    caption: tuple[str, ...]
    axes: tuple[str, str]
    at: tuple[Floats, Floats]
    rises: tuple[Floats, Floats]
    low: float
    high: float


def prepare_bits(
    bits: Sequence[int], loss: Sequence[float], stderr: Sequence[float], plain: float, what: str, samples: int | None
) -> BitCurve:
    """The curve of the loss at the origin over the bits.

    Args:
        stderr: of the difference from `plain`, pair by pair.
        what: further properties of the rounding, such as `per channel`.
    """
    values = np.asarray(loss, np.float64)
    known = np.append(values, plain)
    known = known[np.isfinite(known) & (known > 0)]
    log = bool(known.size and known.max() > 10 * known.min())
    over = f" of {samples} samples" if samples is not None else ""
    caption = (
        f"Mean loss{over}, {what}",
        "Bars: two standard errors of the difference from the network that is not rounded, over the same samples",
    )
    return BitCurve("Loss at the origin by bits", caption, tuple(bits), values, 2 * np.asarray(stderr), plain, log)


def prepare_steps(axis: str, at: Floats, plain: Floats, rounded: Floats, changes: int, what: str) -> StepLine:
    """The losses on the short line.

    Args:
        changes: about how many weights change their level on it.
        what: what is rounded, in words.
    """
    first, second = (float(np.interp(0.0, at, losses)) for losses in (plain, rounded))
    # The cost of rounding at the origin may be a hundred times a step, and would hide the steps.
    caption = (
        f"{what[:1].upper()}{what[1:]}; about {changes} weights change their level on this line",
        f"{_own(first, second)}; computed in float64",
    )
    return StepLine("The steps of rounding near the origin", caption, axis, at, plain - first, rounded - second)


def prepare_patch(
    axes: tuple[str, str], at: tuple[Floats, Floats], losses: tuple[Floats, Floats], origin: tuple[float, float],
    changes: int, what: str, precision: str,
) -> StepPatch:  # fmt: skip
    """The losses on the patch.

    Args:
        losses: of the unrounded and of the rounded network, [second axis, first axis].
        origin: both losses at the origin.
        changes: about how many weights change their level along each side of the patch.
        what: what is rounded, in words.
        precision: of the computation.
    """
    rises = (losses[0] - origin[0], losses[1] - origin[1])
    known = np.concatenate([rise[np.isfinite(rise)] for rise in rises])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    caption = (
        f"{what[:1].upper()}{what[1:]}; about {changes} weights change their level along each side",
        f"{_own(*origin)}; one scale for both; computed in {precision}",
    )
    return StepPatch(("not rounded", "rounded"), caption, axes, at, rises, low, high if high > low else low + 1)


def _own(plain: float, rounded: float) -> str:
    return (
        f"Each loss less its own at the origin, which is {number_text(plain, 4)} of the network that is not rounded "
        f"and {number_text(rounded, 4)} of the rounded one"
    )


# ----------------------------------------------------------------------------------------------------
# The values on the line and on the curve between two networks, as rows of tables and as numbers to draw.

CONNECTION_COLUMNS = ("way", "lowest", "highest", "mean", "integral", "Entezari", "Git Re-Basin", "Frankle (error)")
PLACES, HEIGHTS = ("least", "largest", "mean", "integral"), ("entezari", "git_re_basin", "frankle")
LINE = "straight line"


@dataclass(frozen=True)
class DrawnWay:
    """The loss along one way.

    Attributes:
        values: at the places `t`; None if not finite.
    """

    title: str
    t: Sequence[float]
    values: Sequence[float | None]


def connection_rows(surface: Surface) -> list[tuple[str, str]]:
    """The rise of the line and of the curve, and the share of the barrier that is gone; empty for other landscapes."""
    known = surface.record.connection
    if known is None:
        return []
    rows = [
        (f"{title}: highest loss, barrier (Entezari)", f"{_column(way, 'largest')}, {_height(way, 'entezari')}")
        for title, way in ((LINE, known.on_line), (f"{known.curve} curve", known.on_curve))
    ]
    return [*rows, ("of the line's barrier is gone", _gone(known))]


def connection_table(surface: Surface) -> list[tuple[str, ...]]:
    """A row for the line and one for the curve, with `COLUMNS`; empty for other landscapes."""
    known = surface.record.connection
    if known is None:
        return []
    ways = ((LINE, known.on_line), (f"{known.curve} curve", known.on_curve))
    return [
        (title, *(_column(way, name) for name in PLACES), *(_height(way, name) for name in HEIGHTS))
        for title, way in ways
    ]


def drawn_ways(surface: Surface) -> list[DrawnWay]:
    """The loss on the line and on the curve; empty for other landscapes, or if a value is missing."""
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
    return "it has none" if known.gone is None else percent_text(known.gone)


def _column(way: WayRecord, name: str) -> str:
    value = way.columns.get(name)
    return "–" if value is None else number_text(value)


def _height(way: WayRecord, name: str) -> str:
    barrier = way.barriers.get(name)
    return "–" if barrier is None else _height_with_error(barrier)


def _height_with_error(barrier: BarrierRecord) -> str:
    if not barrier.height:
        return "0"
    return value_with_error(barrier.height, float("nan") if barrier.stderr is None else barrier.stderr)


# ----------------------------------------------------------------------------------------------------
# The results of `landscape compare --keep` for a quantised landscape, as rows of tables and as lines to draw.

BITS_COLUMNS = ("bits", "loss", "difference")
DECADE = 10  # if the largest loss is more than so many times the smallest, logarithms are drawn
PLAIN, ROUNDED = "not rounded", "rounded"


def compared_of(surface: Surface) -> ComparedRecord | None:
    """The comparison kept for the landscape's present samples; None without one."""
    found = surface.record.compared
    return None if found is None or found.samples != surface.record.num_samples else found


def compared_rows(surface: Surface) -> list[tuple[str, str]]:
    """The losses at the origin by bits in one row; empty if they were not kept."""
    table = bits_table(surface)
    return [("loss at the origin by bits", ", ".join(f"{row[0]}: {row[1]}" for row in table))] if table else []


def bits_table(surface: Surface) -> list[tuple[str, str, str]]:
    """A row per bit width and one without rounding, with `COLUMNS`."""
    found = compared_of(surface)
    if found is None or not found.bits:
        return []
    rows = [
        (str(row.bits), _number(row.values.get("loss")), _with_error(row.difference, row.stderr)) for row in found.bits
    ]
    return [*rows, ("none", _number(found.unrounded.get("loss")), "")]


def drawn_bits(surface: Surface) -> tuple[list[DrawnWay], bool]:
    """The loss without rounding and by bits, and whether as log10; empty for a single width."""
    found = compared_of(surface)
    if found is None or len({row.bits for row in found.bits}) < len(found.bits) or len(found.bits) < 2:
        return [], False
    first, last = found.bits[0].bits, found.bits[-1].bits
    t = [(row.bits - first) / (last - first) for row in found.bits]
    losses = [found.unrounded.get("loss"), *(row.values.get("loss") for row in found.bits)]
    known = [loss for loss in losses if loss is not None]
    log = bool(known) and min(known) > 0 and max(known) > DECADE * min(known)
    plain, *rounded = (math.log10(loss) if log and loss is not None else loss for loss in losses)
    return [DrawnWay(PLAIN, (0.0, 1.0), (plain, plain)), DrawnWay(ROUNDED, t, rounded)], log


def drawn_steps(surface: Surface) -> list[DrawnWay]:
    """Both losses on the short line, each minus its own in the middle.

    The rounded network's loss is level around each point, and jumps between two points.
    """
    found = compared_of(surface)
    steps = None if found is None else found.steps
    if steps is None or not 1 < len(steps.at) == len(steps.unrounded) == len(steps.rounded):
        return []
    last = len(steps.at) - 1
    middle = last // 2
    plain_there, rounded_there = steps.unrounded[middle], steps.rounded[middle]
    if plain_there is None or rounded_there is None:
        return []  # the reference loss in the middle is missing
    middles = [(k + 0.5) / last for k in range(last)]
    edges = [0.0, *(edge for middle in middles for edge in (middle, middle)), 1.0]
    plain, rounded = (
        [None if loss is None else loss - there for loss in losses]
        for losses, there in ((steps.unrounded, plain_there), (steps.rounded, rounded_there))
    )
    treads = [rise for rise in rounded for _ in (0, 1)]
    return [DrawnWay(PLAIN, [k / last for k in range(last + 1)], plain), DrawnWay(ROUNDED, edges, treads)]


def ends_of_steps(surface: Surface) -> tuple[str, str]:
    """The labels of both ends of the short line; empty texts if no line was kept."""
    found = compared_of(surface)
    steps = None if found is None else found.steps
    known: Sequence[float | None] = () if steps is None else steps.at
    if steps is None or not known or known[0] is None or known[-1] is None:
        return "", ""
    return f"{steps.axis} {number_text(known[0], 3)}", number_text(known[-1], 3)


def _number(value: float | None) -> str:
    return "–" if value is None else number_text(value, 4)


def _with_error(value: float | None, error: float | None) -> str:
    return "–" if value is None else value_with_error(value, math.nan if error is None else error)
