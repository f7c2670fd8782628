"""What MindSpore's landscapes are made of, by its own formulas and without it: its data's files and its directions."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Weights = Mapping[str, NDArray[np.float32]]  # a tensor per parameter, in the order of MindSpore's checkpoint

ROOT = Path(__file__).resolve().parents[2]
MINDSPORE = ROOT / ".venv-mindspore" / "bin" / "python"
MNIST = ROOT.parent / "shared" / "data"
FILES = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
DIRECTION_SEED = 7  # of numpy's generator before MindSpore draws from it: tests/mindspore/tutorial.py sets it


def write_test_images(folder: Path, data: Path = MNIST) -> str:
    """MNIST's test files, unpacked as MindSpore wants them, or scikit-learn's digits; says which of them it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    if not all((data / f"{name}.gz").exists() for name in FILES):
        _write_digits(folder)
        return "scikit-learn's digits, enlarged"
    for name in FILES:
        with gzip.open(data / f"{name}.gz") as packed, (folder / name).open("wb") as file:
            shutil.copyfileobj(packed, file)
    return "MNIST t10k"


def _write_digits(folder: Path) -> None:
    """Each pixel of 8×8 as 3×3, and two black ones around them, from 0 to 255."""
    digits = load_digits()
    large = np.kron(digits.images * 255 / 16, np.ones((3, 3))).astype(np.uint8)
    large = np.pad(large, ((0, 0), (2, 2), (2, 2)))
    for name, array in zip(FILES, (large, digits.target.astype(np.uint8)), strict=True):
        sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes())


def flat(weights: Weights) -> NDArray[np.float64]:
    return np.concatenate([values.ravel() for values in weights.values()]).astype(np.float64)


def random_directions(weights: Weights) -> list[Weights]:
    """The two directions that SummaryLandscape draws around the result from numpy's generator of `DIRECTION_SEED`."""
    generator = np.random.RandomState(DIRECTION_SEED)
    return [_scaled(generator.normal(size=flat(weights).size), weights) for _ in range(2)]


def components(snapshots: Sequence[Weights]) -> list[Weights]:
    """The two directions that SummaryLandscape has for a path: components of θᵢ − θₙ, each about its own mean.

    The sign of a component is that which makes its largest number positive.
    """
    offsets = np.stack([flat(weights) - flat(snapshots[-1]) for weights in snapshots[:-1]], axis=1)
    found, _, _ = np.linalg.svd(offsets - offsets.mean(axis=0), full_matrices=False)
    found *= np.sign(found[np.abs(found).argmax(axis=0), range(found.shape[1])])
    return [_scaled(found[:, k], snapshots[-1]) for k in range(2)]


def _scaled(vector: NDArray[np.float64], weights: Weights) -> Weights:
    """The vector cut into tensors, each in float32 and of the norm that it has in the weights."""
    pieces = np.split(vector.astype(np.float32), np.cumsum([values.size for values in weights.values()])[:-1])
    return {
        name: piece.reshape(values.shape) * (np.linalg.norm(values) / np.linalg.norm(piece))
        for (name, values), piece in zip(weights.items(), pieces, strict=True)
    }
