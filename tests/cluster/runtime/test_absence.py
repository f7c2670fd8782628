"""What is said of workers that do not answer yet: those without a place wait for one, those with one load."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest
from ray import ActorID
from ray._private import state
from ray._private.state import GlobalState
from ray.exceptions import RaySystemError

from cluster.driver.pool import EXPLAIN_SECONDS, SHOW_SECONDS, RayWorkerPool
from cluster.runtime.placement import Placement
from cluster.runtime.session import has_process, processes_named
from landscape.compute.prepare import prepare

WAITS = """def problem():
    if (HERE / "wait").exists():
        note("loading", "here")
    while (HERE / "wait").exists():
        time.sleep(0.05)
"""


@pytest.mark.usefixtures("local_ray")
def test_workers_that_load_for_long_are_not_taken_for_workers_without_a_place(make_job, caplog):
    caplog.set_level(logging.INFO, "landscape.stages")
    job = make_job()
    file = job.folder / "my_problem.py"
    file.write_text(file.read_text().replace("def problem():\n", WAITS))
    prepared = prepare(job)
    (job.folder / "wait").touch()
    now, told = 0.0, []
    pool = RayWorkerPool(prepared, Placement(1, 1, 0.0), 1, lambda: now)
    now = 2 * EXPLAIN_SECONDS  # sending the samples takes long
    try:
        pool.hire()
        pool.explain_absence(told.append)
        assert not told, "nobody has waited yet"
        while not (job.folder / "loading").exists():
            time.sleep(0.05)
        for _ in range(2):
            now += 2 * EXPLAIN_SECONDS
            pool.explain_absence(told.append)
        assert not told
        assert set(caplog.messages) == {"the workers have their places, and load the problem and its samples"}
    finally:
        (job.folder / "wait").unlink()
        pool.close()


def test_where_no_head_answers_a_worker_counts_as_one_without_a_place(monkeypatch):
    nowhere = GlobalState()
    monkeypatch.setattr(state, "state", nowhere)
    actor = SimpleNamespace(_actor_id=ActorID.nil())
    with pytest.raises(RaySystemError):
        nowhere.actor_table(actor._actor_id.hex())
    assert not has_process(actor)


@pytest.mark.usefixtures("local_ray")
def test_workers_that_no_node_has_room_for_are_explained_once(make_job, caplog):
    caplog.set_level(logging.INFO, "landscape.stages")
    now, told = 0.0, []
    pool = RayWorkerPool(prepare(make_job()), Placement(1, 64, 0.0), 1, lambda: now)
    try:
        pool.hire()
        now += 1.5 * SHOW_SECONDS
        for _ in range(3):
            pool.explain_absence(told.append)
        assert not told
        (shown,) = caplog.messages
        assert shown.startswith("waiting for a place: a worker asks for 64 CPU; the cluster has 4 CPU (")
        for _ in range(3):
            now += 2 * EXPLAIN_SECONDS
            pool.explain_absence(told.append)
        (line,) = told
        assert line.startswith("no worker has found a place yet: each asks for CPU 64 of 4")
    finally:
        pool.close()


@pytest.mark.usefixtures("local_ray")
def test_living_actors_are_counted_by_a_part_of_their_name():
    import ray

    class Named:
        def answer(self) -> bool:
            return True

    assert processes_named("landscape-77") == 0
    actor = ray.remote(Named).options(name="SERVE_REPLICA::landscape-77#replica#a", num_cpus=0).remote()
    assert ray.get(actor.answer.remote())
    assert (processes_named("landscape-77"), processes_named("landscape-78")) == (1, 0)
    ray.kill(actor)
