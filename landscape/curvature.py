"""Curvature of the loss: products with the Hessian, the ends of its spectrum, its trace and its density."""

from __future__ import annotations

from landscape.compute.eigenpairs import bytes_of_bases, refuse_large_bases
from landscape.compute.executor import EvaluationSetting, LocalExecutor
from landscape.compute.hessian import (
    HessianOperator,
    ParameterLayout,
    Trace,
    filter_weighted_trace,
    layout_of,
    projected,
    rayleigh,
    trace,
)
from landscape.compute.lanczos import (
    TOLERANCE,
    Bracket,
    Density,
    Krylov,
    Ritz,
    SampledCurvature,
    Step,
    density,
    half_sample_bracket,
    lanczos,
    sampled_curvature,
)
from landscape.compute.prepare import prepare
from landscape.core.errors import JobError, nearest, quoted
from landscape.evaluation.derivatives import RECALIBRATED, Products
from landscape.job.directions.file import STEPS, half_width
from landscape.job.job import Job

__all__ = [
    "STEPS",
    "TOLERANCE",
    "Bracket",
    "Density",
    "HessianOperator",
    "Krylov",
    "ParameterLayout",
    "Ritz",
    "SampledCurvature",
    "Step",
    "Trace",
    "bytes_of_bases",
    "density",
    "filter_weighted_trace",
    "half_sample_bracket",
    "half_width",
    "hessian_of",
    "lanczos",
    "layout_of",
    "projected",
    "rayleigh",
    "refuse_large_bases",
    "sampled_curvature",
    "trace",
]


# ----------------------------------------------------------------------------------------------------
# The Hessian of a job's landscape, for a script or a notebook.
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
        raise JobError(f"landscape: unknown {quoted(landscape)}; {nearest(landscape, names)}")
    chosen = prepared.landscapes[0 if landscape is None else names.index(landscape)]
    if chosen.plan.statistics.recalibrated:
        raise JobError(RECALIBRATED)
    setting = EvaluationSetting(chosen.origin, (), chosen.plan)
    return HessianOperator(
        LocalExecutor(prepared, chosen), setting, prepared.problem, prepared.samples, method=method
    )  # fmt: skip
