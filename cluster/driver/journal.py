"""What a driver logs of its workers and tasks: one function per event, with its message and its fields."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cluster.runtime.logs import TASKS, event_fields, relay
from landscape.compute.reproducibility import Witness
from landscape.compute.reuse import Task
from landscape.core.errors import Failure

if TYPE_CHECKING:
    from cluster.driver.protocol import WorkerHandle
    from cluster.driver.worker import Receipt

workers = logging.getLogger("landscape")
# A job may give up thousands of tasks, and `status` lists them: in text logs they do not appear one by one.
tasks = logging.getLogger(TASKS)


def _place(worker: WorkerHandle) -> dict[str, str]:
    return {"worker": worker.name, "host": worker.host, "node": worker.node}


def ready(worker: WorkerHandle) -> None:
    """A worker has loaded the problem."""
    workers.info(
        "%s is ready",
        worker.place,
        extra=event_fields("worker-ready", **_place(worker), pid=worker.pid, device=worker.device),
    )


def tuned(warning: str) -> None:
    """The search for the fastest engine warns of something."""
    workers.warning("%s", warning, extra=event_fields("tuned", cause=warning))


def leaves(worker: WorkerHandle) -> None:
    """A worker ends because its node is about to be taken away."""
    workers.warning("%s leaves with its node", worker.place, extra=event_fields("worker-leaves", **_place(worker)))


def lost(worker: WorkerHandle, cause: str) -> None:
    """A worker is gone or unusable."""
    workers.warning(
        "%s is lost (%s); its tasks go back to the queue", worker.place, cause,
        extra=event_fields("worker-lost", cause=cause, pid=worker.pid, **_place(worker)),
    )  # fmt: skip


def left_out(worker: WorkerHandle, landscape: str, witness: Witness, difference: str, agreeing: int) -> None:
    """A worker gets no tasks, as its values have other bits."""
    workers.warning(
        "%s is left out: its processor, %s, computes other values for landscape %r than this run holds (%s), which %d "
        "%s so far", worker.place, witness.processor, landscape, difference, agreeing,
        "worker agrees with" if agreeing == 1 else "workers agree with",
        extra=event_fields(
            "worker-left-out", landscape=landscape, cause=difference, processor=witness.processor, **_place(worker)
        ),
    )  # fmt: skip


def outnumbered(landscape: str, processor: str, left_out: int, agreeing: int) -> None:
    """The first worker's values are kept, though it may be the odd one."""
    workers.warning(
        "landscape %r holds the values of the first worker, on %s, with which %d of %d workers agree; where that one "
        "is the odd one, stop, leave out its node, and give the landscape another name",
        landscape, processor or "a processor that is not recorded", agreeing, agreeing + left_out,
        extra=event_fields(
            "outnumbered", landscape=landscape, processor=processor, left_out=left_out, agreeing=agreeing
        ),
    )  # fmt: skip


def absent(text: str) -> None:
    """No worker has been placed for long; the text says why."""
    workers.warning("%s", text, extra=event_fields("no-worker", cause=text))


def done(worker: WorkerHandle, task: Task, attempt: int, points: int, seconds: float) -> None:
    """A task is committed."""
    fields = event_fields(
        "task-done", landscape=task.landscape, task=task.label, attempt=attempt, points=points,
        seconds=round(seconds, 6), **_place(worker),
    )  # fmt: skip
    tasks.info("%s is done", task.label, extra=fields)


def failed(worker: WorkerHandle, task: Task, attempt: int, receipt: Receipt) -> None:
    """User code raised; the schedule decides whether it is tried again."""
    fields = event_fields(
        "task-failed", landscape=task.landscape, task=task.label, attempt=attempt, cause=receipt.cause,
        traceback=receipt.traceback, **_place(worker),
    )  # fmt: skip
    tasks.warning("%s failed: %s", task.label, receipt.cause, extra=fields)


def given_up(landscape: str, failure: Failure) -> None:
    """A task is quarantined."""
    fields = event_fields(
        "task-given-up", landscape=landscape, task=failure.task, worker=failure.worker, host=failure.host,
        node=failure.node, attempt=failure.attempts, cause=failure.cause, traceback=failure.traceback,
    )  # fmt: skip
    tasks.error("%s is given up: %s", failure.task, failure.cause, extra=fields)


def said(worker: WorkerHandle, receipt: Receipt) -> None:
    """Log what the worker itself logged while it did what it was asked."""
    relay(receipt.said, worker.name, worker.host, worker.node)
