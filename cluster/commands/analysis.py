"""Questions about what is computed: `landscape compare`, `check`, `inspect` and `measure`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cluster.commands.output import (
    ANYONE,
    AS_RECORDED,
    Callback,
    CallbackOptions,
    Json,
    WorkerOptions,
    Workers,
    read_job_file,
    show,
)
from cluster.runtime.console import divert_stdout
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import Flag, MaybeWhole, given_options
from landscape.core.errors import DONE, FAILED, PARTIAL, JobError, LandscapeError, NotFoundError, quoted

if TYPE_CHECKING:
    from landscape.analysis.quantised import Side
    from landscape.job.job import Job
    from landscape.surface.record_entries import Checks

MOST_STEPS = 10_000  # points of the short line, each of which is evaluated twice
LARGEST_PATCH = 301  # points per side, of whose square each is evaluated twice


@dataclass(frozen=True)
class CompareOptions:
    """How two landscapes are compared; none of it serves two sets of weights."""

    bits: str | None = None
    """Bit widths of the curve, such as 1-16, 2,4,8 or none; default: 1-16 where a landscape is quantised."""
    points: MaybeWhole = None
    """Points of the grid, at most, at which the paired error is evaluated where `keep_samples` has not stored the
    losses; default: 25."""
    steps: MaybeWhole = None
    """Points of the short line; default: 61, 0 for none."""
    patch: MaybeWhole = None
    """Points per side of the patch, 41 say: 2 × 41 × 41 evaluations of all samples; default: 0 for none."""
    out: Path | None = None
    """Folder for pictures and tables; default: none are written."""
    to: str | None = None
    """Formats, separated by commas: html, png, svg or pdf for pictures, csv for tables of the values; default: html."""
    keep: Flag = False
    """Keep the loss per bit width and the steps with the quantised landscape; its report and the page show them."""

    def check(self) -> None:
        """Refuse numbers that make no comparison.

        Raises:
            JobError: says which.
        """
        for name, value, most in (
            ("points", self.points, None), ("steps", self.steps, MOST_STEPS), ("patch", self.patch, LARGEST_PATCH),
        ):  # fmt: skip
            if value is not None and value < 0:
                raise JobError(f"{name}: must be at least 0, not {value}")
            if value is not None and most is not None and value > most:
                raise JobError(f"{name}: must be at most {most}, not {value}")
        if self.steps == 1:
            raise JobError("steps: must be at least 2, between which the loss can jump, or 0 for none, not 1")
        if self.patch == 1:
            raise JobError("patch: must be at least 2, or 0 for none, not 1")
        if self.to is not None and self.out is None:
            raise JobError("to: goes with --out, the folder of the pictures; name one")


USUAL = CompareOptions()


def compare(
    first: str,
    second: str,
    *,
    how: Annotated[CompareOptions, Parameter(name="*")] = USUAL,
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
    """
    who.check()
    from landscape.analysis.quantised import sides_of

    sides = sides_of(first, second)
    if sides is None:
        _compare_measures(first, second, how, json)
    else:
        _compare_landscapes(*sides, how, json, callback, who)


def _compare_landscapes(
    first: Side, second: Side, how: CompareOptions, json: bool, callback: CallbackOptions, who: WorkerOptions
) -> None:
    from landscape.analysis.quantised import Compare, asked_bits, compare_landscapes
    from landscape.analysis.quantised_report import FORMATS, check_keepable, document, keep, lines_of, write_pictures
    from landscape.views.exporting import check_formats

    how.check()
    formats = (how.to or "html").split(",")
    check_formats(formats, FORMATS)
    given = {name: value for name in ("points", "steps", "patch") if (value := getattr(how, name)) is not None}
    asked = Compare(**given | ({} if how.bits is None else {"bits": asked_bits(how.bits)}))
    if how.keep:
        check_keepable(first, second, asked.steps)
    with divert_stdout():
        found = compare_landscapes(
            first, second, asked, problem=callback.problem, folder=callback.folder, executor=who.executor,
            tell=write_remark,
        )  # fmt: skip
        if how.keep:
            keep(found)
        written = [] if how.out is None else write_pictures(found, how.out, formats)
    show(document(found), json, "\n".join(lines_of(found)))
    for path in written:
        write_remark(str(path))
    if how.keep:
        kept = ["the losses by bits"] * bool(found.bits) + ["the steps on the line"] * (found.steps is not None)
        patch_left = "; the patch is not, --to csv writes it" if found.patch is not None else ""
        write_remark(f"kept with the landscape: {' and '.join(kept) or 'nothing'}{patch_left}")


def _compare_measures(first: str, second: str, how: CompareOptions, json: bool) -> None:
    from landscape.analysis.measures.comparison import compare as compare_targets
    from landscape.analysis.measures.comparison import targets_of
    from landscape.views.prepare.tables import comparison_lines

    odd = next(iter(given_options(how)), None)
    if odd is not None:
        raise JobError(f"{odd}: goes with two landscapes, RUN:NAME each, and {quoted(first)} names none; leave it out")
    with divert_stdout():
        found = compare_targets(targets_of(first), targets_of(second)).document()
    show(found, json, "\n".join(comparison_lines(found)))


def check(
    run: str,
    name: str | None = None,
    *,
    deep: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Judge whether the picture of a landscape can be trusted, by fifteen checks, each with its number and remedy.

    The marks: ✓ holds, ! a reservation, ✗ does not hold, – not judged, and why. What is found is kept with the
    landscape, and the report shows it. Exit code 1 where a check does not hold, else 4 where the network of a landscape
    could not be evaluated, so that it is not judged.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape; default: all of the run.
    deep
        Look for the steepest direction too: about 60 products with the Hessian.
    """
    who.check()
    from landscape.store.results import open_run
    from landscape.surface.record import plain

    opened = open_run(run)
    bind(run=opened.path)
    names = list(opened) if name is None else [name]
    if not names:
        raise NotFoundError(f"run {quoted(opened.path, 300)} holds no landscape; `landscape run JOB` computes one")
    found = check_all(opened.path, names, deep=deep, callback=callback, who=who)
    data = [
        {"name": each, "verdict": checks.verdict, "judged": not checks.not_judged, **plain(checks)}
        for each, checks in found.items()
    ]
    show({"run": opened.path, "landscapes": data}, json, texts_of(found))
    if any(checks.fails for checks in found.values()):
        return FAILED
    return PARTIAL if any(checks.not_judged for checks in found.values()) else DONE


def check_all(
    run: str, names: list[str], *, deep: bool = False, callback: CallbackOptions = AS_RECORDED,
    who: WorkerOptions = ANYONE,
) -> dict[str, Checks]:  # fmt: skip
    """Check landscapes of a run one after another, and keep what is found where the run can be written."""
    from landscape.analysis.checks.table import check_landscape, keep_checks

    found = {}
    with divert_stdout():
        for name in names:
            found[name] = check_landscape(
                run, name, deep=deep, problem=callback.problem, folder=callback.folder, executor=who.executor
            )
            try:
                keep_checks(run, name, found[name])
            except LandscapeError as error:
                write_remark(f"what was found of {name} is not kept: {error}")
    return found


def texts_of(found: dict[str, Checks]) -> str:
    """What was found of several landscapes, as text."""
    from landscape.analysis.checks.check import checks_text

    return "\n\n".join(checks_text(name, checks) for name, checks in found.items())


def inspect(
    run: str,
    name: str,
    *,
    at: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    gradients: Flag = False,
    rules: str | None = None,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> int:
    """Say which layer goes wrong first at a point, and how: not finite, saturated, all zero, exploding, vanishing.

    Each layer and each operation between layers has its statistics over the landscape's samples, beside the same at the
    origin. The loss is what the landscape has there, to the bit; nothing is written. Exit code 0 whatever is found.

    Parameters
    ----------
    run
        The run folder or URL.
    name
        The landscape.
    at
        The coordinates, one for each axis, such as --at=0.3,-0.7, also beyond the grid; default: the first point whose
        loss is not finite, else the origin.
    gradients
        Statistics of the gradient of the mean loss, parameter by parameter, too.
    rules
        Which to ask, of docs/howto/inspect.md: names, or NAME=THRESHOLD, separated by commas; default: all.
    """
    who.check()
    from landscape.analysis.inspection import inspect_point, inspection_text, plain_inspection

    bind(run=run)
    point = None if at is None else _coordinates(at)
    with divert_stdout():
        found = inspect_point(
            run, name, at=point, gradients=gradients, rules=rules, problem=callback.problem, folder=callback.folder,
            executor=who.executor,
        )  # fmt: skip
    show(plain_inspection(found), json, inspection_text(found))
    return DONE


def _coordinates(text: str) -> list[float]:
    """The numbers of `0.3,-0.7`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise JobError(f"at: must be a number for each axis, such as --at=0.3,-0.7, not {quoted(text)}") from None


SAYING = (
    "These numbers describe these weights on these samples. Sharpness does not track generalisation well, sometimes "
    "inversely (Andriushchenko et al. 2023)."
)


def measure(
    run: str,
    *,
    origins: str | None = None,
    layers: Flag = False,
    all: Flag = False,
    json: Json = False,
    callback: Callback = AS_RECORDED,
    who: Workers = ANYONE,
) -> None:
    """Measure how the loss rises around weights: along lines, in the worst case, by curvature, with intervals.

    The table is kept in RUN/measures.json; what is measured already is not measured again.

    Parameters
    ----------
    run
        The run folder or URL, or a YAML job file. Of a run the samples and the precision of its first landscape are
        taken.
    origins
        Which weights, separated by commas: last, first, all (every snapshot), problem, epoch-N or step-N, a file of
        weights. Default: last where the run has a trajectory, else problem.
    layers
        Also how the loss rises when one layer alone moves, and when it goes back to the first snapshot.
    all
        Also Keskar's sharpness, average cases under noise, and the noise that the error bears.
    """
    who.check()
    from landscape.analysis.measures.measure import ExtraMeasures, origins_of, record
    from landscape.model.snapshots import read_trajectory
    from landscape.views.prepare.tables import lines_of

    with divert_stdout():
        job = _job(run, callback)
        bind(run=job.run_path)
        trajectory = read_trajectory(job.run_path)
        chosen = origins_of(origins, trajectory, Path.cwd())
        found = record(job, chosen, trajectory, ExtraMeasures(layers, all), who.executor).document()
    show(found, json, "\n".join([*lines_of(found), SAYING]))


def _job(run: str, callback: CallbackOptions) -> Job:
    """How the weights are measured: as a job file says, or as the run's first landscape was computed."""
    from landscape.analysis.measures.measure import job_of_file, job_of_run
    from landscape.store.results import open_run

    if Path(run).is_file():
        if callback.problem or callback.folder:
            raise JobError("problem: goes with a run, not with a job file, which names its own; leave it out")
        return job_of_file(read_job_file(Path(run)))
    return job_of_run(open_run(run).path, callback.problem, callback.folder)
