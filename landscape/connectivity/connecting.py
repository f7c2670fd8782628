"""Two networks connected: one matched to the other if asked, a curve trained between them and drawn in its plane."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.barrier import Barriers, PathColumns, barriers_of, path_columns
from landscape.calculation import AtPoints, AtWeights, LocalCalculator, setting_of
from landscape.connectivity.bending import Training, train_bend
from landscape.connectivity.matching import match_weights
from landscape.connectivity.weight_files import read_made, write_made
from landscape.curves import Curve, curve_places
from landscape.devices import pick_device
from landscape.errors import JobError, shown
from landscape.evaluation.arithmetic import arithmetic
from landscape.evaluation.values import Values
from landscape.parameters import State, state_digest
from landscape.pipeline import run
from landscape.preparation import PreparedJob, PreparedLandscape, prepare
from landscape.preparation.weights import Weights
from landscape.problem.user_code import in_folder
from landscape.progress import stage
from landscape.results import Run
from landscape.spec import Job
from landscape.trajectory.snapshots import read_trajectory

log = logging.getLogger("landscape")

Floats = NDArray[np.float64]
Answering = Callable[[PreparedJob, PreparedLandscape, int], Any]  # gives a context that gives a Calculator

POINTS = 61  # of the line and of the curve, as Garipov et al. 2018 evaluate
AT_ONCE = 8  # points that one question asks for
CHECKED_SAMPLES = 256  # on which a matched network must compute what it did


@dataclass(frozen=True)
class Values1D:
    """Observables along the line or the curve, over t [n], with the columns and barriers that describe them.

    Attributes:
        values: means and standard errors by name, as those of a surface, [n] each.
        loss: Garipov's columns of the loss, over the length in weight space.
    """

    t: Floats
    values: Mapping[str, Floats]
    loss: PathColumns
    barriers: Barriers | None


@dataclass(frozen=True)
class Connection:
    """What connects two networks.

    Attributes:
        name: of the landscape, the plane of the networks and the bend.
        line, curve: the straight line between them, and the trained curve.
        bend: the file of the bend's weights.
        matched: the file of the second network with its units matched to the first; None where that was not asked for.
        epochs: the mean training loss of each; none where a bend was there already.
    """

    name: str
    kind: Curve
    line: Values1D
    curve: Values1D
    bend: Path
    matched: Path | None
    epochs: tuple[float, ...]

    @property
    def gone(self) -> float | None:
        """The share of the line's barrier (Entezari's) that the curve does not have; None where the line has none."""
        if self.line.barriers is None or self.curve.barriers is None or self.line.barriers.entezari.height == 0:
            return None
        return 1 - self.curve.barriers.entezari.height / self.line.barriers.entezari.height


def answering_here(prepared: PreparedJob, landscape: PreparedLandscape, evaluations: int) -> Any:
    """A calculator in this process."""
    return nullcontext(LocalCalculator(prepared, landscape))


def connect(
    job: Job, first: int | str, second: int | str, *, name: str = "curve", kind: Curve = "bezier",
    training: Training | None = None, match: bool = False, table: Mapping[str, Sequence[str | None]] | None = None,
    bend: Path | None = None, size: int | None = None, points: int = POINTS, compute: Callable[[Job], Run] = run,
    answering: Answering = answering_here, on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
    stop: Callable[[], bool] = lambda: False,
) -> Connection:  # fmt: skip
    """Train a curve between two networks, compute the plane of the networks and the bend, and both ways over it.

    The curve is trained on the job's samples. What it is made from is written into the file of the bend: where that
    file is there already, it is taken, and where it is of another curve, it is refused.

    Args:
        job: its problem, samples and arithmetic; its landscapes are not computed.
        first, second: the networks: files, snapshots by number, `first`, `last` or `problem`.
        name: of the landscape that is computed.
        match: permute the units of the second network first, so that they match those of the first.
        table: of `match_weights`.
        bend: the file of the bend; default: NAME-bend.safetensors in the folder of the job.
        size: points per axis of the plane; default: 21.
        points: of the line and of the curve.
        compute: runs the job of the plane.
        answering: gives the calculator that evaluates the line and the curve.

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
    prepared = prepare(job.replace(landscapes=[line]))
    weights = Weights(prepared.problem, read_trajectory(prepared.run), job.folder)
    ends: list[State] = [weights.state(first), weights.state(second)]
    matched = None
    if match:
        matched = job.folder / f"{name}-matched.safetensors"
        ends[1] = _matched(prepared, ends[0], ends[1], table, matched)
    file = bend if bend is not None else job.folder / f"{name}-bend.safetensors"
    made_of = {
        "curve": kind, "first": state_digest(ends[0]), "second": state_digest(ends[1]),
        "samples": prepared.samples.digest(), **asdict(plan),
    }  # fmt: skip
    epochs: tuple[float, ...] = ()
    if not read_made(file, made_of, "bend"):
        stage("training the curve")
        with in_folder(prepared.folder), arithmetic(prepared.landscapes[0].plan, device := pick_device(job.device)):
            found = train_bend(
                prepared.problem.model, prepared.samples, prepared.problem.observe, ends[0], ends[1], kind, plan,
                device=device, on_epoch=on_epoch, stop=stop,
            )  # fmt: skip
        write_made(file, found.bend, made_of)
        epochs = found.losses
    target = second if matched is None else str(matched.absolute())
    plane = {"name": name, "plane": [first, target, str(file.absolute())], "curve": kind, "size": size}
    asked = job.replace(landscapes=[{key: value for key, value in plane.items() if value is not None}])
    compute(asked)
    ways = _both_ways(prepare(asked), ends, kind, points, answering)
    return Connection(name, kind, *ways, file, matched, epochs)


def _matched(
    prepared: PreparedJob, first: State, second: State, table: Mapping[str, Sequence[str | None]] | None, file: Path
) -> State:
    """The second network with its units matched to the first, kept in a file."""
    made_of = {"matched": state_digest(second), "to": state_digest(first), "table": table and dict(table)}
    with in_folder(prepared.folder):
        found = match_weights(prepared.problem.model, first, second, table, outputs=outputs_on(prepared))
    if not read_made(file, made_of, "match"):
        write_made(file, found.weights, made_of)
    log.info("matched: the inner product with the first network rose from %.4g to %.4g", found.before, found.after)
    return found.weights


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


def _both_ways(
    prepared: PreparedJob, ends: Sequence[State], kind: Curve, points: int, answering: Answering
) -> tuple[Values1D, Values1D]:
    """The line and the curve, evaluated as points of the plane; the ends as whole networks, so by their own bytes."""
    (landscape,) = prepared.landscapes
    networks = [axis.record.networks or () for axis in landscape.directions]
    corners = np.array([[network.at for network in axis] for axis in networks]).T
    t = np.linspace(0, 1, points)
    ways = [np.stack([t, 0 * t], axis=1) * corners[1, 0], curve_places(kind, corners, t)]
    inner = np.concatenate([way[1:-1] for way in ways])
    with answering(prepared, landscape, 2 * points) as calculator:
        setting = setting_of(landscape)
        pieces = [AtPoints(inner[begin : begin + AT_ONCE]) for begin in range(0, len(inner), AT_ONCE)]
        between = [_numbers(each) for each in calculator.ask(setting, pieces)]
        wholes = calculator.ask(setting, [AtWeights(calculator.share(end)) for end in ends])
        # The error of the rise at the second network is known at its point of the plane alone.
        (at_second,) = calculator.ask(setting, [AtPoints(corners[1:2])])
    names = list(_numbers(wholes[0]))
    along = {name: np.concatenate([part[name] for part in between]) for name in between[0]}
    return (
        _described(t, ways[0], {name: along[name][: points - 2] for name in along}, wholes, at_second, names),
        _described(t, ways[1], {name: along[name][points - 2 :] for name in along}, wholes, at_second, names),
    )


def _numbers(values: Values) -> dict[str, Floats]:
    """Means and standard errors by name, [n] each."""
    errors = {f"{name}_stderr": array for name, array in values.stderr.items()}
    rise = {} if values.rise_stderr is None else {"loss_rise_stderr": values.rise_stderr}
    return {**values.mean, **errors, **rise}


def _described(
    t: Floats, places: Floats, inner: Mapping[str, Floats], ends: Sequence[Values], second: Values, names: Sequence[str]
) -> Values1D:
    first, last = (_numbers(end) for end in ends)
    values = {name: np.concatenate([first[name], inner[name], last[name]]) for name in names}
    if second.rise_stderr is not None:
        values["loss_rise_stderr"] = np.concatenate([[0.0], inner["loss_rise_stderr"], second.rise_stderr])
    lengths = np.linalg.norm(np.diff(places, axis=0), axis=1)
    barriers = barriers_of(t, values, float(values["loss"][0]), None)
    return Values1D(t, values, path_columns(values["loss"], lengths), barriers)
