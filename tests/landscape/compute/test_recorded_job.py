"""The job that a landscape's record holds: prepared, it gives the landscape that is on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import Quadratic, make_job, observe_quadratic, quadratic_samples, wandering, write_trajectory

from landscape import Problem, open_run, run
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import recorded_job
from landscape.core.errors import JobError
from landscape.store.landscape import LandscapeStore
from landscape.store.results import rename_landscape

NAMED = f"{Path(__file__).stem}:problem"


def problem() -> Problem:
    return Problem(Quadratic(), quadratic_samples(97), observe_quadratic)


@pytest.fixture
def on_disk(tmp_path, monkeypatch):
    """A landscape of a run with a trajectory, that took fewer samples than the default and was renamed since."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    write_trajectory(tmp_path, wandering(Quadratic(), 3))
    spec = {"name": "a", "size": [5, 4], "range": [[-1, 1], [-0.5, 1]]}
    run(make_job(tmp_path, NAMED, [spec], batch_size=8, seed=3, engine="eager", tile=[3, 2]))
    rename_landscape(str(tmp_path), "a", "b")
    write_trajectory(tmp_path, {4: wandering(Quadratic(), 4)[4]})  # a later snapshot is the run's last by now
    return tmp_path


def test_a_recorded_job_gives_what_is_on_disk(on_disk):
    store = LandscapeStore.open(on_disk, "b")
    (landscape,) = prepare(recorded_job(str(on_disk), store)).landscapes
    assert landscape.name == "b"
    assert landscape.identity == store.identity.whole
    assert landscape.plan.record() == store.plan.whole
    assert landscape.record.origin == open_run(on_disk)["b"].record.origin
    for axis, stored in zip(landscape.directions, store.directions() or (), strict=True):
        assert all(torch.equal(axis.tensors[name], tensor) for name, tensor in stored.items())
    assert all(map(np.array_equal, landscape.grid.coordinates, store.grid().coordinates))


def test_the_recorded_job_goes_on_with_the_landscape(on_disk):
    before = open_run(on_disk)["b"].loss.tobytes()
    job = recorded_job(str(on_disk), LandscapeStore.open(on_disk, "b"))
    assert run(job)["b"].loss.tobytes() == before


def test_a_function_that_cannot_be_found_by_name_has_to_be_named(tmp_path):
    run(make_job(tmp_path, lambda: problem(), [{"name": "a", "size": 3}], num_samples=8, engine="eager"))
    store = LandscapeStore.open(tmp_path, "a")
    with pytest.raises(JobError, match=r"problem: landscape 'a' was computed with a function that cannot be found"):
        recorded_job(str(tmp_path), store)
    prepare(recorded_job(str(tmp_path), store, problem, tmp_path))
