"""The retry rules: whether a task that failed is tried again, is given up, or ends the job.

A serial run (`landscape/compute/tasks.py`), the schedule of a cluster (`cluster/driver/schedule.py`) and the
workers (`cluster/driver/worker.py`) ask this file. What becomes of a task depends on
counts alone, but for the errors that are never retried; which worker tries a task next is the schedule's choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from landscape.core.errors import JobError

Fate = Literal["retry", "quarantine"]


class NotRetried(JobError):
    """An error that another attempt would not mend, so that the job ends instead of giving up a task."""


@dataclass(frozen=True)
class RetryRule:
    """How often a task may fail.

    Attributes:
        attempts: exceptions of user code until the task is given up.
        kills: workers that die while they run it until the task is given up.
    """

    attempts: int = 3
    kills: int = 3

    def after_exception(self, exceptions: int) -> Fate:
        """What becomes of a task whose user code has just raised.

        Args:
            exceptions: how often it has raised so far, this time included.
        """
        return "quarantine" if exceptions >= self.attempts else "retry"

    def after_death(self, kills: int) -> Fate:
        """What becomes of a task that has just come back from a worker that is gone.

        Args:
            kills: how many workers died while they ran it; one that was lost with its node is not among them.
        """
        return "quarantine" if kills >= self.kills else "retry"
