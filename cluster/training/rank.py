"""One rank of a training, in whatever process: its log, its threads, the user's function, and what errors mean."""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch

from cluster.training.board import REMARK, STARTED, SUMMARY
from cluster.training.job import THREADS, RankPlan
from cluster.training.logs import logging_rank
from cluster.training.pace import Enough, PacedTraining, Tell
from landscape.core.errors import BAD_USAGE, FAILED, NOT_FOUND, JobError, LandscapeError, NotFoundError, shown
from landscape.core.folders import open_folder
from landscape.core.lock import TRAINING_CARD
from landscape.problem.user_code import in_folder, in_words
from landscape.training.distributed import rank_and_world

OF_CONNECTIONS = ("gloo/", "NCCL", "Connection closed")  # in the text of what torch.distributed raises
KINDS = {BAD_USAGE: JobError, NOT_FOUND: NotFoundError}  # of errors, by their exit codes


class RankFailed(Exception):
    """A training cannot go on, and not because a rank was lost: trying it again would end in the same way.

    Args:
        text: why, as a user reads it.
        exit_code: of the command.
    """

    def __init__(self, text: str, exit_code: int = FAILED) -> None:
        super().__init__(text, exit_code)
        self.text, self.exit_code = text, exit_code

    def as_error(self) -> LandscapeError:
        """The error that the command ends with."""
        return KINDS.get(self.exit_code, LandscapeError)(self.text)


class PeerLost(Exception):
    """A rank could not reach another one. Why that is gone, it cannot tell."""


def run_rank(
    plan: RankPlan,
    tell: Tell,
    *,
    device: str = "auto",
    local_rank: int | None = None,
    own_process: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train as one rank: where there is a process group, as that of this process, else alone.

    Args:
        tell: is told what there is to say to the user, and at the end the summary.
        own_process: nothing else happens in this process, whose output is the rank's log.

    Returns:
        What the rank did, as `PacedTraining.summary` says.

    Raises:
        RankFailed: the function raised, or the run cannot be used.
        PeerLost: the connection to another rank broke.
    """
    rank, world = rank_and_world()
    if own_process:
        sys.path[:0] = [each for each in plan.path if each not in sys.path]
    with contextlib.ExitStack() as stack:
        run = plan.run or stack.enter_context(tempfile.TemporaryDirectory(prefix="landscape-training-"))
        with _translated(plan, rank, world):
            _refuse_unshared(plan)
            log = stack.enter_context(logging_rank(run, rank, world, own_process=own_process)) if plan.run else None
        with _traced(log), in_folder(Path(plan.here)), _translated(plan, rank, world), _threads(device):
            training = PacedTraining(
                run, tell, steps=plan.steps, warm=plan.warm, seed=plan.seed, device=device, local_rank=local_rank,
                overwrite=overwrite, function=plan.what.name, former=plan.former,
            )  # fmt: skip
            if own_process and rank == 0:
                stack.enter_context(_warnings_told(tell))
            tell(STARTED, {"rank": rank, "world": world})
            with contextlib.suppress(Enough):
                plan.what.load()(training, **plan.options)
                training.end()
            summary = training.summary()
        tell(SUMMARY, summary)
        return summary


def _refuse_unshared(plan: RankPlan) -> None:
    """Refuse to train on a node that does not see the run's folder.

    Raises:
        JobError: says so.
    """
    if plan.card and "://" not in plan.run and open_folder(plan.run).read(TRAINING_CARD) != plan.card:
        raise JobError(
            f"run: {shown(plan.run)} is not the same folder on every node of the cluster; name one that all nodes "
            "share, or a URL"
        )


@contextlib.contextmanager
def _warnings_told(tell: Tell) -> Iterator[None]:
    """What this package warns of is told to the user as well, who does not see this process."""
    handler, logger = _Telling(tell), logging.getLogger("landscape")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Telling(logging.Handler):
    """Tells warnings and worse as remarks."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(REMARK, {"text": record.getMessage()})


@contextlib.contextmanager
def _threads(device: str) -> Iterator[None]:
    """A rank on a CPU uses one thread, with Ray and without: how many share a sum decides how it rounds."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if device != "cpu" and torch.cuda.is_available() else THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _traced(log: TextIO | None) -> Iterator[None]:
    """The traceback of what the function raised is the last thing in the log."""
    try:
        yield
    except BaseException as error:
        if log is not None:
            traceback.print_exception(error.__cause__ or error, file=log)
        raise


@contextlib.contextmanager
def _translated(plan: RankPlan, rank: int, world: int) -> Iterator[None]:
    """Whatever is raised, as what it means for the training."""
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
