"""The measures of a run, computed one set of weights after another, each kept as soon as it is there."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from landscape.analysis.measures import document
from landscape.analysis.measures.document import Entry, Measures
from landscape.analysis.measures.layers import LAYER_DISTANCES, LAYER_LINES, layers_of
from landscape.analysis.measures.lines import Floats
from landscape.analysis.measures.measure import Origin, at_origin, first_state, has_all, settings_of
from landscape.analysis.measures.measuring import Asked, Measured, measure, refuse_few_samples
from landscape.analysis.measures.rises import COORDINATES, LINES, known_radius
from landscape.analysis.measures.rows import finite
from landscape.compute.eigenpairs import KeptSteps
from landscape.compute.executor import Calculator, Calculators
from landscape.compute.prepare import prepare
from landscape.compute.prepared import PreparedJob
from landscape.core.digests import digest
from landscape.core.errors import Interrupted, shown
from landscape.core.lock import driver_alive
from landscape.job.job import Job
from landscape.model.parameters import describe_parameters, state_digest
from landscape.model.snapshots import Trajectory
from landscape.store.results import writing
from landscape.store.runs import refuse_unwritable

log = logging.getLogger("landscape")

# About how many evaluations a set of weights costs, which decides whether workers are worth their start: a gradient is
# about three, a product with the Hessian about seven.
USUAL_EVALUATIONS = LINES * len(COORDINATES) + 42 * 3 + 40 * 7
FURTHER_EVALUATIONS = 11 * 3 + 200 + 16 * 10
LAYER_EVALUATIONS = LAYER_LINES * (2 * len(LAYER_DISTANCES) + 1)


def record(
    job: Job, origins: Sequence[Origin], trajectory: Trajectory, asked: Asked, calculator_of: Calculators
) -> Measures:
    """Measure what is not measured yet, and return all that is known of these weights.

    Each set of weights is kept in measures.json when it is done, and each step of Lanczos until then. What was measured
    under other settings goes then.

    Args:
        job: as `asking.job_of_run` makes it.
        calculator_of: has the questions answered that cost about so many evaluations.

    Raises:
        JobError: something cannot be measured; nothing is written of it.
        LandscapeError: a driver writes the run, weights cannot be read, or the disk takes nothing.
        Interrupted: what is done is kept; the same call goes on.
    """
    run = job.run_path
    refuse_unwritable(run)
    prepared = prepare(at_origin(job, origins[0]))
    refuse_few_samples(prepared.samples.length)
    (landscape,) = prepared.landscapes
    settings = settings_of(prepared)
    for origin in origins:
        if origin.number is None:
            origin.state(prepared, trajectory)  # that what cannot be read is refused before anything is computed
    left = [origin for origin in origins if not _is_known(run, settings, origin, prepared, trajectory, asked)]
    if left:
        if driver_alive(run):
            with writing(run):  # refused now, and not after the work
                pass
        prepared.log_warnings()
        cost = len(left) * _cost(prepared, asked)
        try:
            with calculator_of(prepared, landscape, cost) as calculator:
                for origin in left:
                    _record_one(run, settings, origin, prepared, trajectory, asked, calculator)
        except Interrupted:
            raise Interrupted(
                f"run {shown(run)} is interrupted; whole sets of weights are kept, and of the one that was measured "
                "the steps towards its curvature: the same command goes on"
            ) from None
    known = document.read(run)
    assert known is not None
    return Measures(known.settings, {origin.label: known.entries[origin.label] for origin in origins})


def _cost(prepared: PreparedJob, asked: Asked) -> int:
    layers = len(layers_of(describe_parameters(prepared.problem.model))) if asked.layers else 0
    return USUAL_EVALUATIONS + FURTHER_EVALUATIONS * asked.everything + LAYER_EVALUATIONS * layers


def _is_known(
    run: str, settings: dict[str, object], origin: Origin, prepared: PreparedJob, trajectory: Trajectory, asked: Asked
) -> bool:
    known = document.read(run)
    if known is None or known.settings != settings or origin.label not in known.entries:
        return False
    return has_all(known.entries[origin.label], state_digest(origin.state(prepared, trajectory)), asked)


def _record_one(
    run: str, settings: dict[str, object], origin: Origin, prepared: PreparedJob, trajectory: Trajectory,
    asked: Asked, calculator: Calculator,
) -> None:  # fmt: skip
    (landscape,) = prepared.landscapes
    state = origin.state(prepared, trajectory)
    first = first_state(prepared, trajectory, origin) if asked.layers else None
    key = digest({"origin": state_digest(state), "settings": settings, "plan": landscape.plan.record()})
    kept = KeptSteps(run, landscape.name, key, 0)
    measured = measure(calculator, prepared, landscape.plan, state, origin.label, asked, first, kept)
    with writing(run):
        if document.add(run, settings, _entry(origin, state_digest(state), measured), measured.samples):
            log.warning("measures.json held measures of other settings (samples, precision, …), which this replaces")
        kept.remove()


def _entry(origin: Origin, weights: str, measured: Measured) -> Entry:
    return Entry(
        origin.label, weights, measured.rows, origin.number, origin.unit, measured.layers,
        list(map(known_radius, measured.radii)), _plain(measured.means), bounds=_plain(np.array(measured.radii)),
    )  # fmt: skip


def _plain(table: Floats) -> list[list[float | None]]:
    return [[finite(value) for value in row] for row in table.tolist()]
