"""Which layer breaks at each point: what is refused before anything is computed, and which layers there are."""

from __future__ import annotations

from typing import Any

import torch

from landscape.compute.prepared import WATCHED_EVALUATIONS, PreparedJob, PreparedLandscape
from landscape.core.devices import device_here
from landscape.core.errors import JobError, LandscapeError, message_of, shown
from landscape.core.plan import default_plan
from landscape.evaluation.dry_run import SAMPLES
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.layers import layers_at
from landscape.job.landscape_options import Layers
from landscape.model.parameters import State
from landscape.problem.user_code import in_folder
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_entries import BREAKING, LayersRecord


def layers_of(
    prepared: PreparedJob, asked: Layers | None, origin: State, observables: tuple[str, ...],
    stored: LandscapeStore | None,
) -> LayersRecord | None:  # fmt: skip
    """The layers that are watched at every point, as they are at the origin; None where none are asked for.

    Args:
        prepared: the job, without its landscapes.
        observables: what `observe` returns.
        stored: the landscape on disk, which says which they are.

    Raises:
        JobError: they cannot be watched.
    """
    if asked is None:
        return None
    taken = {*observables, *prepared.problem.derived} & set(BREAKING)
    if taken:
        raise JobError(f"layers: {shown(min(taken))} is what observe returns already; give that another name")
    if stored is not None and stored.record.layers is not None:
        return stored.record.layers
    if not prepared.looked:
        raise JobError(
            "layers: the network must be run where the job is prepared, to see which layers it has, and this machine "
            "has not the device for it; begin the landscape on one that has"
        )
    here = torch.device("cpu") if prepared.job.device == "cpu" else device_here()
    job, problem, few = prepared.job, prepared.problem, prepared.samples.few(SAMPLES)
    plan = default_plan(SAMPLES, here.type, job.precision, job.batch_norm, job.seed, None, None)
    try:
        with in_folder(prepared.folder):
            seen = layers_at(Evaluator(problem.model, few, problem.observe, plan, here, origin, ()), ())
    except LandscapeError as error:
        raise JobError(f"layers: {message_of(error)}; leave layers out, or mend it") from error
    names = [layer.name for layer in seen.layers]
    return LayersRecord(
        layers=tuple(names),
        weights=tuple(each.layer for each in seen.weights),
        rules=asked.rules,
        statistics=asked.statistics,
    )


def layers_text(landscape: PreparedLandscape) -> list[str]:
    """What the layers of a landscape cost, in words for `landscape plan`; nothing where none are watched."""
    record = landscape.record.layers
    if record is None:
        return []
    more = f", {len(record.statistics)} statistics of each stored" if record.statistics else ""
    return [
        f"{len(record.layers)} layers and operations watched at each point, about {WATCHED_EVALUATIONS} forward "
        f"passes' time beside the one of the loss{more}"
    ]


def layers_cost(landscape: PreparedLandscape, missing: int) -> dict[str, Any] | None:
    """The same as plain values; None where none are watched.

    Args:
        missing: how many points are left to compute.
    """
    record = landscape.record.layers
    if record is None:
        return None
    return {
        "layers": len(record.layers),
        "observables": len(record.observables),
        "evaluations": WATCHED_EVALUATIONS,
        "all_evaluations": missing * WATCHED_EVALUATIONS,
        "text": layers_text(landscape),
    }
