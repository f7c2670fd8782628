"""What the record of a landscape says of the samples that its values are means of."""

from __future__ import annotations

from landscape.evaluation.reduction import terms_of
from landscape.problem.observables import Observe
from landscape.problem.points import PointSets
from landscape.problem.samples import Samples
from landscape.record import TermRecord


def terms_recorded(observe: Observe, samples: Samples) -> dict[str, TermRecord]:
    """The terms of a loss that is a sum, by name; empty where `observe` returns the loss.

    Args:
        samples: those of the job, which know how many points each term has where they are sets of points.
    """
    sizes = samples.sizes if isinstance(samples, PointSets) else {}
    factors = terms_of(observe) or {}
    return {name: TermRecord(weight=float(factor), samples=sizes.get(name)) for name, factor in factors.items()}
