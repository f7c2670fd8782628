"""The job's folder, sent to a cluster that is attached."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.runtime.address import IN_A_RAY_JOB
from cluster.runtime.archive import archived
from cluster.runtime.asking import Shipped
from cluster.runtime.listing import omitted_line
from cluster.runtime.logs import write_remark
from cluster.runtime.packed import is_packed, packed_listing
from cluster.runtime.shipping import list_folder
from landscape.model.packed_file import names_a_file, onnx_files


@contextlib.contextmanager
def upload(job: Shipped) -> Iterator[dict[str, Any]]:
    """The runtime environment of an attached cluster: the job file's folder, so that its callback imports there.

    Empty where the callback is installed, and inside a Ray job, which has a working directory already.

    Raises:
        JobError: the folder holds more than can be shipped.
    """
    required = callback_files(job)
    if not required or IN_A_RAY_JOB in os.environ:
        yield {}
        return
    if is_packed(job.folder):
        listing = packed_listing(job.folder, job.run_path)
    else:
        listing = list_folder(job.folder, job.run_path, required=required)
    if line := omitted_line(listing):
        write_remark(line, "files")
    with archived(listing) as path:
        yield {"working_dir": str(path)}


def callback_files(job: Shipped) -> list[str]:
    """The callback's module or package, or the portable problem, in the job's folder; empty where it is installed."""
    if not isinstance(job.problem, str):
        return []
    if names_a_file(job.problem):
        inside = not Path(job.problem).is_absolute() or is_packed(job.folder)
        return [Path(job.problem).name if is_packed(job.folder) else job.problem] if inside else []
    if files := onnx_files(job.problem):
        return [name for name in files if not Path(name).is_absolute()]
    top = job.problem.partition(":")[0].partition(".")[0]
    return [name for name in (f"{top}.py", top) if (job.folder / name).is_file() or (job.folder / name).is_dir()]
