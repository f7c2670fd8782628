"""`landscape submit --target slurm`: its options, and the sending."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Whole
from cluster.runtime.shipping import travelling_folder
from cluster.submit.options import SubmitOptions
from landscape.core.errors import JobError, shown

if TYPE_CHECKING:
    from cluster.submit.work import Work


@dataclass(frozen=True)
class SlurmTarget:
    """Slurm, through sbatch."""

    nodes: Whole = 1
    """Over how many nodes the workers are spread."""
    time: str | None = None
    """The time limit of one allocation; at its end the job is requeued and goes on."""
    partition: str | None = None
    """The partition."""
    account: str | None = None
    """The account."""
    setup: str | None = None
    """A line of shell that makes `landscape` available, such as 'source venv/bin/activate'."""

    def send(self, asked: SubmitOptions, job: Work, file: Path) -> int:
        """Send the job, or with --dry-run print the script; the exit code."""
        from cluster.submit.checks import refuse_missing_files
        from cluster.submit.sbatch import send
        from cluster.submit.sent_jobs import SentJob, remember
        from cluster.submit.slurm import SlurmOptions, render

        refuse_missing_files(job)
        submission = asked.submission(job, file, job.run_path)
        options = SlurmOptions(
            nodes=self.nodes,
            cpus_per_worker=asked.cpus(job),
            time=self.time,
            partition=self.partition,
            account=self.account,
            memory=asked.memory,
            setup=self.setup,
        )
        script = render(submission, options)
        if asked.include:
            raise JobError("include: nothing travels to Slurm, whose nodes read the folder itself; leave it out")
        if asked.dry_run:
            folder = shown(str(travelling_folder(job.folder)))
            write_remark(f"nothing travels: the nodes read {folder} itself, and must see it under this name")
        asked.look(job, file, submission.run)
        if asked.dry_run:
            sys.stdout.write(script)
            return 0
        number = send(script)
        log = Path(f"{submission.base}-{number}.log").absolute()
        remember(number, SentJob("slurm", submission.run, log=str(log)))
        print(number, flush=True)
        write_remark(f"sent; follow it with: tail -F {submission.base}-{number}.log; stop it with: scancel {number}")
        return 0
