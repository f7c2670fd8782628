"""What is read of a landscape that is extended: the path once, and nothing that is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_models import Quadratic, make_job, quadratic_problem, wandering, write_trajectory

from landscape import LandscapeError, run
from landscape.compute.identity import recorded_plan
from landscape.compute.reused_values import Extension
from landscape.store import chunk_io as chunk_reading
from landscape.store.landscape import LandscapeStore

SPEC = {"name": "a", "trajectory": "all", "size": [4, 3], "range": [-1, 1]}


@pytest.fixture
def extended(tmp_path: Path) -> LandscapeStore:
    write_trajectory(tmp_path, wandering(Quadratic(), 7))
    run(make_job(tmp_path, quadratic_problem, [SPEC], tile=2, batch_size=8))
    return LandscapeStore.open(tmp_path, "a")


def taking_over(store: LandscapeStore, blocks: int | None = None) -> Extension:
    """An extension on the same grid; `blocks` are complete where it adds samples."""
    return Extension(store, (0, 0), store.shape, recorded_plan(store), blocks, more_observables=False)


def test_the_path_is_read_once_for_all_stretches(extended, monkeypatch):
    extension, more_samples = taking_over(extended), taking_over(extended, blocks=1)
    stretches = [slice(start, start + extended.path_chunk) for start in range(0, 7, extended.path_chunk)]
    opened: list[Path] = []
    chunk_bytes = chunk_reading.chunk_bytes
    monkeypatch.setattr(chunk_reading, "chunk_bytes", lambda file, most: opened.append(file) or chunk_bytes(file, most))
    taken = [extension.path_values(stretch) for stretch in stretches]
    assert len(stretches) > 2
    assert len(opened) == len(set(opened)) == len(stretches) * len(extended.arrays.path_value_names)
    for name in extended.arrays.path_value_names:
        whole = np.concatenate([values[name] for values in taken])
        np.testing.assert_array_equal(whole, extended.arrays.values(name))
    opened.clear()
    before = [more_samples.before_path(stretch)[0].moments for stretch in stretches]
    assert len(opened) == len(set(opened))
    assert sum(map(len, before)) == 7


def test_a_path_that_is_damaged_meanwhile_is_not_taken_over(extended, tmp_path):
    extension = taking_over(extended)
    chunk = tmp_path / "landscapes.zarr" / "a" / "path_loss" / "c" / "1"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(LandscapeError, match="'a' cannot be extended: path_loss chunk 1 is damaged"):
        extension.path_values(slice(0, 1))
    chunk.unlink()
    with pytest.raises(LandscapeError, match="path_loss chunk 1 is damaged"):
        extension.path_values(slice(0, 1))
