"""How many points a refined landscape takes, and how far it is from those of the finest grid: LeNet, or ResNet-20.

    python tests/measure/refinement.py FOLDER [lenet | resnet20] [--data FOLDER] [--only even | refined]

Both are computed serially with one engine. What is on disk already is not computed again, so that the two may run side
by side, `--only` one each, before a last call that compares them; seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from landscape import Job, run
from landscape.recipes import cifar10, digits

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
TOLERANCE, FINEST = 0.01, 65
ENGINE = "eager+channels_last+folded+fused"


def job_of(network: str, folder: Path, data: Path) -> dict[str, Any]:
    """What both landscapes have in common; LeNet is trained first."""
    common: dict[str, Any] = {"run": str(folder), "num_samples": 512, "device": "cpu", "threads": 1}
    if network == "lenet":
        digits.train(folder, epochs=10)
        return common | {"problem": "landscape.recipes.digits:problem"}
    images, weights = data / "cifar10-test-2048.npz", data / "resnet20-cifar10.safetensors"
    return common | {
        "problem": partial(cifar10.make_problem, images, weights, split="test"), "engine": ENGINE, "batch_size": 128
    }  # fmt: skip


def main() -> None:
    """Compute the even grid and the refined one, and print what they cost and by how much they differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("network", choices=["lenet", "resnet20"], nargs="?", default="lenet")
    parser.add_argument("--data", type=Path, default=SHARED, help="where the images and weights of ResNet-20 are")
    parser.add_argument("--only", choices=["even", "refined"])
    options = parser.parse_args()
    common = job_of(options.network, options.folder, options.data)
    spec = {"origin": "last" if options.network == "lenet" else "problem", "range": [-0.5, 0.5]}
    finer = {"size": 17, "refine": {"tolerance": TOLERANCE, "points": FINEST**2 // 4}}
    found = {}
    for name, more in {"refined": finer, "even": {"size": FINEST}}.items():
        if options.only in (None, name):
            begun = time.process_time()
            found[name] = run(Job(**common, landscapes=[{**spec, "name": name, **more}]))[name]
            print(f"{name}: {time.process_time() - begun:.1f} s", flush=True)
    if len(found) < 2:
        return
    even, merged = found["even"], found["refined"].merged()
    steps = (FINEST - 1) // (merged.loss.shape[0] - 1)  # of the even grid, in one of the finest level
    known = np.zeros(even.loss.shape, bool)
    known[::steps, ::steps] = merged.interpolated == 0
    loss = RegularGridInterpolator((np.arange(0, FINEST, steps),) * 2, merged.loss)(tuple(np.indices(even.loss.shape)))
    relief = np.subtract(*np.percentile(even.loss, [95, 5]))
    print(f"points: {known.sum()} of {even.loss.size} ({known.sum() / even.loss.size:.1%})")
    print(f"largest error: {np.abs(loss - even.loss).max() / relief:.3%} of the relief")
    print(f"known points equal to the bit: {np.array_equal(loss[known], even.loss[known])}")


if __name__ == "__main__":
    main()
