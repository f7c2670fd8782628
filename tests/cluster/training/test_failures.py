"""What of a failed training is tried again: ranks that were lost, but no exception of the function's own."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.training.rank import PeerLost, RankFailed
from cluster.training.report import Board

pytestmark = pytest.mark.long


@pytest.fixture
def board():
    return Board()


@pytest.fixture
def failures(tmp_path, board):
    from cluster.training.trainer import Failures  # which imports Ray Train, for seconds

    judge = Failures(str(tmp_path / "run"), SimpleNamespace(tell=SimpleNamespace(remote=board.tell)))
    judge.after_worker_group_start(SimpleNamespace(get_workers=lambda: [worker(rank) for rank in range(3)]))
    return judge


def worker(rank: int) -> Any:
    """A worker of Ray Train, as far as it says where a rank runs."""
    place = SimpleNamespace(hostname=f"host{rank}", pid=40 + rank, node_id=f"{rank}" * 56)
    return SimpleNamespace(metadata=place, distributed_context=SimpleNamespace(world_rank=rank))


ON_1 = "rank 1 (host1, pid 41, node 11111111) is lost"


def state(name: str, error: BaseException | None = None) -> Any:
    """A state of Ray Train's controller."""
    from ray.train.v2._internal.execution.controller import state as states

    return getattr(states, name)(*([] if error is None else [error]))


def restarting(**failed: BaseException | str) -> Any:
    """The state after some ranks have failed; r1="killed" for one whose process has ended."""
    from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
    from ray.train.v2.api.exceptions import WorkerGroupError

    killed = WorkerHealthCheckFailedError("gone", failure=RuntimeError("killed"))
    errors = {int(rank[1:]): killed if error == "killed" else error for rank, error in failed.items()}
    return state("RestartingState", WorkerGroupError("", errors))


def refused(error: BaseException) -> Any:
    """The error of the controller itself."""
    from ray.train.v2.api.exceptions import ControllerError

    return ControllerError(error)


def told(board):
    return [news["text"] for news in board.take()]


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        ({"r0": PeerLost("reset"), "r1": "killed"}, f"{ON_1}; going on from the beginning"),
        (
            {"r0": "killed", "r2": "killed"},
            "ranks 0 (host0, pid 40, node 00000000), 2 (host2, pid 42, node 22222222) are lost; "
            "going on from the beginning",
        ),
        (
            {"r0": PeerLost("reset")},
            "rank 0 (host0, pid 40, node 00000000) lost the connection to another rank; going on from the beginning",
        ),
    ],
)
def test_lost_ranks_are_told_and_tried_again(failures, board, failed, text):
    failures.after_controller_state_update(None, restarting(**failed))
    assert told(board) == [text]


def test_workers_that_do_not_start_are_tried_again(failures, board):
    starting = state("ReschedulingState", refused(RuntimeError("no")))
    failures.after_controller_state_update(None, starting)
    assert told(board) == ["the workers did not start; going on from the beginning"]


def test_a_node_that_is_taken_away_is_no_loss_and_neither_is_a_cluster_that_is_full(failures, board):
    from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
    from ray.train.v2.api.exceptions import PreemptionError
    from ray.train.v2.api.preemption import PreemptionInfo

    taken, full = PreemptionError(PreemptionInfo(None, {"node": [0]})), refused(WorkerGroupStartupTimeoutError(2))
    for _ in range(5):
        failures.after_controller_state_update(None, state("RestartingState", taken))
        failures.after_controller_state_update(None, state("ReschedulingState", full))
    assert told(board) == 5 * ["a node is taken away; going on from the beginning"]


def test_what_the_function_raised_is_not_tried_again_whatever_the_other_ranks_say(failures):
    failed = restarting(r0=PeerLost("reset"), r1=RankFailed("function: raised", 1), r2="killed")
    with pytest.raises(RankFailed, match="function: raised"):
        failures.after_controller_state_update(None, failed)
    with pytest.raises(RankFailed, match="train: rank 2: AttributeError: no such class"):
        failures.after_controller_state_update(None, restarting(r2=AttributeError("no such class")))


def test_ranks_lost_again_and_again_at_one_checkpoint_end_the_training(failures, board, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for number in (7, 14):
        (folder / f"step-{number:08d}.pt").touch()
        for _ in range(2):
            failures.after_controller_state_update(None, restarting(r1="killed"))
    assert told(board)[-1] == f"{ON_1}; going on from step 14"
    with pytest.raises(RankFailed, match=re.escape(f"{ON_1}, 3 times since step 14; see landscape logs")):
        failures.after_controller_state_update(None, restarting(r1="killed"))


def test_what_is_no_failure_or_the_end_is_left_alone(failures, board):
    failures.after_controller_state_update(None, state("RunningState"))
    failures.after_controller_state_update(None, state("ErroredState", refused(RuntimeError("over"))))
    assert not board.take()


def test_a_failure_travels_between_processes():
    import pickle

    found = pickle.loads(pickle.dumps(RankFailed("why", 2)))
    assert (found.text, found.exit_code) == ("why", 2)


def test_a_board_keeps_news_until_they_are_taken(board):
    board.tell("kept", {})
    board.tell("pace", {"epoch": 1})
    assert [news["kind"] for news in board.take()] == ["kept", "pace"]
    assert board.take() == []
    assert board.was_told("kept")
    assert not board.was_told("summary")
