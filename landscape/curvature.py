"""Curvature of the loss: products with the Hessian, the ends of its spectrum, its trace and its density."""

from landscape.compute.density import Density, density
from landscape.compute.eigen_stores import bytes_of_bases, refuse_large_bases
from landscape.compute.eigenpairs import serial_solver, solver_of, spectrum_of
from landscape.compute.entry import hessian_of
from landscape.compute.errors import Bracket, SampledCurvature, half_sample_bracket, sampled_curvature
from landscape.compute.hessian import HessianOperator, Layout, layout_of
from landscape.compute.lanczos import TOLERANCE, Krylov, Ritz, Step, lanczos
from landscape.compute.trace import Trace, filter_weighted_trace, projected, rayleigh, trace
from landscape.job.directions.file import STEPS, half_width

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
