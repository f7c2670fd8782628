"""The comparison of two landscapes as a document, lines of text, tables and pictures; keeping it with the landscape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from landscape import __version__
from landscape.analysis.quantised import (
    CHANGES,
    PATCH_CHANGES,
    AtBits,
    LossPatch,
    QuantisedComparison,
    Side,
    Steps,
)
from landscape.core.errors import JobError
from landscape.core.grid import Floats
from landscape.core.lock import driver_alive
from landscape.core.text import finite_or_none, number_text, plus_minus
from landscape.store.landscape import LandscapeStore
from landscape.store.results import keep_with_landscape, writing
from landscape.store.runs import refuse_unwritable
from landscape.surface.record_entries import BitsRecord, ComparedRecord, StepsRecord
from landscape.views.draw.comparison import compare
from landscape.views.draw.quantisation import draw_bits, draw_patch, draw_steps, draw_terraces
from landscape.views.exporting import DRAWN_FORMATS as DRAWN
from landscape.views.exporting import check_formats, whole_file, write_columns, write_drawn
from landscape.views.prepare.comparison import item_labels
from landscape.views.prepare.quantisation import prepare_bits, prepare_patch, prepare_steps

SAYING = (
    "the difference is the second less the first; ± is two standard errors (2 s.e.), of pairs over the same samples"
)


def document(found: QuantisedComparison) -> dict[str, Any]:
    """The whole comparison as JSON values; arrays over the grid have the last axis first, null if not known."""
    surface, steps, patch = found.first.surface, found.steps, found.patch
    return {
        "first": {"landscape": found.first.label, "rounding": found.first.rounding},
        "second": {"landscape": found.second.label, "rounding": found.second.rounding},
        "samples": surface.record.num_samples,
        "axes": {axis.name: axis.coordinates.tolist() for axis in surface.axes},
        "difference": _nest(found.difference),
        "difference_stderr": _nest(found.stderr),
        "stderr_from": "stored losses" if found.stored else "evaluated points",
        "unpaired_over_paired": finite_or_none(found.ratio),
        "origin": {
            name: finite_or_none(float(values[0]))
            for name, values in (
                ("first", found.origin.first), ("second", found.origin.second), ("difference", found.origin.difference),
                ("stderr", found.origin.stderr), ("unpaired_stderr", found.origin.unpaired),
            )
        },
        "unrounded": _finite(found.plain),
        "bits": [
            {"bits": row.bits, **_finite({**row.values, "difference": row.difference, "stderr": row.stderr})}
            for row in found.bits
        ],
        "steps": steps and {"axis": steps.axis, "at": steps.at.tolist(), **_both_losses(steps)},
        "patch": patch and {
            "axes": {name: at.tolist() for name, at in zip(patch.axes, patch.at, strict=True)},
            **_both_losses(patch),
            "origin": _finite(dict(zip(("unrounded", "rounded"), patch.origin, strict=True))),
            "precision": patch.precision,
        },
        "evaluations": found.evaluations,
    }  # fmt: skip


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: finite_or_none(float(value)) for name, value in values.items()}


def _both_losses(place: Steps | LossPatch) -> dict[str, Any]:
    return {"unrounded": _nest(place.plain), "rounded": _nest(place.rounded)}


def lines_of(found: QuantisedComparison) -> list[str]:
    """The main numbers, for a terminal."""
    origin, samples = found.origin, found.first.surface.record.num_samples
    lines = [
        f"first:  {found.first.label}, {found.first.rounding}",
        f"second: {found.second.label}, {found.second.rounding}",
        f"at the origin: loss {number_text(float(origin.first[0]), 6)} and {number_text(float(origin.second[0]), 6)}, "
        f"difference {_with_error(float(origin.difference[0]), float(origin.stderr[0]))} over the same "
        f"{samples} samples; unpaired it would be ± {number_text(2 * float(origin.unpaired[0]), 2)} (2 s.e. each)",
        *_of_grid(found),
    ]
    if found.bits:
        lines += ["loss at the origin by bits:", *_align(found)]
    if found.steps is not None:
        lines.append(line_of_steps(found.steps))
    if found.patch is not None:
        lines.append(_of_patch(found.patch))
    return [*lines, f"{found.evaluations} evaluations of all samples; {SAYING}"]


def tables_of(found: QuantisedComparison) -> dict[str, dict[str, Floats]]:
    """The values as columns of tables, by table; grids with the first axis fastest."""
    surface = found.first.surface
    losses = [np.asarray(side.surface.loss, np.float64) for side in (found.first, found.second)]
    axes = {axis.name: axis.coordinates for axis in surface.axes}
    compared = {"first": losses[0], "second": losses[1], "difference": found.difference}
    tables = {"difference": _on_grid(axes) | compared | {"difference_stderr": found.stderr}}
    if found.bits:
        rows = [{"bits": row.bits, **row.values, "difference": row.difference} for row in found.bits]
        tables["bits"] = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        tables["bits"]["difference_stderr"] = np.array([row.stderr for row in found.bits])
    if found.steps is not None:
        tables["steps"] = {
            found.steps.axis: found.steps.at, "unrounded": found.steps.plain, "rounded": found.steps.rounded
        }  # fmt: skip
    if found.patch is not None:
        places = _on_grid(dict(zip(found.patch.axes, found.patch.at, strict=True)))
        tables["patch"] = {**places, "unrounded": found.patch.plain, "rounded": found.patch.rounded}
    return tables


def _on_grid(axes: Mapping[str, Floats]) -> dict[str, Floats]:
    """The coordinates of every point of a grid, the last axis first."""
    grids = np.meshgrid(*reversed(list(axes.values())), indexing="ij")
    return dict(zip(axes, reversed(grids), strict=True))


def _of_patch(patch: LossPatch) -> str:
    first, second = (
        f"{name} within ±{at[-1]:.3g}" for name, at in zip(patch.axes, patch.at, strict=True)
    )  # fmt: skip
    spans = [_span(values) for values in (patch.plain, patch.rounded)]
    return (
        f"patch of {len(patch.at[0])} × {len(patch.at[1])} points, {first} and {second}: the loss varies by "
        f"{spans[1]} where weights are rounded, and by {spans[0]} where they are not"
    )


def _span(values: Floats) -> str:
    known = values[np.isfinite(values)]
    return number_text(float(np.ptp(known)), 2) if known.size else "–"


def _of_grid(found: QuantisedComparison) -> Iterator[str]:
    difference = found.difference
    if not np.isfinite(difference).any():
        yield "over the grid: no point has a finite loss in both"
        return
    surface = found.first.surface
    place = np.unravel_index(int(np.nanargmax(np.abs(difference))), difference.shape)
    at = ", ".join(
        f"{axis.name} {axis.coordinates[index]:.3g}" for axis, index in zip(surface.axes, reversed(place), strict=True)
    )
    low, high = (number_text(float(end)) for end in (np.nanmin(difference), np.nanmax(difference)))
    both = int(np.isfinite(difference).sum())
    where = (
        "" if both == difference.size else f", at the {both} of {difference.size} points where both have a finite loss"
    )
    yield f"over the grid{where}: difference from {low} to {high}, the largest at {at}"
    known = np.isfinite(found.stderr)
    if known.any():
        clear = int((np.abs(difference[known]) > 2 * found.stderr[known]).sum())
        where = "evaluated; keep_samples: true of the job would store them for all"
        where = "all from stored losses" if found.stored else where
        # For a landscape compared with itself no pair differs, and the ratio is not finite.
        ratio = f", and the unpaired error is {number_text(found.ratio, 3)} times as large" * math.isfinite(found.ratio)
        points = int(known.sum())
        yield (
            f"paired errors at {points} point{'s' * (points != 1)} ({where}): {clear} differ by more than 2 s.e.{ratio}"
        )


def line_of_steps(steps: Steps) -> str:
    """The text on the jumps of the rounded network's loss on the short line."""
    jumps = np.abs(np.diff(steps.rounded - steps.plain))
    jumps = jumps[np.isfinite(jumps)]
    line = f"steps along {steps.axis}, {len(steps.at)} points within ±{steps.at[-1]:.3g}: "
    if not len(jumps):
        return f"{line}no two neighbours have finite losses"
    return (
        f"{line}from one point to the next the loss jumps by up to {number_text(float(jumps.max()), 2)}, less what it "
        "changes where nothing is rounded"
    )


def _align(found: QuantisedComparison) -> Iterator[str]:
    names = [name for name in found.plain if name != "loss"]
    rows = [("bits", "loss", *names, "difference")]
    rows += [(str(row.bits), *_values(row, names), _with_error(row.difference, row.stderr)) for row in found.bits]
    rows.append(("none", *(number_text(found.plain[name], 5) for name in ("loss", *names)), ""))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _values(row: AtBits, names: list[str]) -> list[str]:
    return [number_text(row.values[name], 5) if math.isfinite(row.values[name]) else "–" for name in ("loss", *names)]


def _with_error(value: float, error: float) -> str:
    return plus_minus(value, error) if math.isfinite(value) else "–"


def _nest(values: Any) -> Any:
    if np.ndim(values) == 0:
        return finite_or_none(float(values))
    return [_nest(value) for value in values]


# ----------------------------------------------------------------------------------------------------
# The files of a comparison: pictures of the difference, of the loss by bits and of the steps; or tables of these.

TABLE = "csv"
FORMATS = (*DRAWN, TABLE)


def pictures_of(found: QuantisedComparison) -> dict[str, Any]:
    """The figures by the names of their files."""
    sides = (found.first, found.second)
    labels = item_labels([(side.run, side.name) for side in sides])
    pairs = [(label, side.surface) for label, side in zip(labels, sides, strict=True)]
    figures: dict[str, Any] = {"difference": compare(pairs, "difference")}
    if found.bits and found.quantise is not None:
        how = str(found.quantise).replace(f"{found.quantise.bits} bit", "so many bit").replace("bits", "bit")
        figures["bits"] = draw_bits(
            prepare_bits(
                [row.bits for row in found.bits], [row.values["loss"] for row in found.bits],
                [row.stderr for row in found.bits], found.plain["loss"], how.replace("so many bit", "so many bits"),
                found.first.surface.record.num_samples,
            )
        )  # fmt: skip
    if found.steps is not None and found.quantise is not None:
        line = found.steps
        what = str(found.quantise)
        figures["steps"] = draw_steps(prepare_steps(line.axis, line.at, line.plain, line.rounded, CHANGES, what))
    if found.patch is not None and found.quantise is not None:
        patch = found.patch
        prepared = prepare_patch(
            patch.axes, patch.at, (patch.plain, patch.rounded), patch.origin, PATCH_CHANGES, str(found.quantise),
            patch.precision,
        )  # fmt: skip
        figures |= {"patch": draw_patch(prepared), "patch-surface": draw_terraces(prepared)}
    return figures


def write_pictures(found: QuantisedComparison, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write the figures into a folder, and with `csv` the values as tables; returns the paths.

    Raises:
        JobError: an unknown format.
        LandscapeError: the folder cannot be written, or there is no browser to draw pictures with.
    """
    check_formats(formats, FORMATS)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, columns in tables_of(found).items() if TABLE in formats else ():
        written.append(folder / f"{name}.{TABLE}")
        with whole_file(written[-1]) as temporary:
            write_columns(temporary, columns)
    drawn = [format for format in formats if format != TABLE]
    return [*written, *(write_drawn(pictures_of(found), folder, drawn) if drawn else [])]


# ----------------------------------------------------------------------------------------------------
# Keeping the results on rounding with the quantised landscape, for its report and page.

MOST_KEPT = 1001  # points of the short line: they are read whenever the landscape is opened


def check_keepable(first: Side, second: Side, steps: int) -> None:
    """Refuse results that could not be kept, before anything is computed.

    Raises:
        JobError: neither landscape is quantised, or the line has too many points.
        LandscapeError: a driver writes the run, or the disk cannot be written.
    """
    side = _rounded_one(first, second)
    if steps > MOST_KEPT:
        raise JobError(f"steps: must be at most {MOST_KEPT} with --keep, not {steps}")
    refuse_unwritable(side.path)
    if driver_alive(side.path):
        with writing(side.path):  # a refusal must come now, not after the work
            pass


def keep(found: QuantisedComparison) -> None:
    """Put the curve over the bits and the steps into the record of the quantised landscape.

    Earlier results over the same samples that were not computed now are kept.

    Raises:
        LandscapeError: a driver writes the run, or the disk cannot be written.
    """
    side = _rounded_one(found.first, found.second)
    samples = side.store.record.num_samples
    known = LandscapeStore.open(side.path, side.name).record.compared
    if known is None or known.samples != samples:
        known = ComparedRecord(samples=samples)
    now = replace(known, when=datetime.now(UTC).isoformat(timespec="seconds"), version=__version__)
    if found.bits:
        now = replace(now, unrounded=_finite(found.plain), bits=tuple(map(_of_bits, found.bits)))
    if (line := found.steps) is not None:
        steps = StepsRecord(
            axis=line.axis, at=_plain(line.at), unrounded=_plain(line.plain), rounded=_plain(line.rounded)
        )
        now = replace(now, steps=steps)
    keep_with_landscape(side.path, side.name, compared=now)


def _rounded_one(first: Side, second: Side) -> Side:
    """The quantised landscape; the second one if both are."""
    for side in (second, first):
        if side.store.record.quantisation is not None:
            return side
    raise JobError("keep: must be of landscapes one of which is quantised, and neither is; leave keep out")


def _of_bits(row: AtBits) -> BitsRecord:
    difference, stderr = finite_or_none(row.difference), finite_or_none(row.stderr)
    return BitsRecord(bits=row.bits, values=_finite(row.values), difference=difference, stderr=stderr)


def _plain(values: Floats) -> tuple[float | None, ...]:
    return tuple(map(finite_or_none, values.tolist()))
