"""A new landscape on disk, with nothing computed."""

from __future__ import annotations

import numpy as np
import zarr

from landscape.core.errors import JobError, shown
from landscape.core.files import Place
from landscape.core.folders import open_folder
from landscape.store.commit import flush
from landscape.store.documents import LEVELS, METADATA, Documents
from landscape.store.durable import DurableStore
from landscape.store.format import SCHEMA_VERSION, NewArrays, lay_out
from landscape.store.metadata import MOST_CHUNK_POINTS
from landscape.store.moving import finish_move
from landscape.store.runs import at_level, mark, open_zarr, remove_half_made
from landscape.store.writing import write_document
from landscape.surface.record import Record
from landscape.surface.surface import MOMENT_PARTS


def create_landscape(
    run: Place,
    name: str,
    new: NewArrays,
    record: Record,
) -> None:
    """Lay out a landscape, or the level of one that its record names, with nothing computed.

    A half-made one of a killed driver is replaced.

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
    path = name if record.level is None else at_level(name, record.level.number)
    if isinstance(store, DurableStore):
        store.refuse_elsewhere(f"{path}/{METADATA}")
    remove_half_made(folder, path)
    documents = Documents(folder)
    for group_above in [""] if record.level is None else ["", f"{name}/{LEVELS}"]:
        if not documents.exists(group_above):
            write_document(store, f"{group_above}/{METADATA}".lstrip("/"), documents.group({}))
    mark(folder, path)
    group = zarr.create_group(store, path=path, zarr_format=3)
    lay_out(group, new, of_level=record.level is not None)
    flush(store)
    # Last, and in one write: without its attributes a landscape was never made.
    first = Record().changed(schema_version=SCHEMA_VERSION, name=name)
    write_document(store, f"{path}/{METADATA}", documents.group({**first.attributes, **record.attributes}))
    flush(store)
