"""The collector, which a training loop calls after each step and each epoch.

    intervals = [[1, 2, 3], [7, 8, 9]]
    with TrajectoryCollector("runs/mine", model, optimizer, unit="epoch", intervals=intervals) as collector:
        for epoch in range(9):
            for inputs, targets in loader:
                ...                          # forward, backward, optimizer.step(), as usual
                collector.step(loss)
            collector.end_epoch()

`landscape.trajectory` reads the snapshots.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from landscape.core.errors import JobError, quoted
from landscape.core.files import Place
from landscape.core.folders import open_folder
from landscape.core.validation import Unit, check_whole
from landscape.job.job import COLLECTED_SIZE, DEFAULT_SAMPLES, CollectLandscape
from landscape.model.history import HistoryWriter, kept_beside, recorded_number
from landscape.model.layer_rules import (
    RULES,
    LayerFinding,
    Target,
    Tensors,
    Thresholds,
    asked_rules,
    findings,
    others_in_words,
)
from landscape.model.layer_statistics import ValueStatistics, change_of, statistics_of
from landscape.model.layer_watch import NetworkWatcher
from landscape.model.parameters import gathered_state, persistent_buffers, state_of
from landscape.model.run_files import FOLDER as SNAPSHOTS
from landscape.model.run_files import read_info, refusing_disk_errors, write_info
from landscape.model.shards import is_cut, is_sharded, local_part
from landscape.model.snapshots import (
    can_be_stored,
    finish_replacement,
    remove_leftovers,
    snapshot_files,
    versions,
    write_snapshot,
)
from landscape.training.distributed import on_first, rank_and_world
from landscape.training.kept_files import (
    INTERRUPTED,
    begin_run,
    continue_run,
    describe_run,
    kept_of,
    learning_rate,
    refuse_existing,
    steps_and_epochs,
)

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# The network inside its wrappers.


def unwrap(model: nn.Module) -> nn.Module:
    """The network itself, inside DistributedDataParallel, DataParallel and torch.compile in any order.

    Example:
        >>> network = nn.Linear(2, 1)
        >>> unwrap(nn.DataParallel(network)) is network
        True
    """
    while True:
        inner = getattr(model, "_orig_mod", None)  # the name in torch.compile
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def refuse_incomplete(model: nn.Module) -> None:
    """Refuse a model whose snapshots would be wrong, or could not be written: before it is trained, not after."""
    for name, tensor in [*model.named_parameters(), *persistent_buffers(model).items()]:
        if nn.parameter.is_lazy(tensor):
            raise JobError(f"model: {quoted(name)} has no shape yet; run one batch through it before collecting")
        if type(tensor).__name__ == "FlatParameter" or tensor.is_meta:
            raise JobError(
                f"model: {quoted(name)} is of FSDP1 or without data (meta device), which is not collected; use "
                "fully_shard, or save full checkpoints and import them: landscape import"
            )
        if is_cut(tensor):
            tensor = local_part(tensor)
        if not can_be_stored(tensor):
            kind = tensor.dtype if tensor.layout is torch.strided else tensor.layout
            raise JobError(
                f"model: {quoted(name)} must be a dense tensor of a type that safetensors stores, not {kind}; convert "
                "it, or register it as a buffer with persistent=False, which no snapshot holds"
            )


def check_collector_options(
    intervals: Any,
    landscape_size: Any = COLLECTED_SIZE,
    unit: Any = "step",
    create_landscape: Any = None,
    num_samples: Any = DEFAULT_SAMPLES,
) -> CollectLandscape:
    """The collector's options about snapshots and landscapes, as a frozen value.

    Raises:
        JobError: an option is not usable; names it.
    """
    return CollectLandscape(
        landscape_size=landscape_size,
        unit=unit,
        num_samples=num_samples,
        intervals=intervals,
        create_landscape={} if create_landscape is None else create_landscape,
    )


UNCHECKED = ("network", "problem", "watch", "watch_every")  # options that `check_collector_options` does not take


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse unusable options of a collector that is made later.

    Raises:
        JobError: an option is not usable; names it.
    """
    check_collector_options(**{name: value for name, value in options.items() if name not in UNCHECKED})
    asked_rules("watch", options.get("watch"))


# ----------------------------------------------------------------------------------------------------
# A training watched by rules.

FIRST, EVERY = 1, 100  # the first watched step, and the steps from one watched step to the next
HARDLY_MOVING = ("weight_not_changed", "weight_change_too_small")
MOST_RECORDED = 20  # findings of a step in its line of the history


class TrainingWatch:
    """Applies rules to weights, outputs, gradients and changes of weights at certain steps of a training.

    `prepare` is called before a step, and `judge` after the optimiser has taken it. Other steps cost nothing. Gradients
    are read when the optimiser takes the step; the loop may drop them right after. Outputs are those of modules called
    with gradients: an evaluation between steps does not count.

    Args:
        model: the network inside its wrappers.
        called: the network as the loop calls it; a wrapper may hide the outputs of its modules.
        thresholds: of the rules, by name.
        every: steps from one watched step to the next.
        listed: further steps that are watched.
        step: how many steps were taken before.
    """

    def __init__(
        self, model: nn.Module, called: nn.Module, optimizer: Any, thresholds: Thresholds, every: int = EVERY,
        listed: Collection[int] = (), step: int = 0,
    ) -> None:  # fmt: skip
        self._model, self._thresholds, self._every, self._listed = model, thresholds, every, frozenset(listed)
        self._targets: set[Target] = {RULES[name].target for name in thresholds}
        self._warned: set[tuple[str, str]] = set()
        self._due, self._gradients = False, dict[str, Tensors]()
        self._before, self._still = dict[str, Tensor](), set[tuple[str, str]]()
        self._sees_outputs = self._may_see_outputs(called)
        self._watcher: NetworkWatcher | None = None  # while it is entered
        self._leave: Callable[[], Any] = lambda: None  # removes its hooks
        hook: Callable[..., Any] | None = getattr(optimizer, "register_step_pre_hook", None)
        self._hooked, self._stepped = hook is not None, False
        if hook is not None:
            # A weak reference, as an optimiser may outlive the training.
            me = weakref.ref(self)
            hook(lambda optimizer, *_: watch._at_step(optimizer) if (watch := me()) is not None else None)
        self.pending = self._warn(findings("weights", self._weights(), thresholds), step)  # of the initial weights

    def prepare(self, step: int) -> None:
        """Prepare for the step with this number, which comes next."""
        self._due = step == FIRST or step % self._every == 0 or step in self._listed
        self._stepped = not self._hooked
        if not self._due:
            return
        if "changes" in self._targets:
            self._before = {name: tensor.detach().clone() for name, tensor in self._trained()}
        if self._sees_outputs:
            self._watcher = NetworkWatcher(self._model, operations=False, numbered=False, when=torch.is_grad_enabled)
            self._watcher.__enter__().begin()
            # A training that ends before this step leaves no hooks behind.
            self._leave = weakref.finalize(self, self._watcher.__exit__)

    def judge(self, step: int) -> list[dict[str, Any]]:
        """The findings of the step just taken, in the form of the history; warns once about each."""
        pending, self.pending = self.pending, []
        if not self._due:
            return pending[:MOST_RECORDED]
        self._due, fired = False, list[LayerFinding]()
        if self._watcher is not None:
            self._leave()
            outputs, self._watcher = [layer.seen() for layer in self._watcher.layers.values()], None
            fired += findings("outputs", outputs, self._thresholds)
        if "gradients" in self._targets:
            if not self._hooked:
                self._look_at_gradients()
            # In backward order: the fault began at the first one.
            fired += findings("gradients", list(self._gradients.values())[::-1], self._thresholds)
            self._gradients = {}
        fired += findings("weights", self._weights(), self._thresholds)
        fired += self._lasting(findings("changes", self._changes(), self._thresholds))
        return [*pending, *self._warn(fired, step)][:MOST_RECORDED]

    def _may_see_outputs(self, called: nn.Module) -> bool:
        if "outputs" not in self._targets:
            return False
        compiled = any(
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
            for module in called.modules()
        )
        if compiled:
            log.warning("watch: outputs of layers are not seen in a model that torch.compile has compiled")
        return not compiled

    def _trained(self) -> list[tuple[str, Tensor]]:
        named = self._model.named_parameters()
        return [
            (name, parameter) for name, parameter in named if parameter.requires_grad and parameter.is_floating_point()
        ]

    def _weights(self) -> list[Tensors]:
        if "weights" not in self._targets:
            return []
        return [
            Tensors(name, statistics_of(parameter), dimensions=parameter.dim()) for name, parameter in self._trained()
        ]

    def _at_step(self, optimizer: Any) -> None:
        """Read the gradients before the optimiser's step; a fused optimiser undoes the loss scale in its kernel."""
        scale, skips = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if not self._due or (skips is not None and float(skips)):
            return
        self._stepped = True
        if "gradients" in self._targets:
            self._look_at_gradients(1.0 if scale is None else float(scale))

    def _look_at_gradients(self, scale: float = 1.0) -> None:
        for name, parameter in self._trained():
            if parameter.grad is not None:
                gradient = parameter.grad if scale == 1.0 else parameter.grad / scale
                self._gradients[name] = Tensors(name, statistics_of(gradient), dimensions=parameter.dim())

    def _changes(self) -> list[Tensors]:
        before, self._before = self._before, {}
        return [
            Tensors(name, ValueStatistics(), dimensions=parameter.dim(), change=change_of(before[name], parameter))
            for name, parameter in self._trained()
            if name in before
        ]

    def _lasting(self, fired: list[LayerFinding]) -> list[LayerFinding]:
        """The findings; weights that hardly move count only after two watched steps, as momentum builds up."""
        if not self._stepped:  # gradients are being accumulated, or the scale of the loss was too large
            return [finding for finding in fired if finding.rule not in HARDLY_MOVING]
        still = {(finding.layer, finding.rule) for finding in fired if finding.rule in HARDLY_MOVING}
        lasting, self._still = still & self._still, still
        return [
            finding
            for finding in fired
            if finding.rule not in HARDLY_MOVING or (finding.layer, finding.rule) in lasting
        ]

    def _warn(self, fired: list[LayerFinding], step: int) -> list[dict[str, Any]]:
        """Warn in one line about new findings; returns all findings in the form of the history."""
        new = [finding for finding in fired if (finding.layer, finding.rule) not in self._warned]
        self._warned |= {(finding.layer, finding.rule) for finding in new}
        if new:
            others = others_in_words([(finding.layer, finding.rule) for finding in new[1:]])
            log.warning("watch: step %d: %s%s", step, new[0].text, others)
        return [_recorded(finding) for finding in fired]


def _recorded(finding: LayerFinding) -> dict[str, Any]:
    plain: Mapping[str, Any] = finding.plain()
    return {name: plain[name] for name in ("rule", "layer", "value")}


RESERVED = ("step", "epoch", "epoch_end", "watch")  # keys of the history that are not metrics


class TrajectoryCollector:
    """Writes the weights at the listed epochs or steps, and at the end of training, to `<run>/trajectory`.

    Construct it once the initial weights are loaded; call `step(loss)` after each `optimizer.step()`, `end_epoch()`
    after each epoch and `end_training()` at the end, which leaving a `with` block of the collector does, unless by an
    exception. The final weights are a snapshot even if no interval lists their epoch or step, and `origin: last` of a
    landscape; if the training is extended later, they remain beside the following ones. Each snapshot is written whole
    or not at all, so a crash in training loses no snapshot. Under `torch.distributed`, only rank 0 writes; other ranks
    only count.
    Epoch or step n means: after the n-th; 0 is the state at construction.

    `<run>/history.jsonl` gets one line per `step` with a loss or metrics: `step` and `epoch` (whole numbers from 1: the
    epoch of the step), `learning_rate` (of the first parameter group, unless a metric has this name), `loss`, metrics;
    and one per `end_epoch`, marked `"epoch_end": true`. NaN and infinite values are recorded as null; a step without a
    loss has no key `loss`. A value that is not one number is not recorded, and a metric called `step`, `epoch`,
    `epoch_end` or `watch` is recorded as `metric_step` and so on: a warning says so once, and the training goes on.
    Non-persistent buffers are not stored: PyTorch omits them from a state dict because the model makes them itself.

    The history is synced to disk at each epoch's end and each snapshot. An object store cannot append to a file, so
    there the whole history is written at these moments and every 30 s: a crash loses the lines since the last write,
    and never a snapshot.

    Files are dropped or removed all at once: a crash leaves all of them or none. A training that was killed before its
    first snapshot may simply be started again; until there is one, its former history is kept as
    `history.jsonl.interrupted-…`. A history with unreadable lines is kept as `history.jsonl.damaged-…`.

    Args:
        run: the run's folder or URL; it is made if it does not exist.
        model: the network, possibly in wrappers of DistributedDataParallel, DataParallel and torch.compile.
        optimizer: its class, hyperparameters and learning rate are recorded.
        intervals: lists of at least 3 epochs or steps each; every list becomes one trajectory landscape. The final
            weights are stored too, and change none of these landscapes.
        landscape_size: points per axis, 3 to 65536 (MindSpore's tutorial stops at 256).
        unit: whether `intervals` count "step" or "epoch".
        create_landscape: {"train": along the trajectory, "result": around its end}; both by default.
        num_samples: how many samples the loss is computed on.
        network: the options that the model and the data were made with, by name; they are recorded, and a callback
            that makes the model again reads them by `landscape.problem.network.network_options`.
        problem: the callback `module:function` of the run's landscapes; a job of this run then need not name it.
        start_step: how many steps are done already, to continue after an interruption: later snapshots and lines of the
            history are dropped. It may be omitted if `start_epoch` is given and the history has the step.
        start_epoch: how many epochs are done already; `start_step` alone is enough if the history has the epoch. A 0
            beside a `start_step` means that the first epoch has not ended, whatever the history says.
        watch: rules that watch the training, by name, such as ["weights", "gradients", "tensor_overflow"], or {name:
            threshold}, see `landscape.model.layer_rules`. Findings are in the line of the step, under "watch", and a
            warning names each once. Default: none.
        watch_every: steps from one watched step to the next: the first step, the multiples of this, and the steps in
            `intervals` are watched. Other steps cost nothing.
        overwrite: whether to remove the trajectory and the history of the run. Without it, and without a start, such a
            run is refused. With a start, it changes nothing.

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
        network: Mapping[str, Any] | None = None,
        problem: str | None = None,
        start_step: int = 0,
        start_epoch: int | None = None,
        watch: Any = None,
        watch_every: int = EVERY,
        overwrite: bool = False,
    ) -> None:
        self.options = check_collector_options(intervals, landscape_size, unit, create_landscape, num_samples)
        check_whole("start_step", start_step, 0)
        check_whole("start_epoch", start_epoch or 0, 0)
        check_whole("watch_every", watch_every, 1)
        rules = asked_rules("watch", watch)
        self._model, self._optimizer, self._described = unwrap(model), optimizer, (network or {}, problem)
        refuse_incomplete(self._model)
        self._folder, self._writes = open_folder(run), rank_and_world()[0] == 0
        self._listed = frozenset(self.options.snapshots)
        self._step, self._epoch = start_step, start_epoch or 0
        self._steps_in_epoch = 0  # since the last epoch ended, or since the start
        self._warned = set[str]()
        self._watch: TrainingWatch | None = None
        self._gathers = is_sharded(self._model)  # then all ranks take part in a snapshot
        is_due = self._on_first(lambda: self._prepare_run(start_step, start_epoch, overwrite))
        if self._gathers:  # rank 0 may have taken them from the history
            self._step, self._epoch, self._steps_in_epoch = on_first(
                lambda: (self._step, self._epoch, self._steps_in_epoch)
            )
        if is_due:
            self._keep_if_listed()
        if self._writes and rules:
            listed = self._listed if unit == "step" else ()
            self._watch = TrainingWatch(self._model, model, optimizer, rules, watch_every, listed, self._step)
            self._watch.prepare(self._step + 1)

    @property
    def steps_done(self) -> int:
        """How many steps were recorded, including `start_step`; rank 0 may take that from the history."""
        return self._step

    @property
    def epochs_done(self) -> int:
        """How many epochs have ended, including `start_epoch`; rank 0 may take that from the history."""
        return self._epoch

    def _on_first(self, decide: Callable[[], bool]) -> bool:
        """What rank 0 decides; False on the other ranks, unless they take part in a snapshot."""
        return on_first(decide) if self._gathers else self._writes and decide()

    def _prepare_run(self, start_step: int, start_epoch: int | None, overwrite: bool) -> bool:
        """Bring the run to the start of this training; whether it lacks a snapshot of the start."""
        starting = not (start_step or start_epoch)
        finish_replacement(self._folder)
        refuse_existing(self._folder, self.options.unit, starting, overwrite)
        with refusing_disk_errors(self._folder.name):
            self._folder.make()
            snapshots = open_folder(self._folder.place(SNAPSHOTS))
            snapshots.refuse_unwritable()
            snapshots.make()
        remove_leftovers(self._folder)
        counts = (0, 0, 0) if starting else steps_and_epochs(self._folder, start_step, start_epoch)
        self._step, self._epoch, self._steps_in_epoch = counts
        self._epoch_began: int | None = self._step if starting else None
        before = {} if starting else read_info(self._folder)
        self._info = describe_run(self._model, self._optimizer, self.options, *self._described)
        self._info |= kept_of(before, self._info)
        if starting:
            begin_run(self._folder, self._info, overwrite)
        else:
            continue_run(self._folder, self._info, self.options.unit, self._step, self._epoch)
        self._history = HistoryWriter(self._folder)
        self._former_histories = kept_beside(self._folder, INTERRUPTED)
        return self._is_missing()

    def _is_missing(self) -> bool:
        """Whether the run has no snapshot of this epoch or step."""
        now = (self.options.unit, self._number)
        return not any((unit, number) == now for unit, number, _ in snapshot_files(self._folder))

    def step(self, loss: Tensor | float | None = None, **metrics: Any) -> None:
        """Record one optimiser step, and write a snapshot if the step is listed.

        Args:
            loss: the step's loss, one number; without a loss and metrics, the history gets no line.
            metrics: further numbers of the step, by name.

        Raises:
            LandscapeError: the run cannot be written.
        """
        self._step += 1
        self._steps_in_epoch += 1
        if not self._writes:
            if self._gathers and self.options.unit == "step":
                self._keep_if_listed()
            return
        fired = [] if self._watch is None else self._watch.judge(self._step)
        numbers = metrics if loss is None else {"loss": loss, **metrics}  # null in the log means: not finite
        if numbers or fired:
            place = {"step": self._step, "epoch": self._epoch + 1}
            self._record(place, numbers, {"watch": fired} if fired else {})
        if self.options.unit == "step":
            self._keep_if_listed()
        if self._watch is not None:
            self._watch.prepare(self._step + 1)

    def record(self, **metrics: Any) -> None:
        """Record what became known after the last step or the end of the last epoch, such as an evaluation's metrics.

        Args:
            metrics: numbers by name; `loss` is one of a training step, or the mean of those since the last one.

        Raises:
            LandscapeError: the run cannot be written.
        """
        if not self._writes:
            return
        has_ended = self._epoch and not self._steps_in_epoch
        place = {"epoch": self._epoch, "epoch_end": True} if has_ended else {"epoch": self._epoch + 1}
        self._record({"step": self._step, **place}, metrics)

    def end_epoch(self, **metrics: Any) -> None:
        """Record the end of an epoch with its metrics, and write a snapshot if the epoch is listed.

        Args:
            metrics: numbers of the epoch, by name; a `learning_rate` replaces that of the first parameter group.

        Raises:
            LandscapeError: the run cannot be written.
        """
        self._epoch += 1
        self._steps_in_epoch = 0
        if not self._writes:
            if self._gathers and self.options.unit == "epoch":
                self._keep_if_listed()
            return
        self._record({"step": self._step, "epoch": self._epoch, "epoch_end": True}, metrics)
        self._history.sync()
        self._learn_steps_per_epoch()
        if self.options.unit == "epoch":
            self._keep_if_listed()

    def end_training(self) -> None:
        """Write a snapshot of the final weights, unless there is one of this epoch or step.

        If epochs are counted and steps were taken since the last one ended, the weights belong to no epoch: they are
        not written, with a warning.

        Raises:
            LandscapeError: the run cannot be written.
        """
        if self._writes:
            self._history.sync()
        unit, number = self.options.unit, self._number
        if unit == "epoch" and self._steps_in_epoch:
            if not self._writes:
                return
            log.warning(
                "run %s: training ended within epoch %d, and snapshots count epochs: its last weights are not kept; "
                "call end_epoch before end_training, or count steps", quoted(self._folder.name), number + 1,
            )  # fmt: skip
        elif number and self._on_first(self._is_missing):
            self._keep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # an interrupted training has not ended
            self.end_training()

    def sync(self) -> None:
        """Make all records so far survive a crash, as a checkpoint requires.

        Raises:
            LandscapeError: the run cannot be written.
        """
        if self._writes:
            self._history.sync()

    @property
    def _number(self) -> int:
        return self._epoch if self.options.unit == "epoch" else self._step

    def _record(
        self, place: Mapping[str, Any], values: Mapping[str, Any], extra: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        numbers = dict[str, float | int | None]()
        for name, value in values.items():
            key = f"metric_{name}" if name in RESERVED else name
            if key != name:
                self._warn_once(f"metrics: {quoted(name)} is a name that the collector fills in; recorded as {key!r}")
            try:
                numbers[key] = recorded_number(name, value)
            except JobError as error:  # the training is worth more than its record
                self._warn_once(f"{error}; not recorded")
        self._history.append({**place, "learning_rate": learning_rate(self._optimizer), **numbers, **extra})

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("run %s: %s", quoted(self._folder.name), text)

    def _keep_if_listed(self) -> None:
        if self._number in self._listed:
            self._keep()

    def _keep(self) -> None:
        state = gathered_state(self._model, keep=self._writes) if self._gathers else state_of(self._model)
        if not self._writes:
            return
        self._history.sync()
        unit, number = self.options.unit, self._number
        write_snapshot(self._folder, unit, number, state, step=self._step, epoch=self._epoch, **versions())
        for name in self._former_histories:
            self._folder.delete(name)
        self._former_histories = []

    def _learn_steps_per_epoch(self) -> None:
        """Record the length of the first epoch that was collected from its beginning."""
        if self._info["steps_per_epoch"] is None and self._epoch_began is not None and self._step > self._epoch_began:
            self._info["steps_per_epoch"] = self._step - self._epoch_began
            write_info(self._folder, self._info)
        self._epoch_began = self._step
