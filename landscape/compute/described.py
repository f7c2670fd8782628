"""The record of a landscape that is prepared: which job began it, what decides its values, what it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from landscape.compute.axes import cosines_of
from landscape.compute.common import Common
from landscape.compute.context import LandscapeContext
from landscape.compute.provenance import provenance
from landscape.core.digests import digest
from landscape.core.plan import Plan
from landscape.evaluation.reduction import terms_of
from landscape.job.directions.base import DirectionTensors
from landscape.job.landscape import Landscape
from landscape.problem.samples import Samples
from landscape.problem.supervised import Observe, guessing_of
from landscape.problem.terms import PointSets
from landscape.surface.record import Record
from landscape.surface.record_parts import TermRecord


def begun_record(common: Common, spec: Landscape, defaults: int, position: int, identity: Mapping[str, Any]) -> Record:
    """The record with the entries that say which job began the landscape, and what decides its values."""
    job, extended = common.job.model_dump(mode="json"), common.extended
    if extended is not None:
        # What was asked for when an extended landscape was made is no change, also where its plan is another.
        job |= {key: extended.job.whole.get(key) for key in ("engine", "batch_size")}
    return Record().changed(
        job=job | {"landscapes": [spec.model_dump(mode="json")]},
        defaults=defaults,
        position=position if extended is None else extended.record.position,
        identity=identity,
        digest=digest(identity),
    )


def described(
    record: Record, common: Common, context: LandscapeContext, directions: tuple[DirectionTensors, ...], plan: Plan,
    observables: tuple[str, ...],
) -> Record:  # fmt: skip
    """The record with the entries that describe the landscape: samples, arithmetic, geometry and provenance."""
    job, origin = common.job, context.reference
    return record.changed(
        num_samples=common.num_samples,
        precision=job.precision,
        batch_norm=job.batch_norm,
        seed=job.seed,
        observables=list(observables),
        moment_rows=list(common.moment_rows),
        cosine=cosines_of(directions, context).tolist(),
        origin=context.name(origin),
        origin_step=origin if isinstance(origin, int) else None,
        plan=plan.record(),
        provenance=provenance(common.problem.model, context.infos, job.folder),
        failures=[],
        random_data=common.randomness,
        **({"went_on_to": later} if (later := common.weights.went_on_to(origin)) else {}),
        **({"snapshots": meant} if (meant := context.meant) else {}),
        **({"derived": dict(common.problem.derived)} if common.problem.derived else {}),
        **({"guessing": guess} if (guess := guessing_of(common.problem.observe, common.samples)) is not None else {}),
        **({"weighted": True} if common.look.weighted else {}),
        **({"terms": terms} if (terms := terms_recorded(common.problem.observe, common.samples)) else {}),
    )


def terms_recorded(observe: Observe, samples: Samples) -> dict[str, TermRecord]:
    """The terms of a loss that is a sum, by name; empty where `observe` returns the loss.

    Args:
        samples: those of the job, which know how many points each term has where they are sets of points.
    """
    sizes = samples.sizes if isinstance(samples, PointSets) else {}
    factors = terms_of(observe) or {}
    return {name: TermRecord(weight=float(factor), samples=sizes.get(name)) for name, factor in factors.items()}
