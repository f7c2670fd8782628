"""How far the training of a run is, as its files tell: its last start, its history and its checkpoints. Only reads."""

from __future__ import annotations

import shlex
from typing import Any

from landscape.arguments import is_number
from landscape.folders import Folder, Place, open_folder
from landscape.folders.lock import training_alive
from landscape.trajectory.checkpoint_names import checkpoint_numbers
from landscape.trajectory.history import read_last_lines
from landscape.trajectory.launch import DONE, INTERRUPTED, RUNNING, Launch, read_launch
from landscape.trajectory.run_files import read_info

LAST_LINES = 100  # of the history, among which there is one with a loss, and one of an epoch


def training_state(run: Place) -> dict[str, Any] | None:
    """How far the training of a run is; None where the run tells of none.

    Returns:
        A dict of plain values: `state` ("running", "done", "interrupted", "failed"; None of a training that
        `landscape train` did not begin), `function` and `workers` of the last start (None likewise), `steps` and
        `epochs` that the history has, its last finite `loss`, `checkpoint` (the number of the last one, which is its
        step), `reason` (why it failed, else empty), and `next` (the command to give now; empty where there is none).

    Raises:
        LandscapeError: the history or run.json cannot be read, or the object store does not answer.
    """
    folder = open_folder(run)
    launch, numbers = read_launch(folder), checkpoint_numbers(folder)
    alive = training_alive(folder.name)
    lines = read_last_lines(folder, LAST_LINES)
    if not (launch or numbers or alive or lines):
        return None
    state = _state(launch, alive)
    return {
        "state": state,
        "function": launch.function if launch else None,
        "workers": launch.workers if launch else None,
        "steps": _last(lines, "step"),
        "epochs": _epochs(lines),
        "loss": _last(lines, "loss"),
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


def _last(lines: list[dict[str, Any]], name: str) -> Any:
    """The last finite number of this name; None where no line has one."""
    return next((line[name] for line in reversed(lines) if is_number(line.get(name))), None)


def _epochs(lines: list[dict[str, Any]]) -> int | None:
    """How many epochs have ended: a step's line has the number of the epoch that it belongs to."""
    for line in reversed(lines):
        epoch = line.get("epoch")
        if isinstance(epoch, int):
            return epoch if line.get("epoch_end") else max(0, epoch - 1)
    return None
