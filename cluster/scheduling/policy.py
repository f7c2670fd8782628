"""The numbers behind the schedule's decisions, and the words it decides in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["commit", "check", "ignore", "quarantine"]
Fate = Literal["retry", "quarantine"]


@dataclass(frozen=True)
class Policy:
    """The numbers behind the decisions. Seconds, and multiples of the median task.

    Backups follow cubed's rule (`runtime/backup.py`): enough tasks done to know the median, and a task far over it.
    """

    in_flight: int = 2  # the next task is at the worker when it ends one
    attempts: int = 3  # exceptions of user code before a task is given up
    kills: int = 3  # workers that die over a task before it is given up
    straggler_factor: float = 3.0
    straggler_done: int = 10
    hang_factor: float = 20.0
    hang_seconds: float = 300.0
    confirmations: int = 2  # suspicious answers of a worker that others confirmed, until it is believed
    longest_step: float = 30.0  # a clock that jumps further than this, or back, says nothing about the tasks


@dataclass
class Record:
    """What happened to one task so far."""

    exceptions: int = 0
    kills: int = 0
    avoid: set[str] = field(default_factory=set)  # workers that failed it or have answered it
    votes: dict[str, str] = field(default_factory=dict)  # worker → fingerprint of its suspicious answer


@dataclass(frozen=True)
class Answer:
    """What to do with a receipt, and which workers turned out to be wrong."""

    verdict: Verdict
    distrusted: tuple[str, ...] = ()
