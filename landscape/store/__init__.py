"""The Zarr store of a run's landscapes. Only this package knows Zarr."""

from landscape.store.chunks import Examination, status_of
from landscape.store.durable import DurableStore
from landscape.store.landscape import LandscapeStore
from landscape.store.layout import SCHEMA_VERSION, NewArrays, PathPlan
from landscape.store.runs import (
    Survey,
    landscape_names,
    open_zarr,
    refuse_unwritable,
    root_problems,
    survey,
    write_error,
)

__all__ = [
    "SCHEMA_VERSION",
    "DurableStore",
    "Examination",
    "LandscapeStore",
    "NewArrays",
    "PathPlan",
    "Survey",
    "landscape_names",
    "open_zarr",
    "refuse_unwritable",
    "root_problems",
    "status_of",
    "survey",
    "write_error",
]
