"""What becomes of a training whose ranks fail: decided in Ray Train's controller, by its hooks.

Ray Train begins the worker group anew after any failure, as `FailureConfig(max_failures=-1)` asks for. What it cannot
know is which failures come again: an exception of the function's own, and ranks that die again and again at one place.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2.api.exceptions import PreemptionError

from cluster.training.board import CONTROLLER, LOST
from cluster.training.rank import PeerLost, RankFailed
from landscape.core.errors import one_line, shown
from landscape.core.folders import open_folder
from landscape.model.run_files import checkpoint_numbers

# What is seen of ranks that are gone, and what the others then meet.
OF_RANKS_LOST = (WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError, RayError, PeerLost)
MOST_LOSSES = 3  # of ranks, one after another without a new checkpoint


class Failures(ControllerCallback):  # type: ignore[misc]  # Ray's own types are not known
    """Tells the driver of lost ranks, and ends a training that would fail again.

    Args:
        run: an absolute folder or a URL; empty where nothing is kept.
        board: the actor to tell.
    """

    def __init__(self, run: str, board: Any) -> None:
        self._run, self._board = run, board
        self._losses, self._last = 0, -1  # ranks lost since the last checkpoint, and its number

    def after_controller_start(self, train_run_context: Any) -> None:
        """Give the driver the handle by which it can end the training."""
        self._tell(CONTROLLER, handle=ray.get_runtime_context().current_actor)

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Judge a failure before the worker group begins anew.

        Raises:
            RankFailed: it would fail again. Ray Train ends the training with it.
        """
        error = getattr(current_state, "training_failed_error", None)
        if error is None or current_state.is_terminal():
            return
        if isinstance(getattr(error, "controller_failure", None), WorkerGroupStartupTimeoutError):
            return  # there is no room for all ranks, which the driver sees too, and says
        if isinstance(error, PreemptionError):
            self._tell(LOST, text=f"a node is taken away; going on from {self._since(self._last_kept())}")
            return
        failures = getattr(error, "worker_failures", {})
        others = {rank: failures[rank] for rank in sorted(failures) if not isinstance(failures[rank], OF_RANKS_LOST)}
        for rank, failure in others.items():
            raise failure if isinstance(failure, RankFailed) else RankFailed(f"train: rank {rank}: {one_line(failure)}")
        self._count(lost_text(failures))

    def _count(self, what: str) -> None:
        last = self._last_kept()
        self._losses = self._losses + 1 if last == self._last else 1
        self._last = last
        since = self._since(last)
        if self._losses >= MOST_LOSSES:
            raise RankFailed(
                f"train: {what}, {self._losses} times since {since}; see landscape logs {shown(self._run)} --rank 0, "
                "and whether there is memory enough; the same command goes on"
            )
        self._tell(LOST, text=f"{what}; going on from {since}")

    def _last_kept(self) -> int:
        """The number of the last checkpoint; −1 where there is none."""
        return max(checkpoint_numbers(open_folder(self._run)), default=-1) if self._run else -1

    @staticmethod
    def _since(last: int) -> str:
        return f"step {last}" if last >= 0 else "the beginning"

    def _tell(self, kind: str, **news: Any) -> None:
        self._board.tell.remote(kind, news)


def lost_text(failures: dict[int, BaseException]) -> str:
    """Which ranks are gone, in words: those whose process ended, else those that lost the connection to others."""
    gone = sorted(rank for rank, error in failures.items() if not isinstance(error, PeerLost))
    ranks = gone or sorted(failures)
    if not ranks:
        return "the workers did not start"
    listed = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    if gone:
        return f"{listed} {'are' if len(ranks) > 1 else 'is'} lost"
    return f"{listed} lost the connection to another rank"
