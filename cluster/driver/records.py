"""What happened to the tasks that did not simply succeed."""

from __future__ import annotations

from collections.abc import Hashable, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass
class Record:
    """What happened to one task so far.

    Attributes:
        exceptions: how often user code raised.
        kills: how many workers died while they ran it.
        avoid: workers that failed it or have answered it.
        votes: worker → fingerprint of its answer, where one of the answers was suspicious.
    """

    exceptions: int = 0
    kills: int = 0
    avoid: set[str] = field(default_factory=set)
    votes: dict[str, str] = field(default_factory=dict)

    def vote(self, worker: str, fingerprint: str) -> tuple[list[str], tuple[str, ...]]:
        """Note a worker's answer; the workers whose answer is the same, and those whose answer differs."""
        self.votes[worker] = fingerprint
        agreeing = [voter for voter, vote in self.votes.items() if vote == fingerprint]
        return agreeing, tuple(voter for voter in self.votes if voter not in agreeing)


class Records(Generic[T]):
    """The records of tasks; a task without one has had no trouble."""

    def __init__(self) -> None:
        self._records: dict[T, Record] = {}

    def of(self, task: T) -> Record:
        """The task's record, to be changed."""
        return self._records.setdefault(task, Record())

    def drop(self, task: T) -> None:
        """Forget a task that is done."""
        self._records.pop(task, None)

    def attempts(self, task: T) -> int:
        """How often a task has failed so far, by exceptions and by dead workers."""
        record = self._records.get(task)
        return record.exceptions + record.kills if record else 0

    def kills(self, task: T) -> int:
        """How many workers died while they ran the task."""
        record = self._records.get(task)
        return record.kills if record else 0

    def avoid(self, task: T) -> Set[str]:
        """The workers that failed the task or have answered it."""
        record = self._records.get(task)
        return record.avoid if record else frozenset()

    def is_disputed(self, task: T) -> bool:
        """Whether a suspicious answer to the task waits for a second opinion."""
        record = self._records.get(task)
        return record is not None and bool(record.votes)
