"""`landscape connect`: a curve trained between two networks, drawn in its plane."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cluster.commands.output import ANYONE, JobRunner, Json, Workers, read_bound_job, show
from cluster.runtime.console import align, divert_stdout
from cluster.runtime.options import Flag, MaybeNumber, MaybeWhole
from landscape.core.errors import JobError, message_of, quoted

if TYPE_CHECKING:
    from landscape.analysis.connect.connect import Connection, Values1D
    from landscape.surface.barriers import Barrier


@dataclass(frozen=True)
class CurveOptions:
    """Which curve it is, and how it is trained."""

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
            JobError: one of them is wrong.
        """
        from landscape.analysis.connect.curve import BendTraining

        settings = {each.name: getattr(self, each.name) for each in fields(BendTraining)}
        training = BendTraining(**{name: value for name, value in settings.items() if value is not None})
        table = None if self.table is None else _read_table(self.table)
        given = {"kind": self.curve, "match": self.match, "table": table, "training": training, "bend": self.bend}
        return given if self.points is None else given | {"points": self.points}


USUAL = CurveOptions()


def connect(
    job: Path,
    first: str,
    second: str,
    *,
    name: str = "curve",
    how: Annotated[CurveOptions, Parameter(name="*")] = USUAL,
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
    given = read_bound_job(job, run=run)
    from landscape.analysis.connect.connect import connect as connect_networks

    options = how.of_connect()
    runner = JobRunner(who, accept_origin=accept_origin)
    ends = (int(each) if each.isdecimal() else each for each in (first, second))  # a snapshot's number, or a name
    with divert_stdout():
        found = connect_networks(given, *ends, name=name, size=size, compute=runner, executors=who.executor, **options)
    show(_plain(found), json, text_of_connection(found))
    return runner.code


def _read_table(file: Path) -> dict[str, list[str | None]]:
    """The permutation of each axis of each tensor, from a YAML file."""
    from landscape.job.reading import parse_yaml

    try:
        given = parse_yaml(file.read_bytes())
    except (OSError, ValueError) as error:
        raise JobError(f"table: {quoted(str(file))} cannot be read: {message_of(error)}") from None
    rows = given.values() if isinstance(given, dict) else [None]
    if not all(isinstance(row, list) and all(name is None or isinstance(name, str) for name in row) for row in rows):
        raise JobError(
            f"table: {quoted(str(file))} must hold lines such as 'fc1.weight: [P1, null]': the permutation of each "
            "axis, or null"
        )
    return dict(given)


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
    """A row for the line and one for the curve."""
    heads = ["", "lowest", "highest", "mean", "integral", "Entezari", "Git Re-Basin", "Frankle (error)"]
    rows = [heads, ["line", *_cells(found.line)], [found.kind, *_cells(found.curve)]]
    last = f"{_gone_text(found)}; the plane is landscape {found.name}, the bend {found.bend}"
    return "\n".join([*align(rows), *_matching(found), last])


def _matching(found: Connection) -> list[str]:
    """What the permutation of units has won, and where the matched weights are."""
    if found.matched is None or found.inner_products is None:
        return []
    before, after = found.inner_products
    return [f"matched: the inner product with the first network is {after:.4g}, was {before:.4g}; in {found.matched}"]


def _gone_text(found: Connection) -> str:
    """How much lower the barrier of the curve is, in words; no share of a barrier that may be none."""
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
