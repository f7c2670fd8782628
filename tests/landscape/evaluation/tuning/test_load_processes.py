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
from landscape.evaluation.tuning.choices import Candidate, KeptChoices, Limits, TuningScope
from landscape.evaluation.tuning.local_search import LoadProcesses, idle_cores, tune
from landscape.evaluation.tuning.search import Failed, Slice, TuningRequest
from landscape.evaluation.tuning.trials import Trials

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

ONE, OTHER = (Slice(Candidate(Engine(), size), 1, 1) for size in (8, 4))


def set_up(part):
    return TuningRequest("set_up", (part, ONE), everyone=True)


def time_slice(part):
    return TuningRequest("time", (part, 0), everyone=True)


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
    with LoadProcesses(trials(), 2, patience=100.0) as processes:
        assert processes.ask(set_up(OTHER)) == [None] * 3
        forked = processes.pids
        timed = processes.ask(time_slice(OTHER))
        assert len(timed) == 3
        assert all(each > 0 for each in timed)
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

    with LoadProcesses(trials(observe), 2, patience=100.0) as processes:
        assert processes.ask(set_up(OTHER)) == [None] * 3
        pids = {os.getpid(), *processes.pids}
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

    with LoadProcesses(trials(observe), 2, patience=100.0) as processes:
        assert processes.ask(set_up(ONE)) == [None] * 3
        monkeypatch.setattr(processes, "patience", 1.0)  # no sooner: these two are busy, not hung
        forked = processes.pids
        assert processes.ask(set_up(OTHER)) == [None]
        assert processes.pids == []
        assert all(map(gone, forked))


def test_who_was_killed_between_two_questions_is_left_out():
    with LoadProcesses(trials(), 2, patience=100.0) as processes:
        processes.ask(set_up(OTHER))
        first = processes.pids[0]
        os.kill(first, signal.SIGKILL)
        assert len(processes.ask(time_slice(OTHER))) == 2
        assert first not in processes.pids


KILLED = """
import os, time
import test_load_processes
from landscape.evaluation.tuning.local_search import LoadProcesses

def observe(model, batch):
    while os.getpid() != here and test_load_processes.is_other(batch):
        pass
    return test_load_processes.pooled_problem()[0].observe(model, batch)

here = os.getpid()
with LoadProcesses(test_load_processes.trials(observe), 2, patience=1000.0) as processes:
    processes.ask(test_load_processes.set_up(test_load_processes.ONE))
    print(*processes.pids, flush=True)
    processes.ask(test_load_processes.set_up(test_load_processes.OTHER))
"""


@pytest.mark.faults
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

    with LoadProcesses(trials(observe), 1, patience=100.0) as processes:
        assert processes.ask(set_up(OTHER)) == [None, Failed("fails: ValueError: only there")]
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_search_beside_others_leaves_the_evaluator_as_it_says():
    problem, samples = pooled_problem()
    made = evaluator(problem, samples)
    state = torch.get_rng_state()
    found = tune(made, grid(), TuningScope(points=MANY), limits=Limits(longest=2.0), load_processes=1)
    assert found.processes == 2
    assert made.plan == found.plan
    assert torch.equal(torch.get_rng_state(), state)


def test_there_is_one_for_each_core_that_is_idle(monkeypatch):
    monkeypatch.setattr("landscape.evaluation.tuning.local_search.cores", lambda: 5)
    monkeypatch.setattr("landscape.evaluation.tuning.local_search.free_bytes", lambda device: 1 << 50)
    assert idle_cores(trials().evaluator) == 4
    monkeypatch.setattr("landscape.evaluation.tuning.local_search.free_bytes", lambda device: 1)
    assert idle_cores(trials().evaluator) == 0
