"""The collector: keeps weights, history and settings of a training run, from inside any PyTorch loop.

    collector = TrajectoryCollector("runs/mine", model, optimizer, unit="epoch", intervals=[[1, 2, 3], [7, 8, 9]])
    for epoch in range(9):
        for inputs, targets in loader:
            ...                          # forward, backward, optimizer.step(), as ever
            collector.step(loss)
        collector.end_epoch()

Reading back and importing are at home in `snapshots` and `checkpoints`; their names are here as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from landscape.checkpoints import import_checkpoints, load_weights
from landscape.errors import JobError, shown
from landscape.folders import Place, open_folder
from landscape.parameters import persistent_buffers, state_of
from landscape.snapshots import (
    History,
    Snapshot,
    Trajectory,
    finite,
    read_history,
    read_info,
    read_trajectory,
    refusing_disk_errors,
    remove_trajectory,
    snapshot_files,
    versions,
    write_history,
    write_info,
    write_snapshot,
)
from landscape.spec import COLLECTED_SIZE, DEFAULT_SAMPLES, CollectLandscape, Unit, explain

__all__ = [
    "Snapshot",
    "Trajectory",
    "TrajectoryCollector",
    "import_checkpoints",
    "load_weights",
    "read_history",
    "read_info",
    "read_trajectory",
]

RESERVED = ("step", "epoch", "learning_rate", "epoch_end")


class TrajectoryCollector:
    """Keeps the weights at the listed epochs or steps, and only those, in `<run>/trajectory`.

    Construct it once the weights to start from are loaded; call `step(loss)` after each `optimizer.step()` and
    `end_epoch()` after each epoch. Each snapshot is written whole or not at all, so a crash in training loses
    nothing that was collected. Under `torch.distributed` only rank 0 writes; on other ranks all calls do nothing.
    Epoch or step n means: after the n-th; 0 is the state at construction.

    `<run>/history.jsonl` gets one line per `step` that brings a loss or metrics: `step` and `epoch` (whole numbers
    from 1: the epoch the step belongs to), `learning_rate` (of the first parameter group), `loss`, metrics; and one
    per `end_epoch`, marked `"epoch_end": true`. NaN and infinite values are recorded as null. Non-persistent
    buffers are not kept: PyTorch leaves them out of a state dict because the model makes them itself.

    The history is synced at each epoch's end and each snapshot. In an object store, which knows no adding to a file,
    it is put whole then and every 30 s besides: a crash there loses the lines since, and never a snapshot.

    Args:
        run: the run's folder or URL; made if need be.
        model: the network; wrappers of DistributedDataParallel, DataParallel and torch.compile are looked through.
        optimizer: its class, hyperparameters and learning rate are recorded.
        intervals: lists of at least 3 epochs or steps each; every list becomes one trajectory landscape.
        landscape_size: points per axis, 3 to 65536 (MindSpore's tutorial stops at 256).
        unit: whether `intervals` count "step" or "epoch".
        create_landscape: {"train": along the trajectory, "result": around its end}; both by default.
        num_samples: samples that the loss is computed on.
        start_step, start_epoch: what is done already, to go on after an interruption: what was collected up to there
            is kept, what lies beyond it is dropped. One of the two is enough where the history tells the other.
        overwrite: remove the trajectory that the run holds; without it, and without a start, that is refused. With a
            start it changes nothing.

    Raises:
        JobError: an option is not usable, or the run already holds a trajectory.
        LandscapeError: the run cannot be written.
    """

    def __init__(
        self,
        run: Place,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        intervals: Sequence[Sequence[int]],
        landscape_size: int = COLLECTED_SIZE,
        unit: Unit = "step",
        create_landscape: Mapping[str, bool] | None = None,
        num_samples: int = DEFAULT_SAMPLES,
        start_step: int = 0,
        start_epoch: int = 0,
        overwrite: bool = False,
    ) -> None:
        self.options = _checked_options(intervals, landscape_size, unit, create_landscape, num_samples)
        _check_starts(start_step, start_epoch)
        self._model, self._optimizer = unwrap(model), optimizer
        _refuse_incomplete(self._model)
        self._folder, self._writes = open_folder(run), _is_writer()
        self._listed = frozenset(self.options.snapshots)
        if not self._writes:
            return
        starting = not (start_step or start_epoch)
        _refuse_existing(run, self.options.unit, starting, overwrite)
        self._step, self._epoch = (0, 0) if starting else _start(run, start_step, start_epoch)
        self._epoch_began: int | None = self._step if starting else None
        self._clear_beyond_start(run, starting)
        known = {} if starting else read_info(run)
        kept = {key: known[key] for key in ("created", "steps_per_epoch") if key in known}
        self._info = _describe_run(self._model, optimizer, self.options) | kept
        write_info(self._folder, self._info)
        self._history = History(self._folder)
        if not any(self._number == number for unit, number, _ in snapshot_files(self._folder)):
            self._keep_if_listed()

    def step(self, loss: Tensor | float | None = None, **metrics: Any) -> None:
        """Record one optimiser step, and keep the weights if it is a listed one."""
        if not self._writes:
            return
        self._step += 1
        if loss is not None or metrics:
            self._record({"step": self._step, "epoch": self._epoch + 1}, {"loss": loss, **metrics})
        if self.options.unit == "step":
            self._keep_if_listed()

    def end_epoch(self, **metrics: Any) -> None:
        """Record the end of an epoch with its metrics, and keep the weights if it is a listed one."""
        if not self._writes:
            return
        self._epoch += 1
        self._record({"step": self._step, "epoch": self._epoch, "epoch_end": True}, metrics)
        self._history.sync()
        self._learn_steps_per_epoch()
        if self.options.unit == "epoch":
            self._keep_if_listed()

    @property
    def _number(self) -> int:
        return self._epoch if self.options.unit == "epoch" else self._step

    def _record(self, place: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        for name in values:
            if name in RESERVED:
                raise JobError(f"metrics: {shown(name)} is a name the collector fills in itself; choose another")
        numbers = {name: _number(name, value) for name, value in values.items()}
        self._history.append({**place, "learning_rate": learning_rate(self._optimizer), **numbers})

    def _keep_if_listed(self) -> None:
        if self._number in self._listed:
            state, about = state_of(self._model), {"step": self._step, "epoch": self._epoch, **versions()}
            self._history.sync()
            write_snapshot(self._folder, self.options.unit, self._number, state, **about)

    def _learn_steps_per_epoch(self) -> None:
        """The first epoch that was seen from its beginning tells."""
        if self._info["steps_per_epoch"] is None and self._epoch_began is not None and self._step > self._epoch_began:
            self._info["steps_per_epoch"] = self._step - self._epoch_began
            write_info(self._folder, self._info)
        self._epoch_began = self._step

    def _clear_beyond_start(self, run: Place, starting: bool) -> None:
        with refusing_disk_errors(self._folder.name):
            self._folder.make()
        if starting:
            return remove_trajectory(self._folder)
        remove_trajectory(self._folder, beyond={self.options.unit: self._number})
        write_history(self._folder, [line for line in read_history(run) if self._is_done(line)])
        return None

    def _is_done(self, line: Mapping[str, Any]) -> bool:
        return int(line["step"]) <= self._step and (not line.get("epoch_end") or int(line["epoch"]) <= self._epoch)


def unwrap(model: nn.Module) -> nn.Module:
    """The network itself, inside DistributedDataParallel, DataParallel and torch.compile in any order."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def learning_rate(optimizer: torch.optim.Optimizer | None) -> float | None:
    """That of the first parameter group."""
    return None if optimizer is None else finite(float(optimizer.param_groups[0]["lr"]))


def _is_writer() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _checked_options(
    intervals: Any, landscape_size: Any, unit: Any, create_landscape: Any, num_samples: Any
) -> CollectLandscape:
    given = {
        "landscape_size": landscape_size,
        "unit": unit,
        "num_samples": num_samples,
        "intervals": intervals,
        "create_landscape": {} if create_landscape is None else create_landscape,
    }
    try:
        return CollectLandscape.model_validate(given)
    except ValidationError as error:
        raise JobError(explain(error, CollectLandscape)) from None


def _check_starts(start_step: int, start_epoch: int) -> None:
    for name, value in (("start_step", start_step), ("start_epoch", start_epoch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise JobError(f"{name}: must be a whole number from 0 on, not {shown(value)}")


def _refuse_incomplete(model: nn.Module) -> None:
    """Refuse a model whose weights this process does not hold: a snapshot of it would be wrong in silence."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise JobError(f"model: {shown(name)} has no shape yet; run one batch through it before collecting")
        if type(parameter).__name__ in ("DTensor", "FlatParameter") or parameter.is_meta:
            raise JobError(
                f"model: {shown(name)} is sharded or without data (FSDP, meta device), which is not collected; save "
                "full checkpoints and import them: landscape import"
            )


def _refuse_existing(run: Place, unit: Unit, starting: bool, overwrite: bool) -> None:
    there = read_trajectory(run)
    if not there.snapshots or (starting and overwrite):
        return
    if starting:
        raise JobError(
            f"run: {shown(str(run))} already holds a trajectory of {len(there.snapshots)} {there.unit}s; name another "
            "run, give overwrite=True to replace it, or start_epoch or start_step to go on"
        )
    if there.unit != unit:
        raise JobError(f"unit: the run was collected by {there.unit}, not by {unit}; keep to it or name another run")


def _start(run: Place, start_step: int, start_epoch: int) -> tuple[int, int]:
    """Both counts, the one not given taken from the history, else worked out from the steps per epoch."""
    history, per_epoch = read_history(run), read_info(run).get("steps_per_epoch")
    if not start_step:
        steps = [int(line["step"]) for line in history if int(line["epoch"]) <= start_epoch]
        start_step = max(steps, default=start_epoch * (per_epoch or 0))
    elif not start_epoch:
        ends = [int(x["epoch"]) for x in history if x.get("epoch_end") and int(x["step"]) <= start_step]
        start_epoch = max(ends, default=start_step // per_epoch if per_epoch else 0)
    return start_step, start_epoch


def _describe_run(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, options: CollectLandscape
) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": type(model).__name__,
        "parameters": sum(each.numel() for each in model.parameters()),
        "buffers": sum(each.numel() for each in persistent_buffers(model).values()),
        "optimiser": None if optimizer is None else type(optimizer).__name__,
        "hyperparameters": [] if optimizer is None else [_hyperparameters(group) for group in optimizer.param_groups],
        "learning_rate": learning_rate(optimizer),
        "steps_per_epoch": None,
        "unit": options.unit,
        "collect_landscape": options.model_dump(mode="json"),
        "versions": versions(),
    }


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """What of a parameter group JSON can hold; the parameters themselves left out."""
    found = {name: _plain(value) for name, value in group.items() if name != "params"}
    return {name: value for name, value in found.items() if value is not ...}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return finite(value)
    if isinstance(value, (tuple, list)):
        return [None if each is ... else each for each in map(_plain, value)]
    return ...


def _number(name: str, value: Any) -> float | int | None:
    """One value of the history; None for what is not finite."""
    if value is None:
        return None
    if getattr(value, "numel", lambda: 1)() != 1 or isinstance(value, (str, bytes)):
        shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise JobError(f"{name}: must be one number, not {shape}; take its mean")
    try:
        number = value.item() if hasattr(value, "item") else value
        return finite(number if isinstance(number, int) else float(number))
    except (TypeError, ValueError):
        raise JobError(f"{name}: must be one number, not {type(value).__name__}") from None
