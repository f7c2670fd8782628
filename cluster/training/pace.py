"""How fast a rank trains, and how much of its time is communication: measured around a `Training`, from outside."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cluster.training.board import KEPT, PACE
from landscape.core.errors import JobError, shown
from landscape.training.checkpoints import Checkpoint
from landscape.training.distributed import Share
from landscape.training.training import Training

# Within an epoch a line says how far it is, first after so many seconds, then after twice as many each time.
TELL_SECONDS, MOST_TELL_SECONDS = 5.0, 60.0

log = logging.getLogger("landscape")
Tell = Callable[[str, dict[str, Any]], object]


class Enough(BaseException):
    """As many steps are done as were to be measured. No exception of the function's own, which could catch it."""


@dataclass
class Pace:
    """What one rank has done so far.

    Attributes:
        steps, samples, seconds: of the batches; samples are of whole batches, over all ranks.
        mean_seconds: of the time, spent in means over the ranks.
        step_seconds: of each measured step.
    """

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    epochs: int = 0
    mean_seconds: float = 0.0
    loss: float | None = None
    step_seconds: list[float] = field(default_factory=list)


class PacedTraining(Training):
    """A `Training` that tells how fast it goes; to its function it is one like any other.

    Args:
        run, options: those of `Training`.
        tell: is told the pace of rank 0 at each epoch's end, and now and then in between.
        steps: end with `Enough` after so many steps, `warm` of them beforehand not counted.
        function: what trains, by its name.
        former: what trained the run before, where it was another function.
    """

    def __init__(
        self,
        run: str,
        tell: Tell,
        *,
        steps: int | None = None,
        warm: int = 0,
        function: str = "",
        former: str = "",
        **options: Any,
    ) -> None:
        super().__init__(run, **options)
        self._function, self._former = function, former
        self._tell, self._stop_after, self._warm = tell, steps, warm
        self._network: nn.Module | None = None
        self._losses: tuple[Tensor, int] | None = None  # sum over samples, and their number
        self._has_kept = False
        self._in_batch = 0  # samples of the batch whose loss has not been told yet
        self.pace = Pace()

    def prepare(self, model: nn.Module, **options: Any) -> nn.Module:
        """As `Training.prepare`."""
        self._network = super().prepare(model, **options)
        if self.world > 1 and self._stop_after is not None:
            self._network._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[operator]  # of every step
        return self._network

    def mean(self, loss: Tensor | float) -> Tensor:
        """As `Training.mean`; the first one of each batch is its loss."""
        began = time.perf_counter()
        mean = super().mean(loss)
        if self.world > 1:
            self.pace.mean_seconds += time.perf_counter() - began
        if self._in_batch:
            before, count = self._losses or (torch.zeros_like(mean), 0)
            self._losses = before + mean * self._in_batch, count + self._in_batch
            self._in_batch = 0
        return mean

    def _load(self, objects: dict[str, Any], last: Checkpoint) -> None:
        """As `Training._load`; what another function has trained is refused, or gone on with, in words that say so."""
        told = f"run {shown(str(self.run))} was trained by {self._former}"
        try:
            super()._load(objects, last)
        except JobError as error:
            if not self._former:
                raise
            what, _, rest = str(error).rpartition("; ")  # the rest would be its remedy, which is for the same function
            raise JobError(
                f"function: {told}, not by {self._function}; go on with {self._former}, name another run, or begin "
                f"anew with overwrite\n{what or rest}"
            ) from None
        if self._former and self.is_first:
            log.warning("%s; it goes on by %s", told, self._function)

    def keep(self, **state: Any) -> None:
        """As `Training.keep`."""
        super().keep(**state)
        if self.is_first and not self._has_kept:
            self._has_kept = True
            self._tell(KEPT, {})

    def batches(self, count: int, batch_size: int, epoch: int, **options: Any) -> Iterator[Share]:
        """As `Training.batches`."""
        return self._timed(super().batches(count, batch_size, epoch, **options), count, epoch)

    def _timed(self, given: Iterator[Share], count: int, epoch: int) -> Iterator[Share]:
        pace, samples, self._losses = self.pace, 0, None
        began = told = time.perf_counter()
        pause = TELL_SECONDS
        for share in given:
            start = time.perf_counter()
            self._in_batch = share.samples
            yield share
            now = time.perf_counter()
            samples += share.samples
            pace.steps += 1
            self._count_step(now - start, share.samples)
            if now - told > pause:
                told, pause = now, min(2 * pause, MOST_TELL_SECONDS)
                self._tell_pace(epoch, samples, now - began, count)
        self._in_batch = 0
        pace.epochs += 1
        self._tell_pace(epoch, samples, time.perf_counter() - began)

    def _count_step(self, seconds: float, samples: int) -> None:
        """Add a step; before the measured ones, forget it."""
        pace = self.pace
        if self._stop_after is not None and pace.steps <= self._warm:
            pace.mean_seconds = 0.0
            return
        pace.samples, pace.seconds = pace.samples + samples, pace.seconds + seconds
        if self._stop_after is not None:
            pace.step_seconds.append(seconds)
            if len(pace.step_seconds) >= self._stop_after:
                raise Enough

    def _tell_pace(self, epoch: int, samples: int, seconds: float, count: int | None = None) -> None:
        """Tell the pace of an epoch; `count` is its number of samples where it has not ended."""
        if self._losses is not None:
            total, told = self._losses
            self.pace.loss = float(total) / told
        if self.is_first and samples:
            self._tell(
                PACE,
                {"epoch": epoch + 1, "loss": self.pace.loss, "samples": samples, "seconds": seconds, "count": count},
            )

    def summary(self) -> dict[str, Any]:
        """What this rank did, as plain values; `communication` is the share of its time, None for a rank alone.

        `total_steps` and `total_epochs` count those before this start too; epochs are None where no collector does.
        """
        pace = self.pace
        share = None
        if self.world > 1 and pace.seconds:
            share = min(1.0, (pace.mean_seconds + self._backward_seconds()) / pace.seconds)
        totals = {"total_steps": self.steps_done, "total_epochs": self.epochs_done or None}
        return asdict(pace) | totals | {"rank": self.rank, "world": self.world, "communication": share}

    def _backward_seconds(self) -> float:
        """Seconds from the first sum of gradients over the ranks to the end of the last, of all backward passes.

        DistributedDataParallel measures it, of some steps; most of it passes while gradients are computed.
        """
        if not isinstance(self._network, nn.parallel.DistributedDataParallel):
            return 0.0
        measured = self._network._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        steps = len(self.pace.step_seconds) or self.pace.steps
        return float(measured.get("avg_backward_comm_time", 0)) * 1e-9 * steps
