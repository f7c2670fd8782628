"""What is refused of a landscape that is quantised, before anything is computed, and told of one that is not."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from landscape.compute.prepared import PreparedLandscape
from landscape.core.errors import JobError, shown
from landscape.core.plan import OPTIONS
from landscape.core.quantisation import Quantisation
from landscape.evaluation.engines.base import rounded_layers
from landscape.evaluation.running_model import refuse_unrounded
from landscape.evaluation.weights import rounded_weights
from landscape.job.job import Job
from landscape.job.landscape import Landscape


def quantisation_of(job: Job, spec: Landscape, model: nn.Module) -> Quantisation | None:
    """How the landscape is quantised; None where it is not.

    Raises:
        JobError: the model has nothing to round, or the job's engine would not round it.
    """
    if not spec.quantise:
        return None
    asked = spec.quantise.value
    if asked.weights and not rounded_weights(model):
        raise JobError(
            f"quantise: landscape {shown(spec.name)} must have weights to round, floating-point parameters of two "
            "dimensions or more outside of normalisation layers, and the model has none; leave quantise out"
        )
    if asked.activations and not rounded_layers(model):
        raise JobError(
            "quantise.activations: the model must have linear layers or convolutions, whose inputs are rounded; it has "
            "none; leave activations out"
        )
    if job.asked_engine is not None:
        try:
            refuse_unrounded(job.asked_engine, asked)
        except ValueError as error:
            raise JobError(f"engine: {error}") from None
    return asked


def engine_warnings(job: Job, landscapes: Sequence[PreparedLandscape]) -> list[str]:
    """A warning where an option of the job's engine is for quantised landscapes alone, and others are in the job."""
    engine = job.asked_engine
    plain = [each.name for each in landscapes if engine is not None and engine.against(each.plan.quantise)]
    if engine is None or not plain:
        return []
    names = engine.against(None)
    where = "; ".join(f"{name} does nothing {OPTIONS[name].suits.against}" for name in names)
    verb = "is" if len(plain) == 1 else "are"
    return [f"engine: {', '.join(plain)} {verb} computed by {engine.suiting(None)} in place of {engine}: {where}"]
