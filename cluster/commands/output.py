"""What the commands have in common: `--json`, their results on stdout, the job file that they read."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cluster.runtime import logs
from cluster.runtime.console import put
from cluster.runtime.logs import bind
from landscape.core.errors import printable

if TYPE_CHECKING:
    from landscape.job.job import Job

Json = Annotated[bool, Parameter(negative="", help="Print one JSON document instead of text.")]


def show(data: Any, as_json: bool, text: str) -> None:
    """The command's result, on stdout."""
    put(json_module.dumps(data, indent=1, default=str, allow_nan=False) if as_json else printable(text))


def read_bound_job(path: Path, **overrides: Any) -> Job:
    """The job of a file, some fields replaced; every log event carries its run from now on.

    Raises:
        JobError: the file holds no job.
    """
    found = read_told_job(path, **overrides)
    bind(run=found.run_path)
    return found


def read_told_job(path: Path, **overrides: Any) -> Job:
    """The job of a file, some fields replaced; a supervisor is told where it is a packed problem.

    Raises:
        JobError: the file holds no job.
    """
    from landscape.job.reading import read_job
    from landscape.model.packed_file import names_a_file

    found = read_job(path, **overrides)
    if names_a_file(found.problem):
        logs.tell(logs.PACKED)
    return found
