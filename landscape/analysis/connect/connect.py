"""Connect two networks: optionally match one to the other, train a curve between them, and draw it in its plane."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from landscape import __version__
from landscape.analysis.connect.curve import BendProgress, BendTraining, EpochHooks, Reached, train_by
from landscape.analysis.connect.matching import match_weights
from landscape.compute.executor import AtPoints, AtWeights, EvaluationSetting, Executors, local_executors, setting_of
from landscape.compute.landscape_context import Weights
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.compute.serial import run
from landscape.core.errors import Interrupted, JobError, LandscapeError, message_of, quoted
from landscape.core.grid import Floats
from landscape.core.plan import Engine
from landscape.core.progress import stage
from landscape.core.text import canonical_json, finite_or_none
from landscape.evaluation.reduction import Values
from landscape.job.job import Job
from landscape.model.parameters import State, state_digest
from landscape.model.run_files import SNAPSHOT_FORMAT
from landscape.model.snapshots import read_trajectory
from landscape.model.weight_files import read_about
from landscape.problem.user_code import in_folder
from landscape.store.landscape import LandscapeStore
from landscape.store.results import Run, keep_with_landscape
from landscape.surface.barriers import Barrier, Barriers, Curve, PathColumns, barriers_of, curve_places, path_columns
from landscape.surface.record_entries import BarrierRecord, ConnectionRecord, WayRecord

POINTS = 61  # of the line and of the curve, as Garipov et al. 2018 evaluate
AT_ONCE = 8  # points of one work item


@dataclass(frozen=True)
class Values1D:
    """Observables along the line or the curve, over t [n], with their columns and barriers.

    Attributes:
        values: means and standard errors by name, like those of a surface, [n] each.
        loss: Garipov's columns of the loss, over the length in weight space.
    """

    t: Floats
    values: Mapping[str, Floats]
    loss: PathColumns
    barriers: Barriers | None


def both_ways(
    prepared: PreparedJob, ends: Sequence[State], kind: Curve, points: int, executors: Executors
) -> tuple[Values1D, Values1D]:
    """The line and the curve, evaluated as points of the plane; the ends as whole networks, with their exact bytes."""
    (landscape,) = prepared.landscapes
    networks = [axis.record.networks or () for axis in landscape.directions]
    corners = np.array([[network.at for network in axis] for axis in networks]).T
    t = np.linspace(0, 1, points)
    ways = [np.stack([t, 0 * t], axis=1) * corners[1, 0], curve_places(kind, corners, t)]
    inner = np.concatenate([way[1:-1] for way in ways])
    with executors(prepared, landscape, 2 * points) as executor:
        setting = setting_of(landscape)
        pieces = [AtPoints(inner[begin : begin + AT_ONCE]) for begin in range(0, len(inner), AT_ONCE)]
        between = [_numbers(answer) for answer in executor.ask(setting, pieces)]
        wholes = executor.ask(setting, [AtWeights(executor.share(end)) for end in ends])
        # The error of the rise at the second network is only known at its point of the plane.
        (at_second,) = executor.ask(setting, [AtPoints(corners[1:2])])
    names = list(_numbers(wholes[0]))
    along = {name: np.concatenate([part[name] for part in between]) for name in between[0]}
    return (
        _make_values(t, ways[0], {name: along[name][: points - 2] for name in along}, wholes, at_second, names),
        _make_values(t, ways[1], {name: along[name][points - 2 :] for name in along}, wholes, at_second, names),
    )


def _numbers(values: Values) -> dict[str, Floats]:
    """Means and standard errors by name, [n] each."""
    errors = {f"{name}_stderr": array for name, array in values.stderr.items()}
    rise = {} if values.rise_stderr is None else {"loss_rise_stderr": values.rise_stderr}
    return {**values.mean, **errors, **rise}


def _make_values(
    t: Floats, places: Floats, inner: Mapping[str, Floats], ends: Sequence[Values], second: Values, names: Sequence[str]
) -> Values1D:
    first, last = (_numbers(end) for end in ends)
    values = {name: np.concatenate([first[name], inner[name], last[name]]) for name in names}
    if second.rise_stderr is not None:
        values["loss_rise_stderr"] = np.concatenate([[0.0], inner["loss_rise_stderr"], second.rise_stderr])
    lengths = np.linalg.norm(np.diff(places, axis=0), axis=1)
    barriers = barriers_of(t, values, float(values["loss"][0]), None)
    return Values1D(t, values, path_columns(values["loss"], lengths), barriers)


def way_record(way: Values1D) -> WayRecord:
    """The record of a way; non-finite numbers are None."""
    barriers = {} if way.barriers is None else {
        name: BarrierRecord(height=barrier.height, alpha=barrier.alpha, stderr=finite_or_none(barrier.stderr))
        for name, barrier in (
            ("entezari", way.barriers.entezari), ("git_re_basin", way.barriers.git_re_basin),
            ("frankle", way.barriers.frankle),
        ) if barrier is not None
    }  # fmt: skip
    return WayRecord(
        values={name: tuple(map(finite_or_none, values.tolist())) for name, values in way.values.items()},
        columns={name: finite_or_none(value) for name, value in asdict(way.loss).items()},
        barriers=barriers,
    )


def recorded_ways(record: ConnectionRecord) -> tuple[Values1D, Values1D] | None:
    """The line and the curve in a record; None if they are incomplete."""
    t, found = np.array(record.t), []
    for way in (record.on_line, record.on_curve):
        values = {name: np.array(list(map(_or_nan, numbers))) for name, numbers in way.values.items()}
        if "loss" not in values or any(len(numbers) != len(t) for numbers in values.values()):
            return None
        barriers = {
            name: Barrier(barrier.height, barrier.alpha, _or_nan(barrier.stderr))
            for name, barrier in way.barriers.items()
        }
        heights = [barriers.get(name) for name in ("entezari", "git_re_basin", "frankle")]
        both = None if heights[0] is None or heights[1] is None else Barriers(heights[0], heights[1], heights[2])
        columns = {name: _or_nan(way.columns.get(name)) for name in PathColumns.__dataclass_fields__}
        found.append(Values1D(t, values, PathColumns(**columns), both))
    return found[0], found[1]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


# ----------------------------------------------------------------------------------------------------
# Files of weights made here, each with a description of its inputs, so that it is made only once.

MADE_OF, LOSSES = "made_of", "losses"  # the metadata of the file
BEND, VELOCITY = "bend.", "velocity."  # prefixes of tensor names while a bend is trained


def read_made(file: Path, made_of: Mapping[str, Any], what: str) -> bool:
    """Whether the file exists and was made from the same inputs; `what` names it in messages.

    Raises:
        JobError: the file was made from other inputs.
    """
    if not file.exists():
        return False
    if read_about(file).get(MADE_OF) != canonical_json(made_of):
        raise JobError(
            f"{what}: {quoted(str(file))} holds other weights than would be made now; name another file, or remove it"
        )
    return True


def write_made(file: Path, weights: State, made_of: Mapping[str, Any], losses: Sequence[float] = ()) -> None:
    """Write weights whole, then rename.

    Args:
        losses: of the epochs of their training.

    Raises:
        LandscapeError: they cannot be written.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    metadata = {"format": SNAPSHOT_FORMAT, MADE_OF: canonical_json(made_of), LOSSES: json.dumps(list(losses))}
    try:
        with open(beside, "wb") as opened:
            opened.writelines(
                _in_order(save({name: tensor.contiguous() for name, tensor in weights.items()}, metadata))
            )
        os.replace(beside, file)
    except OSError as error:
        raise LandscapeError(
            f"weights {quoted(str(file))} cannot be written: {error.strerror or message_of(error)}"
        ) from None
    finally:
        beside.unlink(missing_ok=True)


def _in_order(data: bytes) -> Iterator[bytes | memoryview]:
    """The parts of a safetensors file with sorted metadata: safetensors orders them differently in each process."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight
    yield len(text).to_bytes(8, "little") + text
    yield memoryview(data)[end:]


def read_losses(file: Path) -> tuple[float, ...]:
    """The losses of a weight file's training epochs; empty if the file does not record them."""
    return tuple(json.loads(read_about(file).get(LOSSES, "[]")))


def write_progress(file: Path, progress: BendProgress, made_of: Mapping[str, Any]) -> None:
    """Write the progress of a bend's training beside its file.

    Raises:
        LandscapeError: it cannot be written.
    """
    reached = progress.reached
    tensors = {BEND + name: tensor for name, tensor in reached.bend.items()}
    tensors |= {VELOCITY + name: tensor for name, tensor in reached.velocity.items()}
    write_made(_beside(file), tensors, made_of, progress.losses)


def read_progress(file: Path, made_of: Mapping[str, Any]) -> BendProgress | None:
    """The progress of this bend's training; None if there is none, or it belongs to another bend."""
    beside = _beside(file)
    try:
        if not beside.exists() or read_about(beside).get(MADE_OF) != canonical_json(made_of):
            return None
        tensors = load_file(beside)
    except (JobError, OSError, SafetensorError):
        return None
    bend, velocity = (
        {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        for start in (BEND, VELOCITY)
    )
    return BendProgress(Reached(bend, velocity), read_losses(beside))


def remove_progress(file: Path) -> None:
    """Remove the progress file, once the bend is complete."""
    _beside(file).unlink(missing_ok=True)


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.stem}.training{file.suffix}")


# ----------------------------------------------------------------------------------------------------

log = logging.getLogger("landscape")

GRADIENT = 3  # evaluations: the cost of a step
CHECKED_SAMPLES = 256  # on which a matched network must give the same outputs


@dataclass(frozen=True)
class Connection:
    """The connection of two networks.

    Attributes:
        name: of the landscape, the plane of the networks and the bend.
        line, curve: the straight line between them, and the trained curve.
        bend: the file of the bend's weights.
        matched: the file of the second network with its units matched to the first; None without matching.
        epochs: the mean training loss of each epoch.
        inner_products: of the first network with the second, and with the matched one; None without matching.
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
        """The share of the line's barrier (Entezari's) that the curve avoids; None if the line has no barrier."""
        if self.line.barriers is None or self.curve.barriers is None or self.line.barriers.entezari.height == 0:
            return None
        return 1 - self.curve.barriers.entezari.height / self.line.barriers.entezari.height


def connect(
    job: Job, first: int | str, second: int | str, *, name: str = "curve", kind: Curve = "bezier",
    training: BendTraining | None = None, match: bool = False, table: Mapping[str, Sequence[str | None]] | None = None,
    bend: Path | None = None, size: int | None = None, points: int = POINTS,
    compute: Callable[[Job], Run] | None = None,
    executors: Executors | None = None, on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
    stop: Callable[[], bool] = lambda: False, accept_origin: bool = False,
) -> Connection:  # fmt: skip
    """Train a curve between two networks, compute the plane of the networks and the bend, and both ways over it.

    The curve is trained on the job's samples. The file of the bend records its inputs: an existing file is reused, or
    refused if it belongs to another curve. Until it is complete, each epoch is kept beside it. The values on both ways
    are kept with the landscape, from which the same call answers.

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
        executors: gives the executor that trains the curve, and evaluates it and the line; default: this process.
        stop: is called every few steps of a training in this process; if it returns true, `Interrupted` is raised.
        accept_origin: continue, with a warning that the landscape keeps, if the user's own model has another loss at
            the origin or beside it; a given `compute` decides that itself.

    Raises:
        JobError: the networks, the settings or the file of the bend do not fit.
    """
    if points < 3:
        raise JobError(f"points: must be at least 3, not {points}")
    if kind not in get_args(Curve):
        raise JobError(f"curve: must be {' or '.join(get_args(Curve))}, not {quoted(kind)}")
    if first == second:
        raise JobError(f"connect: must be given two networks, not {quoted(first)} twice; name another one")
    line = {"name": f"{name}.line", "origin": first, "directions": [{"kind": "towards", "target": second}], "size": 3}
    prepared = prepare(job.replace(landscapes=[{**line, "quantise": False}]))  # a curve is trained without quantisation
    weights = Weights(prepared.problem, read_trajectory(prepared.run), job.folder)
    ends: list[State] = [weights.state(first), weights.state(second)]
    matched, products = None, None
    if match:
        matched = job.folder / f"{name}-matched.safetensors"
        ends[1], products = _match(prepared, ends[0], ends[1], table, matched)
    executors = executors or local_executors(stop)
    file = bend if bend is not None else job.folder / f"{name}-bend.safetensors"
    _make_bend(prepared, ends, kind, training or BendTraining(), file, executors, on_epoch)
    networks = [first, second if matched is None else str(matched.absolute()), str(file.absolute())]
    plane = {"name": name, "plane": networks, "curve": kind, "quantise": False}
    plane_job = job.replace(landscapes=[plane if size is None else {**plane, "size": size}])
    (compute or partial(run, accept_origin=accept_origin))(plane_job)
    epochs = read_losses(file)
    ways = _ways(prepare(plane_job), ends, kind, points, epochs, executors)
    return Connection(name, kind, *ways, file, matched, epochs, products)


def _make_bend(
    prepared: PreparedJob, ends: Sequence[State], kind: Curve, training: BendTraining, file: Path,
    executors: Executors, on_epoch: Callable[[int, float], None],
) -> None:  # fmt: skip
    """Train the bend into its file, unless the file exists.

    Raises:
        JobError: the file holds another bend, or its folder is missing.
    """
    if not file.parent.is_dir():
        raise JobError(f"bend: the folder of {quoted(str(file))} must exist; make it, or name another file")
    made_of = {
        "curve": kind, "first": state_digest(ends[0]), "second": state_digest(ends[1]),
        "samples": prepared.samples.digest(), "precision": prepared.landscapes[0].plan.precision, **asdict(training),
    }  # fmt: skip
    if not read_made(file, made_of, "bend"):
        _train(prepared, ends, kind, training, file, made_of, executors, on_epoch)


def _train(
    prepared: PreparedJob, ends: Sequence[State], kind: Curve, training: BendTraining, file: Path,
    made_of: Mapping[str, Any], executors: Executors, on_epoch: Callable[[int, float], None],
) -> None:  # fmt: skip
    """Train the bend into its file; until it is complete, each epoch is kept beside it."""
    (landscape,) = prepared.landscapes
    plan = replace(landscape.plan, engine=Engine(), bfloat16_weights=False)
    known, told = read_progress(file, made_of), max(1, training.epochs // 10)

    def tell(epoch: int, loss: float) -> None:
        on_epoch(epoch, loss)
        if epoch % told == 0:
            stage(f"training the curve: epoch {epoch} of {training.epochs}, loss {loss:.4g}")

    stage("training the curve" if known is None else f"training the curve: going on after epoch {len(known.losses)}")
    along = EpochHooks(known, lambda progress: write_progress(file, progress, made_of), tell)
    try:
        with executors(prepared, landscape, GRADIENT * training.epochs) as executor:
            setting = EvaluationSetting(ends[0], (), plan)
            bend = train_by(executor, setting, prepared.samples, ends[0], ends[1], kind, training, along)
    except Interrupted:
        raise Interrupted(
            f"the training of {quoted(str(file))} is interrupted; each epoch is kept: the same command goes on"
        ) from None
    write_made(file, bend.bend, made_of, bend.losses)
    remove_progress(file)


def _ways(
    prepared: PreparedJob, ends: Sequence[State], kind: Curve, points: int, epochs: tuple[float, ...],
    executors: Executors,
) -> tuple[Values1D, Values1D]:  # fmt: skip
    """The line and the curve; read from the plane's record if that has the same settings."""
    (landscape,) = prepared.landscapes
    settings = {"curve": kind, "points": points}
    known = LandscapeStore.open(prepared.run, landscape.name).record.connection
    if known is not None and known.settings == settings and (kept := recorded_ways(known)) is not None:
        return kept
    line, curve = both_ways(prepared, ends, kind, points, executors)
    record = ConnectionRecord(
        when=datetime.now(UTC).isoformat(timespec="seconds"), version=__version__, curve=kind,
        t=tuple(line.t.tolist()), on_line=way_record(line), on_curve=way_record(curve), epochs=epochs,
        evaluations=2 * points - 1, settings=settings,
    )  # fmt: skip
    try:
        keep_with_landscape(prepared.run, landscape.name, connection=record)
    except LandscapeError as error:
        log.warning("the values on the line and the curve are not kept: %s", error)
    return line, curve


def _match(
    prepared: PreparedJob, first: State, second: State, table: Mapping[str, Sequence[str | None]] | None, file: Path
) -> tuple[State, tuple[float, float]]:
    """Match the second network's units to the first, and keep the result in a file; returns it, and inner products."""
    made_of = {"matched": state_digest(second), "to": state_digest(first), "table": table and dict(table)}
    with in_folder(prepared.folder):
        found = match_weights(prepared.problem.model, first, second, table, outputs=outputs_on(prepared))
    if not read_made(file, made_of, "match"):
        write_made(file, found.weights, made_of)
    return found.weights, (found.before, found.after)


def outputs_on(prepared: PreparedJob) -> Callable[[nn.Module], Tensor]:
    """A function that returns a model's outputs and losses on the first samples of a job, while it is observed."""
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
