"""The analysis of landscapes and networks: `landscape compare`, `check`, `inspect` and `connect`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cluster.commands.output import (
    ANYONE,
    AS_RECORDED,
    Callback,
    CallbackOptions,
    JobRunner,
    Json,
    WorkerOptions,
    Workers,
    read_bound_job,
    requested_landscapes,
    show,
)
from cluster.runtime.console import align, divert_stdout
from cluster.runtime.logs import bind, write_remark
from cluster.runtime.options import Flag, MaybeNumber, MaybeWhole, given_options
from landscape.core.errors import (
    DONE,
    FAILED,
    PARTIAL,
    JobError,
    message_of,
    quoted,
)

if TYPE_CHECKING:
    from landscape.analysis.connect.connect import Connection, Values1D
    from landscape.analysis.quantised import Side
    from landscape.surface.barriers import Barrier
    from landscape.surface.record_entries import Checks


MOST_STEPS = 10_000  # points of the short line; each is evaluated twice
LARGEST_PATCH = 301  # points per side of the patch; each of its points is evaluated twice


@dataclass(frozen=True)
class CompareOptions:
    """How two landscapes are compared; for two sets of weights no option may be given."""

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
        """Refuse values that no comparison can use.

        Raises:
            JobError: an option has such a value.
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
    fields = {name: value for name in ("points", "steps", "patch") if (value := getattr(how, name)) is not None}
    settings = Compare(**fields | ({} if how.bits is None else {"bits": asked_bits(how.bits)}))
    folders = callback.folders([first.run, second.run])
    if how.keep:
        check_keepable(first, second, settings.steps)
    with divert_stdout():
        comparison = compare_landscapes(
            first,
            second,
            settings,
            problem=callback.problem,
            folders=(folders.get(first.run), folders.get(second.run)),
            executor=who.executor,
            tell=write_remark,
        )
        if how.keep:
            keep(comparison)
        pictures = [] if how.out is None else write_pictures(comparison, how.out, formats)
    show(document(comparison), json, "\n".join(lines_of(comparison)))
    for path in pictures:
        write_remark(str(path))
    if how.keep:
        kept = ["the losses by bits"] * bool(comparison.bits) + ["the steps on the line"] * (
            comparison.steps is not None
        )
        patch_remark = "; the patch is not, --to csv writes it" if comparison.patch is not None else ""
        write_remark(f"kept with the landscape: {' and '.join(kept) or 'nothing'}{patch_remark}")


def _compare_measures(first: str, second: str, how: CompareOptions, json: bool) -> None:
    from landscape.analysis.measures.comparison import compare as compare_targets
    from landscape.analysis.measures.comparison import targets_of
    from landscape.views.prepare.tables import comparison_lines

    option = next(iter(given_options(how)), None)
    if option is not None:
        raise JobError(
            f"{option}: goes with two landscapes, RUN:NAME each, and {quoted(first)} names none; leave it out"
        )
    with divert_stdout():
        comparison = compare_targets(targets_of(first), targets_of(second)).document()
    show(comparison, json, "\n".join(comparison_lines(comparison)))


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
    from landscape.analysis.questions import check as check_landscapes
    from landscape.store.results import open_run
    from landscape.surface.record import plain

    opened = open_run(run)
    bind(run=opened.path)
    requested_landscapes(opened, name)  # refuses a run without landscapes
    with divert_stdout():
        results = check_landscapes(
            opened, name, deep=deep, problem=callback.problem, folder=callback.folder_of(run), executor=who.executor
        )
    landscapes = [
        {"name": landscape, "verdict": checks.verdict, "judged": not checks.not_judged, **plain(checks)}
        for landscape, checks in results.items()
    ]
    show({"run": opened.path, "landscapes": landscapes}, json, texts_of_checks(results))
    if any(checks.fails for checks in results.values()):
        return FAILED
    return PARTIAL if any(checks.not_judged for checks in results.values()) else DONE


def texts_of_checks(checks: dict[str, Checks]) -> str:
    """The checks of several landscapes as text."""
    return "\n\n".join(one.text(name) for name, one in checks.items())


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
    from landscape.analysis.inspection import inspect, inspection_text, plain_inspection

    bind(run=run)
    point = None if at is None else _coordinates(at)
    with divert_stdout():
        inspection = inspect(
            run, name, at=point, gradients=gradients, rules=rules, problem=callback.problem,
            folder=callback.folder_of(run), executor=who.executor,
        )  # fmt: skip
    show(plain_inspection(inspection), json, inspection_text(inspection))
    return DONE


def _coordinates(text: str) -> list[float]:
    """The coordinates in a text such as `0.3,-0.7`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise JobError(f"at: must be a number for each axis, such as --at=0.3,-0.7, not {quoted(text)}") from None


# ----------------------------------------------------------------------------------------------------
# A curve trained between two networks, drawn in its plane.


@dataclass(frozen=True)
class CurveOptions:
    """The kind of the curve, and how it is trained."""

    curve: str = "bezier"
    """{curves}, each with one bend."""
    match: Flag = False
    """First permute the units of the second network so that they match those of the first (Git Re-Basin)."""
    table: Path | None = None
    """For --match of a network that cannot be read off: a YAML file with the permutation of each axis of each
    tensor."""
    epochs: MaybeWhole = None
    """Passes over the samples; default: 30."""
    learning_rate: MaybeNumber = None
    """Constant to half of the training, then falling to 1 % of itself; default: 0.02."""
    momentum: MaybeNumber = None
    """Of stochastic gradient descent; default: 0.9."""
    weight_decay: MaybeNumber = None
    """Of the weights on the curve; default: 0."""
    batch_size: MaybeWhole = None
    """Samples per step of the training; default: 32."""
    seed: MaybeWhole = None
    """Of the training; default: 0."""
    bend: Path | None = None
    """The file of the bend's weights; default: NAME-bend.safetensors beside the job file."""
    points: MaybeWhole = None
    """On the line and on the curve; default: 61."""

    def of_connect(self) -> dict[str, Any]:
        """The options as `landscape.connect` takes them.

        Raises:
            JobError: an option has a wrong value.
        """
        from landscape.analysis.connect.curve import BendTraining

        settings = {entry.name: getattr(self, entry.name) for entry in fields(BendTraining)}
        training = BendTraining(**{name: value for name, value in settings.items() if value is not None})
        table = None if self.table is None else _read_table(self.table)
        options = {"kind": self.curve, "match": self.match, "table": table, "training": training, "bend": self.bend}
        return options if self.points is None else options | {"points": self.points}


USUAL_CURVE = CurveOptions()


def connect(
    job: Path,
    first: str,
    second: str,
    *,
    name: str = "curve",
    how: Annotated[CurveOptions, Parameter(name="*")] = USUAL_CURVE,
    size: MaybeWhole = None,
    run: str | None = None,
    accept_origin: Flag = False,
    json: Json = False,
    who: Workers = ANYONE,
) -> int:
    """Train a curve of low loss between two networks, and compute the plane that it lies in.

    The curve is trained on the samples of the job, by one worker where workers compute; the plane, the line and the
    curve are evaluated as any landscape is. Each epoch and the weights of the bend are kept in a file, and what lies on
    the line and the curve with the landscape: the same command goes on from there.

    Parameters
    ----------
    job
        The YAML job file; its problem, samples and arithmetic are used, its landscapes are not computed.
    first
        The network at the curve's beginning: a file, a snapshot by its number, first, last or problem.
    second
        The network at its end.
    name
        The landscape that is computed.
    size
        Points per axis of the plane; default: 21.
    run
        The run folder or URL, instead of the job's.
    accept_origin
        Go on, with a warning that the landscape keeps, where your model has another loss by its own forward pass.
    """
    who.check()
    if how.table is not None and not how.match:
        raise JobError("table: goes with --match only; give both, or neither")
    parsed = read_bound_job(job, run=run)
    from landscape.analysis.connect.connect import connect as connect_networks

    options = how.of_connect()
    runner = JobRunner(who, accept_origin=accept_origin)
    ends = (int(end) if end.isdecimal() else end for end in (first, second))  # a snapshot's number, or a name
    with divert_stdout():
        connection = connect_networks(
            parsed, *ends, name=name, size=size, compute=runner, executors=who.executor, **options
        )
    show(_plain(connection), json, text_of_connection(connection))
    return runner.code


def _read_table(file: Path) -> dict[str, list[str | None]]:
    """The permutation of each axis of each tensor, from a YAML file."""
    from landscape.job.reading import parse_yaml

    try:
        table = parse_yaml(file.read_bytes())
    except (OSError, ValueError) as error:
        raise JobError(f"table: {quoted(str(file))} cannot be read: {message_of(error)}") from None
    rows = table.values() if isinstance(table, dict) else [None]
    if not all(isinstance(row, list) and all(name is None or isinstance(name, str) for name in row) for row in rows):
        raise JobError(
            f"table: {quoted(str(file))} must hold lines such as 'fc1.weight: [P1, null]': the permutation of each "
            "axis, or null"
        )
    return dict(table)


def _plain(found: Connection) -> dict[str, Any]:
    """The connection as JSON."""

    def way(values: Values1D) -> dict[str, Any]:
        barriers = None if values.barriers is None else asdict(values.barriers)
        arrays = {name: [_or_none(value) for value in array.tolist()] for name, array in values.values.items()}
        return {
            "t": values.t.tolist(),
            **arrays,
            "columns": _without_nan(asdict(values.loss)),
            "barriers": _without_nan(barriers),
        }

    return {
        "name": found.name, "curve": found.kind, "bend": str(found.bend),
        "matched": None if found.matched is None else str(found.matched),
        "inner_products": None if found.inner_products is None else list(found.inner_products),
        "gone": found.gone, "epochs": list(found.epochs), "on_line": way(found.line), "on_curve": way(found.curve),
    }  # fmt: skip


def _or_none(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return _or_none(value) if isinstance(value, float) else value


def text_of_connection(found: Connection) -> str:
    """The connection as a table, with a row for the line and one for the curve."""
    heads = ["", "lowest", "highest", "mean", "integral", "Entezari", "Git Re-Basin", "Frankle (error)"]
    rows = [heads, ["line", *_cells(found.line)], [found.kind, *_cells(found.curve)]]
    last = f"{_gone_text(found)}; the plane is landscape {found.name}, the bend {found.bend}"
    return "\n".join([*align(rows), *_matching(found), last])


def _matching(found: Connection) -> list[str]:
    """How much the permutation of units improved the match, and where the matched weights are."""
    if found.matched is None or found.inner_products is None:
        return []
    before, after = found.inner_products
    return [f"matched: the inner product with the first network is {after:.4g}, was {before:.4g}; in {found.matched}"]


def _gone_text(found: Connection) -> str:
    """How much lower the barrier of the curve is, in words; no share if the line's barrier is within its error."""
    for what, values in (("line", found.line), ("curve", found.curve)):
        if values.barriers is None:
            return f"the loss on the {what} is not finite everywhere"
    if found.gone is None or found.line.barriers is None:
        return "the line has no barrier"
    line = found.line.barriers.entezari
    if line.is_within_error:
        error = 2 * line.stderr
        return f"the line's barrier (Entezari's), {line.height:.2g}, is within its error of {error:.2g}: none is shown"
    if found.gone < 0:
        times = f"{1 - found.gone:.3g} times the line's"
        return f"the curve's barrier (Entezari's) is {times}; another learning rate, or more epochs"
    return f"{100 * found.gone:.1f} % of the line's barrier (Entezari's) is gone"


def _cells(values: Values1D) -> list[str]:
    def height(barrier: Barrier | None) -> str:
        return "-" if barrier is None else f"{barrier.height:.4g}"

    columns = [f"{number:.4g}" for number in asdict(values.loss).values()]
    kinds = values.barriers
    return columns + (
        ["-"] * 3 if kinds is None else [height(each) for each in (kinds.entezari, kinds.git_re_basin, kinds.frankle)]
    )
