"""A training on Ray Train: the trainer, its news while it runs, its end; and what each of its workers does."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2.api.exceptions import PreemptionError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.runtime.placement import Placement, explain_placement
from cluster.runtime.session import private_ray_ended, refuse_dead_ray, supply
from cluster.training.rank import PeerLost, RankFailed, RankPlan, run_rank
from cluster.training.report import CONTROLLER, KEPT, LOST, REMARK, STARTED, SUMMARY, Board
from landscape.core.errors import Interrupted, LandscapeError, one_line, quoted
from landscape.core.files import temporary_folder
from landscape.core.folders import open_folder
from landscape.model.run_files import checkpoint_numbers

LOOK_SECONDS = 0.2  # between two looks for news
ABORT_SECONDS = 5.0  # in which the controller must end its workers
EXPLAIN_SECONDS = 20.0  # after which the user is told why there is no worker


def train_on_ray(
    plan: RankPlan,
    placement: Placement,
    observer: Callable[[dict[str, Any]], object],
    stop: Callable[[], bool],
    overwrite: bool = False,
) -> None:
    """Train with as many ranks as are placed; returns when all are done.

    Args:
        observer: gets every piece of news.
        stop: is asked several times a second; when true, the training is ended.

    Raises:
        Interrupted: `stop` was true.
        LandscapeError: the function raised, or the cluster failed.
    """
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=this_node).remote()
    with temporary_folder() as storage:
        fit = _FitThread(_trainer(plan, placement, board, str(storage), overwrite))
        watch = _Watch(plan, placement, board, observer)
        try:
            while fit.runs(LOOK_SECONDS):
                watch.look()
                if stop():
                    raise Interrupted(f"run {quoted(plan.run)} is interrupted; the same command goes on")
            watch.look()
            fit.check()
        finally:
            watch.end()


def _trainer(plan: RankPlan, placement: Placement, board: Any, storage: str, overwrite: bool) -> Any:
    """Ray's trainer for these ranks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own settings of its data sets use names that it calls deprecated
        from ray.data import DataContext
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        DataContext.get_current()

    # NCCL takes each GPU for one rank only.
    backend = "nccl" if placement.num_gpus >= 1 else "gloo"
    settings = {
        # It may need modules of the user's when it is unpickled, which are found once the rank has the driver's path.
        "plan": replace(plan, what=None),  # type: ignore[arg-type]
        "what": ray.cloudpickle.dumps(plan.what),
        "path": plan.path,
        "board": board,
        "device": "auto" if placement.num_gpus else "cpu",
        "overwrite": overwrite,
    }
    return TorchTrainer(
        _on_worker,
        train_loop_config=settings,
        torch_config=TorchConfig(backend=backend),
        scaling_config=ScalingConfig(
            num_workers=placement.workers,
            use_gpu=placement.num_gpus > 0,
            resources_per_worker=dict(placement.asks),
        ),
        run_config=RunConfig(
            name="training",
            storage_path=storage,  # a mark for its own checkpoints, of which there are none
            failure_config=FailureConfig(max_failures=-1),
            callbacks=[Failures(plan.run, board)],
        ),
    )


def _on_worker(told: dict[str, Any]) -> None:
    """Train as the rank of a worker; Ray Train calls it in a thread of its own."""
    import sys

    import ray.train.torch

    sys.path[:0] = [each for each in told["path"] if each not in sys.path]
    plan = replace(told["plan"], what=ray.cloudpickle.loads(told["what"]))
    board = told["board"]

    def tell(kind: str, news: dict[str, Any]) -> None:
        told = board.tell.remote(kind, news)
        if kind == SUMMARY:  # after which the process is ended
            ray.get(told)

    device = ray.train.torch.get_device() if told["device"] == "auto" else None
    run_rank(
        plan, tell,
        device=told["device"],
        local_rank=device.index if device is not None else ray.train.get_context().get_local_rank(),
        own_process=True,
        # Once this training has kept something, a rank that comes back goes on from that.
        overwrite=told["overwrite"] and not ray.get(board.was_told.remote(KEPT)),
    )  # fmt: skip


class _FitThread:
    """Runs `TorchTrainer.fit` in a thread, since it blocks; outside the main thread it leaves signals alone."""

    def __init__(self, trainer: Any) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._fit, args=(trainer,), name="ray train", daemon=True)
        self._thread.start()

    def _fit(self, trainer: Any) -> None:
        try:
            trainer.fit()
        except BaseException as error:
            self._error = error

    def runs(self, seconds: float) -> bool:
        """Whether it still runs; waits so long for its end."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise the error that it ended with, if any."""
        error = self._error
        if error is None:
            return
        cause = getattr(error, "controller_failure", error)
        if isinstance(cause, RankFailed):
            raise cause.as_error() from error
        refuse_dead_ray()
        raise LandscapeError(f"train: Ray Train failed: {one_line(cause)}; the same command goes on") from error


class _Watch:
    """Hands on the news of the ranks while they train, and says why none of them starts."""

    def __init__(
        self, plan: RankPlan, placement: Placement, board: Any, observer: Callable[[dict[str, Any]], object]
    ) -> None:
        self._placement, self._board, self._observer = placement, board, observer
        self._controller: Any = None
        self._waiting_since: float | None = time.monotonic()  # for ranks that start; None once they have

    def look(self) -> None:
        """Hand on what is new."""
        refuse_dead_ray()
        try:
            news = ray.get(self._board.take.remote(), timeout=10 * EXPLAIN_SECONDS)
        except RayError:
            refuse_dead_ray()
            return  # the next look may succeed, and the end of the trainer is seen without it
        for item in news:
            if item["kind"] == CONTROLLER:
                self._controller = item["handle"]
                continue
            if item["kind"] in (STARTED, LOST):
                self._waiting_since = time.monotonic() if item["kind"] == LOST else None
            self._observer(item)
        if self._waiting_since is not None and time.monotonic() - self._waiting_since > EXPLAIN_SECONDS:
            self._waiting_since = None
            self._explain()

    def _explain(self) -> None:
        """Say why the ranks have no places; those that have places only take long to start."""
        groups = ray.util.placement_group_table().values()
        if any(group["state"] == "PENDING" for group in groups):
            text = explain_placement(self._placement, supply(), ray.available_resources())
            self._observer({"kind": REMARK, "text": text})

    def end(self) -> None:
        """End what still runs. In a session that a notebook has opened, it would not end by itself."""
        if private_ray_ended():
            return
        if self._controller is not None:
            # The controller gives back the places of its workers, which would stay taken if it were killed. It ends
            # with this call, which Ray reports as an error, unless it has ended already.
            with contextlib.suppress(RayError):
                ray.get(self._controller.abort.remote(), timeout=ABORT_SECONDS)
        for actor in (self._controller, self._board):
            if actor is not None:
                with contextlib.suppress(RayError):
                    ray.kill(actor)


# ----------------------------------------------------------------------------------------------------
# What becomes of a training whose ranks fail. This is decided in Ray Train's controller, by its hooks.
#
# Ray Train begins the worker group anew after any failure, as `FailureConfig(max_failures=-1)` asks for. It cannot know
# which failures come again: an exception of the function, and ranks that die again and again at one place.

# The errors that stand for lost ranks, and those that the other ranks then get.
OF_RANKS_LOST = (WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError, RayError, PeerLost)
MOST_LOSSES = 3  # times that ranks are lost, without a new checkpoint in between


class Failures(ControllerCallback, WorkerGroupCallback):  # type: ignore[misc]  # Ray's own types are not known
    """Tells the driver of lost ranks, and ends a training that would fail again.

    Args:
        run: an absolute folder or a URL; empty where nothing is kept.
        board: the actor that keeps news for the driver.
    """

    def __init__(self, run: str, board: Any) -> None:
        self._run, self._board = run, board
        self._losses, self._last = 0, -1  # ranks lost since the last checkpoint, and its number
        self._places: dict[int, str] = {}  # rank → where it runs

    def after_controller_start(self, train_run_context: Any) -> None:
        """Give the driver the handle by which it can end the training."""
        self._tell(CONTROLLER, handle=ray.get_runtime_context().current_actor)

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Note where each rank runs; when one is lost, it cannot be asked any more."""
        for worker in worker_group.get_workers():
            told = worker.metadata
            place = f"{told.hostname}, pid {told.pid}, node {told.node_id[:8]}"
            self._places[worker.distributed_context.world_rank] = place

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
        self._count(lost_text(failures, self._places))

    def _count(self, loss: str) -> None:
        last = self._last_kept()
        self._losses = self._losses + 1 if last == self._last else 1
        self._last = last
        since = self._since(last)
        if self._losses >= MOST_LOSSES:
            raise RankFailed(
                f"train: {loss}, {self._losses} times since {since}; see landscape logs {quoted(self._run)} --rank 0, "
                "and whether there is memory enough; the same command goes on"
            )
        self._tell(LOST, text=f"{loss}; going on from {since}")

    def _last_kept(self) -> int:
        """The number of the last checkpoint; −1 where there is none."""
        return max(checkpoint_numbers(open_folder(self._run)), default=-1) if self._run else -1

    @staticmethod
    def _since(last: int) -> str:
        return f"step {last}" if last >= 0 else "the beginning"

    def _tell(self, kind: str, **news: Any) -> None:
        self._board.tell.remote(kind, news)


def lost_text(failures: Mapping[int, BaseException], places: Mapping[int, str]) -> str:
    """The lost ranks in words: those whose process ended, or else those that lost the connection to another rank.

    Args:
        failures: the error of each rank that failed.
        places: where each rank runs, or ran.
    """
    lost = sorted(rank for rank, error in failures.items() if not isinstance(error, PeerLost))
    ranks = lost or sorted(failures)
    if not ranks:
        return "the workers did not start"
    placed = [f"{rank} ({places[rank]})" if rank in places else f"{rank}" for rank in ranks]
    listed = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(placed)}"
    if lost:
        return f"{listed} {'are' if len(ranks) > 1 else 'is'} lost"
    return f"{listed} lost the connection to another rank"
