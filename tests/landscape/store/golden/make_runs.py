"""How the golden runs were made: `python tests/landscape/store/golden/make_runs.py`.

    trajectory   collected over four epochs; PCA of the snapshots, the range fitted, the path drawn
    line         from the last snapshot towards the first; the losses of single samples are kept
    interrupted  stopped in the middle; `whole` is the same job to its end
    refined      a plane with the levels that its values ask for
    quantised    a plane, and the same one with weights of 4 bits
    imported     a table of other software
    line.landscape, whole.landscape    the run packed with its values, and the job packed

Each job has its file beside its run. `line` is measured, too. values.json holds digests of all values, by which later
versions are compared. What is released is never made again: later versions must open what it wrote.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import torch
import yaml

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "support")]

COMMON = {
    "problem": "golden_problem:problem", "num_samples": 40, "engine": "eager", "batch_size": 16, "device": "cpu",
}  # fmt: skip
PLANE = {
    "name": "plane",
    "directions": [{"kind": "random", "seed": 3, "ignore": ["bias"]}, {"kind": "random", "seed": 4}],
    "size": [9, 6],
    "range": [[-1, 1], [-0.5, 1]],
}
LINE = {"name": "line", "directions": [{"kind": "towards", "target": "first"}], "size": 11}
JOBS = {
    "trajectory": {"landscapes": [{"name": "path", "trajectory": "all", "size": [8, 6]}], "tile": 3},
    "line": {"landscapes": [LINE], "tile": 4, "keep_samples": True},
    "interrupted": {"landscapes": [PLANE], "tile": 3},
    "whole": {"landscapes": [PLANE], "tile": 3},
    "refined": {"landscapes": [{**PLANE, "size": 9, "refine": {"tolerance": "1%", "points": 200}}], "tile": 8},
    "quantised": {"landscapes": [PLANE, {"name": "rounded", "like": "plane", "quantise": {"bits": 4}}], "tile": 8},
}
TABLE = "alpha,loss\n" + "".join(f"{place / 4},{place * place / 8 + 0.5}\n" for place in range(-4, 5))
COLLECTED = ("trajectory", "line")
STOP_AFTER = 25  # checks for a stop, of the interrupted run: some tiles are there, one is cut off


def collect(run: Path) -> None:
    """Four epochs of plain gradient descent, their weights kept."""
    from golden_problem import data, network

    from landscape import TrajectoryCollector

    model, (inputs, targets) = network(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    collector = TrajectoryCollector(run, model, optimizer, unit="epoch", intervals=[[0, 1, 2, 3, 4]])
    for _ in range(4):
        model.train()
        for part in range(0, len(inputs), 12):
            loss = torch.nn.functional.cross_entropy(model(inputs[part : part + 12]), targets[part : part + 12])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            collector.step(loss)
        collector.end_epoch(accuracy=0.5)


def main() -> None:
    from golden_values import digests

    from landscape import __version__, import_surface, read_job, run
    from landscape.compute.pack import pack
    from landscape.compute.pack_run import pack_run
    from landscape.core.errors import Interrupted

    folder = Path(tempfile.mkdtemp()) / f"release-{__version__}"
    folder.mkdir()
    shutil.copy(HERE / "golden_problem.py", folder)
    for name, fields in JOBS.items():
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({"run": name, **COMMON, **fields}, sort_keys=False))
        if name in COLLECTED:
            collect(folder / name)
        asked = iter(range(10**9))
        most = STOP_AFTER if name == "interrupted" else 10**9
        try:
            run(read_job(file), stop=lambda asked=asked, most=most: next(asked) > most)
        except Interrupted:
            assert name == "interrupted"
    (folder / "table.csv").write_text(TABLE)
    import_surface(folder / "table.csv", run=folder / "imported", name="theirs")
    subprocess.run([sys.executable, "-m", "cluster", "measure", "line", "--serial"], cwd=folder, check=True)
    pack(read_job(folder / "whole.yaml"), folder / "whole.landscape")
    pack_run(folder / "line", folder / "line.landscape")
    runs = sorted(place for place in folder.iterdir() if (place / "landscapes.zarr").is_dir())
    (folder / "values.json").write_text(json.dumps({place.name: digests(place) for place in runs}, indent=1))
    with tarfile.open(HERE / f"{folder.name}.tar.gz", "w:gz") as archive:
        archive.add(folder, arcname=folder.name, filter=lambda info: None if "__pycache__" in info.name else info)


if __name__ == "__main__":
    main()
