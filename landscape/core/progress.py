"""The progress of a landscape, the stages before its first point, and the rule for tasks that fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Progress:
    """How far one landscape is.

    Args:
        tasks_done: how many of all `tasks` are committed, by this session or an earlier one.
        points_done: how many of all `points` are done; evaluations of the path count too.
        seconds: of all sessions together.
        rate: points per second over this session.
        failures: tasks that were given up and have not been done since.
        workers: how many compute now.
        retries: how many tasks were sent again.
        given_up: points that this session gave up; a later session tries them again.
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
STARTING_WORKERS = "starting workers"
stages = logging.getLogger("landscape.stages")


def stage(name: str) -> None:
    """Log what a job does now; the logger `landscape.stages` is silent unless somebody listens to it."""
    stages.info("%s", name, extra={"event": "stage", "fields": {"stage": name}})


Observer = Callable[[Progress], None]


# ----------------------------------------------------------------------------------------------------
# Whether a failed task is tried again or given up, in serial runs and in the schedule of a cluster. Counts alone
# decide, except for `NotRetried`, which ends the job; the schedule chooses the worker that tries a task next.

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
        """The fate of a task whose user code has just raised.

        Args:
            exceptions: how often it has raised so far, this time included.
        """
        return "quarantine" if exceptions >= self.attempts else "retry"

    def after_death(self, kills: int) -> Fate:
        """The fate of a task that has just come back from a dead worker.

        Args:
            kills: how many workers died while they ran it, without those that were lost with their node.
        """
        return "quarantine" if kills >= self.kills else "retry"
