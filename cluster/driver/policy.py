"""The numbers behind the schedule's decisions, and its answers.

When a task is tried again: `landscape/core/errors.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from landscape.core.errors import RetryRule

Verdict = Literal["commit", "check", "ignore", "quarantine"]


@dataclass(frozen=True)
class Policy:
    """The numbers behind the decisions: counts, seconds, and multiples of the median seconds of tasks of a kind.

    Backups follow cubed's rule (`runtime/backup.py`): enough tasks done to know the median, and a task far over it.
    """

    in_flight: int = 2  # so that the next task is at the worker when it ends one
    attempts: int = RetryRule.attempts
    kills: int = RetryRule.kills
    straggler_factor: float = 3.0
    straggler_done: int = 10
    hang_factor: float = 20.0
    hang_seconds: float = 300.0
    confirmations: int = 2  # of suspicious answers by other workers, until a worker is believed
    longest_step: float = 30.0  # a clock that jumps further than this, or back, says nothing about the tasks

    @property
    def retry_rule(self) -> RetryRule:
        """When a task that failed is tried again, and when it is given up."""
        return RetryRule(self.attempts, self.kills)


@dataclass(frozen=True)
class Answer:
    """What to do with a result, and which workers turned out to be wrong."""

    verdict: Verdict
    distrusted: tuple[str, ...] = ()
