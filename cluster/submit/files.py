"""The files of a job that its ConfigMap carries."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cluster.runtime.shipping import LEAVES, Listing, read_file
from cluster.submit.checks import folder_listing, named_files
from cluster.submit.work import Work
from landscape.core.errors import JobError, shown
from landscape.model.packed_file import names_a_file, onnx_files

LARGEST_FILES = 900_000  # bytes in a ConfigMap, which holds 1 MiB with its names
NOT_CARRIED = "not in a ConfigMap, which holds the Python files and what the job names or --include adds"


def job_files(job: Work, file: Path, include: Iterable[str] = (), listing: Listing | None = None) -> dict[str, bytes]:
    """What the ConfigMap carries: the job file, the folder's Python files, what the job names, what is included.

    Not the whole folder, as a manifest is kept and shown in places where its other files have no business.

    Raises:
        JobError: it is more than a ConfigMap holds.
    """
    listing = listing or folder_listing(job, file, job.run_path, include)
    packed = [str(job.problem)] if names_a_file(job.problem) else onnx_files(str(job.problem))
    asked = {os.path.normpath(each) for each in (*named_files(job), *packed, *include)}
    package = str(job.problem).partition(":")[0].partition(".")[0]

    def carried(name: str) -> bool:
        top, _, below = name.partition("/")
        python = name.endswith(".py") and (not below or top == package)
        return name == file.name or python or any(name == each or name.startswith(f"{each}/") for each in asked)

    for name, why in sorted(listing.omitted.items()):
        if why == LEAVES and name.endswith(".py") and "/" not in name:
            raise JobError(f"job: {shown(name)} is a link that leaves the job file's folder; copy in what it names")
    chosen = {name: each for name, each in sorted(listing.files.items()) if carried(name)}
    size = sum(each.size for each in chosen.values())
    if size > LARGEST_FILES:
        largest = max(chosen.values(), key=lambda each: each.size)
        raise JobError(
            f"job: its files hold {size} bytes, a ConfigMap at most {LARGEST_FILES} ({shown(largest.name)} alone "
            f"{largest.size}); put large ones on the claim or in the image and name them by absolute paths"
        )
    root = listing.folder.resolve()
    return {name: read_file(each, root) for name, each in chosen.items()}
