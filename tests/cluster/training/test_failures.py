"""What of a failed training is tried again: ranks that were lost, but no exception of the function's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError, WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.controller.state import (
    ErroredState,
    ReschedulingState,
    RestartingState,
    RunningState,
)
from ray.train.v2.api.exceptions import ControllerError, PreemptionError, WorkerGroupError
from ray.train.v2.api.preemption import PreemptionInfo

from cluster.training.board import Board
from cluster.training.failures import Failures
from cluster.training.rank import PeerLost, RankFailed

NODE = PreemptionInfo(None, {"node": [0]})


@pytest.fixture
def board():
    return Board()


@pytest.fixture
def failures(tmp_path, board):
    return Failures(str(tmp_path / "run"), SimpleNamespace(tell=SimpleNamespace(remote=board.tell)))


def killed():
    return WorkerHealthCheckFailedError("gone", failure=RuntimeError("killed"))


def restarting(**failed):
    return RestartingState(training_failed_error=WorkerGroupError("", {int(k[1:]): v for k, v in failed.items()}))


def told(board):
    return [news["text"] for news in board.take()]


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        ({"r0": PeerLost("reset"), "r1": killed()}, "rank 1 is lost; going on from the beginning"),
        ({"r0": killed(), "r2": killed()}, "ranks 0, 2 are lost; going on from the beginning"),
        ({"r0": PeerLost("reset")}, "rank 0 lost the connection to another rank; going on from the beginning"),
    ],
)
def test_lost_ranks_are_told_and_tried_again(failures, board, failed, text):
    failures.after_controller_state_update(RunningState(), restarting(**failed))
    assert told(board) == [text]


def test_workers_that_do_not_start_are_tried_again(failures, board):
    state = ReschedulingState(training_failed_error=ControllerError(RuntimeError("no")))
    failures.after_controller_state_update(RunningState(), state)
    assert told(board) == ["the workers did not start; going on from the beginning"]


def test_a_node_that_is_taken_away_is_no_loss_and_neither_is_a_cluster_that_is_full(failures, board):
    for _ in range(5):
        failures.after_controller_state_update(RunningState(), RestartingState(PreemptionError(NODE)))
        full = ReschedulingState(ControllerError(WorkerGroupStartupTimeoutError(2)))
        failures.after_controller_state_update(RunningState(), full)
    assert told(board) == 5 * ["a node is taken away; going on from the beginning"]


def test_what_the_function_raised_is_not_tried_again_whatever_the_other_ranks_say(failures):
    failed = restarting(r0=PeerLost("reset"), r1=RankFailed("function: raised", 1), r2=killed())
    with pytest.raises(RankFailed, match="function: raised"):
        failures.after_controller_state_update(RunningState(), failed)
    with pytest.raises(RankFailed, match="train: rank 2: AttributeError: no such class"):
        failures.after_controller_state_update(RunningState(), restarting(r2=AttributeError("no such class")))


def test_ranks_lost_again_and_again_at_one_checkpoint_end_the_training(failures, board, tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for number in (7, 14):
        (folder / f"step-{number:08d}.pt").touch()
        for _ in range(2):
            failures.after_controller_state_update(RunningState(), restarting(r1=killed()))
    assert told(board)[-1] == "rank 1 is lost; going on from step 14"
    with pytest.raises(RankFailed, match="rank 1 is lost, 3 times since step 14; see landscape logs"):
        failures.after_controller_state_update(RunningState(), restarting(r1=killed()))


def test_what_is_no_failure_or_the_end_is_left_alone(failures, board):
    failures.after_controller_state_update(RunningState(), RunningState())
    failures.after_controller_state_update(RunningState(), ErroredState(ControllerError(RuntimeError("over"))))
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
