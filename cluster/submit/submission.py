"""One job on its way to a cluster: its name, its attempt, its run, and the command that the cluster runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.runtime.options import checked_workers
from cluster.submit.work import SentTraining, Work
from landscape.core.digests import digest
from landscape.core.errors import JobError, LandscapeError, shown

# KubeRay refuses names above 47 characters; "landscape-", a digest of 8 and an attempt leave this many.
LONGEST_NAME = 24
# A driver that is told to stop has so long to commit what is in flight. Ray's default is 3 s until SIGKILL.
STOP_SECONDS = 60
# What a driver on a cluster finds in its environment. A job ships its folder with its runtime environment, and the
# driver ships it once more to its workers: without the second variable Ray takes that for a conflict.
DRIVER_ENVIRONMENT = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS), "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}


@dataclass(frozen=True)
class Submission:
    """One job on its way to a cluster.

    Attributes:
        folder: the job file's folder, as the user named it; of a training, that of its module.
        file: the job file's name in it; empty for a training.
        run: an absolute folder or a URL; a relative one would lie in the shipped copy, and be lost with it.
        digest: 8 hexadecimal digits of the job and its run: the same job has the same name again.
        attempt: from 1; Ray and Kubernetes take each name once.
        log_format: what the driver's log is there: the one of the command that sends it.
        training: what is trained; None for a job of landscapes.
        accept_origin: whether a landscape of another model than the user's own is computed, with a warning.
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

    @property
    def base(self) -> str:
        """The part of the identifier that all attempts of this job share."""
        return f"landscape-{self.name}-{self.digest}"

    @property
    def id(self) -> str:
        """The identifier of this attempt."""
        return f"{self.base}-{self.attempt}"


def make_submission(
    job: Work,
    file: Path,
    run: str,
    name: str | None = None,
    attempt: int = 1,
    workers: int | None = None,
    gpus_per_worker: float | None = None,
) -> Submission:
    """Check the options and name the submission; the default name is the run's last part.

    Raises:
        JobError: a name, number or run that no cluster could take.
    """
    checked_workers(workers)
    if gpus_per_worker is not None and gpus_per_worker < 0:
        raise JobError(f"gpus_per_worker: must be 0 or more, not {gpus_per_worker:g}")
    if attempt < 1:
        raise JobError(f"attempt: must be at least 1, not {attempt}")
    training = job if isinstance(job, SentTraining) else None
    given = training.content() if training else job.model_dump(mode="json", exclude_unset=True)  # type: ignore[union-attr]
    return Submission(
        folder=training.folder if training else file.parent,
        file="" if training else file.name,
        run=run,
        name=plain_name(run) if name is None else checked_name(name),
        digest=digest(given | {"run": run})[:8],
        attempt=attempt,
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        training=training,
    )


def checked_name(name: str) -> str:
    """A name as given.

    Raises:
        JobError: Kubernetes would refuse it.
    """
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) or len(name) > LONGEST_NAME:
        raise JobError(
            f"name: must be lower-case letters, digits and '-', at most {LONGEST_NAME} (Kubernetes takes no other), "
            f"not {shown(name)}"
        )
    return name


def plain_name(run: str) -> str:
    """The last part of a run's path, made to fit; 'run' where nothing of it does."""
    last = re.sub(r"[^a-z0-9]+", "-", run.rstrip("/").rpartition("/")[2].lower())
    return last.strip("-")[:LONGEST_NAME].strip("-") or "run"


def number(value: float) -> str:
    """A number as it is written on a command line."""
    return f"{value:g}"


def command(submission: Submission, file: str, address: str | None = "auto") -> list[str]:
    """The command that the cluster runs; it is the one a user would give, so it goes on where another stopped.

    Args:
        file: the job file there; of a training, the folder of its module, or empty for the current one.
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
        words += ["--gpus-per-worker" if training else "--num-gpus", number(submission.gpus_per_worker)]
    if submission.accept_origin and training is None:
        words += ["--accept-origin"]
    if submission.log_format != "text":
        words += ["--log-format", submission.log_format]
    return [*words, *(training.options if training else ())]


def quoted(words: Iterable[str]) -> str:
    """Words as one line of shell."""
    return shlex.join(words)


def first_line(text: str, limit: int = 300) -> str:
    """The first line of a text that holds anything, cut to `limit` characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:limit] if lines else ""


def tool_missing(tool: str, target: str) -> LandscapeError:
    """The error where the program that sends to a target is not installed here."""
    return LandscapeError(
        f"{target}: {tool} is not on the PATH of this machine; give the command where it is, "
        f"or write what it would send with --dry-run and send that"
    )
