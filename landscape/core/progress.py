"""How far a landscape is, as the values that observers get, and the stages of a job before its first point."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, Strict

Text = Annotated[str, Strict()]


@dataclass(frozen=True)
class Failure:
    """A task that was given up: what it was, how often and where it was tried last, and why it failed.

    Its types are checked where a file is read (`landscape.record`), as anything may stand there.
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
