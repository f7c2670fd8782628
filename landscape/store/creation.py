"""A new landscape on disk, with nothing computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr

from landscape.errors import JobError, shown
from landscape.folders import Place, open_folder
from landscape.grid import Grid, Index
from landscape.parameters import State
from landscape.record import Record
from landscape.store.commit import flush
from landscape.store.documents import METADATA, Documents
from landscape.store.durable import DurableStore
from landscape.store.layout import SCHEMA_VERSION, PathPlan, lay_out
from landscape.store.metadata import MOST_CHUNK_POINTS
from landscape.store.runs import mark, open_zarr, remove_half_made
from landscape.store.writing import write_document


def create_landscape(
    run: Place,
    name: str,
    grid: Grid,
    tile_shape: Index,
    observables: Sequence[str],
    *,
    axes: Sequence[Mapping[str, Any]],
    directions: Sequence[State],
    layout: Sequence[Mapping[str, Any]],
    path: PathPlan | None,
    record: Record,
) -> None:
    """Lay out a landscape with nothing computed. A half-made one of a killed driver is replaced.

    Args:
        tile_shape: points per dimension of a tile, the last axis first.
        axes: what the document of each axis says, of which `record.AxisRecord` is a part.
        directions: the tensors of each axis.
        layout: the places of the parameters in a direction, as `parameters.layout` has them.

    Raises:
        LandscapeError: something else lies there.
        JobError: its tiles are too large.
    """
    folder, store = open_folder(run), open_zarr(run, read_only=False)
    if int(np.prod(tile_shape)) > MOST_CHUNK_POINTS:
        raise JobError(f"tile: must be at most {MOST_CHUNK_POINTS} points, not {shown(tile_shape)}; make it smaller")
    folder.make()
    if isinstance(store, DurableStore):
        store.refuse_elsewhere(f"{name}/{METADATA}")
    remove_half_made(folder, name)
    documents = Documents(folder)
    if not documents.exists(""):
        write_document(store, METADATA, documents.group({}))
    mark(folder, name)
    group = zarr.create_group(store, path=name, zarr_format=3)
    lay_out(group, grid, tile_shape, observables, axes, directions, layout, path)
    flush(store)
    # Last, and in one write: without its attributes a landscape was never made.
    first = Record().changed(schema_version=SCHEMA_VERSION, name=name)
    write_document(store, f"{name}/{METADATA}", documents.group({**first.attributes, **record.attributes}))
    flush(store)
