"""Measure weights of a run: all measures of one set of weights, and recording them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from landscape.analysis.measures import document
from landscape.analysis.measures.document import Entry, MeasureRow, Measures, row_of
from landscape.analysis.measures.lines import (
    ADAPTIVE_RHO,
    COORDINATES,
    DISTANCES,
    FIRST_SEED,
    LINES,
    SIGMA,
    Draw,
    Ends,
    LineOrigin,
    average_rows,
    draws_of,
    error_noise_row,
    known_radius,
    mean_of,
    radii_of,
    radius_row,
    rises_of,
    samples_of,
    weights_of,
)
from landscape.analysis.measures.requested import MeasuredOrigin, at_origin
from landscape.analysis.measures.worst import (
    ASAM_RHO,
    LAYER_DISTANCES,
    LAYER_LINES,
    PROBED,
    SAM_RHO,
    WORST_STEPS,
    Slope,
    curvature_rows,
    keskar,
    layer_rows,
    layers_of,
    sharpness,
)
from landscape.compute.eigenpairs import KeptSteps
from landscape.compute.executor import (
    AtPoints,
    AtWeights,
    BlockGradient,
    EvaluationSetting,
    Executor,
    Executors,
    ProductOfBlocks,
    Shared,
    WorkItem,
)
from landscape.compute.landscape_context import Weights
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.core.errors import Interrupted, JobError, LandscapeError, quoted
from landscape.core.grid import Floats
from landscape.core.lock import living_driver, measuring_lock
from landscape.core.plan import Plan
from landscape.core.progress import Observer, Progress, stage
from landscape.core.text import digest, finite_or_none
from landscape.evaluation.reduction import Values
from landscape.job.directions.base import DEFAULT_IGNORE
from landscape.job.job import Job
from landscape.model.parameters import State, describe_parameters, refuse_not_finite, state_digest
from landscape.model.snapshots import Trajectory
from landscape.store.runs import refuse_unwritable, write_error
from landscape.surface.surface import SAMPLE_INDEX

# ----------------------------------------------------------------------------------------------------
# All measures of one set of weights, in the order of their computation.

# With fewer samples a standard error has an error of more than a fifth, and percentiles of resampled means cover too
# little.
LEAST_SAMPLES = 16
LOSS, RADIUS, ERROR_NOISE = "loss", "radius", "1/sigma^2"


@dataclass(frozen=True)
class ExtraMeasures:
    """Optional measures beside the usual rows.

    Attributes:
        layers: the rises of single layers.
        everything: Keskar's sharpness, average cases, and the noise that the error tolerates.
    """

    layers: bool = False
    everything: bool = False


@dataclass(frozen=True)
class WeightsMeasures:
    """The measures of one set of weights.

    Attributes:
        rows: by their names.
        layers: by the names of the layers; empty if they were not requested.
        radii: the bounds of each line's radius.
        samples: for comparisons: `loss` [N], `rises` [K, R, N], `weights` [N], rows by name [N], and the probes of the
            trace; only the probes if samples have no loss of their own.
    """

    rows: dict[str, MeasureRow]
    layers: dict[str, dict[str, MeasureRow]]
    radii: list[Ends]
    samples: dict[str, NDArray[np.float32]] = field(repr=False)
    means: Floats = field(repr=False)


def refuse_few_samples(count: int) -> None:
    """Raises JobError for too few samples for an interval."""
    if count < LEAST_SAMPLES:
        raise JobError(
            f"num_samples: must be at least {LEAST_SAMPLES} for errors over samples, not {count}; give a job with more"
        )


def measure(
    executor: Executor, prepared: PreparedJob, plan: Plan, origin: State, label: str, asked: ExtraMeasures,
    first: State | None = None, kept: KeptSteps | None = None,
) -> WeightsMeasures:  # fmt: skip
    """The measures of some weights of a job's problem, over its samples.

    Rows that need derivatives have no value, and say why, if the plan's batch norm has none.

    Args:
        label: the name of the weights in messages.
        first: the first snapshot of the run, to which layers are reset.
        kept: the kept Lanczos steps; default: none.

    Raises:
        JobError: the samples are too few, the weights or their loss are not finite, or the loss has no gradient.
    """
    refuse_few_samples(prepared.samples.length)
    infos = describe_parameters(prepared.problem.model)
    refuse_not_finite(origin, infos, f"origin: {label}")
    base = LineOrigin.of(executor, plan, origin, prepared.problem)
    slope = Slope(executor, EvaluationSetting(origin, (), plan), prepared.problem, prepared.samples)
    draws = draws_of(origin, infos)
    _refuse_not_finite_loss(base, draws[0], label)
    stage(f"{label}: worst case")  # first, as it may be refused
    worst = sharpness(base, slope)
    stage(f"{label}: lines")
    lines = base.along(draws, [COORDINATES] * len(draws))
    rises = rises_of(lines, DISTANCES, base.terms)
    target, radii = radii_of(base, draws, lines)
    rows = {LOSS: _loss(lines[0])} | rises.rows() | {RADIUS: _add_note(radius_row(radii), target)} | worst.rows
    stage(f"{label}: curvature")
    loss = float(mean_of(lines[0])[len(DISTANCES)])
    curved = curvature_rows(slope, loss, kept)
    rows |= curved.rows
    if asked.everything:
        stage(f"{label}: average cases")
        rows |= keskar(base, slope).rows | average_rows(base, infos, loss)
        observed = "accuracy" in lines[0].mean
        rows[ERROR_NOISE] = (
            error_noise_row(base, infos) if observed else MeasureRow(None, note="no accuracy is observed")
        )
    layers = dict[str, dict[str, MeasureRow]]()
    if asked.layers:
        stage(f"{label}: layers")
        layers = layer_rows(base, infos, first)
    return WeightsMeasures(
        rows, layers, radii, _samples(lines[0], rises.samples, worst.samples | curved.samples), rises.means
    )


def _refuse_not_finite_loss(base: LineOrigin, draw: Draw, label: str) -> None:
    """Refuse weights without a finite loss: it cannot rise, though a criterion may have gradients, such as 0."""
    (values,) = base.along([draw], [(0.0,)])
    loss = float(mean_of(values)[0])
    if not math.isfinite(loss):
        raise JobError(
            f"origin: {label}: the loss there must be finite, not {loss}; take weights from before the training "
            "diverged, or mend the criterion"
        )


def _loss(line: Values) -> MeasureRow:
    place = len(DISTANCES)
    return row_of(float(mean_of(line)[place]), float(line.stderr["loss"][place]))


def _add_note(row: MeasureRow, target: float) -> MeasureRow:
    text = "; ".join(filter(None, (row.note, f"to a rise of {target:.3g}")))
    return replace(row, note=text)


def _samples(
    line: Values, rises: NDArray[np.float32] | None, others: dict[str, Floats]
) -> dict[str, NDArray[np.float32]]:
    losses, weights = samples_of(line), weights_of(line)
    if rises is None or losses is None or weights is None:
        return {name: values.astype(np.float32) for name, values in others.items() if name == PROBED}
    arrays = {LOSS: losses[len(DISTANCES)].astype(np.float32), "rises": rises, "weights": weights.astype(np.float32)}
    return arrays | {name: values.astype(np.float32) for name, values in others.items()}


# ----------------------------------------------------------------------------------------------------

log = logging.getLogger("landscape")
Answer = TypeVar("Answer")


def settings_of(prepared: PreparedJob) -> dict[str, Any]:
    """The settings that decide the measures of given weights; they must be equal for a comparison."""
    (landscape,) = prepared.landscapes
    plan, infos = landscape.plan, describe_parameters(prepared.problem.model)
    shapes = [[info.name, list(info.shape), info.role, info.trainable, info.transposed_groups] for info in infos]
    return {
        "samples": str(landscape.identity["samples"]),
        "num_samples": prepared.samples.length,
        "seed": plan.seed,
        "precision": plan.precision,
        "batch_norm": plan.batch_norm,
        "batch_size": plan.batch_size,
        "device": plan.device,
        "normalise": "filter",
        "ignore": list(DEFAULT_IGNORE),
        "direction_seeds": [FIRST_SEED, FIRST_SEED + LINES - 1],
        "distances": list(DISTANCES),
        "rho": {
            "sam": SAM_RHO,
            "asam": ASAM_RHO,
            "steps": WORST_STEPS,
            "average": SIGMA,
            "adaptive average": ADAPTIVE_RHO,
        },
        "architecture": digest(shapes),
    }


def has_all(entry: Entry | None, weights: str, asked: ExtraMeasures) -> bool:
    """Whether an entry of the same settings holds all requested measures."""
    if entry is None or entry.weights != weights:
        return False
    return (not asked.everything or ERROR_NOISE in entry.rows) and (not asked.layers or bool(entry.layers))


def first_state(prepared: PreparedJob, trajectory: Trajectory, origin: MeasuredOrigin) -> State | None:
    """The weights of the first snapshot; None if there is none, or it is the origin itself."""
    if not trajectory.numbers or trajectory.numbers[0] == origin.number:
        return None
    return Weights(prepared.problem, trajectory, prepared.job.folder).state("first")


# ----------------------------------------------------------------------------------------------------
# The measures of a run, computed one set of weights after another, each recorded when it is done.

# The approximate cost of a set of weights in evaluations, to decide whether workers are worth starting: a gradient
# costs about three, a Hessian product about seven.
GRADIENT_EVALUATIONS, PRODUCT_EVALUATIONS = 3, 7
USUAL_EVALUATIONS, USUAL_DERIVATIVES = LINES * len(COORDINATES), 42 * GRADIENT_EVALUATIONS + 40 * PRODUCT_EVALUATIONS
FURTHER_EVALUATIONS, FURTHER_DERIVATIVES = 200 + 16 * 10, 11 * GRADIENT_EVALUATIONS
LAYER_EVALUATIONS = LAYER_LINES * (2 * len(LAYER_DISTANCES) + 1)


def record(
    job: Job,
    origins: Sequence[MeasuredOrigin],
    trajectory: Trajectory,
    asked: ExtraMeasures,
    executor_of: Executors,
    observer: Observer = lambda progress: None,
) -> Measures:
    """Compute the missing measures of these weights, and return all of them.

    Each set of weights is recorded in measures.json when it is done; until then its Lanczos steps are kept. Recording
    removes measures of other settings.

    Args:
        job: from `job_of_run`.
        executor_of: returns an executor for an approximate number of evaluations.
        observer: is called with the `Progress` in evaluations, about as many as `_Recording.cost` says.

    Raises:
        JobError: something cannot be measured, and is not recorded.
        LandscapeError: another process measures the run, weights cannot be read, or the disk cannot be written.
        Interrupted: finished measures are kept; the same call resumes.
    """
    run = job.run_path
    refuse_unwritable(run)
    prepared = prepare(at_origin(job, origins[0]))
    refuse_few_samples(prepared.samples.length)
    recording = _Recording(run, prepared, trajectory, asked, settings_of(prepared))
    for origin in origins:
        if origin.number is None:
            origin.state(prepared, trajectory)  # refuse unreadable weights before computing anything
    missing = [origin for origin in origins if not recording.has(origin)]
    if missing:
        prepared.log_warnings()
        if driver := living_driver(run):
            log.warning(
                "run %s is being written by %s; both go on, each slower where they share a device",
                quoted(run, 300), driver,
            )  # fmt: skip
        evaluations = len(missing) * recording.cost
        name = missing[0].label if len(missing) == 1 else f"{len(missing)} sets of weights"
        try:
            # A refusal comes now, not after the work.
            with _measuring(run), executor_of(prepared, prepared.landscapes[0], evaluations) as executor:
                counting = CountingExecutor(executor, name, evaluations, observer)
                for place, origin in enumerate(missing, 1):
                    recording.add(origin, counting)
                    counting.count_up_to(place * recording.cost)
        except Interrupted:
            raise Interrupted(
                f"run {quoted(run)} is interrupted; whole sets of weights are kept, and of the one that was measured "
                "the steps towards its curvature: the same command goes on"
            ) from None
    known = document.read(run)
    assert known is not None
    return Measures(known.settings, {origin.label: known.entries[origin.label] for origin in origins})


@contextmanager
def _measuring(run: str) -> Iterator[None]:
    """Hold the run's lock against other measurements while the block runs.

    Raises:
        LandscapeError: another process measures the run, or the lock cannot be written.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(measuring_lock(run))
        except LandscapeError:
            raise
        except OSError as error:
            raise write_error(run, error) from error
        yield


class CountingExecutor(Executor):
    """Tells an observer how many evaluations another executor has done of about as many as expected.

    Args:
        name: what is measured.
        expected: the approximate number of all evaluations.
    """

    def __init__(
        self,
        executor: Executor,
        name: str,
        expected: int,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor, self._name, self._expected, self._observer = executor, name, expected, observer
        self._clock, self._began, self._done = clock, clock(), 0

    def share(self, value: Any) -> Shared[Any]:
        """Make a value available, as the other executor does."""
        return self._executor.share(value)

    def ask(self, setting: EvaluationSetting, items: Sequence[WorkItem[Answer]]) -> list[Answer]:
        """The answers, in the order of the work items."""
        answers = self._executor.ask(setting, items)
        # A measure may take more than expected, such as steps towards an eigenvalue whose sign stays open.
        self.count_up_to(min(self._done + _evaluations(items), self._expected - 1))
        return answers

    def ask_apart(self, setting: EvaluationSetting, item: WorkItem[Answer], times: int) -> list[Answer]:
        """The answers of several processes, as those of the other executor."""
        return self._executor.ask_apart(setting, item, times)

    def count_up_to(self, done: int) -> None:
        """Tell that so many evaluations are done."""
        self._done = max(self._done, done)
        seconds = self._clock() - self._began
        rate = self._done / seconds if seconds > 0 else 0.0
        finished = int(self._done >= self._expected)
        self._observer(Progress(self._name, finished, 1, self._done, self._expected, seconds, rate))


def _evaluations(items: Sequence[WorkItem[Any]]) -> int:
    """About how many evaluations of all samples these items cost; the blocks of a derivative are items of one call."""
    points = sum(len(item.points) if isinstance(item, AtPoints) else isinstance(item, AtWeights) for item in items)
    costs = {BlockGradient: GRADIENT_EVALUATIONS, ProductOfBlocks: PRODUCT_EVALUATIONS}
    return points + max((costs.get(type(item), 0) for item in items), default=0)


@dataclass(frozen=True)
class _Recording:
    """Records the measures of a run while they are computed."""

    run: str
    prepared: PreparedJob
    trajectory: Trajectory
    asked: ExtraMeasures
    settings: dict[str, Any]

    @property
    def cost(self) -> int:
        """The approximate cost of a set of weights, in evaluations."""
        layers = len(layers_of(describe_parameters(self.prepared.problem.model))) if self.asked.layers else 0
        values = USUAL_EVALUATIONS + FURTHER_EVALUATIONS * self.asked.everything + LAYER_EVALUATIONS * layers
        has_derivatives = not self.prepared.landscapes[0].plan.statistics.recalibrated
        return values + has_derivatives * (USUAL_DERIVATIVES + FURTHER_DERIVATIVES * self.asked.everything)

    def has(self, origin: MeasuredOrigin) -> bool:
        """Whether all requested measures of these weights are recorded, with the same settings."""
        known = document.read(self.run)
        if known is None or known.settings != self.settings or origin.label not in known.entries:
            return False
        weights = state_digest(origin.state(self.prepared, self.trajectory))
        return has_all(known.entries[origin.label], weights, self.asked)

    def add(self, origin: MeasuredOrigin, executor: Executor) -> None:
        """Measure a set of weights, and record it."""
        (landscape,) = self.prepared.landscapes
        state = origin.state(self.prepared, self.trajectory)
        first = first_state(self.prepared, self.trajectory, origin) if self.asked.layers else None
        key = digest({"origin": state_digest(state), "settings": self.settings, "plan": landscape.plan.record()})
        kept = KeptSteps(self.run, landscape.name, key, 0)
        measured = measure(executor, self.prepared, landscape.plan, state, origin.label, self.asked, first, kept)
        entry = replace(_entry(origin, state_digest(state), measured), sample_set=landscape.record.sample_set or "")
        if document.add(self.run, self.settings, entry, self._with_numbers(measured.samples)):
            log.warning("measures.json held measures of other settings (samples, precision, …), which this replaces")
        kept.remove()

    def _with_numbers(self, samples: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        """The values of single samples, with the numbers of the samples in the data where each has its own."""
        numbers = self.prepared.sample_index
        each = LOSS in samples and numbers is not None and len(numbers) == samples[LOSS].shape[-1]
        return {**samples, **({SAMPLE_INDEX: numbers} if each and numbers is not None else {})}


def _entry(origin: MeasuredOrigin, weights: str, measured: WeightsMeasures) -> Entry:
    return Entry(
        origin.label, weights, measured.rows, origin.number, origin.unit, measured.layers,
        list(map(known_radius, measured.radii)), _plain(measured.means), bounds=_plain(np.array(measured.radii)),
    )  # fmt: skip


def _plain(table: Floats) -> list[list[float | None]]:
    return [[finite_or_none(value) for value in row] for row in table.tolist()]
