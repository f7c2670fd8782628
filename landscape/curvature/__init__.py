"""Curvature of the loss: products with the Hessian, the ends of its spectrum, its trace and its density."""

from landscape.curvature.density import Density, density
from landscape.curvature.errors import (
    Bracket,
    SampledCurvature,
    half_sample_bracket,
    half_width,
    sampled_curvature,
)
from landscape.curvature.lanczos import STEPS, TOLERANCE, Krylov, Ritz, Step, bytes_of_bases, lanczos
from landscape.curvature.operator import HessianOperator, Layout, layout_of
from landscape.curvature.trace import Trace, filter_weighted_trace, projected, rayleigh, trace

__all__ = [
    "STEPS",
    "TOLERANCE",
    "Bracket",
    "Density",
    "HessianOperator",
    "Krylov",
    "Layout",
    "Ritz",
    "SampledCurvature",
    "Step",
    "Trace",
    "bytes_of_bases",
    "density",
    "filter_weighted_trace",
    "half_sample_bracket",
    "half_width",
    "lanczos",
    "layout_of",
    "projected",
    "rayleigh",
    "sampled_curvature",
    "trace",
]
