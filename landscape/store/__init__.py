"""The Zarr store of a run's landscapes. Only this package knows Zarr."""

from landscape.store.arrays import Examination, status_of
from landscape.store.changes import ChunkChanges, chunk_changes
from landscape.store.chunk_io import DurableStore
from landscape.store.examination import has_constant_loss
from landscape.store.format import MIXED, NETWORK, SCHEMA_VERSION, NewArrays, PathPlan
from landscape.store.importing import ImportedValues, write_imported
from landscape.store.landscape import LandscapeStore, read_axes, read_path
from landscape.store.picked import PickedValues
from landscape.store.results import (
    begun_extension,
    extension_name,
    refuse_taken,
    removable,
    remove_stored,
    rename_stored,
    replace_landscape,
    staged_name,
)
from landscape.store.runs import (
    Survey,
    is_there,
    landscape_names,
    open_zarr,
    refuse_unwritable,
    root_problems,
    survey,
    write_error,
)

__all__ = [
    "MIXED",
    "NETWORK",
    "SCHEMA_VERSION",
    "ChunkChanges",
    "DurableStore",
    "Examination",
    "ImportedValues",
    "LandscapeStore",
    "NewArrays",
    "PathPlan",
    "PickedValues",
    "Survey",
    "begun_extension",
    "chunk_changes",
    "extension_name",
    "has_constant_loss",
    "is_there",
    "landscape_names",
    "open_zarr",
    "read_axes",
    "read_path",
    "refuse_taken",
    "refuse_unwritable",
    "removable",
    "remove_stored",
    "rename_stored",
    "replace_landscape",
    "root_problems",
    "staged_name",
    "status_of",
    "survey",
    "write_error",
    "write_imported",
]
