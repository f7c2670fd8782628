"""A landscape of millions of points: the driver's memory, status and going on again.

How long they take is measured by `reopening.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import large
import numpy as np
import pytest

from cluster.driver import driver, ray_executor
from cluster.runtime.status import run_status
from landscape import read_job
from landscape.core.grid import Tile
from landscape.store import chunk_io
from landscape.store.landscape import LandscapeStore
from landscape.surface.surface import OK

MOST_MEGABYTES = 500
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Short, since the paths of its sockets may have 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="ll"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# Memory tells something at millions of points only. That a job on Ray stops and goes on, and what it counts, is tested
# in `make test` by `tests/cluster/driver`.
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("size", "tile"), [(256, 32), (4096, 64)])
def test_a_driver_computes_stops_and_goes_on_in_little_memory(size, tile, tmp_path, ray_folder):
    environment = {**os.environ, "RAY_TMPDIR": str(ray_folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", large.__file__, str(tmp_path), str(size), str(tile)],
        env=environment, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    tiles = (size // tile) ** 2
    assert found["part_mb"] < MOST_MEGABYTES
    assert found["peak_mb"] < MOST_MEGABYTES
    assert found["peak_mb"] - found["imports_mb"] < MOST_MEGABYTES / 2
    assert found["tasks_seen"][-large.LEFT :] == [tiles - 2, tiles - 1, tiles]
    assert found["ok"] == size**2

    (status,) = run_status(str(tmp_path / "run"))["landscapes"]
    assert (status["state"], status["done"], status["missing"]) == ("complete", size**2, 0)
    assert status["minimum"]["loss"] == pytest.approx(1, abs=1e-4)
    assert abs(status["minimum"]["alpha"]) < 1e-2

    store, chance = LandscapeStore.open(str(tmp_path / "run"), "plane"), random.Random(0)
    grid = store.grid()
    for _ in range(20):
        window = store.tile((chance.randrange(size // tile), chance.randrange(size // tile)))
        expected = large.values(grid.tile_points(window))["loss"]
        np.testing.assert_allclose(value_of(store, "loss", window).ravel(), expected, rtol=1e-6)
        assert (value_of(store, "status", window) == OK).all()


def value_of(store: LandscapeStore, array: str, tile: Tile) -> np.ndarray:
    ((_, values, _),) = store.arrays.reader(array).read([tile.index])
    assert values is not None
    return values


@pytest.mark.faults
def test_a_finished_landscape_is_reopened_without_a_cluster_and_each_chunk_read_once(tmp_path, monkeypatch):
    """Of 96 x 96 points in tiles of 4 x 4, of which there are 576."""
    file = large.write_job(tmp_path, 96, tile=4)
    large.fill_whole(file)
    read: list[str] = []
    fetch = chunk_io.chunk_bytes
    monkeypatch.setattr(chunk_io, "chunk_bytes", lambda place, most: read.append(str(place)) or fetch(place, most))
    monkeypatch.setattr(ray_executor, "ray_session", lambda *_: pytest.fail("a cluster is started for nothing to do"))
    run = driver.run(read_job(file))
    arrays = ("loss", "loss_stderr", "loss_rise_stderr", "status")
    chunks = [each for each in read if Path(each).parents[2].name in arrays]  # not the axes and directions
    assert len(chunks) == len(set(chunks)) == len(arrays) * 24**2
    assert int(LandscapeStore.open(run.path, "plane").counts()[OK]) == 96**2
