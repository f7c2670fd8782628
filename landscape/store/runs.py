"""Where the landscapes of a run lie, which there are, and whether the run can be written."""

from __future__ import annotations

import json

from zarr.abc.store import Store

from landscape.errors import LandscapeError, shown
from landscape.folders import Place, open_folder
from landscape.store.durable import DurableStore

FOLDER = "landscapes.zarr"
METADATA = "zarr.json"


def open_zarr(run: Place, *, read_only: bool) -> Store:
    """The Zarr store of a run's landscapes, which need not exist yet."""
    place = open_folder(run).place(FOLDER)
    if "://" not in place:
        return DurableStore(place, read_only=read_only)
    from landscape.store.remote import open_remote

    return open_remote(place, read_only=read_only)


def landscape_names(run: Place) -> list[str]:
    """The landscapes of a run, finished or not, in the order of their names."""
    folder = open_folder(run)
    names = folder.folders(FOLDER)
    complete = folder.map(lambda name: is_complete(folder, name), names)
    return [name for name, each in zip(names, complete, strict=True) if each]


def is_complete(run: Place, name: str) -> bool:
    """Whether the landscape's creation was finished: its attributes are written last."""
    if set(name) & set("/\\") or name in ("", ".", ".."):
        return False  # a reader's own argument, which must not lead out of the run
    try:
        return "schema_version" in _attributes(open_folder(run).read(f"{FOLDER}/{name}/{METADATA}"))
    except ValueError:
        return False


def _attributes(metadata: bytes | None) -> dict[str, object]:
    found = json.loads(metadata or "{}")
    if not isinstance(found, dict):
        raise ValueError("must hold one JSON object")
    return dict(found.get("attributes", {}))


def remove_half_made(run: Place, name: str) -> None:
    """Remove what a driver that was killed while making it left; never one whose metadata have become unreadable."""
    folder = open_folder(run)
    path = f"{FOLDER}/{name}"
    metadata = folder.read(f"{path}/{METADATA}")
    if metadata is not None:
        try:
            finished = "schema_version" in _attributes(metadata)
        except ValueError:
            finished = True
        if finished:
            raise LandscapeError(
                f"landscape {shown(name)}: its metadata {shown(folder.place(path + '/' + METADATA))} cannot be read; "
                "restore that file, or remove the folder to compute it anew"
            ) from None
    folder.delete_below(path)


def refuse_unwritable(run: Place) -> None:
    """Raise before anything is computed where the run cannot be written.

    Raises:
        JobError: the folder, or the one it would be made in, does not exist or takes no files.
        StoreError: the object store does not answer, or refuses.
    """
    open_folder(run).refuse_unwritable()


def write_error(run: str, error: OSError) -> LandscapeError:
    """A failed write as one line with its remedy."""
    return LandscapeError(
        f"run {shown(run)} cannot be written: {error.strerror or error}; what was committed is intact: "
        "make room or mend the rights, then give the same command again"
    )
