"""A job that is over sooner than a Ray starts is computed here, to the same bits; asking for workers forces Ray."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from real_commands import command

import cluster
from cluster.driver import driver
from cluster.driver.short_jobs import is_worth_it, may_run_here
from cluster.runtime import logs
from landscape.compute.planning import LONGEST_HERE
from landscape.compute.serial import run as run_serially
from landscape.core.errors import Interrupted
from landscape.store.landscape import LandscapeStore
from landscape.store.results import open_run
from landscape.store.runs import landscape_names
from landscape.surface.surface import OK


@pytest.mark.parametrize(
    ("seconds", "points", "workers", "here"),
    [
        (0.001, 1600, 2, True),
        (0.009, 1600, 2, True),  # 14 s here; two workers would save 7 and cost 8
        (0.012, 1600, 2, False),
        (0.009, 1600, 64, False),
        (0.019, 1600, 1, False),  # one worker saves nothing, but outlives what it computes
        (0.017, 1600, 1, True),
    ],
)
def test_the_start_of_ray_is_weighed_against_what_workers_save(seconds, points, workers, here):
    assert is_worth_it(seconds, points, workers) is here
    assert not is_worth_it(LONGEST_HERE, 1, workers)


def test_what_searches_for_no_engine_may_be_longer():
    assert not is_worth_it(0.0185, 1600, 1)
    assert is_worth_it(0.0185, 1600, 1, searches=False)


def test_whoever_asks_for_ray_gets_it(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("sys.modules", {name: each for name, each in sys.modules.items() if name != "ray"})
    assert may_run_here(None, None, None, 0)
    assert may_run_here(None, None, 0.5, 1)
    assert not may_run_here(1, None, None, 0)
    assert not may_run_here(None, "auto", None, 0)
    assert not may_run_here(None, None, 2, 0)
    assert not may_run_here(None, None, None, 2)
    monkeypatch.setattr(logs, "avoid_here", True)
    assert not may_run_here(None, None, None, 0)
    monkeypatch.setattr(logs, "avoid_here", False)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not may_run_here(None, None, None, 0)


NO_RAY = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise AssertionError("ray is imported")
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.long
def test_a_short_job_imports_no_ray_and_has_the_bytes_that_workers_give(make_job, tmp_path):
    job = make_job()
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(NO_RAY)
    path = os.pathsep.join([str(library), os.environ.get("PYTHONPATH", str(Path(cluster.__file__).parents[1]))])
    here = command("run", job.folder / "job.yaml", PYTHONPATH=path)
    assert here.returncode == 0, here.stderr
    assert "computing in this process: it is done before Ray would have started" in here.stderr
    expected = run_serially(job.replace(run=str(tmp_path / "serial")))["plane"]  # those of workers, test_driver shows
    found = open_run(job.run_path)["plane"]
    assert (found.status == OK).all()
    for name in ("loss", "loss_stderr"):
        assert found[name].tobytes() == expected[name].tobytes(), name


def test_what_is_on_disk_is_read_once_and_told_once(make_job, monkeypatch):
    axes = [{"kind": "file", "path": f"d{k}.safetensors"} for k in (1, 2)]
    landscapes = [{"name": name, "directions": axes, "size": 3, "range": [-1, 1]} for name in ("done", "begun")]
    run_serially(make_job(landscapes=landscapes[:1]))
    job = make_job(landscapes=landscapes)
    with pytest.raises(Interrupted):
        run_serially(job, stop=lambda: "begun" in landscape_names(job.run_path))
    monkeypatch.setattr(driver, "is_quicker_here", lambda *_: True)
    read, told = [], []
    examine = LandscapeStore.examine
    monkeypatch.setattr(LandscapeStore, "examine", lambda store: read.append(store.name) or examine(store))
    found = driver.run(job, observer=told.append)
    assert read == ["done", "begun"]
    assert [each.landscape for each in told].count("done") == 1
    assert (found["begun"].status == OK).all()


@pytest.mark.slow
def test_a_short_job_that_kills_its_process_goes_on_with_workers(make_job, ray_folder):
    job = make_job("""
        def trouble(x, y):
            if x == 1.0 and once("killed"):
                os.kill(os.getpid(), signal.SIGSEGV)
    """)
    done = command("run", job.folder / "job.yaml", "--log-format=json", RAY_TMPDIR=str(ray_folder))
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stderr.splitlines()]
    (anew,) = [each["message"] for each in said if each["event"] == "start-anew"]
    assert "ended by SIGSEGV; going on with Ray's workers, which outlive that" in anew
    assert (open_run(job.run_path)["plane"].status == OK).all()
