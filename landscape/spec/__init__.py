"""The job: what to compute, as frozen values that are parsed and checked once, at the border."""

from landscape.directions import (
    DirectionSpec,
    EigenDirection,
    FileDirection,
    PcaDirection,
    PlaneDirection,
    RandomDirection,
    TowardsDirection,
)
from landscape.spec.collect import COLLECTED_SIZE, DEFAULT_SAMPLES, CollectLandscape, CreateLandscape
from landscape.spec.defaults import DEFAULTS, with_defaults_of
from landscape.spec.job import Job, names_a_run
from landscape.spec.landscape import Landscape
from landscape.spec.reading import read_job

__all__ = [
    "COLLECTED_SIZE",
    "DEFAULTS",
    "DEFAULT_SAMPLES",
    "CollectLandscape",
    "CreateLandscape",
    "DirectionSpec",
    "EigenDirection",
    "FileDirection",
    "Job",
    "Landscape",
    "PcaDirection",
    "PlaneDirection",
    "RandomDirection",
    "TowardsDirection",
    "names_a_run",
    "read_job",
    "with_defaults_of",
]
