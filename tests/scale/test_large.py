"""A landscape of millions of points: the driver's memory, status and going on again, each in a process of its own."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import large
import numpy as np
import pytest

from landscape import read_job, run
from landscape.errors import Interrupted
from landscape.store import LandscapeStore
from landscape.surface import OK

MOST_MEGABYTES = 500
STATUS_SECONDS = REOPEN_SECONDS = 5.0
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Short, since the paths of its sockets may have 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="ll"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def seconds_of(command: list[str]) -> tuple[float, str]:
    """The processor's, which other processes do not stretch; and what the command printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


@pytest.mark.parametrize("size", [1024, pytest.param(4096, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_driver_computes_stops_and_goes_on_in_little_memory(size, tmp_path, ray_folder):
    environment = {**os.environ, "RAY_TMPDIR": str(ray_folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", large.__file__, str(tmp_path), str(size)],
        env=environment, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    tiles = (size // 64) ** 2
    assert found["part_mb"] < MOST_MEGABYTES
    assert found["peak_mb"] < MOST_MEGABYTES
    assert found["peak_mb"] - found["imports_mb"] < MOST_MEGABYTES / 2
    assert found["tasks_seen"][-large.LEFT :] == [tiles - 2, tiles - 1, tiles]
    assert found["ok"] == size**2

    spent, shown = seconds_of(["cluster.cli", "status", str(tmp_path / "run"), "--json"])
    assert spent < STATUS_SECONDS
    (status,) = json.loads(shown)["landscapes"]
    assert (status["state"], status["done"], status["missing"]) == ("complete", size**2, 0)
    assert status["minimum"]["loss"] == pytest.approx(1, abs=1e-4)
    assert abs(status["minimum"]["alpha"]) < 1e-2

    store, chance = LandscapeStore.open(str(tmp_path / "run"), "plane"), random.Random(0)
    grid = store.grid()
    for _ in range(20):
        tile = store.tile((chance.randrange(size // 64), chance.randrange(size // 64)))
        expected = large.values(grid.tile_points(tile))["loss"]
        np.testing.assert_allclose(store._arrays["loss"][tile.windows].ravel(), expected, rtol=1e-6)
        assert (store._arrays["status"][tile.windows] == OK).all()


def test_a_finished_landscape_of_256_x_256_is_reopened_in_seconds(tmp_path):
    """In tiles of 4 x 4, of which there are 4,096: every chunk is read and checked, and no cluster started."""
    job = read_job(large.write_job(tmp_path, 256)).replace(tile=(4,))
    asked = iter(range(10**6))
    with pytest.raises(Interrupted):
        run(job, stop=lambda: next(asked) > 2 + 16)
    store = LandscapeStore.open(job.run_path, "plane", write=True)
    grid = store.grid()
    tiles = [store.tile(index) for index in sorted(store.examine().missing)]
    assert len(tiles) == 64**2 - 1
    for k in range(0, len(tiles), 256):
        store.write_tiles([(tile, large.values(grid.tile_points(tile))) for tile in tiles[k : k + 256]])
    (tmp_path / "job.yaml").write_text((tmp_path / "job.yaml").read_text().replace("tile: 64", "tile: 4"))
    spent, _ = seconds_of(["cluster.cli", "run", str(tmp_path / "job.yaml")])
    assert spent < REOPEN_SECONDS
    assert int(LandscapeStore.open(job.run_path, "plane").counts()[OK]) == 256**2
