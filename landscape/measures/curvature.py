"""The rows of a table that curvature gives: the ends of the spectrum, and the trace."""

from __future__ import annotations

from landscape.curvature import STEPS, HessianOperator, lanczos, refuse_large_bases, sampled_curvature, trace
from landscape.curvature.trace import PROBES
from landscape.errors import JobError
from landscape.evaluation.reduction import terms_of
from landscape.measures.rows import Row, row_of
from landscape.measures.slope import Slope

NAMES = ("lambda max", "lambda min", "trace")


def curvature_rows(slope: Slope, loss: float) -> dict[str, Row]:
    """λmax and λmin with their errors over the samples, and the trace with its interval over the probes.

    Args:
        loss: L(θ), from which the step of the second differences follows.
    """
    size, setting = slope.layout.size, slope.setting
    try:
        refuse_large_bases(size, STEPS)
    except JobError as refusal:  # the other rows are as good without these
        return dict.fromkeys(NAMES, Row(None, note=str(refusal)))
    operator = HessianOperator(slope.calculator, setting, slope.problem, slope.samples)
    krylov = lanczos(operator, size, (1, -1), noise=lambda: operator.noise)
    how = f"by differences of gradients: {operator.refusal}" if operator.refusal else ""
    largest = max(abs(krylov.pair(rank).value) for rank in (1, -1))
    rounding = operator.noise * largest  # of the products, which the bound on the residual does not see
    rows = dict[str, Row]()
    for name, rank in zip(NAMES, (1, -1), strict=False):
        pair = krylov.pair(rank)
        vector, sampled = slope.layout.tensors(pair.vector), None
        if terms_of(slope.problem.observe) is None:  # else no sample has a loss of its own
            sampled = sampled_curvature(slope.calculator, setting, vector, pair.value, loss)
        doubt = f"residual {max(pair.residual, rounding):.2g}"
        rows[name] = row_of(
            pair.value, None if sampled is None else sampled.stderr, note="; ".join(filter(None, (doubt, how)))
        )
    found = trace(operator, size, krylov.basis, float(krylov.alphas.sum())).value
    rows[NAMES[2]] = row_of(found.mean, None, found, PROBES, how)
    return rows
