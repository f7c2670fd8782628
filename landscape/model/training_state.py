"""How far the training of a run is, as its files tell: its last start, its history and its checkpoints. Only reads."""

from __future__ import annotations

import shlex
from typing import Any

from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.core.lock import training_alive
from landscape.model.checkpoint_names import checkpoint_numbers
from landscape.model.history import LogEnd
from landscape.model.launch import DONE, INTERRUPTED, RUNNING, Launch, read_launch
from landscape.model.run_files import read_info
from landscape.model.snapshots import Snapshot


def training_state(run: Place, end: LogEnd | None) -> dict[str, Any] | None:
    """How far the training of a run is; None where the run tells of none.

    Args:
        end: where its log ends, as `log_end` has it.

    Returns:
        A dict of plain values: `state` ("running", "done", "interrupted", "failed"; None of a training that
        `landscape train` did not begin), `function` and `workers` of the last start (None likewise), `steps` and
        `epochs` that the history has, the `loss` at its end as `log_end` has it, `loss_not_finite` (that the
        log ends without a finite one, in words; empty where it has one), `checkpoint` (the number of the last one,
        which is its step), `reason` (why it failed, else empty), and `next` (the command to give now; empty where
        there is none).

    Raises:
        LandscapeError: the history or run.json cannot be read, or the object store does not answer.
    """
    folder = open_folder(run)
    launch, numbers = read_launch(folder), checkpoint_numbers(folder)
    alive = training_alive(folder.name)
    if not (launch or numbers or alive or end):
        return None
    state = _state(launch, alive)
    return {
        "state": state,
        "function": launch.function if launch else None,
        "workers": launch.workers if launch else None,
        "steps": end.step if end else None,
        "epochs": end.epoch if end else None,
        "loss": end.loss if end else None,
        "loss_not_finite": end.not_finite if end else "",
        "checkpoint": numbers[-1] if numbers else None,
        "reason": launch.reason if launch and not alive else "",
        "next": _next(launch, state, folder),
    }


def _state(launch: Launch | None, alive: bool) -> str | None:
    if alive:
        return RUNNING
    if launch is None:
        return None
    # A driver that was killed could not say so.
    return INTERRUPTED if launch.outcome == RUNNING else launch.outcome


def _next(launch: Launch | None, state: str | None, folder: Folder) -> str:
    run = folder.name
    if state == RUNNING:
        return f"landscape logs {shlex.quote(run)} --rank 0 --follow" if launch else ""
    if state == DONE:  # without a collector there is nothing to draw
        return f"landscape view {shlex.quote(run)}" if read_info(folder) else ""
    return launch.command if launch else ""


def went_on_to(end: LogEnd | None, snapshot: Snapshot) -> str:
    """How far the log of a run goes beyond a snapshot, such as `epoch 12`, or `epoch 12 (no finite loss)`.

    Empty where the training ended with the snapshot, as far as its log tells.

    Args:
        end: where the log ends, as `log_end` has it.
    """
    if end is None:
        return ""
    if snapshot.step is not None and end.step is not None:
        goes_on = end.step > snapshot.step
    else:
        last = end.epoch if snapshot.unit == "epoch" else end.step
        goes_on = last is not None and last > snapshot.number
    if not goes_on:
        return ""
    of_epochs = snapshot.unit == "epoch" and end.epoch is not None and end.epoch > snapshot.number
    lost = "" if end.is_finite else " (no finite loss)"
    return (f"epoch {end.epoch}" if of_epochs or end.step is None else f"step {end.step}") + lost
