"""Where the landscapes of a run lie, which there are, and whether the run can be written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import zarr
from zarr.storage import LocalStore

from landscape.errors import JobError, LandscapeError
from landscape.spec import locate

FOLDER = "landscapes.zarr"


def store_root(run: str) -> Path:
    return Path(locate(run, Path.cwd())) / FOLDER


def landscape_names(run: str) -> list[str]:
    """The landscapes of a run, finished or not, in the order of their names."""
    root = store_root(run)
    if not (root / "zarr.json").is_file():
        return []
    return sorted(each.parent.name for each in root.glob("*/zarr.json") if _is_complete(root, each.parent.name))


def _is_complete(root: Path, name: str) -> bool:
    """Whether the landscape's creation was finished: its attributes are written last."""
    try:
        return "schema_version" in zarr.open_group(LocalStore(root, read_only=True), path=name, mode="r").attrs
    except (FileNotFoundError, ValueError, KeyError):
        return False


def remove_half_made(folder: Path) -> None:
    """Remove what a driver that was killed while making it left; never one whose metadata have become unreadable."""
    metadata = folder / "zarr.json"
    if metadata.exists():
        try:
            finished = "schema_version" in json.loads(metadata.read_bytes()).get("attributes", {})
        except (ValueError, AttributeError):
            finished = True
        if finished:
            raise LandscapeError(
                f"landscape {folder.name!r}: its metadata {str(metadata)!r} cannot be read; "
                "restore that file, or remove the folder to compute it anew"
            ) from None
    if folder.exists():
        shutil.rmtree(folder)


def refuse_unwritable(run: str) -> None:
    """Raise before anything is computed where the run cannot be written.

    Raises:
        JobError: the folder, or the one it would be made in, does not exist or takes no files.
    """
    place = store_root(run).parent
    above = next(each for each in (place, *place.parents) if each.exists())
    if not above.is_dir():
        raise JobError(f"run: {str(above)!r} is a file, not a folder; name another run")
    if not os.access(above, os.W_OK | os.X_OK):
        raise JobError(f"run: no permission to write in {str(above)!r}; change its rights or name another run")


def write_error(run: str, error: OSError) -> LandscapeError:
    """A failed write as one line with its remedy."""
    return LandscapeError(
        f"run {run!r} cannot be written: {error.strerror or error}; what was committed is intact: "
        "make room or mend the rights, then give the same command again"
    )
