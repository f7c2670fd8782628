"""How far values of a lower precision are from those in float32, and how far those of a candidate may be."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from landscape.core.devices import is_out_of_memory
from landscape.core.plan import Plan, in_float32
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.values import Values

TOLERANCE = 1e-5  # relative, of the mean loss
LARGEST_LOSS = 0.02  # relative, of a low precision at one point, that is granted at the others
FLIPS = 2.0  # samples whose class may tip over by rounding

Points = NDArray[np.float64]

log = logging.getLogger("landscape")


def allowed_error(reference: Values, exact: Values, samples: int) -> dict[str, Points]:
    """How far a candidate may be from float32 at each point, by observable: [points] each.

    It is the sum of rounding, of a few samples whose class may change by it, and of twice the error of the plain
    evaluation in its precision. That error may be small at a point by chance, so that at least twice the largest
    relative error of all points is allowed, up to `LARGEST_LOSS`.
    """
    allowed = {}
    for name, mean in exact.mean.items():
        size = np.nan_to_num(np.abs(mean), posinf=0.0)
        tipping = 0.0 if name == "loss" else FLIPS / samples * np.maximum(1.0, size)
        lost = np.nan_to_num(np.abs(reference.mean[name] - mean), posinf=0.0)
        worst = min(LARGEST_LOSS, float((lost / np.maximum(size, 1e-12)).max()))
        allowed[name] = TOLERANCE * size + 1e-7 + tipping + 2.0 * np.maximum(lost, worst * size)
    return allowed


def exact_values(evaluator: Evaluator, points: Points) -> Values | None:
    """What a candidate is compared with where another precision tells how far its values may be; None where none does.

    Where activations are quantised, rounding takes some of them to the next level, by other engines others. How much
    that changes the values is seen by those in float64.
    """
    plan = evaluator.plan
    if plan.precision not in ("float32", "float64"):
        return values_in_float32(evaluator, points)
    if plan.precision == "float32" and plan.quantise is not None and plan.quantise.activations:
        return _values_with(replace(in_float32(plan), precision="float64"), evaluator, points)
    return None


def values_in_float32(evaluator: Evaluator, points: Points) -> Values | None:
    """The values with all weights in float32; None where these do not fit the device beside the evaluator."""
    return _values_with(in_float32(evaluator.plan), evaluator, points)


def _values_with(plan: Plan, evaluator: Evaluator, points: Points) -> Values | None:
    try:
        return evaluator.twin(plan).evaluate(points)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def precision_error(evaluator: Evaluator, points: Points) -> dict[str, float | int | None] | None:
    """What the plan's precision costs against float32: max |Δ| of the mean loss over the points, and max |Δ|/|L|.

    Where weights are held in bfloat16 their rounding is part of it, as those in float32 are not rounded.

    Returns:
        None in float32 and float64, and where the device has no room for the weights in float32.
    """
    if evaluator.plan.precision in ("float32", "float64"):
        return None
    values = values_in_float32(evaluator, points)
    if values is None:
        log.info("precision: what %s costs is not known: the device has no room for the weights in float32 beside it",
                 evaluator.plan.precision)  # fmt: skip
        return None
    exact = values.mean["loss"]
    error = np.abs(evaluator.evaluate(points).mean["loss"] - exact)
    relative = error / np.maximum(np.abs(exact), np.finfo(np.float64).tiny)
    return {
        "max_abs_error": _finite(error.max()), "max_rel_error": _finite(relative.max()), "points": len(points),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
