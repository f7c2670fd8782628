"""A small file of the user's that says which job was sent where: `logs`, `status` and `cancel` need only an identifier.

It holds no token and no password. Where it cannot be read or written, a line says so, and the command goes on.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cluster.runtime.logs import write_remark
from landscape.core.errors import shown
from landscape.core.files import folder_of_user

MOST_JOBS = 500
LARGEST_FILE = 1 << 20
LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class SentJob:
    """What is kept of a job that was sent.

    Attributes:
        target: ray, kuberay or slurm.
        address: of Ray's dashboard, without a password.
        namespace: of Kubernetes, empty for kubectl's own.
        log: the file that Slurm writes its log to.
    """

    target: str
    run: str = ""
    address: str = ""
    namespace: str = ""
    log: str = ""
    allow_open: bool = False
    sent: str = ""


def jobs_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file, in the folder for state that the XDG specification names; none without a home."""
    folder = folder_of_user("XDG_STATE_HOME", ".local/state", environment)
    return folder and folder / "jobs.json"


def remember(identifier: str, job: SentJob) -> None:
    """Keep a job under its identifier; the oldest ones are dropped."""
    from filelock import FileLock, Timeout

    file = jobs_file()
    if file is None:
        return
    entry = asdict(job) | {"address": plain_address(job.address), "sent": job.sent or _now()}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock"), timeout=LOCK_SECONDS, mode=0o600):
            jobs = {name: asdict(each) for name, each in _read(file).items()}
            jobs.pop(identifier, None)
            jobs[identifier] = entry
            _write(file, dict(list(jobs.items())[-MOST_JOBS:]))
    except (OSError, Timeout) as error:
        reason = getattr(error, "strerror", None) or "another process holds it"
        write_remark(f"{identifier} is not remembered in {shown(str(file))} ({reason}); give its --address from now on")


def recall(identifier: str) -> SentJob | None:
    """What is kept of a job; None where nothing is."""
    file = jobs_file()
    return None if file is None else _read(file).get(identifier)


def plain_address(address: str) -> str:
    """An address without what may be a key: user, password, query."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(file: Path) -> dict[str, SentJob]:
    """All jobs, the oldest first; none, and a line, where the file is not what `_write` made."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except OSError as error:
        return _pass_over(file, error.strerror or "it cannot be read")
    with open(handle, "rb") as stream:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return _pass_over(file, "it is no file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            # Whoever can write it decides where this user's token is shown.
            return _pass_over(file, "others can write it: chmod 600")
        content = stream.read(LARGEST_FILE + 1)
    try:
        return _parse(content)
    except (ValueError, RecursionError):
        return _pass_over(file, "it holds no list of jobs")


def _pass_over(file: Path, reason: str) -> dict[str, SentJob]:
    write_remark(f"the list of sent jobs {shown(str(file))} is passed over: {reason}")
    return {}


def _parse(content: bytes) -> dict[str, SentJob]:
    """Raises ValueError for anything that `_write` did not write."""
    found = json.loads(content) if len(content) <= LARGEST_FILE else None
    if not isinstance(found, dict):
        raise ValueError("no list")
    return {name: _entry(each) for name, each in found.items()}


def _entry(found: Any) -> SentJob:
    known = {each.name: bool if each.name == "allow_open" else str for each in fields(SentJob)}
    if not isinstance(found, dict) or "target" not in found:
        raise ValueError("no job")
    kept = {name: found[name] for name in known if name in found}
    if any(not isinstance(value, known[name]) for name, value in kept.items()):
        raise ValueError("no job")
    return SentJob(**kept)


def _write(file: Path, jobs: dict[str, Any]) -> None:
    """Whole or not at all, for this user alone."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".jobs-")  # with mode 0600
    try:
        with open(handle, "w") as stream:
            json.dump(jobs, stream, indent=1)
            stream.flush()
            os.fsync(handle)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
