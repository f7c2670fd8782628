"""Workers times threads are the cores, and no process uses more threads than it was given."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import cluster
from landscape import Job, Problem, open_run
from landscape.core.devices import cores

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("threads", [pytest.param(None, marks=pytest.mark.faults), 2])
def test_a_worker_runs_with_the_threads_of_its_place(tmp_path, threads):
    def counting() -> Problem:
        def observe(model, batch):
            found = {"loss": batch * model.weight[0, 0], "threads": torch.full_like(batch, torch.get_num_threads())}
            return found | {"omp": torch.full_like(batch, float(os.environ.get("OMP_NUM_THREADS", -1)))}

        return Problem(torch.nn.Linear(1, 1), torch.ones(6), observe)

    landscapes = [{"name": "plane", "size": [4, 3]}]
    job = Job(run=str(tmp_path), problem=counting, num_samples=6, landscapes=landscapes, tile=[2, 1], threads=threads)
    cluster.run(job, workers=1)
    surface = open_run(str(tmp_path))["plane"]
    assert (surface["threads"] == (threads or 1)).all()
    assert (surface["omp"] == (threads or 1)).all()


@pytest.mark.slow  # a Ray each; test_session asks one of its own for its cores
@pytest.mark.skipif(cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("threads, workers", [(None, 1), (2, 1)])
def test_a_local_session_has_the_cores_that_the_process_may_use(ray_folder, threads, workers):
    code = f"""
        import os
        os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
        import ray
        from cluster.runtime.session import ray_session
        from landscape import Job
        with ray_session(Job(run="r", problem="a:b", device="cpu", threads={threads}), None, None) as placement:
            print(placement.workers, ray.cluster_resources()["CPU"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env=os.environ | {"RAY_TMPDIR": str(ray_folder), "PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(workers), f"{threads or 1}.0"]
