"""A look at a job before it is sent, in a process of its own: is it sound, and which files does its callback open.

What the callback reads here and the cluster will not have is found by an audit hook, which Python tells of every file
that it opens. A library that opens files by its own C code is not heard, but for safetensors and what stays mapped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cluster.shipping.listing import SECRET, THE_RUN, Listing
from landscape.errors import JobError, LandscapeError, StoreError, flat, message_of, one_line, shown
from landscape.spec import Job, Landscape

LOOK_SECONDS = 180.0
STORE_SECONDS = 30  # for an object store to tell what the run holds: one that is not there is asked for minutes
MOST_OPENED = 100_000
MOST_NAMED = 3
UNKNOWN_RUN = "the run cannot be read from here, so it is not known whether it holds the same job"
SENT_UNSEEN = "--no-look sends it unseen, where only the cluster has what it needs"
SYSTEM = ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", "/var/lib/")
# Libraries make these anew where they are missing.
USER_CACHES = (".cache/landscape", ".cache/matplotlib", ".config/matplotlib", ".cache/torch/kernels", ".triton", ".nv")


@dataclass(frozen=True)
class Seen:
    """What a look found: the files that were opened, or why the job cannot be computed, and what could not be tried."""

    opened: tuple[Path, ...] = ()
    error: str = ""
    remarks: tuple[str, ...] = ()


# -- here --------------------------------------------------------------------------------------------------------


def look(job: Job, file: Path, run: str) -> Seen:
    """Prepare the job in a child process, its folder the working directory, and hear what it opens.

    Args:
        run: where the run lies; what is there already is compared with the job where it can be read from here.

    Raises:
        JobError: the job, or its callback, fails; says how to send it all the same.
    """
    with tempfile.TemporaryDirectory(prefix="landscape-") as folder:
        report = Path(folder) / "report.json"
        given = {
            "file": str(file.absolute()),
            "run": run,
            "report": str(report),
            "fresh": folder,
            "store_seconds": STORE_SECONDS,
        }
        # Not the folder's own modules, such as a random.py beside the job, for Python's.
        said = Path(folder) / "stderr"
        with said.open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-P", "-B", "-m", "cluster.submit.look"], cwd=job.folder, stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
            )  # fmt: skip
        try:
            child.communicate(json.dumps(given).encode(), timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            late = Seen(remarks=(f"the look at the callback took more than {LOOK_SECONDS:g} s and was left",))
            return _read_report(report) or late
        finally:
            _end(child)
        seen = _read_report(report)
        last = flat(said.read_text(errors="replace")[-1000:].strip().rpartition("\n")[2])
    if seen is None:
        raise JobError(
            f"problem: {job.problem} ended the process that looked at it, with code {child.returncode}; "
            f"its last words: {last or 'none'}\n({SENT_UNSEEN})"
        )
    if seen.error:
        raise JobError(f"{seen.error}\n({SENT_UNSEEN})")
    return seen


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and what its callback started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, 9)
    child.wait()


def _read_report(report: Path) -> Seen | None:
    try:
        found = json.loads(report.read_text(errors="surrogateescape"))
        return Seen(tuple(map(Path, found["opened"])), found["error"], tuple(found["remarks"]))
    except (OSError, ValueError, KeyError):
        return None


def compare(seen: Seen, listing: Listing, run: str) -> list[str]:
    """What was opened here and the cluster will not have, a warning per kind.

    Raises:
        JobError: files beside the job that stay here, and could travel.
    """
    root = listing.folder.resolve()
    sources = {each.source for each in listing.files.values()}
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
        asked = " ".join(f"--include {shown(name)}" for name in _few(_gathered(stay)))
        raise JobError(
            f"problem: the job opens {_named(stay)}, which would not travel ({why}); "
            f"say {asked}, or --no-look to send it as it is"
        )
    found = []
    if secret:
        found.append(
            f"the job opens {_named(secret)}, which never travels ({SECRET}); "
            "give keys to the driver in its environment"
        )
    if outside:
        found.append(
            f"the job opens {_named(outside)}, beyond the folder that travels; copy it beside the job file, or open it "
            "by its whole path on a disk that every node sees: a relative path leads elsewhere there"
        )
    return found


def _gathered(names: list[str]) -> list[str]:
    """The files, or where they are many the folders that hold them."""
    if len(names) <= MOST_NAMED:
        return names
    return list(dict.fromkeys(name.partition("/")[0] for name in names))


def _few(names: Iterable[str]) -> list[str]:
    return list(names)[:MOST_NAMED]


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more files" if len(names) > MOST_NAMED else ""
    return ", ".join(shown(name) for name in _few(names)) + more


# -- in the child ------------------------------------------------------------------------------------------------


class Opened:
    """The files that this process opens to read, as the audit hook hears of them."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
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
        """Note a path; never fails, as it is called from everywhere."""
        try:
            text = os.fsdecode(path)
            if not text.startswith(SYSTEM) and "\0" not in text and len(self.paths) < MOST_OPENED:
                self.paths.add(os.path.join(os.getcwd(), text))
        except (TypeError, ValueError, OSError):
            return

    def hear_safetensors(self) -> None:
        """It opens its files by its own code."""
        import safetensors.torch

        modules: list[Any] = [safetensors, safetensors.torch]
        original = modules[0].safe_open

        def safe_open(filename: Any, *words: Any, **named: Any) -> Any:
            self.add(filename)
            return original(filename, *words, **named)

        for each in modules:
            each.safe_open = safe_open

    def hear_mapped(self) -> None:
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/maps").read_text().splitlines():
                self.add(line[73:] if "/" in line[73:] else "/proc/")


def foreign(paths: Iterable[str], made_before: int) -> list[str]:
    """The files of these that are nobody's but the user's: not Python's, not a package's, not made since."""
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


def _belongs_to_system(path: Path) -> bool:
    return (
        str(path).startswith(SYSTEM)
        or "site-packages" in path.parts
        or "dist-packages" in path.parts
        or any(path.is_relative_to(each) for each in _system_folders())
    )


def child() -> None:
    """Prepare the job that stdin names, and write what was seen."""
    given = json.load(sys.stdin)
    report = Path(given["report"])
    report.touch()
    begun = report.stat().st_ctime_ns
    import torch  # noqa: F401  before the hook, as it opens much

    from landscape.spec import read_job

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

    try:
        job = read_job(given["file"], run=given["run"])
        if "://" not in job.run_path:
            tell("", _prepare_locally(job, given["fresh"]))
            return
        _prepare_anew(job, given["fresh"])
        tell("", [f"{UNKNOWN_RUN}: its store does not answer within {given['store_seconds']} s"])
        signal.alarm(given["store_seconds"])  # ends the process; what was told stands
        tell("", _prepare_remotely(job))
    except LandscapeError as refused:
        tell(str(refused), [])
    except BaseException as other:
        tell(f"problem: {one_line(other)}", [])


def _prepare_locally(job: Job, fresh: str) -> list[str]:
    from landscape.preparation import prepare

    if os.path.isdir(job.run_path) and os.access(job.run_path, os.W_OK):
        prepare(job)
    else:
        _prepare_anew(job, fresh)
    return []


def _prepare_remotely(job: Job) -> list[str]:
    """Compare with what the run holds; a remark where that cannot be read from here."""
    from landscape.preparation import prepare

    try:
        prepare(job)
    except StoreError as error:
        return [f"{UNKNOWN_RUN}: {error.reason or message_of(error)}"]
    return []


def _prepare_anew(job: Job, fresh: str) -> None:
    """Prepare what of the job needs no trajectory, as if its run were begun anew."""
    from landscape.preparation import prepare

    here = tuple(each for each in job.landscapes if not each.needs_trajectory)
    prepare(job.replace(run=str(Path(fresh) / "run"), landscapes=here or (Landscape(name="look", size=(3, 3)),)))


if __name__ == "__main__":
    child()
