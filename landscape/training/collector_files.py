"""How collecting starts: what the run may hold already, and what of it is kept when a training begins or goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, quoted
from landscape.core.files import Folder
from landscape.core.validation import Unit
from landscape.job.job import CollectLandscape
from landscape.model.history import HistoryLines, finite, keep_beside, number_in, read_history, read_lines
from landscape.model.parameters import persistent_buffers
from landscape.model.run_files import HISTORY_FILE, NETWORK, PROBLEM, read_info, refusing_disk_errors, write_info
from landscape.model.snapshots import read_trajectory, replace_trajectory, snapshot_files, staging, versions

log = logging.getLogger("landscape")

# The keys in which two starts of one training may differ.
CHANGING = ("created", "steps_per_epoch", "versions")
UNRECORDED = object()  # stands for a value that JSON cannot hold


def describe_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    options: CollectLandscape,
    network: Mapping[str, Any],
    problem: str | None = None,
) -> dict[str, Any]:
    """The contents of run.json when collecting begins; `steps_per_epoch` is None until an epoch has ended.

    Args:
        network: the options that the model and the data were made with.
        problem: the callback of the run's landscapes, if it is known.
    """
    told = {NETWORK: _as_far_as_json(network), PROBLEM: problem}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "buffers": sum(buffer.numel() for buffer in persistent_buffers(model).values()),
        "optimiser": None if optimizer is None else type(optimizer).__name__,
        "hyperparameters": [] if optimizer is None else [_hyperparameters(group) for group in optimizer.param_groups],
        "learning_rate": learning_rate(optimizer),
        "steps_per_epoch": None,
        "unit": options.unit,
        "collect_landscape": options.model_dump(mode="json"),
        "versions": versions(),
    } | {name: value for name, value in told.items() if value}


def kept_of(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of the former run.json that a training which goes on keeps.

    With the same optimiser these include its settings, since a schedule has changed some by now.
    """
    kept = ["created", "steps_per_epoch"]
    if before.get("optimiser") == now["optimiser"]:
        kept += ["learning_rate", "hyperparameters"]
    return {key: before[key] for key in kept if key in before}


def learning_rate(optimizer: torch.optim.Optimizer | None) -> float | None:
    """The learning rate of the first parameter group; None without an optimiser, or where it is not finite."""
    return None if optimizer is None else finite(float(optimizer.param_groups[0]["lr"]))


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters, as far as JSON can hold its values."""
    return _as_far_as_json({name: value for name, value in group.items() if name != "params"})


def _as_far_as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not UNRECORDED}


def _plain(value: Any) -> Any:
    """A value as JSON holds it, or `UNRECORDED`."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return finite(value)
    if isinstance(value, (tuple, list)):
        return [None if element is UNRECORDED else element for element in map(_plain, value)]
    return UNRECORDED


INTERRUPTED = "interrupted"  # the history of a training that was killed before its first snapshot
DAMAGED = "damaged"  # the history as it was before its damaged lines were left out


def refuse_existing(folder: Folder, unit: Unit, starting: bool, overwrite: bool) -> None:
    """Refuse a run whose trajectory this training must not replace or cannot continue.

    Args:
        starting: whether the training begins, and does not go on.
        overwrite: whether what the run holds may be replaced.
    """
    files = snapshot_files(folder)
    if not files or (starting and overwrite):
        return
    if starting:
        kinds = " and ".join(sorted({f"{counted}s" for counted, _, _ in files}))
        raise JobError(
            f"run: {quoted(folder.name)} already holds a trajectory of {len(files)} {kinds}; name another run, "
            "give overwrite=True to replace it, or start_epoch or start_step to go on"
        )
    collected = read_trajectory(folder)
    if collected.snapshots and collected.unit != unit:
        raise JobError(
            f"unit: the run was collected by {collected.unit}, not by {unit}; keep to it or name another run"
        )


def steps_and_epochs(folder: Folder, start_step: int, start_epoch: int | None) -> tuple[int, int, int]:
    """How many steps and epochs are done where a training goes on, and how many steps since the last epoch ended.

    A step of 0 or an epoch of None is not given: the history tells it, else it is worked out from the steps per epoch.
    """
    per_epoch = read_info(folder).get("steps_per_epoch")
    lines = [
        (number_in(line, "step"), number_in(line, "epoch"), line.get("epoch_end")) for line in read_history(folder)
    ]
    known = [(step, epoch, end) for step, epoch, end in lines if step is not None and epoch is not None]
    if not start_step:
        start_epoch = start_epoch or 0
        steps = [step for step, epoch, _ in known if epoch <= start_epoch]
        start_step = max(steps, default=start_epoch * (per_epoch or 0))
    elif start_epoch is None:
        ended = [epoch for step, epoch, end in known if end and step <= start_step]
        start_epoch = max(ended, default=start_step // per_epoch if per_epoch else 0)
    ends = [step for step, epoch, end in known if end and epoch == start_epoch]
    return start_step, start_epoch, max(0, start_step - ends[-1]) if ends else 0


def begin_run(folder: Folder, info: Mapping[str, Any], overwrite: bool) -> None:
    """Make the run hold nothing but `info`: a history that was there is kept beside, or dropped with `overwrite`.

    Raises:
        JobError: the history is that of another training.
    """
    history = folder.read(HISTORY_FILE)
    if not history and not snapshot_files(folder):
        write_info(folder, info)
        return
    if history and not overwrite:
        _refuse_other_training(folder, info)
        keep_beside(folder, history, INTERRUPTED)
    replace_trajectory(folder, info, [], None)


def _refuse_other_training(folder: Folder, info: Mapping[str, Any]) -> None:
    """Refuse to begin beside a history that the same training did not leave before its first snapshot."""
    before, now = (
        {key: value for key, value in about.items() if key not in CHANGING} for about in (read_info(folder), info)
    )
    if before != json.loads(json.dumps(now)):
        raise JobError(
            f"run: {quoted(folder.name)} holds a history of another training ({HISTORY_FILE}) and no snapshots; name "
            "another run, give overwrite=True to replace it, or move it away"
        )


def continue_run(folder: Folder, info: Mapping[str, Any], unit: Unit, step: int, epoch: int) -> None:
    """Make the run hold what was collected up to this step and epoch, and nothing beyond.

    Damaged lines of the history are left out, with a warning; the file as it was is kept beside.
    """
    lines = read_lines(folder)
    if lines.damaged:
        _keep_damaged(folder, lines)
    data = b"".join(text for text, line in lines.readable if _is_done(line, step, epoch))
    files = snapshot_files(folder)
    last = epoch if unit == "epoch" else step
    kept = [path for counted, number, path in files if counted != unit or number <= last]
    if data == lines.data and len(kept) == len(files):
        write_info(folder, info)
        return
    with staging(folder) as staged:
        history = f"{staged}/{HISTORY_FILE}" if data else None
        if history:
            with refusing_disk_errors(folder.place(history)):
                folder.write(history, data)
        replace_trajectory(folder, info, kept, history)


def _is_done(line: Mapping[str, Any], step: int, epoch: int) -> bool:
    """Whether a line of the history tells of what was done up to this step and epoch."""
    its_step, its_epoch = number_in(line, "step"), number_in(line, "epoch")
    if its_step is not None and its_step > step:
        return False
    return not line.get("epoch_end") or its_epoch is None or its_epoch <= epoch


def _keep_damaged(folder: Folder, lines: HistoryLines) -> None:
    name = keep_beside(folder, lines.data, DAMAGED)
    count = len(lines.damaged)
    log.warning(
        "history %s: %d damaged line%s (first: line %d) left out of it; the file as it was is kept as %s",
        quoted(folder.place(HISTORY_FILE)), count, "s are" if count > 1 else " is", lines.damaged[0], name,
    )  # fmt: skip
