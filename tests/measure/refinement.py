"""How many points a refined landscape of LeNet on the digits takes, and how far it is from those of the finest grid.

python tests/measure/refinement.py FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from landscape import Job, run
from landscape.recipes.digits import train

TOLERANCE, FINEST = 0.01, 65


def main(folder: Path) -> None:
    """Train, compute the even grid and the refined one, and print what they cost and by how much they differ."""
    train(folder, epochs=10)
    common = {"run": str(folder), "problem": "landscape.recipes.digits:problem", "num_samples": 512}
    spec = {"origin": "last", "range": [-0.5, 0.5]}
    begun = time.perf_counter()
    even = run(Job(**common, landscapes=[{**spec, "name": "even", "size": FINEST}]))["even"]
    middle = time.perf_counter()
    refine = {"tolerance": TOLERANCE, "points": FINEST**2 // 4}
    surface = run(Job(**common, landscapes=[{**spec, "name": "refined", "size": 17, "refine": refine}]))["refined"]
    end = time.perf_counter()
    merged = surface.merged()
    step = (FINEST - 1) // (merged.loss.shape[0] - 1) if merged.loss.shape[0] <= FINEST else 0
    if step != 1:
        raise SystemExit(f"the refined landscape has {merged.loss.shape} points, not {FINEST} along each axis")
    known = merged.interpolated == 0
    relief = np.subtract(*np.percentile(even.loss, [95, 5]))
    print(f"points: {known.sum()} of {even.loss.size} ({known.sum() / even.loss.size:.1%})")
    print(f"largest error: {np.abs(merged.loss - even.loss).max() / relief:.3%} of the relief")
    print(f"known points equal to the bit: {np.array_equal(merged.loss[known], even.loss[known])}")
    print(f"seconds: {middle - begun:.1f} even, {end - middle:.1f} refined")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
