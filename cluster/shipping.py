"""What of a job's folder travels to a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.attach import IN_A_RAY_JOB
from landscape.errors import JobError, shown
from landscape.spec import Job

LARGEST_UPLOAD = 200 << 20
IGNORED_UPLOADS = (".git", ".venv", "__pycache__", "runs", "node_modules", ".mypy_cache", ".ruff_cache")


def upload(job: Job) -> dict[str, Any]:
    """The runtime environment of an attached cluster: the job file's folder, so that its callback imports there.

    Empty where the callback is installed, and inside a Ray job, which has a working directory already.

    Raises:
        JobError: the folder holds more than can be shipped.
    """
    if not isinstance(job.problem, str) or IN_A_RAY_JOB in os.environ:
        return {}
    module = job.folder / (job.problem.partition(":")[0].partition(".")[0])
    if not (module.with_suffix(".py").is_file() or module.is_dir()):
        return {}
    excluded = upload_excludes(job.folder, job.run_path)
    refuse_large_upload(job.folder, excluded)
    return {"working_dir": str(job.folder), "excludes": excluded}


def upload_excludes(folder: Path, run: str) -> list[str]:
    """What of the folder is not shipped: environments, version control, caches, and the run itself."""
    place = Path(run)
    inside = place.is_relative_to(folder) and place != folder
    return [*IGNORED_UPLOADS, *([f"/{place.relative_to(folder)}"] if inside else [])]


def refuse_large_upload(folder: Path, excluded: Sequence[str]) -> None:
    """Ray zips the folder before it looks at its size, and a folder that holds Ray's own files grows meanwhile."""
    ignored, size = {each.lstrip("/") for each in excluded}, 0
    for place, folders, files in os.walk(folder):
        below = Path(place).relative_to(folder)
        folders[:] = [name for name in folders if name not in ignored and str(below / name) not in ignored]
        for name in files:
            with contextlib.suppress(OSError):
                size += (Path(place) / name).lstat().st_size
        if size > LARGEST_UPLOAD:
            raise JobError(
                f"problem: the folder {shown(str(folder))} is shipped to the cluster and holds more than "
                f"{LARGEST_UPLOAD >> 20} MiB; move the job file and its callback to a folder of their own"
            )
