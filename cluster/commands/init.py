"""`landscape init`: a job file and a callback to start from."""

from __future__ import annotations

from pathlib import Path

from cluster.runtime.logs import write_remark
from landscape.core.errors import JobError, shown


def init(folder: Path = Path()) -> None:
    """Write a commented job file and a callback to start from.

    Parameters
    ----------
    folder
        Where to write job.yaml and my_problem.py; existing files are never replaced.
    """
    from importlib.resources import files

    names = ("job.yaml", "my_problem.py")
    there = [name for name in names if (folder / name).exists()]
    if there:
        raise JobError(f"folder: {shown(str(folder))} already holds {' and '.join(there)}; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(files("cluster.commands").joinpath("templates", name).read_text())
        print(folder / name)
    write_remark(f"next: landscape plan {folder / 'job.yaml'}")
