"""Curvature of the loss: products with the Hessian, the ends of its spectrum, its trace and its density."""

from landscape.compute.eigen_stores import bytes_of_bases, refuse_large_bases
from landscape.compute.eigenpairs import hessian_of, serial_solver, solver_of, spectrum_of
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
from landscape.job.directions.file import STEPS, half_width

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
    "serial_solver",
    "solver_of",
    "spectrum_of",
    "trace",
]
