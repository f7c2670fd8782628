"""`landscape submit --target ray`: its options, and the sending."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.runtime.logs import write_remark
from cluster.runtime.options import Flag
from cluster.submit.options import SubmitOptions, tell_files, watched, write_error

if TYPE_CHECKING:
    from cluster.submit.work import Work


@dataclass(frozen=True)
class RayTarget:
    """A Ray cluster that is there, through its dashboard."""

    address: str | None = None
    """The dashboard's URL; default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, http://127.0.0.1:8265."""
    detach: Flag = False
    """End when the job is accepted."""
    allow_open: Flag = False
    """Also send to a cluster that is not on this machine and asks for no token."""

    def send(self, asked: SubmitOptions, job: Work, file: Path) -> int:
        """Send the job and follow its log, or with --dry-run print what would be sent; the exit code."""
        from cluster.submit.attempts import next_attempt
        from cluster.submit.checks import folder_listing
        from cluster.submit.jobs import attempts, render, send
        from cluster.submit.log import follow
        from cluster.submit.ray_jobs import connect, dashboard_address
        from cluster.submit.sent_jobs import SentJob, remember

        submission = asked.submission(job, file, job.run_path)
        listing = folder_listing(job, file, submission.run, asked.include or ())
        tell_files(listing, asked.dry_run)
        if asked.dry_run:
            asked.look(job, file, submission.run, listing)
            print(json.dumps(render(submission, listing), indent=2))
            return 0
        client = connect(self.address, self.allow_open)
        if asked.attempt is None:
            number = next_attempt(submission.base, attempts(client))
            submission = replace(submission, attempt=number)
        asked.look(job, file, submission.run, listing)
        identifier = send(client, render(submission, listing), listing)
        address = dashboard_address(self.address)
        remember(identifier, SentJob("ray", submission.run, address, allow_open=self.allow_open))
        print(identifier, flush=True)
        if self.detach:
            write_remark(
                f"sent; see landscape logs {identifier} --follow, or end it with landscape cancel {identifier}"
            )
            return 0
        return watched(identifier, lambda: follow(client, identifier, write_error))
