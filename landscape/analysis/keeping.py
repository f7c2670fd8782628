"""Keeps what was found of rounding with the quantised landscape, whose report and page show it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from landscape import __version__
from landscape.analysis.quantised import AtBits, Comparison
from landscape.analysis.sides import Side
from landscape.compute.paired import Floats
from landscape.core.errors import JobError
from landscape.core.lock import driver_alive
from landscape.store.landscape import LandscapeStore
from landscape.store.results import keep_with_landscape, writing
from landscape.store.runs import refuse_unwritable
from landscape.surface.record_entries import BitsRecord, ComparedRecord, StepsRecord, finite_or_none

MOST_KEPT = 1001  # points of the short line: they are read whenever the landscape is opened


def check_keepable(first: Side, second: Side, steps: int) -> None:
    """Refuse what could not be kept, before anything is computed.

    Raises:
        JobError: neither landscape is quantised, or the line has too many points.
        LandscapeError: a driver writes the run, or the disk takes nothing.
    """
    side = _rounded_one(first, second)
    if steps > MOST_KEPT:
        raise JobError(f"steps: must be at most {MOST_KEPT} with --keep, not {steps}")
    refuse_unwritable(side.path)
    if driver_alive(side.path):
        with writing(side.path):  # refused now, and not after the work
            pass


def keep(found: Comparison) -> None:
    """Put the curve over the bits and the steps into the document of the quantised landscape.

    What was kept before, over the same samples, and was not asked for now stays.

    Raises:
        LandscapeError: a driver writes the run, or the disk takes nothing.
    """
    side = _rounded_one(found.first, found.second)
    samples = side.store.record.num_samples
    known = LandscapeStore.open(side.path, side.name).record.compared
    if known is None or known.samples != samples:
        known = ComparedRecord(samples=samples)
    now = replace(known, when=datetime.now(UTC).isoformat(timespec="seconds"), version=__version__)
    if found.bits:
        unrounded = {name: finite_or_none(value) for name, value in found.plain.items()}
        now = replace(now, unrounded=unrounded, bits=tuple(map(_of_bits, found.bits)))
    if (line := found.steps) is not None:
        steps = StepsRecord(
            axis=line.axis, at=_plain(line.at), unrounded=_plain(line.plain), rounded=_plain(line.rounded)
        )
        now = replace(now, steps=steps)
    keep_with_landscape(side.path, side.name, compared=now)


def _rounded_one(first: Side, second: Side) -> Side:
    """The quantised landscape, the second one where both are."""
    for side in (second, first):
        if side.store.record.quantisation is not None:
            return side
    raise JobError("keep: must be of landscapes one of which is quantised, and neither is; leave keep out")


def _of_bits(each: AtBits) -> BitsRecord:
    return BitsRecord(
        bits=each.bits, values={name: finite_or_none(value) for name, value in each.values.items()},
        difference=finite_or_none(each.difference), stderr=finite_or_none(each.stderr),
    )  # fmt: skip


def _plain(values: Floats) -> tuple[float | None, ...]:
    return tuple(map(finite_or_none, values.tolist()))
