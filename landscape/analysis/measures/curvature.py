"""The rows of a table that curvature gives: the ends of the spectrum, and the trace."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from landscape.analysis.measures.lines import Floats
from landscape.analysis.measures.rows import Row, row_of
from landscape.analysis.measures.slope import Slope
from landscape.compute.eigen_stores import most_steps, refuse_large_bases
from landscape.compute.eigenpairs import KeptSteps, kept_lanczos
from landscape.compute.hessian import PROBES, HessianOperator, trace
from landscape.compute.lanczos import Krylov, lanczos, sampled_curvature
from landscape.core.errors import JobError
from landscape.evaluation.reduction import terms_of
from landscape.job.directions.file import STEPS
from landscape.surface.record_entries import UNDECIDED, YES, ZERO

NAMES = ("lambda max", "lambda min", "trace")
NOT_FINITE = "the Hessian is not finite there"
PROBED = "trace probes"  # the estimates of the trace, by probe, beside the losses of single samples


@dataclass(frozen=True)
class Curved:
    """The rows, and what comparing needs.

    Attributes:
        samples: vᵀHᵢv [N] of λmax and λmin, by the names of the rows, moved by a constant so that their mean is the
            eigenvalue, and the trace of each probe under `PROBED`; float64.
    """

    rows: dict[str, Row]
    samples: dict[str, Floats]


def curvature_rows(slope: Slope, loss: float, kept: KeptSteps | None = None) -> Curved:
    """λmax and λmin with their errors over the samples, and the trace with its interval over the probes.

    Args:
        loss: L(θ), from which the step of second differences follows where they are taken.
        kept: where the steps of Lanczos are kept, of whatever size; default: nowhere.
    """
    size, setting = slope.layout.size, slope.setting
    try:
        refuse_large_bases(size, STEPS)
    except JobError as refusal:  # the other rows are as good without these
        return Curved(dict.fromkeys(NAMES, Row(None, note=str(refusal))), {})
    operator = HessianOperator(slope.calculator, setting, slope.problem, slope.samples)
    most = most_steps(size, STEPS)
    if kept is None:
        krylov = lanczos(
            operator,
            size,
            (1, -1),
            noise=lambda: operator.noise,
            is_open=lambda krylov: krylov.has_open_sign(operator.in_float32),
            most=most,
        )
    else:
        steps = replace(kept, size=size)
        krylov = kept_lanczos(
            operator, steps, (1, -1), loss, is_open=lambda krylov: krylov.has_open_sign(operator.in_float32), most=most
        )
    how = f"by differences of gradients: {operator.refusal}" if operator.refusal else ""
    largest = max(abs(krylov.pair(rank).value) for rank in (1, -1))
    rounding = operator.noise * largest  # of the products, which the bound on the residual does not see
    rows, samples = dict[str, Row](), dict[str, Floats]()
    for name, rank in zip(NAMES, (1, -1), strict=False):
        pair = krylov.pair(rank)
        vector, terms = slope.layout.tensors(pair.vector), terms_of(slope.problem.observe)
        sampled = sampled_curvature(slope.calculator, setting, vector, pair.value, loss, terms)
        if sampled is not None and terms is None and np.isfinite(sampled.by_sample).all():
            samples[name] = sampled.by_sample + (pair.value - sampled.mean)
        doubt, known = _doubt(krylov, rank, rounding, operator.in_float32)
        note, error = "; ".join(filter(None, (doubt, how))), None if sampled is None else sampled.stderr
        rows[name] = row_of(pair.value, error, note=note, missing=NOT_FINITE) if known else Row(None, note=note)
    found = trace(operator, size, krylov.basis, float(krylov.alphas.sum()))
    rows[NAMES[2]] = row_of(found.value.mean, None, found.value, PROBES, how, missing=NOT_FINITE)
    if rows[NAMES[1]].value is None:
        samples.pop(NAMES[1], None)  # nothing to compare
    return Curved(rows, samples | {PROBED: np.array(found.probes)})


def _doubt(krylov: Krylov, rank: int, rounding: float, in_float32: bool) -> tuple[str, bool]:
    """How far the value of a rank is known, in words, and whether it is a value at all: one without a sign is none."""
    pair = krylov.pair(rank)
    if not math.isfinite(pair.value):
        return "", True
    residual = f"residual {max(pair.residual, rounding):.2g}"
    if rank > 0 or max(pair.residual, rounding) < abs(pair.value):
        return residual, True
    negative = krylov.negative(in_float32)
    if negative == UNDECIDED:
        between = f"between {krylov.lower_bound():.2g} and {pair.value:.2g}"
        return f"sign undecided: {between} after {krylov.steps} products ({residual})", False
    if negative == YES:
        return f"negative, and no better known than at most this: {residual}", True
    return f"{residual}; no eigenvalue is below -{ZERO:.0e} of the largest", True
