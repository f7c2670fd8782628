"""A new landscape on disk, with nothing computed."""

from __future__ import annotations

import numpy as np
import zarr

from landscape.errors import JobError, shown
from landscape.folders import Place, open_folder
from landscape.record import Record
from landscape.store.commit import flush
from landscape.store.documents import METADATA, Documents
from landscape.store.durable import DurableStore
from landscape.store.layout import SCHEMA_VERSION, NewArrays, lay_out
from landscape.store.metadata import MOST_CHUNK_POINTS
from landscape.store.moving import finish_move
from landscape.store.runs import mark, open_zarr, remove_half_made
from landscape.store.writing import write_document
from landscape.surface import MOMENT_PARTS


def create_landscape(
    run: Place,
    name: str,
    new: NewArrays,
    record: Record,
) -> None:
    """Lay out a landscape with nothing computed. A half-made one of a killed driver is replaced.

    Raises:
        LandscapeError: something else lies there.
        JobError: its tiles are too large.
    """
    folder, store = open_folder(run), open_zarr(run, read_only=False)
    most = MOST_CHUNK_POINTS // max(1, MOMENT_PARTS * len(new.moment_rows), new.kept_samples)
    if int(np.prod(new.tile_shape)) > most:
        raise JobError(f"tile: must be at most {most} points, not {shown(new.tile_shape)}; make it smaller")
    folder.make()
    finish_move(folder)
    if isinstance(store, DurableStore):
        store.refuse_elsewhere(f"{name}/{METADATA}")
    remove_half_made(folder, name)
    documents = Documents(folder)
    if not documents.exists(""):
        write_document(store, METADATA, documents.group({}))
    mark(folder, name)
    group = zarr.create_group(store, path=name, zarr_format=3)
    lay_out(group, new)
    flush(store)
    # Last, and in one write: without its attributes a landscape was never made.
    first = Record().changed(schema_version=SCHEMA_VERSION, name=name)
    write_document(store, f"{name}/{METADATA}", documents.group({**first.attributes, **record.attributes}))
    flush(store)
