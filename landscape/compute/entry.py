"""The Hessian of a job's landscape, for a script or a notebook."""

from __future__ import annotations

from landscape.compute.executor import LocalCalculator, Setting
from landscape.compute.hessian import HessianOperator
from landscape.compute.prepare import prepare
from landscape.core.errors import JobError, nearest, shown
from landscape.evaluation.derivatives import RECALIBRATED, Products
from landscape.job.job import Job


def hessian_of(job: Job, landscape: str | None = None, method: Products = "autograd") -> HessianOperator:
    """The Hessian of the mean loss at the origin of one of a job's landscapes, as an operator that computes here.

    `H(v)` is the product with a vector of all trainable parameters, `H.size` how many these are, and
    `H.layout.tensors(v)` the vector as a tensor per parameter.

    Args:
        landscape: its name; default: the first one.
        method: `autograd`, `differences` of gradients, or `gauss-newton`, see `HessianOperator`.

    Raises:
        JobError: the job has no such landscape, or its batch normalisation has no derivatives.
    """
    prepared = prepare(job)
    names = [each.name for each in prepared.landscapes]
    if landscape is not None and landscape not in names:
        raise JobError(f"landscape: unknown {shown(landscape)}; {nearest(landscape, names)}")
    chosen = prepared.landscapes[0 if landscape is None else names.index(landscape)]
    if chosen.plan.statistics.recalibrated:
        raise JobError(RECALIBRATED)
    setting = Setting(chosen.origin, (), chosen.plan)
    return HessianOperator(
        LocalCalculator(prepared, chosen), setting, prepared.problem, prepared.samples, method=method
    )  # fmt: skip
