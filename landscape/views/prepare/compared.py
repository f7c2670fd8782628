"""What `landscape compare --keep` found of a quantised landscape, as rows of tables and as lines to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

from landscape.surface.record_entries import ComparedRecord
from landscape.surface.surface import Surface
from landscape.views.prepare.connection import DrawnWay
from landscape.views.prepare.levels import number
from landscape.views.prepare.words import value_with_error

COLUMNS = ("bits", "loss", "difference")
DECADE = 10  # between the smallest and the largest loss, from which on their logarithms are drawn
PLAIN, ROUNDED = "not rounded", "rounded"


def compared_of(surface: Surface) -> ComparedRecord | None:
    """What was found of the landscape over the samples that it has now."""
    found = surface.record.compared
    return None if found is None or found.samples != surface.record.num_samples else found


def compared_rows(surface: Surface) -> list[tuple[str, str]]:
    """The losses at the origin by bits in one line; none where they were not kept."""
    table = bits_table(surface)
    return [("loss at the origin by bits", ", ".join(f"{row[0]}: {row[1]}" for row in table))] if table else []


def bits_table(surface: Surface) -> list[tuple[str, str, str]]:
    """A row for every bit width and one without rounding, under `COLUMNS`."""
    found = compared_of(surface)
    if found is None or not found.bits:
        return []
    rows = [
        (str(each.bits), _number(each.values.get("loss")), _with_error(each.difference, each.stderr))
        for each in found.bits
    ]
    return [*rows, ("none", _number(found.unrounded.get("loss")), "")]


def drawn_bits(surface: Surface) -> tuple[list[DrawnWay], bool]:
    """The loss without rounding and by bits, and whether it is its logarithm to base 10; none of one width."""
    found = compared_of(surface)
    if found is None or len({each.bits for each in found.bits}) < len(found.bits) or len(found.bits) < 2:
        return [], False
    first, last = found.bits[0].bits, found.bits[-1].bits
    t = [(each.bits - first) / (last - first) for each in found.bits]
    losses = [found.unrounded.get("loss"), *(each.values.get("loss") for each in found.bits)]
    known = [loss for loss in losses if loss is not None]
    log = bool(known) and min(known) > 0 and max(known) > DECADE * min(known)
    plain, *rounded = (math.log10(loss) if log and loss is not None else loss for loss in losses)
    return [DrawnWay(PLAIN, (0.0, 1.0), (plain, plain)), DrawnWay(ROUNDED, t, rounded)], log


def drawn_steps(surface: Surface) -> list[DrawnWay]:
    """Both losses on the short line, each less its own in the middle.

    That of the rounded network is level around each point, and jumps between two.
    """
    found = compared_of(surface)
    steps = None if found is None else found.steps
    if steps is None or not 1 < len(steps.at) == len(steps.unrounded) == len(steps.rounded):
        return []
    last = len(steps.at) - 1
    middle = last // 2
    plain_there, rounded_there = steps.unrounded[middle], steps.rounded[middle]
    if plain_there is None or rounded_there is None:
        return []  # there is nothing that the others would be over
    middles = [(k + 0.5) / last for k in range(last)]
    edges = [0.0, *(edge for middle in middles for edge in (middle, middle)), 1.0]
    plain, rounded = (
        [None if loss is None else loss - there for loss in losses]
        for losses, there in ((steps.unrounded, plain_there), (steps.rounded, rounded_there))
    )
    treads = [rise for rise in rounded for _ in (0, 1)]
    return [DrawnWay(PLAIN, [k / last for k in range(last + 1)], plain), DrawnWay(ROUNDED, edges, treads)]


def ends_of_steps(surface: Surface) -> tuple[str, str]:
    """Where the short line begins and ends; empty texts where none was kept."""
    found = compared_of(surface)
    steps = None if found is None else found.steps
    known: Sequence[float | None] = () if steps is None else steps.at
    if steps is None or not known or known[0] is None or known[-1] is None:
        return "", ""
    return f"{steps.axis} {number(known[0], 3)}", number(known[-1], 3)


def _number(value: float | None) -> str:
    return "–" if value is None else number(value, 4)


def _with_error(value: float | None, error: float | None) -> str:
    return "–" if value is None else value_with_error(value, math.nan if error is None else error)
