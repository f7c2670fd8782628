"""A portable problem on its way to a cluster: the file travels, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cluster.runtime.listing import Listing
from cluster.runtime.shipping import list_files
from landscape.model.packed_file import names_a_file


def travelling_folder(folder: Path) -> Path:
    """The folder that a job's files travel from: its own, or the one that holds the file of a packed job."""
    return folder.parent if is_packed(folder) else folder


def is_packed(folder: Path) -> bool:
    """Whether what a job's paths are relative to is a portable problem, which holds all that the job names."""
    return names_a_file(str(folder))


def packed_listing(file: Path, run: str, include: Iterable[str] = ()) -> Listing:
    """The listing of a packed job: its file, and what is asked for.

    Raises:
        JobError: one of these cannot be sent, or is too large.
    """
    return list_files(file.parent, run, [file.name, *include])
