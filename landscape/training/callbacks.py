"""`LandscapeCallback`: the collector in the Trainer of Lightning or of Hugging Face, in one line.

    trainer = lightning.Trainer(callbacks=[LandscapeCallback("runs/mine", unit="epoch", intervals=[[1, 2, 3]])])
    trainer = transformers.Trainer(model, callbacks=[LandscapeCallback("runs/mine", intervals=[[10, 20, 30]])])

In a loop of one's own that line is `TrajectoryCollector`, which does all the writing here too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, quoted
from landscape.core.files import Place
from landscape.training.collector import TrajectoryCollector, refuse_options
from landscape.training.distributed import on_first
from landscape.training.kept_files import learning_rate

log = logging.getLogger("landscape")

BASES = (("lightning.pytorch", "Callback"), ("pytorch_lightning", "Callback"), ("transformers", "TrainerCallback"))
SPEEDS = ("_runtime", "_per_second")  # endings of what Hugging Face logs beside the metrics of an evaluation


class LandscapeCallback:
    """Keeps the trajectory and the history of a training by a Trainer of Lightning or of Hugging Face.

    What is written is what `TrajectoryCollector` writes, by rank 0 alone. An epoch is one whose last batch was seen; a
    step is one of the optimiser, whose number is the Trainer's `global_step` (with several optimisers of Lightning: the
    number of batches). Training that resumes from a checkpoint of the Trainer goes on in the run: what was recorded
    after the checkpoint is dropped. An object is for one run, and import the framework before it is made: it becomes a
    callback of those that are imported.

    Lightning: the history has the loss of each step on rank 0, the learning rate with which it was taken, and
    `trainer.callback_metrics` at the end of an epoch. Hugging Face: it has what the Trainer logs, when it does, every
    `logging_steps`: the loss is the mean since the last time.

    Args:
        run: the run's folder or URL.
        overwrite: whether a training from the start replaces the trajectory and the history of the run.
        options: the others of `TrajectoryCollector`, except the start: `intervals`, `unit`, `watch` and so on.

    Raises:
        JobError: an option is not usable, or no framework is imported.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """An object that is a callback of each framework that is imported."""
        modules = ((sys.modules.get(module), name) for module, name in BASES)
        bases = [getattr(module, name) for module, name in modules if module is not None]
        missing = tuple(base for base in bases if not issubclass(cls, base))
        if not bases:
            raise JobError(
                "LandscapeCallback: import lightning or transformers first, whose Trainer is to take it; in a loop of "
                "your own, use TrajectoryCollector"
            )
        names = {"__doc__": cls.__doc__, "__module__": cls.__module__}
        return object.__new__(type(cls.__name__, (cls, *missing), names) if missing else cls)

    def __init__(self, run: Place, *, overwrite: bool = False, **options: Any) -> None:
        refuse_options(options)
        self._run, self._options = run, {**options, "overwrite": overwrite}
        self._collector: TrajectoryCollector | None = None
        self._done: tuple[int, int] | None = None  # steps and epochs, before this start of the training
        self._seen = 0  # Lightning's global_step when the last step was recorded
        self._loss: Tensor | float | None = None  # of the batches since then
        self._rate: dict[str, float | None] = {}
        self._is_within_epoch, self._is_ended = False, False

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Place]]:
        return partial(LandscapeCallback, **self._options), (self._run,)  # its class is made where it is

    def _begin(self, model: nn.Module, optimizer: Any, step: int, epoch: int) -> None:
        start: dict[str, Any] = {"start_step": step, "start_epoch": epoch} if step else {}
        make = partial(TrajectoryCollector, self._run, model, optimizer, **self._options, **start)
        made: list[TrajectoryCollector] = []
        on_first(lambda: made.append(make()))  # its error is raised on every rank
        self._collector, self._is_ended = made[0] if made else make(), False

    # -- Lightning: hooks of (trainer, module, …) -------------------------------------------------------------------

    def on_train_start(self, trainer: Any, module: nn.Module) -> None:
        """Begin, or go on from the checkpoint that the trainer has loaded."""
        if trainer.fast_dev_run:  # keeps no checkpoints either
            return
        self._seen, self._loss = trainer.global_step, None
        start = (self._done or (trainer.global_step, trainer.current_epoch)) if trainer.global_step else (0, 0)
        self._begin(module, next(iter(trainer.optimizers), None), *start)

    def on_before_optimizer_step(self, trainer: Any, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Note the learning rate, which schedules change before the end of the batch."""
        self._rate = {"learning_rate": learning_rate(trainer.optimizers[0])}

    def on_train_batch_end(self, trainer: Any, module: nn.Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Record a step, if the optimiser took one."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):  # of accumulated batches, each is divided by their number
            self._loss = loss.detach() + (0.0 if self._loss is None else self._loss)
        if self._collector is None or trainer.global_step == self._seen:
            return
        self._collector.step(self._loss, **self._rate)
        self._seen, self._loss = trainer.global_step, None

    def on_train_epoch_end(self, trainer: Any, module: nn.Module) -> None:
        """Record an epoch, unless training was stopped within it."""
        if self._collector is not None and trainer.is_last_batch:
            self._collector.end_epoch(**self._rate | trainer.callback_metrics)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint of Lightning holds: the numbers of steps and epochs; their records are synced first."""
        if self._collector is None:
            return {}
        self._collector.sync()
        return {"steps": self._collector.steps_done, "epochs": self._collector.epochs_done}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the numbers from a checkpoint of Lightning."""
        self._done = (state_dict["steps"], state_dict["epochs"]) if state_dict else None

    # -- Hugging Face: events of (args, state, control, …) -------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any = None, **_: Any) -> None:
        """Begin, or go on from the checkpoint that the trainer has loaded."""
        self._begin(model, getattr(optimizer, "optimizer", optimizer), state.global_step, int(state.epoch or 0))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note that an epoch has begun."""
        self._is_within_epoch = True

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a step, whose loss is logged afterwards, if at all."""
        if self._collector is not None:
            self._collector.step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        """Record what is logged, but speeds and the summary of the training."""
        if self._collector is not None and "train_runtime" not in logs:
            numbers = {name: value for name, value in logs.items() if name != "epoch" and not name.endswith(SPEEDS)}
            self._collector.record(**numbers)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record an epoch, unless training was stopped within it."""
        self._is_within_epoch = False
        is_whole = state.epoch == round(state.epoch) or not control.should_training_stop
        if self._collector is not None and is_whole:
            self._collector.end_epoch()
        self._keep_last(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the final weights, if the evaluation has stopped the training."""
        self._keep_last(control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Have the records survive a crash, as the checkpoint does."""
        if self._collector is not None:
            self._collector.sync()
        self._keep_last(control)

    def _keep_last(self, control: Any) -> None:
        """Keep the final weights as soon as it is known that they are: afterwards the best ones may be loaded."""
        if control.should_training_stop and not self._is_within_epoch and not self._is_ended:
            self._end()

    # -- both ----------------------------------------------------------------------------------------------------------

    def on_train_end(self, trainer: Any, module: Any, control: Any = None, **_: Any) -> None:
        """Keep the final weights, unless the Trainer of Hugging Face has replaced them by its best ones."""
        if self._collector is None:
            return
        has_best = control is not None and trainer.load_best_model_at_end and module.best_model_checkpoint is not None
        if not (has_best or self._is_ended):
            self._end()
        elif not self._is_ended:
            log.warning(
                "run %s: the trainer has loaded its best model, so that the last weights are not kept; list %s in "
                "intervals, or name EarlyStoppingCallback before LandscapeCallback", quoted(str(self._run)),
                f"step {self._collector.steps_done}",
            )  # fmt: skip
        self._done = (self._collector.steps_done, self._collector.epochs_done)
        self._collector = None

    def _end(self) -> None:
        if self._collector is not None:
            self._collector.end_training()
            self._is_ended = True
