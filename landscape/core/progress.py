"""How far a landscape is, the stages before its first point, and what becomes of a task that failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, Strict

Text = Annotated[str, Strict()]


@dataclass(frozen=True)
class Failure:
    """A task that was given up: what it was, how often and where it was tried last, and why it failed.

    Its types are checked where a document is read (`surface/record.py`), which may hold anything.
    """

    task: Text
    attempts: Annotated[int, Strict(), Field(ge=0, lt=1 << 53)]
    worker: Text
    cause: Text
    traceback: Text = ""
    host: Text = ""
    node: Text = ""


@dataclass(frozen=True)
class Progress:
    """How far one landscape is.

    Args:
        tasks_done: of the `tasks` in all, those that are committed or were so before this session.
        points_done: of the `points` in all, the evaluations of the path among them.
        seconds: of all sessions together.
        rate: points per second over this session.
        failures: tasks that were given up and have not been done since.
        workers: that compute now.
        retries: tasks that were sent a second time.
        given_up: points that this session gave up; a later one tries them again.
    """

    landscape: str
    tasks_done: int
    tasks: int
    points_done: int
    points: int
    seconds: float
    rate: float
    failures: int = 0
    workers: int = 1
    retries: int = 0
    given_up: int = 0

    @property
    def left(self) -> int:
        """Points that are neither done nor given up."""
        return self.points - self.points_done - self.given_up

    @property
    def eta(self) -> float:
        """Seconds left at the present rate; infinite before the first task is done."""
        return self.left / self.rate if self.rate > 0 else float("inf")


PREPARING, CHOOSING = "loading the problem and its samples", "measuring a point and choosing an engine"
stages = logging.getLogger("landscape.stages")


def stage(what: str) -> None:
    """Log what a job does now; the logger `landscape.stages` is silent unless somebody listens to it."""
    stages.info("%s", what, extra={"event": "stage", "fields": {"stage": what}})


Observer = Callable[[Progress], None]


# ----------------------------------------------------------------------------------------------------
# Whether a task that failed is tried again or given up, as serial runs and the schedule of a cluster ask. Counts alone
# decide, except for `NotRetried`, which ends the job; the schedule chooses which worker tries a task next.

Fate = Literal["retry", "quarantine"]


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
