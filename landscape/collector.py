"""The collector: keeps weights, history and settings of a training run, from inside any PyTorch loop.

    collector = TrajectoryCollector("runs/mine", model, optimizer, unit="epoch", intervals=[[1, 2, 3], [7, 8, 9]])
    for epoch in range(9):
        for inputs, targets in loader:
            ...                          # forward, backward, optimizer.step(), as ever
            collector.step(loss)
        collector.end_epoch()

What it keeps is read back by `landscape.trajectory`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from landscape.errors import JobError, shown
from landscape.fields import Unit
from landscape.folders import Folder, Place, open_folder
from landscape.parameters import persistent_buffers, state_of
from landscape.spec.job import COLLECTED_SIZE, DEFAULT_SAMPLES, CollectLandscape, explain
from landscape.trajectory.history import History, Lines, finite, keep_beside, kept_beside, read_history, read_lines
from landscape.trajectory.replacement import finish, remove_leftovers, replace, staging
from landscape.trajectory.run_files import HISTORY_FILE, read_info, refusing_disk_errors, write_info
from landscape.trajectory.snapshots import read_trajectory, snapshot_files, versions, write_snapshot

INTERRUPTED = "interrupted"
RESERVED = ("step", "epoch", "learning_rate", "epoch_end")
CHANGING = (
    "created",
    "steps_per_epoch",
    "versions",
)  # what two starts of one training may differ in
log = logging.getLogger("landscape")


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
        overwrite: remove the trajectory and the history that the run holds; without it, and without a start, that is
            refused. With a start it changes nothing.

    Whatever is dropped or removed goes at once: a crash leaves all of it or nothing. A training that was killed before
    its first snapshot may simply be started again; until there is one its former history stays beside, as
    `history.jsonl.interrupted-…`. Lines of the history that cannot be read are kept in `history.jsonl.damaged-…`.

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
        finish(self._folder)
        _refuse_existing(self._folder, self.options.unit, starting, overwrite)
        with refusing_disk_errors(self._folder.name):
            self._folder.make()
        remove_leftovers(self._folder)
        self._step, self._epoch = (0, 0) if starting else _start(self._folder, start_step, start_epoch)
        self._epoch_began: int | None = self._step if starting else None
        known = {} if starting else read_info(self._folder)
        kept = {key: known[key] for key in ("created", "steps_per_epoch") if key in known}
        self._info = _describe_run(self._model, optimizer, self.options) | kept
        if starting:
            self._begin(overwrite)
        else:
            self._go_on()
        self._history = History(self._folder)
        self._former = kept_beside(self._folder, INTERRUPTED)
        here = (self.options.unit, self._number)
        if not any((unit, number) == here for unit, number, _ in snapshot_files(self._folder)):
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
            state = state_of(self._model)
            self._history.sync()
            unit, number = self.options.unit, self._number
            write_snapshot(self._folder, unit, number, state, step=self._step, epoch=self._epoch, **versions())
            for name in self._former:
                self._folder.delete(name)
            self._former = []

    def _learn_steps_per_epoch(self) -> None:
        """The first epoch that was seen from its beginning tells."""
        if self._info["steps_per_epoch"] is None and self._epoch_began is not None and self._step > self._epoch_began:
            self._info["steps_per_epoch"] = self._step - self._epoch_began
            write_info(self._folder, self._info)
        self._epoch_began = self._step

    def _begin(self, overwrite: bool) -> None:
        """Have the run hold nothing but what this training will bring."""
        history = self._folder.read(HISTORY_FILE)
        if not history and not snapshot_files(self._folder):
            write_info(self._folder, self._info)
            return
        if history and not overwrite:
            _refuse_other_training(self._folder, self._info)
            keep_beside(self._folder, history, INTERRUPTED)
        replace(self._folder, self._info, [], None)

    def _go_on(self) -> None:
        """Have the run hold what was collected up to the start, and nothing beyond."""
        lines = read_lines(self._folder)
        if lines.damaged:
            _keep_damaged(self._folder, lines)
        data = b"".join(line for line, what in lines.readable if self._is_done(what))
        found = snapshot_files(self._folder)
        kept = [path for unit, number, path in found if unit != self.options.unit or number <= self._number]
        if data == lines.data and len(kept) == len(found):
            write_info(self._folder, self._info)
            return
        with staging(self._folder) as staged:
            history = f"{staged}/{HISTORY_FILE}" if data else None
            if history:
                with refusing_disk_errors(self._folder.place(history)):
                    self._folder.write(history, data)
            replace(self._folder, self._info, kept, history)

    def _is_done(self, line: Mapping[str, Any]) -> bool:
        step, epoch = _count(line, "step"), _count(line, "epoch")
        return (step is None or step <= self._step) and (
            not line.get("epoch_end") or epoch is None or epoch <= self._epoch
        )


def _count(line: Mapping[str, Any], name: str) -> int | None:
    """A step or epoch of the history; None in a line that another program wrote without."""
    value = line.get(name)
    return value if isinstance(value, int) else None


def _keep_damaged(folder: Folder, lines: Lines) -> None:
    name = keep_beside(folder, lines.data, "damaged")
    count = len(lines.damaged)
    log.warning(
        "history %s: %d damaged line%s (first: line %d) left out of it; the file as it was is kept as %s",
        shown(folder.place(HISTORY_FILE)), count, "s are" if count > 1 else " is", lines.damaged[0], name,
    )  # fmt: skip


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


def _refuse_existing(folder: Folder, unit: Unit, starting: bool, overwrite: bool) -> None:
    there = snapshot_files(folder)
    if not there or (starting and overwrite):
        return
    if starting:
        kinds = " and ".join(sorted({f"{each[0]}s" for each in there}))
        raise JobError(
            f"run: {shown(folder.name)} already holds a trajectory of {len(there)} {kinds}; name another run, "
            "give overwrite=True to replace it, or start_epoch or start_step to go on"
        )
    collected = read_trajectory(folder)
    if collected.snapshots and collected.unit != unit:
        raise JobError(
            f"unit: the run was collected by {collected.unit}, not by {unit}; keep to it or name another run"
        )


def _refuse_other_training(folder: Folder, info: Mapping[str, Any]) -> None:
    """Refuse to start where a history lies that the same training did not leave before its first snapshot."""
    known = read_info(folder)
    former, now = ({key: each[key] for key in each if key not in CHANGING} for each in (known, info))
    if former != json.loads(json.dumps(now)):
        raise JobError(
            f"run: {shown(folder.name)} holds a history of another training ({HISTORY_FILE}) and no snapshots; name "
            "another run, give overwrite=True to replace it, or move it away"
        )


def _start(folder: Folder, start_step: int, start_epoch: int) -> tuple[int, int]:
    """Both counts, the one not given taken from the history, else worked out from the steps per epoch."""
    history, per_epoch = read_history(folder), read_info(folder).get("steps_per_epoch")
    places = [(_count(line, "step"), _count(line, "epoch"), line.get("epoch_end")) for line in history]
    known = [(step, epoch, end) for step, epoch, end in places if step is not None and epoch is not None]
    if not start_step:
        steps = [step for step, epoch, _ in known if epoch <= start_epoch]
        start_step = max(steps, default=start_epoch * (per_epoch or 0))
    elif not start_epoch:
        ends = [epoch for step, epoch, end in known if end and step <= start_step]
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
