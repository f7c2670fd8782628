"""`landscape compare`: two landscapes of one plane, or two sets of weights by their measures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cluster.commands.computing_options import ANYONE, AS_RECORDED, Callback, Workers
from cluster.commands.output import Json, show
from cluster.runtime.console import diverted
from cluster.runtime.logs import write_remark
from cluster.runtime.options import Flag, MaybeWhole
from landscape.core.errors import JobError, shown

MOST_STEPS = 10_000  # points of the short line, each of which is evaluated twice
LARGEST_PATCH = 301  # points per side, of whose square each is evaluated twice


def compare(
    first: str,
    second: str,
    *,
    bits: str | None = None,
    points: MaybeWhole = None,
    steps: MaybeWhole = None,
    patch: MaybeWhole = None,
    out: Path | None = None,
    to: str | None = None,
    keep: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> None:
    """Compare two landscapes of one plane, such as a network before and after it is rounded, or two sets of weights.

    Of two landscapes, RUN:NAME each: their difference at every point, with the standard error of the pairs over the
    same samples; where one is quantised, also the loss at the origin per bit width, and the steps of rounding on a
    short line and, where asked for, on a small patch of the plane. Landscapes of other planes or samples are refused
    with the list why.

    Of two sets of weights: what `landscape measure` has kept of them, differences with intervals, paired over the same
    samples and lines. What is not comparable is refused with the list why: other samples, precision, batch-norm mode,
    lines. Measures that one side alone has are named, with the command that gives them; those of single layers are not
    compared.

    Parameters
    ----------
    first
        RUN:NAME for a landscape; RUN or RUN:ORIGIN, such as runs/a:epoch-3, for weights; default: the last snapshot
        that was measured. Of at least three runs, separated by commas, the spread over runs counts.
    second
        What it is compared with, as many runs or more.
    bits
        Bit widths of the curve, such as 1-16, 2,4,8 or none; default: 1-16 where a landscape is quantised.
    points
        Points of the grid, at most, at which the paired error is evaluated where `keep_samples` has not stored the
        losses; default: 25.
    steps
        Points of the short line; default: 61, 0 for none.
    patch
        Points per side of the patch, 41 say: 2 × 41 × 41 evaluations of all samples; default: 0 for none.
    out
        Folder for pictures and tables; default: none are written.
    to
        Formats, separated by commas: html, png, svg or pdf for pictures, csv for tables of the values; default: html.
    keep
        Keep the loss per bit width and the steps with the quantised landscape; its report and the page show them.
    """
    who.check()
    from landscape.analysis.quantised import sides_of

    sides = sides_of(first, second)
    given = {"bits": bits, "points": points, "steps": steps, "patch": patch, "out": out, "to": to, "keep": keep or None}
    if sides is None:
        _compare_measures(first, second, given, json)
        return
    from landscape.analysis.quantised import Compare, asked_bits, check_keepable, compare_landscapes
    from landscape.analysis.quantised import keep as keep_found
    from landscape.analysis.quantised_report import FORMATS, document, lines_of, write_pictures
    from landscape.views.exporting import check_formats

    if to is not None and out is None:
        raise JobError("to: goes with --out, the folder of the pictures; name one")
    formats = (to or "html").split(",")
    check_formats(formats, FORMATS)
    usual = Compare()
    asked = Compare(
        _whole("points", points, usual.points), usual.bits if bits is None else asked_bits(bits),
        _whole("steps", steps, usual.steps, MOST_STEPS), _whole("patch", patch, usual.patch, LARGEST_PATCH),
    )  # fmt: skip
    if asked.patch == 1:
        raise JobError("patch: must be at least 2, or 0 for none, not 1")
    if keep:
        check_keepable(*sides, asked.steps)
    with diverted():
        found = compare_landscapes(
            *sides, asked, problem=callback.problem, folder=callback.folder, calculator=who.calculator,
            tell=write_remark,
        )  # fmt: skip
        if keep:
            keep_found(found)
        written = [] if out is None else write_pictures(found, out, formats)
    show(document(found), json, "\n".join(lines_of(found)))
    for path in written:
        write_remark(str(path))
    if keep:
        kept = ["the losses by bits"] * bool(found.bits) + ["the steps on the line"] * (found.steps is not None)
        patch_left = "; the patch is not, --to csv writes it" if found.patch is not None else ""
        write_remark(f"kept with the landscape: {' and '.join(kept) or 'nothing'}{patch_left}")


def _whole(name: str, value: int | None, usual: int, most: int | None = None) -> int:
    if value is not None and value < 0:
        raise JobError(f"{name}: must be at least 0, not {value}")
    if value is not None and most is not None and value > most:
        raise JobError(f"{name}: must be at most {most}, not {value}")
    if name == "steps" and value == 1:
        raise JobError("steps: must be at least 2, between which the loss can jump, or 0 for none, not 1")
    return usual if value is None else value


def _compare_measures(first: str, second: str, given: Mapping[str, object], json: bool) -> None:
    from landscape.analysis.measures.comparison import compare as compare_targets
    from landscape.analysis.measures.comparison import targets_of
    from landscape.views.prepare.measures import comparison_lines

    odd = next((name for name, value in given.items() if value is not None), None)
    if odd is not None:
        raise JobError(f"{odd}: goes with two landscapes, RUN:NAME each, and {shown(first)} names none; leave it out")
    with diverted():
        found = compare_targets(targets_of(first), targets_of(second)).document()
    show(found, json, "\n".join(comparison_lines(found)))
