"""The numbers behind the schedule's decisions, and the values in which it decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["commit", "check", "ignore", "quarantine"]
Fate = Literal["retry", "quarantine"]


@dataclass(frozen=True)
class Policy:
    """The numbers behind the decisions: counts, seconds, and multiples of the median task's seconds.

    Backups follow cubed's rule (`runtime/backup.py`): enough tasks done to know the median, and a task far over it.
    """

    in_flight: int = 2  # so that the next task is at the worker when it ends one
    attempts: int = 3  # exceptions of user code until a task is given up
    kills: int = 3  # workers that die over a task until it is given up
    straggler_factor: float = 3.0
    straggler_done: int = 10
    hang_factor: float = 20.0
    hang_seconds: float = 300.0
    confirmations: int = 2  # of suspicious answers by other workers, until a worker is believed
    longest_step: float = 30.0  # a clock that jumps further than this, or back, says nothing about the tasks


@dataclass(frozen=True)
class Answer:
    """What to do with a result, and which workers turned out to be wrong."""

    verdict: Verdict
    distrusted: tuple[str, ...] = ()
