"""How far a landscape is, as values that an observer is told; and what a job does between them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, Strict

Text = Annotated[str, Strict()]


@dataclass(frozen=True)
class Failure:
    """A task that was given up: what it was, how often and where it was tried, and why it failed."""

    task: Text
    attempts: Annotated[int, Strict(), Field(ge=0, lt=1 << 53)]
    worker: Text
    cause: Text
    traceback: Text = ""
    host: Text = ""
    node: Text = ""


@dataclass(frozen=True)
class Progress:
    """Points and tasks done of one landscape, the rate over this session, and what is left."""

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

    @property
    def eta(self) -> float:
        """Seconds left at the present rate; infinite before the first task is done."""
        return (self.points - self.points_done) / self.rate if self.rate > 0 else float("inf")


PREPARING, CHOOSING = "loading the problem and its samples", "measuring a point and choosing an engine"
stages = logging.getLogger("landscape.stages")


def stage(what: str) -> None:
    """Say what a job does now, before and between its points; nobody hears it unless asked to."""
    stages.info("%s", what, extra={"event": "stage", "fields": {"stage": what}})


Observer = Callable[[Progress], None]
