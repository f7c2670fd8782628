"""Landscapes that are removed, get another name, or take the place of another one; under the lock of their run."""

from __future__ import annotations

from landscape.core.files import PARTIAL, Folder, Place
from landscape.core.folders import open_folder
from landscape.store.commit import flush
from landscape.store.documents import FOLDER, METADATA, Documents
from landscape.store.journal import Move, end_move, names_after, read_move, write_move
from landscape.store.metadata import BadMetadataError
from landscape.store.runs import at_level, open_zarr, renamed, unmark
from landscape.store.writing import write_document


def move_landscape(run: Place, move: Move) -> None:
    """Remove a landscape or give it another name, in place of the one that has that name.

    For every reader of this package it is done at one moment; killed afterwards, `finish_move` does the rest.
    """
    folder = open_folder(run)
    write_move(folder, move)
    finish_move(folder)


def finish_move(run: Place) -> Move | None:
    """Do the rest of a change of names that a process was killed in.

    Returns:
        The change; None where there was nothing to do.
    """
    folder = open_folder(run)
    move = read_move(folder)
    if move is None:
        return None
    if move.target is not None:
        _rename(folder, move.source, move.target)
        _write_record(folder, move.target, move.position)
        _delete_partial(folder, move.target)
    _delete(folder, move.source)
    write_root(folder, Documents(folder))
    end_move(folder)
    return move


def _delete_partial(folder: Folder, name: str) -> None:
    """Delete the documents of a landscape that a process was writing when it was killed in this change."""
    for file in folder.names(f"{FOLDER}/{name}"):
        if PARTIAL in file:
            folder.delete(f"{FOLDER}/{name}/{file}")


def _rename(folder: Folder, source: str, target: str) -> None:
    if not Documents(folder).exists(source):  # that file goes last: all others have their new paths
        return
    _delete(folder, target)
    folder.rename(f"{FOLDER}/{source}", f"{FOLDER}/{target}", METADATA)


def _delete(folder: Folder, name: str) -> None:
    # First the document: what is left of a landscape is then none for other readers of Zarr either.
    folder.delete(f"{FOLDER}/{name}/{METADATA}")
    folder.delete_below(f"{FOLDER}/{name}")
    unmark(folder, name)


def _write_record(folder: Folder, name: str, position: int | None) -> None:
    """Have the documents of a landscape and of its levels say its new name."""
    documents, store = Documents(folder), open_zarr(folder, read_only=False)
    for path in (name, *(at_level(name, number) for number in documents.levels(name))):
        try:
            record, _ = documents.own(path)
        except BadMetadataError:
            continue  # damaged meanwhile
        write_document(store, f"{path}/{METADATA}", documents.group(renamed(record, name, position).attributes))
    flush(store)


def write_root(folder: Folder, documents: Documents) -> None:
    """Write the root's document anew, with copies of the documents of all landscapes, which xarray reads at once."""
    store = open_zarr(folder, read_only=False)
    write_document(store, METADATA, documents.root(names_after(folder.folders(FOLDER), None)))
    flush(store)
