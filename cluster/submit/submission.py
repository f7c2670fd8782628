"""One job on its way to a cluster: its name, its attempt, its run, and the command that the cluster runs."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Union
from urllib.parse import urlsplit, urlunsplit

from cluster.runtime.logs import write_remark
from cluster.runtime.options import check_workers
from landscape.core.errors import JobError, LandscapeError, flat, quoted
from landscape.core.files import folder_of_user
from landscape.core.folders import locate
from landscape.core.system import SENT_FROM
from landscape.core.text import digest

if TYPE_CHECKING:
    from landscape.job.job import Job


@dataclass(frozen=True)
class SentTraining:
    """A training on its way to a cluster, with the attributes of a job that the targets read.

    Attributes:
        what: a recipe's name or 'module:function'.
        folder: the module's folder.
        run: as the user gave it.
        options: the words of the user's command.
    """

    what: str
    folder: Path
    run: str
    options: tuple[str, ...] = ()

    threads: ClassVar[int] = 1
    workers: ClassVar[None] = None
    max_workers: ClassVar[None] = None
    landscapes: ClassVar[tuple[()]] = ()

    @property
    def run_path(self) -> str:
        """The run as an absolute folder or a URL."""
        return locate(self.run, Path.cwd())

    @property
    def problem(self) -> str | None:
        """'module:function', whose files are sent; None for a recipe, which is installed on the cluster."""
        return self.what if ":" in self.what else None

    def content(self) -> dict[str, Any]:
        """The part of the training that, with the run, decides its name."""
        return {"train": self.what, "options": list(self.options)}


Work = Union["Job", SentTraining]


def has_files(work: Work) -> bool:
    """Whether a folder is sent with the job or training."""
    return not isinstance(work, SentTraining) or work.problem is not None


# KubeRay refuses names above 47 characters; "landscape-", a digest of 8 and an attempt leave this many.
LONGEST_NAME = 24
# A driver that is told to stop has this long to commit results in flight. Ray's default is 3 s until SIGKILL.
STOP_SECONDS = 60
# Environment variables of a driver on a cluster. A job sends its folder in its runtime environment, and the driver
# sends the folder again to its workers: without the second variable Ray would treat this as a conflict.
DRIVER_ENVIRONMENT = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}


@dataclass(frozen=True)
class Submission:
    """One job on its way to a cluster.

    Attributes:
        folder: the job file's folder, as the user named it; for a training, that of its module.
        file: the job file's name in it; empty for a training.
        run: an absolute folder or a URL; a relative folder would lie in the sent copy, and be lost with it.
        digest: 8 hexadecimal digits of the job and its run, so that the same job always gets the same name.
        attempt: from 1; Ray and Kubernetes accept each name once.
        log_format: of the driver's log: that of the sending command.
        training: the training; None for a job of landscapes.
        cpus_per_worker: CPU cores that Kubernetes and Slurm give a worker.
        memory: that Kubernetes gives a worker, and Slurm a node.
        further: words of the command that only one target has.
        accept_origin: whether a landscape of another model than the user's own is computed, with a warning.
        sent_from: HOST:FOLDER of a job, by which its callback is found again; empty for a training.
    """

    folder: Path
    file: str
    run: str
    name: str
    digest: str
    attempt: int = 1
    workers: int | None = None
    gpus_per_worker: float | None = None
    log_format: str = "text"
    training: SentTraining | None = None
    accept_origin: bool = False
    cpus_per_worker: int = 1
    memory: str | None = None
    further: tuple[str, ...] = ()
    sent_from: str = ""

    @property
    def base(self) -> str:
        """The part of the identifier that all attempts of this job share."""
        return f"landscape-{self.name}-{self.digest}"

    @property
    def id(self) -> str:
        """The identifier of this attempt."""
        return f"{self.base}-{self.attempt}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the driver that belong to this job."""
        return {SENT_FROM: self.sent_from} if self.sent_from else {}


def make_submission(
    job: Work,
    file: Path,
    run: str,
    name: str | None = None,
    attempt: int = 1,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
    **fields: Any,
) -> Submission:
    """Check the options and name the submission; the default name is the run's last part.

    Args:
        fields: further fields of the submission.

    Raises:
        JobError: no cluster would accept a name, number or run.
    """
    check_workers(workers)
    if gpus_per_worker is not None and gpus_per_worker < 0:
        raise JobError(f"gpus_per_worker: must be 0 or more, not {gpus_per_worker:g}")
    if attempt < 1:
        raise JobError(f"attempt: must be at least 1, not {attempt}")
    if fields.get("cpus_per_worker", 1) < 1:
        raise JobError(f"cpus_per_worker: must be at least 1, not {fields['cpus_per_worker']}")
    training = job if isinstance(job, SentTraining) else None
    given = training.content() if training else job.model_dump(mode="json", exclude_unset=True)  # type: ignore[union-attr]
    return Submission(
        folder=training.folder if training else file.parent,
        file="" if training else file.name,
        run=run,
        name=plain_name(run) if name is None else check_name(name),
        digest=digest(given | {"run": run})[:8],
        attempt=attempt,
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        training=training,
        sent_from="" if isinstance(job, SentTraining) else f"{socket.gethostname()}:{job.folder}",
        **fields,
    )


def check_name(name: str) -> str:
    """The name unchanged.

    Raises:
        JobError: Kubernetes would refuse it.
    """
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or len(name) > LONGEST_NAME:
        raise JobError(
            f"name: must be lower-case letters, digits and '-', at most {LONGEST_NAME} (Kubernetes takes no other), "
            f"not {quoted(name)}"
        )
    return name


def plain_name(run: str) -> str:
    """The last part of a run's path as a valid name; 'run' if none of its characters is valid."""
    last = re.sub(r"[^a-z0-9]+", "-", run.rstrip("/").rpartition("/")[2].lower())
    return last.strip("-")[:LONGEST_NAME].strip("-") or "run"


def command(submission: Submission, file: str, address: str | None = "auto") -> list[str]:
    """The command that the cluster runs: the one that a user would give, so that it resumes where another stopped.

    Args:
        file: the job file there; for a training, the folder of its module, or empty for the current folder.
    """
    training = submission.training
    if training is None:
        words = ["landscape", "run", file]
    else:
        words = ["landscape", "train", training.what]
        if training.problem is not None and file:
            words += ["--folder", file.rstrip("/")]
    words += ["--run", submission.run]
    if address is not None:
        words += ["--address", address]
    if submission.workers is not None:
        words += ["--workers", str(submission.workers)]
    if submission.gpus_per_worker is not None:
        words += ["--gpus-per-worker" if training else "--num-gpus", f"{submission.gpus_per_worker:g}"]
    if submission.accept_origin and training is None:
        words += ["--accept-origin"]
    words += submission.further
    if submission.log_format != "text":
        words += ["--log-format", submission.log_format]
    return [*words, *(training.options if training else ())]


def first_line(text: str, limit: int = 300) -> str:
    """The first line of a text that is not blank, cut to `limit` characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:limit] if lines else ""


def tool_missing(tool: str, target: str) -> LandscapeError:
    """The error if the program that sends to a target is not installed here."""
    return LandscapeError(
        f"{target}: {tool} is not on the PATH of this machine; give the command where it is, "
        f"or write what it would send with --dry-run and send that"
    )


def job_state(identifier: str, target: str, place: str, state: str, **fields: Any) -> dict[str, Any]:
    """The state of a job, in the same form for every target, with the keys that `--json` prints.

    Args:
        place: the address, or the namespace.
        fields: the other keys: since, exit_code, entrypoint, message, run.
    """
    texts = {name: flat(str(fields.pop(name, "") or "")) for name in ("entrypoint", "message", "run")}
    document = {"id": identifier, "target": target, "place": place, "state": flat(state).upper() or "UNKNOWN"}
    return document | fields | texts


ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def next_attempt(base: str, known: dict[str, str]) -> int:
    """The first attempt without a job on the cluster.

    Args:
        known: submission id → status.

    Raises:
        LandscapeError: an earlier attempt has not ended.
    """
    numbers = [0]
    for name, status in known.items():
        found = re.fullmatch(rf"{re.escape(base)}-(\d+)", name)
        if found is None:
            continue
        if status not in ENDED:
            raise LandscapeError(
                f"submit: this job is on the cluster already, {status.lower()} as {name}; "
                f"see landscape logs {name}, or end it with landscape cancel {name}"
            )
        numbers.append(int(found[1]))
    return max(numbers) + 1


# ----------------------------------------------------------------------------------------------------
# A small file in the user's home that holds the cluster of each sent job: so `logs`, `status` and `cancel` need no more
# than an identifier.
#
# It holds no token and no password. If it cannot be read or written, a line says so, and the command continues.

MOST_JOBS = 500
LARGEST_FILE = 1 << 20
LOCK_SECONDS = 5.0


@dataclass(frozen=True)
class SentJob:
    """A sent job as this machine remembers it.

    Attributes:
        target: ray, kuberay or slurm.
        address: of Ray's dashboard, without a password.
        namespace: of Kubernetes; empty for kubectl's default.
        log: the file to which Slurm writes the job's log.
    """

    target: str
    run: str = ""
    address: str = ""
    namespace: str = ""
    log: str = ""
    allow_open: bool = False
    sent: str = ""


def jobs_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file, in the state folder of the XDG specification; None without a home folder."""
    folder = folder_of_user("XDG_STATE_HOME", ".local/state", environment)
    return folder and folder / "jobs.json"


def remember(identifier: str, job: SentJob) -> None:
    """Remember a job by its identifier; the oldest ones are dropped."""
    from filelock import FileLock, Timeout

    file = jobs_file()
    if file is None:
        return
    entry = asdict(job) | {"address": plain_address(job.address), "sent": job.sent or _now()}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock"), timeout=LOCK_SECONDS, mode=0o600):
            jobs = {name: asdict(record) for name, record in _read(file).items()}
            jobs.pop(identifier, None)
            jobs[identifier] = entry
            _write(file, dict(list(jobs.items())[-MOST_JOBS:]))
    except (OSError, Timeout) as error:
        reason = getattr(error, "strerror", None) or "another process holds it"
        write_remark(
            f"{identifier} is not remembered in {quoted(str(file))} ({reason}); give its --address from now on"
        )


def recall(identifier: str) -> SentJob | None:
    """The remembered job; None if it is unknown."""
    file = jobs_file()
    return None if file is None else _read(file).get(identifier)


def plain_address(address: str) -> str:
    """An address without user, password and query, which may hold keys."""
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _read(file: Path) -> dict[str, SentJob]:
    """All jobs, the oldest first; no jobs, and a remark, if the file is not one that `_write` made."""
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
            # A user who can write the file could have this user's token sent to another address.
            return _pass_over(file, "others can write it: chmod 600")
        content = stream.read(LARGEST_FILE + 1)
    try:
        return _parse(content)
    except ValueError:
        return _pass_over(file, "it holds no list of jobs")


def _pass_over(file: Path, reason: str) -> dict[str, SentJob]:
    write_remark(f"the list of sent jobs {quoted(str(file))} is passed over: {reason}")
    return {}


def _parse(content: bytes) -> dict[str, SentJob]:
    """The jobs in a file's content; raises ValueError unless `_write` wrote it."""
    from pydantic import TypeAdapter

    if len(content) > LARGEST_FILE:
        raise ValueError("too large")
    return TypeAdapter(dict[str, SentJob]).validate_json(content, strict=True)


def _write(file: Path, jobs: dict[str, Any]) -> None:
    """Write the file atomically, readable by this user alone."""
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
