"""One rank of a training, in whatever process: its log, its threads, the user's function, and what errors mean."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from cluster.runtime.options import check_workers
from cluster.training.options import NamedFunction
from cluster.training.report import KEPT, PACE, REMARK, STARTED, SUMMARY, log_rank
from landscape.core.errors import BAD_USAGE, FAILED, NOT_FOUND, JobError, LandscapeError, NotFoundError, quoted
from landscape.core.files import temporary_folder
from landscape.core.folders import locate, open_folder
from landscape.core.lock import TRAINING_CARD
from landscape.core.validation import gpus
from landscape.job.job import custom_resources
from landscape.problem.user_code import in_folder, in_words
from landscape.training.distributed import Share, rank_and_world
from landscape.training.kept_files import Checkpoint
from landscape.training.training import Training

# ----------------------------------------------------------------------------------------------------
# A training that was requested: what is trained, its options, its run, its workers; and the plan that each rank gets.

THREADS = 1  # of a rank on a CPU; sums round differently when another number of threads share them


@dataclass(frozen=True)
class TrainingJob:
    """A training that was requested, with the attributes of a job that a Ray session reads.

    Attributes:
        run: the run's folder or URL, as it was given.
        options: those of the function, checked.
        workers: how many ranks; None for one per GPU, or one where there are no GPUs.
        gpus_per_worker: None for one where there are GPUs.
        max_workers, worker_resources: as for a job.
        here: the folder that a relative run lies below, as the function may change the current directory.
    """

    what: NamedFunction
    run: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    workers: int | None = None
    gpus_per_worker: float | None = None
    max_workers: int | None = None
    worker_resources: Mapping[str, float] = field(default_factory=dict)
    here: Path = field(default_factory=Path.cwd)

    def __post_init__(self) -> None:
        check_workers(self.workers)
        check_workers(self.max_workers, "max_workers")
        if not self.run.strip():
            raise JobError("run: must name a folder or URL for the training; give --run")
        try:
            self.gpus_per_worker is None or gpus(self.gpus_per_worker)
        except ValueError as error:
            raise JobError(f"gpus_per_worker: {error}") from None
        try:
            object.__setattr__(self, "worker_resources", custom_resources(self.worker_resources or {}))
        except ValueError as error:
            raise JobError(f"worker_resources: {error}") from None

    @property
    def run_path(self) -> str:
        """The run as an absolute folder or a URL."""
        return locate(self.run, self.here)

    @property
    def folder(self) -> Path:
        """Where the module of the function lies."""
        return self.what.folder

    @property
    def problem(self) -> str | None:
        """'module:function', whose files travel to a cluster; None where no file has to."""
        return self.what.module

    @property
    def device(self) -> str:
        """The kind of device: a GPU where there is one, unless workers are to have none."""
        return "cpu" if self.gpus_per_worker == 0 else "auto"

    @property
    def num_gpus(self) -> float | None:
        """GPUs of each worker."""
        return self.gpus_per_worker

    device_ids = None
    threads = THREADS


@dataclass(frozen=True)
class RankPlan:
    """What every rank of a training gets to know.

    Attributes:
        run: an absolute folder or a URL; empty for a folder of the rank's own, which is removed at the end.
        card: the content of the run's file that describes the driver; a node that reads another does not see the run.
        path: the driver's module path.
        here: the driver's working directory.
        former: the function that trained the run before, where it was another one.
        steps: the number of measured steps after which a rank ends; None to train to the end.
        warm: the number of steps before those, which are not measured.
    """

    what: NamedFunction
    options: Mapping[str, Any]
    run: str
    seed: int
    card: bytes = b""
    path: tuple[str, ...] = ()
    here: str = ""
    former: str = ""
    steps: int | None = None
    warm: int = 0


def plan_of(job: TrainingJob, **changes: Any) -> RankPlan:
    """The plan that the ranks of a training get."""
    path = tuple(os.path.abspath(folder) for folder in sys.path)
    plan = RankPlan(job.what, dict(job.options), job.run_path, job.seed, path=path, here=os.getcwd())
    return replace(plan, **changes)


# ----------------------------------------------------------------------------------------------------
# How fast a rank trains, and how much of its time is communication: measured around a `Training`, from outside.

# Within an epoch a line says how far it is: first after so many seconds, and after twice as many each time.
TELL_SECONDS, MOST_TELL_SECONDS = 5.0, 60.0

log = logging.getLogger("landscape")
Tell = Callable[[str, dict[str, Any]], object]


class MeasurementDone(BaseException):
    """Ends a measurement after its last step. A BaseException, as the user's function may catch exceptions."""


@dataclass
class Pace:
    """What one rank has done so far.

    Attributes:
        steps, samples, seconds: those of the batches; samples are counted over all ranks.
        mean_seconds: how much of the time was spent in means over the ranks.
        step_seconds: the duration of each measured step.
    """

    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    epochs: int = 0
    mean_seconds: float = 0.0
    loss: float | None = None
    step_seconds: list[float] = field(default_factory=list)


class PacedTraining(Training):
    """A `Training` that reports how fast it goes; to its function it is one like any other.

    Args:
        run, options: those of `Training`.
        tell: gets the pace of rank 0 at the end of each epoch, and now and then in between.
        steps: end with `MeasurementDone` after so many steps, which come after `warm` others.
        function: the name of the function that trains.
        former: the name of the one that trained the run before, where it was another.
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
        self._in_batch = 0  # samples of the present batch, while its loss is not known
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
        """As `Training._load`; where another function has trained before, an error or a warning says so."""
        history = f"run {quoted(str(self.run))} was trained by {self._former}"
        try:
            super()._load(objects, last)
        except JobError as error:
            if not self._former:
                raise
            reason, _, remedy = str(error).rpartition("; ")  # the remedy is for the same function, and left out
            raise JobError(
                f"function: {history}, not by {self._function}; go on with {self._former}, name another run, or begin "
                f"anew with overwrite\n{reason or remedy}"
            ) from None
        if self._former and self.is_first:
            log.warning("%s; it goes on by %s", history, self._function)

    def keep(self, **state: Any) -> None:
        """As `Training.keep`."""
        super().keep(**state)
        if self.is_first and not self._has_kept:
            self._has_kept = True
            self._tell(KEPT, {})

    def batches(self, count: int, batch_size: int, epoch: int, **options: Any) -> Iterator[Share]:
        """As `Training.batches`."""
        return self._timed(super().batches(count, batch_size, epoch, **options), count, epoch)

    def _timed(self, shares: Iterator[Share], count: int, epoch: int) -> Iterator[Share]:
        pace, samples, self._losses = self.pace, 0, None
        began = reported = time.perf_counter()
        pause = TELL_SECONDS
        for share in shares:
            start = time.perf_counter()
            self._in_batch = share.samples
            yield share
            now = time.perf_counter()
            samples += share.samples
            pace.steps += 1
            self._count_step(now - start, share.samples)
            if now - reported > pause:
                reported, pause = now, min(2 * pause, MOST_TELL_SECONDS)
                self._tell_pace(epoch, samples, now - began, count)
        self._in_batch = 0
        pace.epochs += 1
        self._tell_pace(epoch, samples, time.perf_counter() - began)

    def _count_step(self, seconds: float, samples: int) -> None:
        """Count a step, unless it comes before the measured ones."""
        pace = self.pace
        if self._stop_after is not None and pace.steps <= self._warm:
            pace.mean_seconds = 0.0
            return
        pace.samples, pace.seconds = pace.samples + samples, pace.seconds + seconds
        if self._stop_after is not None:
            pace.step_seconds.append(seconds)
            if len(pace.step_seconds) >= self._stop_after:
                raise MeasurementDone

    def _tell_pace(self, epoch: int, samples: int, seconds: float, count: int | None = None) -> None:
        """Report the pace of an epoch; `count` is its number of samples where it has not ended."""
        if self._losses is not None:
            total, number = self._losses
            self.pace.loss = float(total) / number
        if self.is_first and samples:
            self._tell(
                PACE,
                {"epoch": epoch + 1, "loss": self.pace.loss, "samples": samples, "seconds": seconds, "count": count},
            )

    def summary(self) -> dict[str, Any]:
        """What this rank did, as plain values.

        `communication` is the share of its time that it took, None for a single rank. `total_steps` and
        `total_epochs` also count those before this start; epochs are None where no collector counts them.
        """
        pace = self.pace
        share = None
        if self.world > 1 and pace.seconds:
            share = min(1.0, (pace.mean_seconds + self._backward_seconds()) / pace.seconds)
        totals = {"total_steps": self.steps_done, "total_epochs": self.epochs_done or None}
        return asdict(pace) | totals | {"rank": self.rank, "world": self.world, "communication": share}

    def _backward_seconds(self) -> float:
        """Seconds of all backward passes from the first sum of gradients over the ranks to the end of the last.

        DistributedDataParallel measures them for some steps. Most of this time gradients are computed as well.
        """
        if not isinstance(self._network, nn.parallel.DistributedDataParallel):
            return 0.0
        measured = self._network._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        steps = len(self.pace.step_seconds) or self.pace.steps
        return float(measured.get("avg_backward_comm_time", 0)) * 1e-9 * steps


OF_CONNECTIONS = ("gloo/", "NCCL", "Connection closed")  # in the texts of connection errors of torch.distributed
KINDS = {BAD_USAGE: JobError, NOT_FOUND: NotFoundError}  # of errors, by their exit codes


class RankFailed(Exception):
    """A training cannot go on, and not because of a lost rank: another try would end in the same way.

    Args:
        text: the reason, as a user reads it.
        exit_code: that of the command.
    """

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text, exit_code)
        self.text, self.exit_code = text, exit_code

    def as_error(self) -> LandscapeError:
        """The error that the command ends with."""
        return KINDS.get(self.exit_code, LandscapeError)(self.text)


class PeerLost(Exception):
    """A rank lost the connection to another one, for a reason that it does not know."""


# What a rank's log says below the traceback of such a connection, which names neither a rank nor a remedy.
AFTER_PEER_LOST = (
    "--- the connection to another rank broke, as a rank that is lost breaks it; `landscape train` says which one, and "
    "all ranks go on from the last checkpoint ---\n"
)


def run_rank(
    plan: RankPlan,
    tell: Tell,
    *,
    device: str = "auto",
    local_rank: int | None = None,
    own_process: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train as one rank: as this process's rank in the process group, or alone where there is none.

    Args:
        tell: gets what the user should know, and at the end the summary.
        own_process: whether this process does nothing else; its output then is the rank's log.

    Returns:
        What the rank did, as `PacedTraining.summary` says.

    Raises:
        RankFailed: the function raised, or the run cannot be used.
        PeerLost: the connection to another rank broke.
    """
    rank, world = rank_and_world()
    if own_process:
        sys.path[:0] = [folder for folder in plan.path if folder not in sys.path]
    with contextlib.ExitStack() as stack:
        run = plan.run or str(stack.enter_context(temporary_folder()))
        with _translate_errors(plan, rank, world):
            _refuse_unshared(plan)
            log = stack.enter_context(log_rank(run, rank, world, own_process=own_process)) if plan.run else None
        translated = _translate_errors(plan, rank, world)
        with _log_traceback(log), in_folder(Path(plan.here)), translated, _set_threads(device):
            training = PacedTraining(
                run, tell, steps=plan.steps, warm=plan.warm, seed=plan.seed, device=device, local_rank=local_rank,
                overwrite=overwrite, function=plan.what.name, former=plan.former,
            )  # fmt: skip
            if own_process and rank == 0:
                stack.enter_context(_tell_warnings(tell))
            tell(STARTED, {"rank": rank, "world": world})
            with contextlib.suppress(MeasurementDone):
                plan.what.load()(training, **plan.options)
                training.end()
            summary = training.summary()
        tell(SUMMARY, summary)
        return summary


def _refuse_unshared(plan: RankPlan) -> None:
    """Refuse to train on a node that does not see the run's folder."""
    if plan.card and "://" not in plan.run and open_folder(plan.run).read(TRAINING_CARD) != plan.card:
        raise JobError(
            f"run: {quoted(plan.run)} is not the same folder on every node of the cluster; name one that all nodes "
            "share, or a URL"
        )


@contextlib.contextmanager
def _tell_warnings(tell: Tell) -> Iterator[None]:
    """Pass this package's warnings on to the user, who does not see this process."""
    handler, logger = _Telling(tell), logging.getLogger("landscape")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Telling(logging.Handler):
    """Passes warnings and worse on as remarks."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(REMARK, {"text": record.getMessage()})


@contextlib.contextmanager
def _set_threads(device: str) -> Iterator[None]:
    """Let a rank on a CPU use one thread, with Ray and without, so that its sums round in the same way."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if device != "cpu" and torch.cuda.is_available() else THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _log_traceback(log: TextIO | None) -> Iterator[None]:
    """Write the traceback of what the function raises to the end of the log, and what follows from a lost rank."""
    try:
        yield
    except BaseException as error:
        if log is not None:
            traceback.print_exception(error.__cause__ or error, file=log)
            if isinstance(error, PeerLost):
                log.write(AFTER_PEER_LOST)
        raise


@contextlib.contextmanager
def _translate_errors(plan: RankPlan, rank: int, world: int) -> Iterator[None]:
    """Turn whatever is raised into RankFailed or PeerLost, by what it means for the training."""
    try:
        yield
    except LandscapeError as error:
        raise RankFailed(str(error), error.exit_code) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if world > 1 and is_of_connection(error):
            raise PeerLost(str(error)) from error
        log = f"; all of it: landscape logs {shlex.quote(plan.run)} --rank {rank}" if plan.run else ""
        raise RankFailed(f"function: {plan.what.name} {in_words(error)} on rank {rank}{log}") from error


def is_of_connection(error: BaseException) -> bool:
    """Whether an exception of torch.distributed says that another rank cannot be reached.

    Gloo raises a plain RuntimeError, whose text names the file of its source, such as third_party/gloo/gloo/….
    """
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(name in str(error) for name in OF_CONNECTIONS)
