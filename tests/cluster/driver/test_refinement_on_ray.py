"""Workers find the range of a landscape and refine it to the blocks and bytes of one process, interrupted or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_models import chunks_of, make_job, quadratic_problem

import cluster
from cluster.driver.pool import RayWorkerPool
from landscape import Job, open_run, run
from landscape.core.errors import Interrupted

LANDSCAPE = {"name": "a", "size": 9, "range": "auto", "refine": {"tolerance": "1%", "points": 220}}


def job_of(folder: Path) -> Job:
    return make_job(folder, quadratic_problem, [LANDSCAPE], num_samples=8, batch_size=8, engine="eager", tile=[9])


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_two_workers_give_the_blocks_and_bytes_of_one_process_also_where_they_were_interrupted(tmp_path, monkeypatch):
    surface = run(job_of(tmp_path / "once"))["a"]
    assert surface.levels
    done, hired, hire = list[int](), list[RayWorkerPool](), RayWorkerPool.hire
    monkeypatch.setattr(RayWorkerPool, "hire", lambda pool: (hired.append(pool), hire(pool)))
    with pytest.raises(Interrupted):
        cluster.run(job_of(tmp_path / "run"), 2, observer=lambda told: done.append(1), stop=lambda: len(done) > 2)
    assert open_run(tmp_path / "run")["a"].levels
    assert len(hired) == 4  # two for the range, and two for the landscape, which have begun its level
    again = cluster.run(job_of(tmp_path / "run"), workers=2)["a"]
    assert chunks_of(tmp_path / "run") == chunks_of(tmp_path / "once")
    assert [level.record.level for level in again.levels] == [level.record.level for level in surface.levels]
    assert again.record.found_range == surface.record.found_range is not None
    assert list(open_run(tmp_path / "run")) == ["a"]
