"""Processes that compute beside this one while it times: all answer, who dies or hangs is left out, none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pooled
import pytest
import torch
from pooled import evaluator, pooled_problem
from test_tuning import MANY, grid

from landscape import Problem
from landscape.core.plan import Engine
from landscape.evaluation.tuning.protocol import (
    Candidate,
    FailedRequest,
    KeptChoices,
    Limits,
    Ready,
    SetUp,
    Slice,
    Time,
    Timed,
    TuningScope,
)
from landscape.evaluation.tuning.trials import Peers, Trials, idle_cores
from landscape.evaluation.tuning.tuning import tune

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

ONE, OTHER = (Slice(Candidate(Engine(), size), 1, 1) for size in (8, 4))


def trials(observe=None):
    problem, samples = pooled_problem()
    return Trials(
        evaluator(Problem(problem.model, samples, observe or problem.observe), samples), grid(), KeptChoices(None)
    )


def is_other(batch):
    """Whether the batch is one of the smaller ones."""
    return len(batch[0]) <= 4


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_all_answer_and_none_is_left():
    with Peers(trials(), 2, patience=100.0) as peers:
        assert peers.ask(SetUp(OTHER, ONE)) == [Ready()] * 3
        forked = peers.forked
        timed = peers.ask(Time(OTHER, 0))
        assert len(timed) == 3
        assert all(isinstance(each, Timed) and each.seconds > 0 for each in timed)
        assert len(set(forked)) == 2
    assert all(map(gone, forked))


def test_they_compute_at_the_same_time(tmp_path):
    """Each waits in its forward pass until all have come there."""
    problem, _ = pooled_problem()

    def observe(model, batch):
        if is_other(batch):
            (tmp_path / str(os.getpid())).touch()
            while len(list(tmp_path.iterdir())) < 3:
                time.sleep(0.001)
        return problem.observe(model, batch)

    with Peers(trials(observe), 2, patience=100.0) as peers:
        assert peers.ask(SetUp(OTHER, ONE)) == [Ready()] * 3
        pids = {os.getpid(), *peers.forked}
    assert {int(each.name) for each in tmp_path.iterdir()} == pids


@pytest.mark.long
def test_who_dies_or_hangs_is_left_out(tmp_path, monkeypatch):
    problem, _ = pooled_problem()
    here = os.getpid()

    def observe(model, batch):
        if is_other(batch) and os.getpid() != here:
            first = os.open(tmp_path / "first", os.O_CREAT | os.O_WRONLY)
            try:
                os.lockf(first, os.F_TLOCK, 0)
            except OSError:
                os._exit(0)
            time.sleep(600)
        return problem.observe(model, batch)

    with Peers(trials(observe), 2, patience=100.0) as peers:
        assert peers.ask(SetUp(ONE, ONE)) == [Ready()] * 3
        monkeypatch.setattr(peers, "patience", 1.0)  # no sooner: these two are busy, not hung
        forked = peers.forked
        assert peers.ask(SetUp(OTHER, ONE)) == [Ready()]
        assert peers.forked == []
        assert all(map(gone, forked))


def test_who_was_killed_between_two_questions_is_left_out():
    with Peers(trials(), 2, patience=100.0) as peers:
        peers.ask(SetUp(OTHER, ONE))
        first = peers.forked[0]
        os.kill(first, signal.SIGKILL)
        assert len(peers.ask(Time(OTHER, 0))) == 2
        assert first not in peers.forked


KILLED = """
import os, time
import test_peers
from landscape.evaluation.tuning.trials import Peers
from landscape.evaluation.tuning.protocol import SetUp

def observe(model, batch):
    while os.getpid() != here and test_peers.is_other(batch):
        pass
    return test_peers.pooled_problem()[0].observe(model, batch)

here = os.getpid()
with Peers(test_peers.trials(observe), 2, patience=1000.0) as peers:
    peers.ask(SetUp(test_peers.ONE, test_peers.ONE))
    print(*peers.forked, flush=True)
    peers.ask(SetUp(test_peers.OTHER, test_peers.ONE))
"""


@pytest.mark.long
def test_they_end_with_the_process_that_forked_them():
    """It is killed while they are in an endless loop."""
    folders = [str(Path(__file__).parent), str(Path(pooled.__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, env=environment) as owner:
        forked = [int(each) for each in owner.stdout.readline().split()]
        assert len(forked) == 2
        assert not any(map(gone, forked))
        owner.kill()
    end = time.monotonic() + 60
    while not all(map(gone, forked)) and time.monotonic() < end:
        time.sleep(0.01)
    assert all(map(gone, forked))


def test_what_they_print_or_raise_is_not_seen(capfd):
    problem, _ = pooled_problem()
    here = os.getpid()

    def observe(model, batch):
        if os.getpid() != here:
            print("from a fork", flush=True)
            if is_other(batch):
                raise ValueError("only there")
        return problem.observe(model, batch)

    with Peers(trials(observe), 1, patience=100.0) as peers:
        assert peers.ask(SetUp(OTHER, ONE)) == [Ready(), FailedRequest("fails: ValueError: only there")]
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_search_beside_others_leaves_the_evaluator_as_it_says():
    problem, samples = pooled_problem()
    made = evaluator(problem, samples)
    state = torch.get_rng_state()
    found = tune(made, grid(), TuningScope(points=MANY), limits=Limits(longest=2.0), peers=1)
    assert found.processes == 2
    assert made.plan == found.plan
    assert torch.equal(torch.get_rng_state(), state)


def test_there_is_one_for_each_core_that_is_idle(monkeypatch):
    monkeypatch.setattr("landscape.evaluation.tuning.trials.cores", lambda: 5)
    monkeypatch.setattr("landscape.evaluation.tuning.trials.free_bytes", lambda device: 1 << 50)
    assert idle_cores(trials()) == 4
    monkeypatch.setattr("landscape.evaluation.tuning.trials.free_bytes", lambda device: 1)
    assert idle_cores(trials()) == 0
