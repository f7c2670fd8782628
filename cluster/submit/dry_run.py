"""Try out a job before it is sent: can it be prepared, and are the files that its callback opens sent with it?

A process of its own prepares the job: `python -m cluster.submit.dry_run`. There Python reports every file that it opens
to an audit hook. Files that a library opens by its own C code are missed, except those of safetensors and those that
stay mapped into memory.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cluster.runtime.logs import write_remark
from cluster.runtime.shipping import SECRET, THE_RUN, SentFiles, travelling_folder
from landscape.core.errors import JobError, LandscapeError, StoreError, flat, message_of, one_line, quoted
from landscape.core.files import temporary_folder
from landscape.job.job import Job
from landscape.job.landscape import Landscape

LOOK_SECONDS = 180.0
QUIET_SECONDS = 10.0  # of a look, after which a line says that it goes on
STORE_SECONDS = 30  # for an object store to list the run: a store that does not exist is tried for minutes
MOST_NAMED = 3
SENT_UNSEEN = "--no-look sends it unseen, where only the cluster has what it needs"


@dataclass(frozen=True)
class LookReport:
    """The result of trying out a job.

    Attributes:
        opened: the user's files that the job opened.
        error: why the job cannot be computed; '' if it can.
        remarks: the parts that could not be tried out here.
    """

    opened: tuple[Path, ...] = ()
    error: str = ""
    remarks: tuple[str, ...] = ()


def look(job: Job, file: Path, run: str) -> LookReport:
    """Prepare the job in a child process, in the job's folder, and note which files it opens.

    Args:
        run: where the run lies; if it can be read from here, its content is compared with the job.

    Raises:
        JobError: the job, or its callback, fails; says how to send it unseen.
    """
    with temporary_folder() as folder:
        report, words = folder / "report.json", folder / "stderr"
        given = {
            "file": str(file.absolute()), "run": run, "report": str(report), "fresh": str(folder),
            "store_seconds": STORE_SECONDS,
        }  # fmt: skip
        code = _prepare_in_child(travelling_folder(job.folder), given, words)
        seen = _read_report(report)
        last = flat(words.read_text(errors="replace")[-1000:].strip().rpartition("\n")[2])
    if code is None:
        remark = f"trying out the callback took more than {LOOK_SECONDS:g} s and was stopped"
        return seen or LookReport(remarks=(remark,))
    if seen is None:
        raise JobError(
            f"problem: {job.problem} ended the process that looked at it, with code {code}; "
            f"its last words: {last or 'none'}\n({SENT_UNSEEN})"
        )
    if seen.error:
        raise JobError(f"{seen.error}\n({SENT_UNSEEN})")
    return seen


def _prepare_in_child(folder: Path, given: Mapping[str, object], words: Path) -> int | None:
    """Run the process that prepares the job and writes the report; returns its exit code, None if it took too long.

    Args:
        folder: its working directory.
        given: its standard input, as JSON.
        words: the file for its standard error.
    """
    # -P: a module of the job's folder, such as random.py, must not replace one of Python's.
    with words.open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-P", "-B", "-m", "cluster.submit.dry_run"], cwd=folder, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    try:
        try:
            child.communicate(json.dumps(given).encode(), timeout=QUIET_SECONDS)
        except subprocess.TimeoutExpired:
            write_remark(f"trying out the callback here, before anything is sent, for up to {LOOK_SECONDS:g} s", "look")
            child.communicate(timeout=LOOK_SECONDS - QUIET_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(child)
    return child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and the processes that its callback started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, 9)
    child.wait()


def _read_report(report: Path) -> LookReport | None:
    try:
        found = json.loads(report.read_text(errors="surrogateescape"))
        return LookReport(tuple(map(Path, found["opened"])), found["error"], tuple(found["remarks"]))
    except (OSError, ValueError, KeyError):
        return None


def compare(seen: LookReport, listing: SentFiles, run: str) -> list[str]:
    """Warnings about files that were opened here and will be missing on the cluster, one for each kind.

    Raises:
        JobError: files in the job's folder are not sent, though they could be.
    """
    root = listing.folder.resolve()
    sources = {file.source for file in listing.files.values()}
    stay: list[str] = []
    secret: list[str] = []
    outside: list[str] = []
    for path in seen.opened:
        if path in sources or path.is_relative_to(run):
            continue
        if not path.is_relative_to(root):
            outside.append(str(path))
            continue
        name = path.relative_to(root).as_posix()
        why = listing.why_omitted(name)
        if why and why != THE_RUN:
            (secret if why == SECRET else stay).append(name)
    if stay:
        why = listing.why_omitted(stay[0])
        asked = " ".join(f"--include {quoted(name)}" for name in _shorten(_top_folders(stay)))
        raise JobError(
            f"problem: the job opens {_name_files(stay)}, which would not travel ({why}); "
            f"say {asked}, or --no-look to send it as it is"
        )
    warnings = []
    if secret:
        warnings.append(
            f"the job opens {_name_files(secret)}, which never travels ({SECRET}); "
            "give keys to the driver in its environment"
        )
    if outside:
        warnings.append(
            f"the job opens {_name_files(outside)}, beyond the folder that travels: nothing to do where every node "
            "sees it under its whole path and the callback opens it by that; else copy it beside the job file"
        )
    return warnings


def _top_folders(names: list[str]) -> list[str]:
    """The files, or their top folders if there are many files."""
    if len(names) <= MOST_NAMED:
        return names
    return list(dict.fromkeys(name.partition("/")[0] for name in names))


def _shorten(names: Iterable[str]) -> list[str]:
    return list(names)[:MOST_NAMED]


def _name_files(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more files" if len(names) > MOST_NAMED else ""
    return ", ".join(quoted(name) for name in _shorten(names)) + more


# ----------------------------------------------------------------------------------------------------
# The child process: it prepares the job, and reports which files its callback opens.

MOST_OPENED = 100_000
UNKNOWN_RUN = "the run cannot be read from here, so it is not known whether it holds the same job"
SYSTEM = ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", "/var/lib/")
SHARED_MEMORY = "/dev/shm/"  # users put data there for speed
# Libraries create these again if they are missing.
USER_CACHES = (".cache/landscape", ".cache/matplotlib", ".config/matplotlib", ".cache/torch/kernels", ".triton", ".nv")


class OpenedFiles:
    """The files that this process opens to read, as reported to its audit hook."""

    def __init__(self) -> None:
        self._paths: set[str] = set()

    @property
    def paths(self) -> tuple[str, ...]:
        """A copy of the paths, since other threads, and code that examines the paths, may open more files meanwhile."""
        return tuple(self._paths)

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
        """The audit hook: notes files that are opened to be read."""
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
        """Note a path. Never raises, since any code may call it."""
        try:
            text = os.fsdecode(path)
            if not _lies_in_system(text) and "\0" not in text and len(self._paths) < MOST_OPENED:
                self._paths.add(os.path.join(os.getcwd(), text))
        except (TypeError, ValueError, OSError):
            return

    def hear_safetensors(self) -> None:
        """Note the files that safetensors opens, by its own code."""
        import safetensors.torch

        modules: list[Any] = [safetensors, safetensors.torch]
        original = modules[0].safe_open

        def safe_open(filename: Any, *words: Any, **named: Any) -> Any:
            self.add(filename)
            return original(filename, *words, **named)

        for module in modules:
            module.safe_open = safe_open

    def hear_mapped(self) -> None:
        """Note the files that are mapped into memory."""
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/maps").read_text().splitlines():
                self.add(line[73:] if "/" in line[73:] else "/proc/")


def files_of_user(paths: Iterable[str], made_before: int) -> list[str]:
    """The files that belong to the user: not to Python or a package, and not created by the try-out itself.

    Args:
        made_before: a change time in nanoseconds; newer files were created by the try-out.
    """
    found = set()
    for text in paths:
        path = Path(os.path.realpath(text))
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
    folders += [str(Path(str(package.__file__)).parent) for package in (cluster, landscape)]
    with contextlib.suppress(RuntimeError):
        folders += [str(Path.home() / cache) for cache in USER_CACHES]
    named = os.environ.get("LANDSCAPE_CACHE")
    return tuple(Path(folder).resolve() for folder in [*folders, *([named] if named else [])])


def _lies_in_system(path: str) -> bool:
    return path.startswith(SYSTEM) and not path.startswith(SHARED_MEMORY)


def _belongs_to_system(path: Path) -> bool:
    return (
        _lies_in_system(str(path))
        or "site-packages" in path.parts
        or "dist-packages" in path.parts
        or any(path.is_relative_to(folder) for folder in _system_folders())
    )


def main() -> None:
    """Prepare the job that standard input names, and write the report."""
    given = json.load(sys.stdin)
    report = Path(given["report"])
    report.touch()
    begun = report.stat().st_ctime_ns
    gc.disable()
    import landscape.compute.prepare  # noqa: F401  before the hook, since it opens many files

    gc.freeze()  # imported modules stay: no garbage collection needs to visit them
    gc.enable()
    opened = OpenedFiles()
    opened.hear_safetensors()
    sys.addaudithook(opened.hook)

    def tell(error: str, remarks: list[str]) -> None:
        signal.alarm(0)
        opened.hear_mapped()
        for module in list(sys.modules.values()):
            opened.add(getattr(module, "__file__", None) or "/proc/")
        seen = {"opened": files_of_user(opened.paths, begun), "error": error, "remarks": remarks}
        with report.open("w", errors="surrogateescape") as file:
            json.dump(seen, file, ensure_ascii=False)

    prepare_job(given, tell)
    gc.freeze()  # the end of Python need not visit objects that end with the process


def prepare_job(given: Mapping[str, Any], tell: Callable[[str, list[str]], None]) -> None:
    """Prepare the job, and tell why it cannot be computed ('' if it can) and what could not be tried here.

    Args:
        given: the job's `file`; its `run`; `fresh`, a folder for a new run; `store_seconds`, how long an object store
            may take before the process ends.
        tell: is called at the end, and with an object store also before the store is asked.
    """
    from landscape.compute.prepare import prepare
    from landscape.job.reading import read_job

    remarks: list[str] = []
    try:
        job = read_job(given["file"], run=given["run"])
        in_store = "://" in job.run_path
        if in_store or not (os.path.isdir(job.run_path) and os.access(job.run_path, os.W_OK)):
            _prepare_anew(job, given["fresh"])
        else:
            prepare(job)
        if in_store:
            tell("", [f"{UNKNOWN_RUN}: its store does not answer within {given['store_seconds']} s"])
            signal.alarm(given["store_seconds"])  # ends the process; the report above stays
            try:
                prepare(job)  # compares the job with what its run holds
            except StoreError as error:
                remarks = [f"{UNKNOWN_RUN}: {error.reason or message_of(error)}"]
        tell("", remarks)
    except LandscapeError as refused:
        tell(str(refused), [])
    except BaseException as other:
        tell(f"problem: {one_line(other)}", [])


def _prepare_anew(job: Job, fresh: str) -> None:
    """Prepare the job's landscapes that need no trajectory, as if the run were new."""
    from landscape.compute.prepare import prepare

    here = tuple(landscape for landscape in job.landscapes if not landscape.needs_trajectory)
    prepare(job.replace(run=str(Path(fresh) / "run"), landscapes=here or (Landscape(name="look", size=(3, 3)),)))


if __name__ == "__main__":
    main()
