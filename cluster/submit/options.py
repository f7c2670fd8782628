"""What `landscape submit` is told of any target, and what it prints for all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.runtime.logs import as_json, write_remark, write_remark_lines
from cluster.runtime.options import Flag, MaybeNumber, MaybeWhole, Words
from landscape.core.errors import Interrupted

if TYPE_CHECKING:
    from cluster.runtime.shipping import Listing
    from cluster.submit.submission import Submission
    from cluster.submit.work import Work
    from landscape.job.job import Job


@dataclass(frozen=True)
class SubmitOptions:
    """The options of `landscape submit` for every target."""

    dry_run: Flag = False
    """Print exactly what would be sent, and send nothing. No cluster is asked."""
    name: str | None = None
    """Part of the identifier; default: the run's last part."""
    run: str | None = None
    """The run instead of the file's: a folder that the cluster sees, or a URL."""
    attempt: MaybeWhole = None
    """The number in the identifier; default: the first that is free, 1 in a dry run."""
    workers: MaybeWhole = None
    """How many workers evaluate; kuberay: one pod each."""
    gpus_per_worker: MaybeNumber = None
    """GPUs of each worker."""
    cpus_per_worker: MaybeWhole = None
    """kuberay, slurm: CPU cores of each worker; default: the job's threads, 2 with a GPU."""
    memory: str | None = None
    """slurm: memory of a node, kuberay: of a worker, such as 16G and 16Gi."""
    include: Words = None
    """ray, kuberay: a further file or folder beside the job that travels; may be repeated."""
    accept_origin: Flag = False
    """Go on, with a warning that the landscape keeps, where your model has another loss by its own forward pass."""
    no_look: Flag = False
    """Send without trying out the callback here; for one that needs what only the cluster has."""

    def of_job(self, target: str, job: Job) -> SubmitOptions:
        """With what the job file says of workers; a driver on a Ray cluster reads it there itself."""
        if target == "ray":
            return self
        return replace(
            self,
            workers=job.workers if self.workers is None else self.workers,
            gpus_per_worker=job.num_gpus if self.gpus_per_worker is None else self.gpus_per_worker,
        )

    def look(self, job: Work, file: Path, run: str, listing: Listing | None = None) -> None:
        """Try out the job here, and compare what its callback opens with what travels (no listing: all is there).

        Raises:
            JobError: it would fail on the cluster.
        """
        from cluster.submit.dry_run import compare, look
        from cluster.submit.work import SentTraining

        if self.no_look or isinstance(job, SentTraining):  # a training's function and options are checked beforehand
            return
        seen = look(job, file, run)
        for each in (*seen.remarks, *(compare(seen, listing, run) if listing is not None else ())):
            write_remark(each, "look")

    def submission(self, job: Work, file: Path, place: str) -> Submission:
        """The job under its name, its run at `place`."""
        from cluster.submit.submission import make_submission

        number = 1 if self.attempt is None else self.attempt
        made = make_submission(job, file, place, self.name, number, self.workers, self.gpus_per_worker)
        return replace(made, log_format="json" if as_json() else "text", accept_origin=self.accept_origin)

    def cpus(self, job: Work) -> int:
        """A worker without a GPU fills its cores; one with a GPU needs a second one to feed it."""
        if self.cpus_per_worker is not None:
            return self.cpus_per_worker
        return 2 if self.gpus_per_worker else job.threads or 1


def tell_files(listing: Listing, everything: bool) -> None:
    """Say which files are sent and which are not: file by file, or in one line what somebody might miss."""
    from cluster.runtime.shipping import listing_lines, omitted_line

    lines = listing_lines(listing) if everything else [omitted_line(listing)]
    for line in filter(None, lines):
        write_remark(line, "files")


def watched(identifier: str, follow: Callable[[], int]) -> int:
    """Follow a job's log to its end; Ctrl-C ends the following, and not the job."""
    try:
        return follow()
    except KeyboardInterrupt:
        raise Interrupted(
            f"no longer watching; the job goes on: landscape logs {identifier} --follow, landscape cancel {identifier}"
        ) from None


def write_error(text: str) -> None:
    """Write a part of a log to stderr, as events where this command logs JSON."""
    if as_json():
        write_remark_lines(text, "log")
        return
    sys.stderr.write(text)
    sys.stderr.flush()
