"""The curve of cost against work: the real driver and schedule against simulated workers, from 1 to 10,000 of them.

`python tests/scale/curve.py --out docs` prints the tables of docs/scale.md and draws docs/scale.svg.
`--quick` leaves the largest out. One row at a time runs in a process of its own, for its memory.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

POOLS = [(1, 300), (10, 3_000), (100, 10_000), (1_000, 100_000), (10_000, 200_000)]
LENGTHS = [1_000, 10_000, 100_000, 1_000_000]
SHORT = [(1_000, 100_000, 1.0), (10_000, 200_000, 3.0)]
SPREAD = 0.2  # of the logarithm of a tile's seconds


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def measure(workers: int, tiles: int, seconds: float, deaths_per_hour: float = 0.1) -> dict[str, Any]:
    import logging

    from simulated import NoStore, simulate

    logging.disable()
    rows = max(1, math.isqrt(tiles))
    store, before, begun = NoStore((rows, tiles // rows), (1, 1)), megabytes(), time.monotonic()

    def tile_seconds(chance: random.Random) -> float:
        return chance.lognormvariate(math.log(seconds), SPREAD)

    pool, clock = simulate(store, workers, tile_seconds, deaths_per_hour=deaths_per_hour)
    assert (store.commits == 1).all(), "a tile is missing, or was committed twice"
    return {
        "workers": workers, "tiles": store.tile_count, "tile_seconds": seconds, "busy": pool.busy_share,
        "microseconds": 1e6 * clock.driver_seconds / pool.receipts, "receipts": pool.receipts / clock.driver_seconds,
        "deaths": pool.deaths, "megabytes": megabytes() - before, "real_seconds": time.monotonic() - begun,
    }  # fmt: skip


def in_own_process(*row: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, "--row", *map(str, row)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    print(as_row(found), flush=True)
    return found


def as_row(found: dict[str, Any]) -> str:
    cells = [
        f"{found['workers']:,}", f"{found['tiles']:,}", f"{found['tile_seconds']:g}", f"{100 * found['busy']:.2f} %",
        f"{found['microseconds']:.0f}", f"{found['receipts']:,.0f}", str(found["deaths"]),
        f"{found['megabytes']:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def commits(out: Path) -> None:
    """Tiles of 64 x 64 with two observables, committed to this disk one by one and together."""
    import numpy as np

    from landscape.core.grid import Grid, axis_coordinates
    from landscape.store.format import NewArrays
    from landscape.store.landscape import LandscapeStore
    from landscape.surface.record import Record

    grid = Grid(("alpha", "beta"), (axis_coordinates(1024, -1, 1),) * 2)
    names = ("loss", "loss_stderr", "accuracy", "accuracy_stderr")
    chance = np.random.default_rng(0)
    values = {name: chance.random(64 * 64) for name in names}
    print("\n| committed at once | tiles/s | processor, ms a tile |\n|---|---|---|")
    for together in (1, 16, 256):
        with tempfile.TemporaryDirectory(dir=out) as folder:
            new = NewArrays(
                grid, (64, 64), ("loss", "accuracy"), [{"kind": "file"}] * 2, directions=[{}, {}], layout=[]
            )
            store = LandscapeStore.create(
                folder, "plane", new, Record().changed(observables=["loss", "accuracy"], identity={})
            )
            tiles = [(store.tile((k // 16, k % 16)), values) for k in range(256)]
            begun, spent = time.monotonic(), time.process_time()
            for k in range(0, len(tiles), together):
                store.write_tiles(tiles[k : k + together])
            took, spent = time.monotonic() - begun, time.process_time() - spent
        print(f"| {together} | {len(tiles) / took:.0f} | {1000 * spent / len(tiles):.2f} |", flush=True)


def draw(pools: list[dict[str, Any]], lengths: list[dict[str, Any]], path: Path) -> None:
    from landscape.views.exporting import browser

    figure = go.Figure()
    for found, name, key in ((pools, "against workers", "workers"), (lengths, "against tiles, 1,000 workers", "tiles")):
        figure.add_scatter(
            x=[each[key] for each in found], y=[each["microseconds"] for each in found], name=name,
            mode="lines+markers",
        )  # fmt: skip
    figure.update_layout(
        title="What a tile costs the driver", width=720, height=380, template="plotly_white",
        xaxis={"type": "log", "title": "workers, or tiles", "dtick": 1},
        yaxis={"title": "µs of processor per tile", "rangemode": "tozero"},
        legend={"x": 0.99, "xanchor": "right", "y": 0.99}, margin={"l": 60, "r": 20, "t": 50, "b": 50},
    )  # fmt: skip
    with browser() as drawing:
        path.write_bytes(drawing.draw(figure, "svg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="the folder to draw scale.svg in")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--row", nargs=3, metavar=("WORKERS", "TILES", "SECONDS"))
    given = parser.parse_args()
    if given.row:
        workers, tiles, seconds = given.row
        print(json.dumps(measure(int(workers), int(tiles), float(seconds))))
        return
    print(
        "| workers | tiles | s a tile | busy | µs a tile | tiles/s | deaths | MB |\n|---|---|---|---|---|---|---|---|"
    )
    limit = 100_000 if given.quick else math.inf
    pools = [in_own_process(workers, tiles, 10) for workers, tiles in POOLS if tiles <= limit]
    lengths = [in_own_process(1_000, tiles, 10) for tiles in LENGTHS[1:] if tiles <= limit]
    for row in SHORT:
        if row[1] <= limit:
            in_own_process(*row)
    commits(given.out or Path.cwd())
    if given.out:
        draw(pools, lengths, given.out / "scale.svg")


if __name__ == "__main__":
    main()
