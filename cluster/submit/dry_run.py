"""A look at a job before it is sent: is it sound, and are the files that its callback opens sent with it?"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.runtime.shipping import SECRET, THE_RUN, SentFiles, travelling_folder
from landscape.core.errors import JobError, flat, quoted
from landscape.job.job import Job

LOOK_SECONDS = 180.0
STORE_SECONDS = 30  # for an object store to tell what the run holds: one that is not there is asked for minutes
MOST_NAMED = 3
SENT_UNSEEN = "--no-look sends it unseen, where only the cluster has what it needs"


@dataclass(frozen=True)
class Seen:
    """What a look found.

    Attributes:
        opened: the user's files that the job opened.
        error: why the job cannot be computed; '' where it can.
        remarks: what could not be tried here.
    """

    opened: tuple[Path, ...] = ()
    error: str = ""
    remarks: tuple[str, ...] = ()


def look(job: Job, file: Path, run: str) -> Seen:
    """Prepare the job in a child process, in the job's folder, and note which files it opens.

    Args:
        run: where the run lies; what is there already is compared with the job where it can be read from here.

    Raises:
        JobError: the job, or its callback, fails; says how to send it all the same.
    """
    with tempfile.TemporaryDirectory(prefix="landscape-") as folder:
        report, words = Path(folder) / "report.json", Path(folder) / "stderr"
        given = {
            "file": str(file.absolute()),
            "run": run,
            "report": str(report),
            "fresh": folder,
            "store_seconds": STORE_SECONDS,
        }
        code = _prepare_in_child(travelling_folder(job.folder), given, words)
        seen = _read_report(report)
        last = flat(words.read_text(errors="replace")[-1000:].strip().rpartition("\n")[2])
    if code is None:
        return seen or Seen(remarks=(f"the look at the callback took more than {LOOK_SECONDS:g} s and was left",))
    if seen is None:
        raise JobError(
            f"problem: {job.problem} ended the process that looked at it, with code {code}; "
            f"its last words: {last or 'none'}\n({SENT_UNSEEN})"
        )
    if seen.error:
        raise JobError(f"{seen.error}\n({SENT_UNSEEN})")
    return seen


def _prepare_in_child(folder: Path, given: Mapping[str, object], words: Path) -> int | None:
    """Run the process that prepares the job and writes the report; its exit code, None where it took too long.

    Args:
        folder: where it runs.
        given: what it is told on its standard input.
        words: the file that takes its standard error.
    """
    # -P: a module of the job's folder, such as random.py, must not replace one of Python.
    with words.open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-P", "-B", "-m", "cluster.submit.dry_run_child"], cwd=folder, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    try:
        child.communicate(json.dumps(given).encode(), timeout=LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(child)
    return child.returncode


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


def compare(seen: Seen, listing: SentFiles, run: str) -> list[str]:
    """The files that were opened here and will be missing on the cluster, a warning for each kind.

    Raises:
        JobError: files beside the job that are not sent, though they could be.
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
        asked = " ".join(f"--include {quoted(name)}" for name in _few(_gathered(stay)))
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
    """The files, or the folders that hold them where they are many."""
    if len(names) <= MOST_NAMED:
        return names
    return list(dict.fromkeys(name.partition("/")[0] for name in names))


def _few(names: Iterable[str]) -> list[str]:
    return list(names)[:MOST_NAMED]


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more files" if len(names) > MOST_NAMED else ""
    return ", ".join(quoted(name) for name in _few(names)) + more
