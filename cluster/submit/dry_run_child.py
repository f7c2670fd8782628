"""The process that looks at a job: prepares it, and reports which files its callback opens.

Python tells an audit hook of every file that it opens. Files that a library opens by its own C code are missed, except
by safetensors, and except those that stay mapped into memory.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from landscape.core.errors import LandscapeError, StoreError, message_of, one_line
from landscape.job.job import Job
from landscape.job.landscape import Landscape

MOST_OPENED = 100_000
UNKNOWN_RUN = "the run cannot be read from here, so it is not known whether it holds the same job"
SYSTEM = ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", "/var/lib/")
SHARED_MEMORY = "/dev/shm/"  # where data are put for speed: they are the user's
# Libraries create these again where they are missing.
USER_CACHES = (".cache/landscape", ".cache/matplotlib", ".config/matplotlib", ".cache/torch/kernels", ".triton", ".nv")


class Opened:
    """The files that this process opens to read, as the audit hook is told."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    @property
    def paths(self) -> tuple[str, ...]:
        """A copy, since threads of the callback, and whatever looks at the paths, open more files meanwhile."""
        return tuple(self._paths)

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
        """The audit hook: notes what is opened to be read."""
        if event == "open":
            path, _, flags = given
            if isinstance(flags, int) and flags & os.O_ACCMODE == os.O_WRONLY:
                return
        elif event == "sqlite3.connect":
            path = given[0]
        else:
            return
        self.add(path)

    def add(self, path: Any) -> None:
        """Note a path. It never raises, as it is called from anywhere."""
        try:
            text = os.fsdecode(path)
            if not _lies_in_system(text) and "\0" not in text and len(self._paths) < MOST_OPENED:
                self._paths.add(os.path.join(os.getcwd(), text))
        except (TypeError, ValueError, OSError):
            return

    def hear_safetensors(self) -> None:
        """Note the files of safetensors, which opens them by its own code."""
        import safetensors.torch

        modules: list[Any] = [safetensors, safetensors.torch]
        original = modules[0].safe_open

        def safe_open(filename: Any, *words: Any, **named: Any) -> Any:
            self.add(filename)
            return original(filename, *words, **named)

        for each in modules:
            each.safe_open = safe_open

    def hear_mapped(self) -> None:
        """Note the files that are mapped into memory."""
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/maps").read_text().splitlines():
                self.add(line[73:] if "/" in line[73:] else "/proc/")


def foreign(paths: Iterable[str], made_before: int) -> list[str]:
    """Those of the files that are the user's: not of Python or a package, and not created by the look itself.

    Args:
        made_before: a change time in nanoseconds; newer files were created by the look.
    """
    found = set()
    for each in paths:
        path = Path(os.path.realpath(each))
        if path.suffix == ".pyc" or _belongs_to_system(path):
            continue
        with contextlib.suppress(OSError):
            status = path.stat()
            if path.is_file() and status.st_ctime_ns <= made_before:
                found.add(str(path))
    return sorted(found)


@cache
def _system_folders() -> tuple[Path, ...]:
    import cluster
    import landscape

    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()]
    folders += [str(Path(str(each.__file__)).parent) for each in (cluster, landscape)]
    with contextlib.suppress(RuntimeError):
        folders += [str(Path.home() / each) for each in USER_CACHES]
    named = os.environ.get("LANDSCAPE_CACHE")
    return tuple(Path(each).resolve() for each in [*folders, *([named] if named else [])])


def _lies_in_system(path: str) -> bool:
    return path.startswith(SYSTEM) and not path.startswith(SHARED_MEMORY)


def _belongs_to_system(path: Path) -> bool:
    return (
        _lies_in_system(str(path))
        or "site-packages" in path.parts
        or "dist-packages" in path.parts
        or any(path.is_relative_to(each) for each in _system_folders())
    )


def child() -> None:
    """Prepare the job that stdin names, and write the report."""
    given = json.load(sys.stdin)
    report = Path(given["report"])
    report.touch()
    begun = report.stat().st_ctime_ns
    gc.disable()
    import landscape.compute.prepare  # noqa: F401  before the hook, as it opens much

    gc.freeze()  # what is imported stays: no collection needs to walk it
    gc.enable()
    opened = Opened()
    opened.hear_safetensors()
    sys.addaudithook(opened.hook)

    def tell(error: str, remarks: list[str]) -> None:
        signal.alarm(0)
        opened.hear_mapped()
        for module in list(sys.modules.values()):
            opened.add(getattr(module, "__file__", None) or "/proc/")
        seen = {"opened": foreign(opened.paths, begun), "error": error, "remarks": remarks}
        with report.open("w", errors="surrogateescape") as file:
            json.dump(seen, file, ensure_ascii=False)

    prepare_job(given, tell)
    gc.freeze()  # the end of Python walks nothing that goes with the process anyway


def prepare_job(given: Mapping[str, Any], tell: Callable[[str, list[str]], None]) -> None:
    """Prepare the job, and tell why it cannot be computed ('' where it can) and what could not be tried here.

    Args:
        given: the job's `file`; its `run`; `fresh`, a folder for a run that is new; `store_seconds`, how long an object
            store may take, after which the process ends.
        tell: is called at the end, and with an object store also before it is asked.
    """
    from landscape.job.reading import read_job

    try:
        job = read_job(given["file"], run=given["run"])
        if "://" not in job.run_path:
            tell("", _prepare_locally(job, given["fresh"]))
            return
        _prepare_anew(job, given["fresh"])
        tell("", [f"{UNKNOWN_RUN}: its store does not answer within {given['store_seconds']} s"])
        signal.alarm(given["store_seconds"])  # ends the process; the report that is written stands
        tell("", _prepare_remotely(job))
    except LandscapeError as refused:
        tell(str(refused), [])
    except BaseException as other:
        tell(f"problem: {one_line(other)}", [])


def _prepare_locally(job: Job, fresh: str) -> list[str]:
    from landscape.compute.prepare import prepare

    if os.path.isdir(job.run_path) and os.access(job.run_path, os.W_OK):
        prepare(job)
    else:
        _prepare_anew(job, fresh)
    return []


def _prepare_remotely(job: Job) -> list[str]:
    """Compare the job with what its run holds; a remark where that cannot be read from here."""
    from landscape.compute.prepare import prepare

    try:
        prepare(job)
    except StoreError as error:
        return [f"{UNKNOWN_RUN}: {error.reason or message_of(error)}"]
    return []


def _prepare_anew(job: Job, fresh: str) -> None:
    """Prepare those of its landscapes that need no trajectory, as if the run were new."""
    from landscape.compute.prepare import prepare

    here = tuple(each for each in job.landscapes if not each.needs_trajectory)
    prepare(job.replace(run=str(Path(fresh) / "run"), landscapes=here or (Landscape(name="look", size=(3, 3)),)))


if __name__ == "__main__":
    child()
