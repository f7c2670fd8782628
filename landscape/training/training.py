"""`Training`: the argument of a function that trains, in one process or in one per rank.

def train(training: Training) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    network = training.prepare(model)
    done = training.resume(model=model, optimizer=optimizer)
    collector = training.collector(model, optimizer, unit="epoch", intervals=[[1, 2, 3]])
    for epoch in range(done.get("epoch", 0), 10):
        for share in training.batches(len(data), 64, epoch):
            loss = criterion(network(data[share.index]), targets[share.index]) * share.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            collector.step(training.mean(loss))
        collector.end_epoch()
        training.keep(model=model, optimizer=optimizer, epoch=epoch + 1)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from landscape.core.devices import pick_device
from landscape.core.errors import JobError, message_of, quoted
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.core.validation import check_whole
from landscape.model.parameters import match_state
from landscape.model.run_files import HISTORY_FILE, INFO_FILE, checkpoint_numbers
from landscape.model.snapshots import snapshot_files
from landscape.training import distributed
from landscape.training.collector import TrajectoryCollector, refuse_options, unwrap
from landscape.training.distributed import Share, epoch_order, shares
from landscape.training.kept_files import (
    Checkpoint,
    checked_seed,
    generator_states,
    mark_begun,
    may_begin_anew,
    read_last,
    seed_generators,
    set_generator_states,
    to_plain,
    write_checkpoint,
)

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# The states of objects in checkpoints.

REMEDY = "change it back, name another run, or begin anew with overwrite"


def inner(value: Any) -> Any:
    """A network inside its wrappers; other values unchanged."""
    return unwrap(value) if isinstance(value, nn.Module) else value


def states_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The state of each object that has one; other values unchanged."""
    return {name: inner(value).state_dict() if _has_state(value) else value for name, value in values.items()}


def classes_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The class of each value with a state."""
    return {name: type(inner(value)).__name__ for name, value in values.items() if _has_state(value)}


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict")


def load_all(objects: Mapping[str, Any], last: Checkpoint, run: str) -> None:
    """Load the state of each object from the checkpoint.

    Raises:
        JobError: the checkpoint has no state for one of them, or the state of another object.
    """
    missing = [name for name in objects if name not in last.values]
    if missing:
        raise JobError(
            f"{missing[0]}: must be in the checkpoint of run {run}, which holds {', '.join(last.values) or 'nothing'}; "
            "take it out of resume, or begin anew with overwrite"
        )
    for name, target in objects.items():
        _load(name, inner(target), last, run)


def _load(name: str, target: Any, last: Checkpoint, run: str) -> None:
    state = last.values[name]
    before, now = last.classes.get(name), type(target).__name__
    # A model may be of another class with the same weights; the state of another optimiser is useless.
    if before is None or (before != now and not isinstance(target, nn.Module)):
        saved = before or f"a value of type {type(state).__name__}"
        raise JobError(f"{name}: training in run {run} was begun with {saved}, not {now}; {REMEDY}")
    try:
        if isinstance(target, nn.Module):
            match_state(target, state, f"checkpoint of run {run}")
        target.load_state_dict(state)
    except Exception as error:
        if isinstance(error, JobError) and not isinstance(target, nn.Module):
            raise  # the object explains its own error
        raise JobError(f"{name}: does not fit what was trained: {message_of(error, 400)}; {REMEDY}") from None


def mark_start(folder: Folder, overwrite: bool) -> None:
    """Mark the run as one where this training may begin anew until there is a checkpoint.

    Args:
        overwrite: whether the contents of the run may be dropped.

    Raises:
        JobError: the run has checkpoints, but `resume` was not called; or the trajectory of another training.
    """
    if overwrite or may_begin_anew(folder):
        mark_begun(folder)  # again, since a killed process may have left checkpoints that should be deleted
        return
    name = quoted(folder.name)
    if checkpoint_numbers(folder):
        raise JobError(f"run: {name} holds checkpoints; call resume before collector, or name another run")
    if snapshot_files(folder):
        raise JobError(
            f"run: {name} holds a trajectory that this training did not make; name another run, or overwrite it"
        )
    if not folder.read(HISTORY_FILE):
        mark_begun(folder)


class Training:
    """A training of one process, or of one rank among several if `torch.distributed` is initialised.

    Make it after the process group. All ranks make the same calls in the same order.

    Args:
        run: the run's folder or URL; it holds the trajectory, the history and the checkpoints.
        seed: decides the order of samples and, from `resume` on, the random generators of each rank.
        device: "cpu", "cuda" or "auto", which is this rank's GPU if there is one, else the CPU.
        local_rank: the rank among those of its machine, which is the number of its GPU; default: LOCAL_RANK in the
            environment, else 0.
        overwrite: whether to begin anew, whatever the run holds.

    Attributes:
        rank: this process's number, from 0.
        world: the number of ranks.
        overwrite: whether the training begins anew, whatever the run holds.

    Raises:
        JobError: `device` is "cuda", and there is no GPU; or the seed is no whole number from 0 to 2^64 − 1.
    """

    def __init__(
        self, run: Place, *, seed: int = 0, device: str = "auto", local_rank: int | None = None, overwrite: bool = False
    ) -> None:
        self.run, self.seed = run, checked_seed(seed)
        self.rank, self.world = distributed.rank_and_world()
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0)) if local_rank is None else local_rank
        self.device = pick_device(device)
        if self.device.type == "cuda":
            self.device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        self.overwrite = overwrite
        self._collector: TrajectoryCollector | None = None
        self._step, self._epoch, self._resumed = 0, 0, False  # of the last checkpoint, and whether it was loaded
        self._batches = 0  # handed out since then

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes and prints."""
        return self.rank == 0

    @property
    def steps_done(self) -> int:
        """How many steps are done, by the collector's count; without a collector, how many batches were handed out."""
        return self._collector.steps_done if self._collector is not None else self._step + self._batches

    @property
    def epochs_done(self) -> int:
        """How many epochs have ended by the collector's count, including those before the start."""
        return self._collector.epochs_done if self._collector is not None else self._epoch

    def prepare(self, model: nn.Module, *, synchronise_batch_norm: bool = False) -> nn.Module:
        """`model` on this rank's device; with several ranks, wrapped so that gradients are averaged over them.

        Args:
            synchronise_batch_norm: whether to normalise by the statistics of the whole batch instead of this rank's
                share; on GPUs only. In either case, the buffers of rank 0 are the model's.

        Raises:
            JobError: batch norm is to be synchronised on CPUs, which PyTorch does not support.
        """
        model.to(self.device)
        if self.world == 1:
            return model
        if synchronise_batch_norm:
            if self.device.type != "cuda":
                raise JobError("synchronise_batch_norm: must be False on CPUs, not True; PyTorch has it for GPUs only")
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        # With find_unused_parameters, the layout of buckets is fixed; otherwise it follows the first backward pass. So
        # a resumed training sums in the same order, to the same bits, as one that never stopped.
        return nn.parallel.DistributedDataParallel(
            model, device_ids=[self.device] if self.device.type == "cuda" else None, find_unused_parameters=True
        )

    def batches(
        self, count: int, batch_size: int, epoch: int, *, start: int = 0, shuffle: bool = True
    ) -> Iterator[Share]:
        """This rank's shares of the batches of an epoch.

        Every sample is in one batch, and every batch is the same set of samples for any number of ranks; the last batch
        may be smaller. `Share` has the weight of the loss; `distributed.share_of` splits a batch.

        Args:
            count: the number of samples in the data.
            batch_size: the number of samples of a whole batch, over all ranks.
            epoch: its number, which decides the order together with the seed.
            start: how many batches of this epoch are done already.
            shuffle: False takes the samples in the order of the data.

        Raises:
            JobError: one of the numbers is not usable.
        """
        for name, value, least in (("count", count, 1), ("batch_size", batch_size, 1), ("epoch", epoch, 0),
                                   ("start", start, 0)):  # fmt: skip
            check_whole(name, value, least)
        order = epoch_order(count, self.seed, epoch) if shuffle else torch.arange(count)
        return self._count(shares(order, batch_size, self.rank, self.world, start))

    def _count(self, shares: Iterator[Share]) -> Iterator[Share]:
        for share in shares:
            self._batches += 1
            yield share

    def mean(self, loss: Tensor | float) -> Tensor:
        """The mean over the ranks, equal to the bit on each; for weighted losses, the loss of the whole batch."""
        return self.sum(loss) / self.world if self.world > 1 else torch.as_tensor(loss).detach()

    def sum(self, value: Tensor | float) -> Tensor:
        """The sum over the ranks, equal to the bit on each."""
        return distributed.sum_over_ranks(value)

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank the buffers of rank 0, such as batch-norm statistics, before each evaluates its part."""
        distributed.share_buffers(inner(model))

    def resume(self, **objects: Any) -> dict[str, Any]:
        """Continue from the last checkpoint: call it once the objects are made, and before `collector`.

        The random generators get their states from the checkpoint. In a new training, and in one that continues with
        another number of ranks, they are seeded from the seed and the rank.

        Args:
            objects: those with a `load_state_dict`, by their names in `keep`; their states are loaded.

        Returns:
            The other values of the checkpoint, by name; an empty dict in a new training.

        Raises:
            JobError: the checkpoint does not fit the objects, or none can be read.
        """
        if self._collector is not None:
            raise JobError("resume: must be called before the collector is made; call it right after the objects are")
        last = distributed.on_first(self._last_checkpoint)
        if last is None:
            seed_generators(self.seed, self.rank)
            return {}
        self._load(objects, last)
        self._step, self._epoch, self._resumed = last.step, last.epoch, True
        if last.world == self.world:
            set_generator_states(last.generators[self.rank], self.device)
        else:
            if self.is_first:
                log.warning(
                    "run %s was trained with %d rank%s and goes on with %d: it sums in another order, so that its "
                    "last bits differ, and its generators begin anew from the seed",
                    self._name, last.world, "s" if last.world > 1 else "", self.world,
                )  # fmt: skip
            seed_generators(self.seed, self.rank)
        return {name: value for name, value in last.values.items() if name not in objects}

    def _load(self, objects: dict[str, Any], last: Checkpoint) -> None:
        """Give the objects their states from the checkpoint; a job of `train` refuses in words of its own."""
        load_all(objects, last, self._name)

    @property
    def _name(self) -> str:
        return quoted(open_folder(self.run).name)

    def _last_checkpoint(self) -> Checkpoint | None:
        folder = open_folder(self.run)
        if self.overwrite or may_begin_anew(folder):
            mark_begun(folder)  # again, since a killed process may have left checkpoints that should be deleted
            return None
        return read_last(folder)

    def begin_anew(self) -> None:
        """Delete the checkpoints, and let the collector begin anew, whatever the run holds.

        Call it after `resume`, with new objects, if the run has lost files that the training needs.
        """
        self.overwrite, self._resumed, self._step, self._epoch = True, False, 0, 0
        distributed.on_first(lambda: mark_begun(open_folder(self.run)))
        seed_generators(self.seed, self.rank)

    def collector(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any
    ) -> TrajectoryCollector:
        """A collector that continues from the checkpoint of `resume`; later records are dropped.

        Args:
            options: those of `TrajectoryCollector`, except the start and `overwrite`.

        Raises:
            JobError: an option is not usable, or the run holds a trajectory that this training did not make.
        """
        refuse_options(options)
        collectors: list[TrajectoryCollector] = []
        distributed.on_first(lambda: collectors.append(self._first_collector(model, optimizer, options)))
        if not self.is_first:
            starts: dict[str, Any] = {"start_step": self._step, "start_epoch": self._epoch}
            collectors.append(TrajectoryCollector(self.run, model, optimizer, **options, **starts))
        self._collector = collectors[0]
        return self._collector

    def _first_collector(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, options: dict[str, Any]
    ) -> TrajectoryCollector:
        """The collector of rank 0, which writes."""
        starts: dict[str, Any] = {"start_step": self._step, "start_epoch": self._epoch}
        folder = open_folder(self.run)
        if not (self._step or self._epoch):
            # A training that was stopped before its first checkpoint begins anew in the run that it has marked.
            if not self._resumed:
                mark_start(folder, self.overwrite)
            starts["overwrite"] = self._resumed or may_begin_anew(folder)
        before = folder.names("") if self._epoch else []
        collector = TrajectoryCollector(folder, model, optimizer, **options, **starts)
        if INFO_FILE in before and HISTORY_FILE not in before:  # every epoch ends with a line
            log.warning(
                "history %s is gone, with the steps up to %d; it begins anew there",
                quoted(folder.place(HISTORY_FILE)), self._step,
            )  # fmt: skip
        return collector

    def end(self) -> None:
        """Have the collector write a snapshot of the final weights.

        `landscape train` calls it once the function has returned; a second call changes nothing.
        """
        if self._collector is not None:
            distributed.on_first(self._collector.end_training)

    def keep(self, **values: Any) -> None:
        """Write a checkpoint of these values, of every rank's random generators and of the steps and epochs done.

        It is written whole or not at all, and survives a power cut; the last two are kept. The collector's records are
        synced first. All ranks call it, and rank 0 writes.

        Args:
            values: objects with a `state_dict`, which is taken; tensors, numbers, text, lists and dicts of these.

        Raises:
            JobError: a value is of another type.
            LandscapeError: the run cannot be written.
        """
        states, classes = states_of(values), classes_of(values)
        generators = distributed.gather(generator_states(self.device))

        def write() -> None:
            contents = {name: to_plain(name, state) for name, state in states.items()}
            if self._collector is not None:
                self._collector.sync()
            folder = open_folder(self.run)
            # Without recorded steps and batches, number the checkpoints themselves.
            number = self.steps_done or max([0, *checkpoint_numbers(folder)]) + 1
            checkpoint = Checkpoint(self.steps_done, self.epochs_done, self.world, contents, classes, generators)
            write_checkpoint(folder, number, checkpoint)

        distributed.on_first(write)
