"""All measures of one set of weights, in the order in which they are asked of a calculator."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from landscape.analysis.measures.average import average_rows, error_noise_row
from landscape.analysis.measures.curvature import PROBED, curvature_rows
from landscape.analysis.measures.layers import layer_rows
from landscape.analysis.measures.lines import Base, Draw, Floats, mean_of, samples_of, weights_of
from landscape.analysis.measures.rises import COORDINATES, DISTANCES, Ends, draws_of, radii_of, radius_row, rises_of
from landscape.analysis.measures.rows import Row, row_of
from landscape.analysis.measures.slope import Slope
from landscape.analysis.measures.worst import keskar, sharpness
from landscape.compute.eigenpairs import KeptSteps
from landscape.compute.executor import Calculator, Setting
from landscape.compute.prepared import PreparedJob
from landscape.core.errors import JobError, stage
from landscape.core.plan import Plan
from landscape.evaluation.values import Values
from landscape.model.parameters import State, describe_parameters, refuse_not_finite

# Below that a standard error is itself known to no better than a fifth, and percentiles of resampled means cover too
# little.
LEAST_SAMPLES = 16
LOSS, RADIUS, ERROR_NOISE = "loss", "radius", "1/sigma^2"


@dataclass(frozen=True)
class Asked:
    """What is measured beside the usual rows.

    Attributes:
        layers: the rises of single layers.
        everything: Keskar's sharpness, average cases, and the noise that the error bears.
    """

    layers: bool = False
    everything: bool = False


@dataclass(frozen=True)
class Measured:
    """The measures of one set of weights.

    Attributes:
        rows: by their names.
        layers: by the names of the layers; empty where they were not asked for.
        radii: between which ends that of each line lies.
        samples: what comparing needs: `loss` [N], `rises` [K, R, N], `weights` [N], rows by name [N], and the probes
            of the trace; these alone where samples have no loss of their own.
    """

    rows: dict[str, Row]
    layers: dict[str, dict[str, Row]]
    radii: list[Ends]
    samples: dict[str, NDArray[np.float32]] = field(repr=False)
    means: Floats = field(repr=False)


def refuse_few_samples(count: int) -> None:
    """Refuse samples that are too few for an interval.

    Raises:
        JobError: they are.
    """
    if count < LEAST_SAMPLES:
        raise JobError(
            f"num_samples: must be at least {LEAST_SAMPLES} for errors over samples, not {count}; give a job with more"
        )


def measure(
    calculator: Calculator, prepared: PreparedJob, plan: Plan, origin: State, label: str, asked: Asked,
    first: State | None = None, kept: KeptSteps | None = None,
) -> Measured:  # fmt: skip
    """The measures of some weights of a job's problem, over its samples.

    Args:
        label: what messages call the weights.
        first: the first snapshot of the run, for layers that are put back to it.
        kept: where the steps of Lanczos are kept, of whatever size; default: nowhere.

    Raises:
        JobError: the samples are too few, the weights or their loss are not finite, or the loss has no gradient.
    """
    refuse_few_samples(prepared.samples.length)
    infos = describe_parameters(prepared.problem.model)
    refuse_not_finite(origin, infos, f"origin: {label}")
    base = Base.of(calculator, plan, origin, prepared.problem)
    slope = Slope(calculator, Setting(origin, (), plan), prepared.problem, prepared.samples)
    draws = draws_of(origin, infos)
    _refuse_not_finite_loss(base, draws[0], label)
    stage(f"{label}: worst case")  # first, as it is what may be refused
    worst = sharpness(base, slope)
    stage(f"{label}: lines")
    lines = base.along(draws, [COORDINATES] * len(draws))
    rises = rises_of(lines, DISTANCES, base.terms)
    target, radii = radii_of(base, draws, lines)
    rows = {LOSS: _loss(lines[0])} | rises.rows() | {RADIUS: _noted(radius_row(radii), target)} | worst.rows
    stage(f"{label}: curvature")
    loss = float(mean_of(lines[0])[len(DISTANCES)])
    curved = curvature_rows(slope, loss, kept)
    rows |= curved.rows
    if asked.everything:
        stage(f"{label}: average cases")
        rows |= keskar(base, slope).rows | average_rows(base, infos, loss)
        observed = "accuracy" in lines[0].mean
        rows[ERROR_NOISE] = error_noise_row(base, infos) if observed else Row(None, note="no accuracy is observed")
    layers = dict[str, dict[str, Row]]()
    if asked.layers:
        stage(f"{label}: layers")
        layers = layer_rows(base, infos, first)
    return Measured(rows, layers, radii, _samples(lines[0], rises.samples, worst.samples | curved.samples), rises.means)


def _refuse_not_finite_loss(base: Base, draw: Draw, label: str) -> None:
    """Refuse weights without a loss: nothing rises from it, and a criterion may still have gradients, such as zeros."""
    (values,) = base.along([draw], [(0.0,)])
    loss = float(mean_of(values)[0])
    if not math.isfinite(loss):
        raise JobError(
            f"origin: {label}: the loss there must be finite, not {loss}; take weights from before the training "
            "diverged, or mend the criterion"
        )


def _loss(line: Values) -> Row:
    place = len(DISTANCES)
    return row_of(float(mean_of(line)[place]), float(line.stderr["loss"][place]))


def _noted(row: Row, target: float) -> Row:
    text = "; ".join(filter(None, (row.note, f"to a rise of {target:.3g}")))
    return replace(row, note=text)


def _samples(
    line: Values, rises: NDArray[np.float32] | None, others: dict[str, Floats]
) -> dict[str, NDArray[np.float32]]:
    losses, weights = samples_of(line), weights_of(line)
    if rises is None or losses is None or weights is None:
        return {name: values.astype(np.float32) for name, values in others.items() if name == PROBED}
    found = {LOSS: losses[len(DISTANCES)].astype(np.float32), "rises": rises, "weights": weights.astype(np.float32)}
    return found | {name: values.astype(np.float32) for name, values in others.items()}
