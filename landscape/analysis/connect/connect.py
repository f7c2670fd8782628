"""Two networks connected: one matched to the other if asked, a curve trained between them and drawn in its plane."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from landscape import __version__
from landscape.analysis.connect.bending import Along, train_by
from landscape.analysis.connect.curve import Training
from landscape.analysis.connect.matching import match_weights
from landscape.analysis.connect.ways import POINTS, Values1D, both_ways, recorded_ways, way_record
from landscape.analysis.connect.weight_files import (
    read_losses,
    read_made,
    read_progress,
    remove_progress,
    write_made,
    write_progress,
)
from landscape.compute.executor import Calculators, Setting, here
from landscape.compute.paths import Weights
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.compute.serial import run
from landscape.core.errors import Interrupted, JobError, LandscapeError, shown, stage
from landscape.core.plan import Engine
from landscape.job.job import Job
from landscape.model.parameters import State, state_digest
from landscape.model.snapshots import read_trajectory
from landscape.problem.user_code import in_folder
from landscape.store.landscape import LandscapeStore
from landscape.store.results import Run, keep_with_landscape
from landscape.surface.barriers import Curve
from landscape.surface.record_entries import ConnectionRecord

log = logging.getLogger("landscape")

GRADIENT = 3  # evaluations, that a step takes about as long as
CHECKED_SAMPLES = 256  # on which a matched network must compute what it did


@dataclass(frozen=True)
class Connection:
    """What connects two networks.

    Attributes:
        name: of the landscape, the plane of the networks and the bend.
        line, curve: the straight line between them, and the trained curve.
        bend: the file of the bend's weights.
        matched: the file of the second network with its units matched to the first; None where that was not asked for.
        epochs: the mean training loss of each.
        inner_products: of the first network with the second, and with the matched one; None where it is not matched.
    """

    name: str
    kind: Curve
    line: Values1D
    curve: Values1D
    bend: Path
    matched: Path | None
    epochs: tuple[float, ...]
    inner_products: tuple[float, float] | None = None

    @property
    def gone(self) -> float | None:
        """The share of the line's barrier (Entezari's) that the curve does not have; None where the line has none."""
        if self.line.barriers is None or self.curve.barriers is None or self.line.barriers.entezari.height == 0:
            return None
        return 1 - self.curve.barriers.entezari.height / self.line.barriers.entezari.height


def connect(
    job: Job, first: int | str, second: int | str, *, name: str = "curve", kind: Curve = "bezier",
    training: Training | None = None, match: bool = False, table: Mapping[str, Sequence[str | None]] | None = None,
    bend: Path | None = None, size: int | None = None, points: int = POINTS,
    compute: Callable[[Job], Run] | None = None,
    calculators: Calculators | None = None, on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
    stop: Callable[[], bool] = lambda: False, accept_origin: bool = False,
) -> Connection:  # fmt: skip
    """Train a curve between two networks, compute the plane of the networks and the bend, and both ways over it.

    The curve is trained on the job's samples. What it is made from is written into the file of the bend: where that
    file is there already, it is taken, and where it is of another curve, it is refused. Each epoch is kept beside it
    until then. What was evaluated on both ways is kept with the landscape: the same call answers from there.

    Args:
        job: its problem, samples and arithmetic; its landscapes are not computed.
        first, second: the networks: files, snapshots by number, `first`, `last` or `problem`.
        name: of the landscape that is computed.
        match: permute the units of the second network first, so that they match those of the first.
        table: of `match_weights`.
        bend: the file of the bend; default: NAME-bend.safetensors in the folder of the job.
        size: points per axis of the plane; default: 21.
        points: of the line and of the curve.
        compute: runs the job of the plane; default: this process.
        calculators: gives the calculator that trains the curve, and evaluates it and the line; default: this process.
        stop: is asked every few steps of the training by this process; when true, `Interrupted` is raised.
        accept_origin: go on, with a warning that the landscape keeps, where the user's own model has another loss at
            the origin or beside it; what `compute` does of that is its own matter.

    Raises:
        JobError: the networks, the settings or the file of the bend do not fit.
    """
    if points < 3:
        raise JobError(f"points: must be at least 3, not {points}")
    plan = training or Training()
    if kind not in get_args(Curve):
        raise JobError(f"curve: must be {' or '.join(get_args(Curve))}, not {shown(kind)}")
    if first == second:
        raise JobError(f"connect: must be given two networks, not {shown(first)} twice; name another one")
    line = {"name": f"{name}.line", "origin": first, "directions": [{"kind": "towards", "target": second}], "size": 3}
    prepared = prepare(job.replace(landscapes=[{**line, "quantise": False}]))  # which a curve is not trained with
    weights = Weights(prepared.problem, read_trajectory(prepared.run), job.folder)
    ends: list[State] = [weights.state(first), weights.state(second)]
    matched, products = None, None
    if match:
        matched = job.folder / f"{name}-matched.safetensors"
        ends[1], products = _matched(prepared, ends[0], ends[1], table, matched)
    file = bend if bend is not None else job.folder / f"{name}-bend.safetensors"
    if not file.parent.is_dir():
        raise JobError(f"bend: the folder of {shown(str(file))} must exist; make it, or name another file")
    made_of = {
        "curve": kind, "first": state_digest(ends[0]), "second": state_digest(ends[1]),
        "samples": prepared.samples.digest(), "precision": prepared.landscapes[0].plan.precision, **asdict(plan),
    }  # fmt: skip
    calculators = calculators or here(stop)
    if not read_made(file, made_of, "bend"):
        _train(prepared, ends, kind, plan, file, made_of, calculators, on_epoch)
    target = second if matched is None else str(matched.absolute())
    plane = {
        "name": name,
        "plane": [first, target, str(file.absolute())],
        "curve": kind,
        "size": size,
        "quantise": False,
    }
    asked = job.replace(landscapes=[{key: value for key, value in plane.items() if value is not None}])
    (compute or partial(run, accept_origin=accept_origin))(asked)
    epochs = read_losses(file)
    ways = _ways(prepare(asked), ends, kind, points, epochs, calculators)
    return Connection(name, kind, *ways, file, matched, epochs, products)


def _train(
    prepared: PreparedJob, ends: Sequence[State], kind: Curve, training: Training, file: Path,
    made_of: Mapping[str, Any], calculators: Calculators, on_epoch: Callable[[int, float], None],
) -> None:  # fmt: skip
    """Train the bend into its file, each epoch kept beside it until it is there."""
    (landscape,) = prepared.landscapes
    plan = replace(landscape.plan, engine=Engine(), bfloat16_weights=False)
    known, told = read_progress(file, made_of), max(1, training.epochs // 10)

    def tell(epoch: int, loss: float) -> None:
        on_epoch(epoch, loss)
        if epoch % told == 0:
            stage(f"training the curve: epoch {epoch} of {training.epochs}, loss {loss:.4g}")

    stage("training the curve" if known is None else f"training the curve: going on after epoch {len(known.losses)}")
    along = Along(known, lambda progress: write_progress(file, progress, made_of), tell)
    try:
        with calculators(prepared, landscape, GRADIENT * training.epochs) as calculator:
            bend = train_by(
                calculator, Setting(ends[0], (), plan), prepared.samples, ends[0], ends[1], kind, training, along
            )  # fmt: skip
    except Interrupted:
        raise Interrupted(
            f"the training of {shown(str(file))} is interrupted; each epoch is kept: the same command goes on"
        ) from None
    write_made(file, bend.bend, made_of, bend.losses)
    remove_progress(file)


def _ways(
    prepared: PreparedJob, ends: Sequence[State], kind: Curve, points: int, epochs: tuple[float, ...],
    calculators: Calculators,
) -> tuple[Values1D, Values1D]:  # fmt: skip
    """The line and the curve, from what is kept with the plane where that is of the same settings."""
    (landscape,) = prepared.landscapes
    settings = {"curve": kind, "points": points}
    known = LandscapeStore.open(prepared.run, landscape.name).record.connection
    if known is not None and known.settings == settings and (kept := recorded_ways(known)) is not None:
        return kept
    line, curve = both_ways(prepared, ends, kind, points, calculators)
    record = ConnectionRecord(
        when=datetime.now(UTC).isoformat(timespec="seconds"), version=__version__, curve=kind,
        t=tuple(line.t.tolist()), on_line=way_record(line), on_curve=way_record(curve), epochs=epochs,
        evaluations=2 * points - 1, settings=settings,
    )  # fmt: skip
    try:
        keep_with_landscape(prepared.run, landscape.name, connection=record)
    except LandscapeError as error:
        log.warning("what lies on the line and the curve is not kept: %s", error)
    return line, curve


def _matched(
    prepared: PreparedJob, first: State, second: State, table: Mapping[str, Sequence[str | None]] | None, file: Path
) -> tuple[State, tuple[float, float]]:
    """The second network with its units matched to the first, kept in a file, and both inner products with that."""
    made_of = {"matched": state_digest(second), "to": state_digest(first), "table": table and dict(table)}
    with in_folder(prepared.folder):
        found = match_weights(prepared.problem.model, first, second, table, outputs=outputs_on(prepared))
    if not read_made(file, made_of, "match"):
        write_made(file, found.weights, made_of)
    return found.weights, (found.before, found.after)


def outputs_on(prepared: PreparedJob) -> Callable[[nn.Module], Tensor]:
    """What a model returns on the first samples of a job while it is observed, and its losses there."""
    samples = prepared.samples
    start, stop = samples.edges(min(CHECKED_SAMPLES, samples.length))[0]
    batch = samples.batch(start, stop)

    def outputs(model: nn.Module) -> Tensor:
        returned: list[Tensor] = []

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                returned.append(output.detach().double().flatten())

        handle = model.register_forward_hook(keep)
        try:
            loss = prepared.problem.observe(model, batch)["loss"]
        finally:
            handle.remove()
        return torch.cat([*returned, loss.detach().double().flatten()])

    return outputs
