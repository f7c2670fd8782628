"""One driver at a landscape of SIZE x SIZE points: computes a part, stops, goes on to the end; prints what it took.

`python large.py FOLDER SIZE TILE` computes a few tiles at either end of the job itself, on Ray, and writes those
between straight into the store, as workers that take no time would have them written.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import numpy as np

import cluster.driver.driver  # with all that it imports, which is not what is measured
from landscape import read_job, run
from landscape.core.errors import Interrupted
from landscape.store.landscape import LandscapeStore
from landscape.surface.surface import OK

PROBLEM = """
import torch
from torch import nn

from landscape import Problem


class Plane(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, 1))
        self.y = nn.Parameter(torch.zeros(1, 1))


def observe(model, batch):
    return {"loss": (batch - model.x[0]) ** 2 + (model.y[0] - 0.5) ** 2}


def problem():
    return Problem(Plane(), torch.linspace(-1, 1, 2), observe)
"""

JOB = """
run: run
problem: my_problem:problem
num_samples: 2
engine: eager
tile: {tile}
landscapes:
- name: plane
  size: {size}
  directions:
  - {{kind: file, path: d1.safetensors}}
  - {{kind: file, path: d2.safetensors}}
"""

LEFT = 3  # tiles that the last run finds missing
FILLED_AT_ONCE = 64
LOOKED_AT = 8  # points, until the store is made and its first tile begun


def write_job(folder: Path, size: int, tile: int) -> Path:
    import torch
    from safetensors.torch import save_file

    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    save_file({"x": one, "y": zero}, folder / "d1.safetensors")
    save_file({"x": zero, "y": one.clone()}, folder / "d2.safetensors")
    (folder / "my_problem.py").write_text(PROBLEM)
    (folder / "job.yaml").write_text(JOB.format(size=size, tile=tile))
    return folder / "job.yaml"


def loss_at(alpha: float, beta: float) -> float:
    """Over the samples −1 and 1."""
    return ((-1 - alpha) ** 2 + (1 - alpha) ** 2) / 2 + (beta - 0.5) ** 2


def fill_whole(file: Path) -> None:
    """Have the job make its store, and commit every tile of it."""
    asked = iter(range(10**6))
    with contextlib.suppress(Interrupted):
        run(read_job(file), stop=lambda: next(asked) > LOOKED_AT)
    fill(read_job(file).run_path, left=0)


def fill(path: str, left: int = LEFT) -> None:
    """Commit what is missing, all but the last few tiles."""
    store = LandscapeStore.open(path, "plane", write=True)
    grid = store.grid()
    missing = sorted(store.examine().missing)
    missing = missing[: len(missing) - left]
    for k in range(0, len(missing), FILLED_AT_ONCE):
        tiles = [store.tile(index) for index in missing[k : k + FILLED_AT_ONCE]]
        store.write_tiles([(tile, values(grid.tile_points(tile))) for tile in tiles])


def values(points: np.ndarray) -> dict[str, np.ndarray]:
    return {"loss": loss_at(points[:, 0], points[:, 1]), "loss_stderr": np.abs(points[:, 0])}


def megabytes() -> float:
    """The most that this program has held; `ru_maxrss` would be what its parent held, where that is more."""
    (line,) = (each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM"))
    return int(line.split()[1]) * 1.024e-3


def main() -> None:
    folder, size, tile = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    import ray

    found: dict[str, object] = {"imports_mb": megabytes()}
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    job = read_job(write_job(folder, size, tile))
    seen: list[int] = []
    try:
        cluster.run(job, workers=1, observer=lambda p: seen.append(p.tasks_done), stop=lambda: max(seen, default=0) > 1)
    except Interrupted:
        found["part_mb"] = megabytes()
    begun = time.monotonic()
    fill(job.run_path)
    found["fill_seconds"] = time.monotonic() - begun
    begun = time.monotonic()
    cluster.run(job, workers=1, observer=lambda p: seen.append(p.tasks_done))
    found["end_seconds"], found["tasks_seen"] = time.monotonic() - begun, seen
    begun = time.monotonic()
    cluster.run(job, workers=1)
    found["reopen_seconds"], found["peak_mb"] = time.monotonic() - begun, megabytes()
    store = LandscapeStore.open(job.run_path, "plane")
    found["ok"] = int(store.counts()[OK])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
