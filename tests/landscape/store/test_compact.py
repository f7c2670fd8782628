"""Landscapes stored in few files: every value as before, and all that can be done with a landscape done as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from extended_scene import LANDSCAPE, compute, computed, problem_of
from small_models import Quadratic as Model
from small_models import chunks_of, make_job, wandering, write_trajectory

from landscape import JobError, LandscapeError, NotFoundError, compact_landscape, extend, open_run, refine, run
from landscape.core.errors import Interrupted
from landscape.core.folders import open_folder
from landscape.core.lock import run_lock
from landscape.page.content import Content
from landscape.store.compact import compact_tile
from landscape.store.landscape import LandscapeStore


def arrays_of(folder: Path, name: str = "a") -> dict[str, bytes]:
    """The bytes of every array of a landscape and of its levels, whatever its chunks, as the store reads them."""
    store = LandscapeStore.open(folder, name)
    return {
        f"{opened.level} {array}": opened.arrays.values(array).tobytes()
        for opened in (store, *store.levels())
        for array in opened.arrays.names
    }


def unchanged(record: dict[str, Any]) -> dict[str, Any]:
    return {name: entry for name, entry in record.items() if name not in ("computed_tile", "progress")}


def test_every_value_stays_and_a_chunk_holds_all_points(tmp_path):
    write_trajectory(tmp_path, wandering(Model(), 4))
    spec = {"name": "a", "trajectory": "all", "size": [7, 6]}
    compute(tmp_path, spec=spec, keep_samples=True)
    before, record = arrays_of(tmp_path), dict(LandscapeStore.open(tmp_path, "a").record.attributes)
    found = compact_landscape(tmp_path, "a")
    files = [path for path in (tmp_path / "landscapes.zarr" / "a").rglob("*") if path.is_file()]
    assert found.files == len(files)
    over_grid = sum(f"/{array}/c/" in str(file) for file in files for array in ("loss", "status", "moments"))
    assert (found.files_before - found.files, over_grid) == (8 * 6, 3)  # nine tiles of six arrays became one
    assert arrays_of(tmp_path) == before
    store = LandscapeStore.open(tmp_path, "a")
    assert unchanged(dict(store.record.attributes)) == unchanged(record)
    assert (store.tile_shape, store.computed_tile, store.problems()) == ((6, 7), (2, 3), [])
    assert sorted(path.name for path in (tmp_path / "landscapes.zarr").iterdir()) == ["a", "zarr.json"]
    with xarray.open_zarr(tmp_path / "landscapes.zarr", group="a", consolidated=False) as opened:
        assert opened["loss"].values.tobytes() == before["0 loss"]
    assert compact_landscape(tmp_path, "a").files_before == found.files, "nothing is left to do"


@pytest.mark.parametrize(
    ("more", "spec"),
    [
        ({"num_samples": 53}, {}),
        ({"ranges": [(-2, 2), (-1, 1.5)]}, {"range": [[-2, 2], [-1, 1.5]], "size": [9, 6]}),
    ],
)
def test_an_extension_of_a_compacted_landscape_has_the_bytes_of_asking_at_once(tmp_path, more, spec):
    at_once = computed(tmp_path / "once", more.get("num_samples", 20), LANDSCAPE | spec)
    folder = computed(tmp_path / "run")
    compact_landscape(folder, "a")
    extend(folder, "a", **more, problem=problem_of())
    assert chunks_of(folder) == chunks_of(at_once), "in the tiles of then, which workers share"
    compact_landscape(folder, "a")
    assert arrays_of(folder) == arrays_of(at_once)


def test_a_refinement_goes_along_and_can_follow(tmp_path):
    first, then = computed(tmp_path / "refined"), computed(tmp_path / "compacted")
    refine(first, "a", problem=problem_of())
    expected = arrays_of(first)
    compact_landscape(first, "a")
    compact_landscape(then, "a")
    refine(then, "a", problem=problem_of())
    assert arrays_of(first) == arrays_of(then) == expected
    assert open_run(first)["a"].levels[0].record.name == "a"


def test_a_damaged_chunk_is_told_and_computed_again(tmp_path):
    folder = computed(tmp_path)
    before = arrays_of(folder)
    compact_landscape(folder, "a")
    chunk = folder / "landscapes.zarr" / "a" / "loss" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    assert LandscapeStore.open(folder, "a").examine().damaged == (("loss", (0, 0)),)
    with pytest.raises(JobError, match="cannot be compacted: a chunk of it is damaged; run its own job first"):
        compact_landscape(folder, "a")
    compute(folder)
    assert arrays_of(folder) == before
    assert LandscapeStore.open(folder, "a").tile_shape == (4, 5)


def test_what_is_not_whole_is_refused_with_the_remedy_and_nothing_changes(tmp_path):
    folder, asked = tmp_path / "partial", iter(range(1000))
    with pytest.raises(Interrupted):
        run(
            make_job(folder, problem_of(), [{"name": "a", "size": 5}], num_samples=8, tile=1),
            stop=lambda: next(asked) > 20,
        )
    whole = computed(tmp_path / "whole")

    def stopped(job: Any) -> Any:
        asked = iter(range(1000))
        return run(job, stop=lambda: next(asked) > 8)

    with pytest.raises(Interrupted):
        refine(whole, "a", problem=problem_of(), compute=stopped)
    extending = computed(tmp_path / "extending")
    with pytest.raises(Interrupted):
        extend(extending, "a", num_samples=53, problem=problem_of(), compute=stopped)
    for place, told in (
        (folder, "it is not complete; run its own job first"),
        (whole, "it is being refined; give that command, or its own job, again first"),
        (extending, "it is being extended; give that command again first, or remove 'a.extending'"),
    ):
        before = chunks_of(place)
        with pytest.raises(JobError, match=f"landscape 'a' cannot be compacted: {told}"):
            compact_landscape(place, "a")
        assert chunks_of(place) == before
    with pytest.raises(NotFoundError):
        compact_landscape(folder, "b")
    with run_lock(str(extending)), pytest.raises(LandscapeError, match="is being written by process"):
        compact_landscape(extending, "a")


def test_the_page_opens_a_compacted_landscape_anew(tmp_path):
    folder = computed(tmp_path)
    shown = Content(open_folder(folder), LandscapeStore.open(folder, "a"))
    shown.update()
    generation = shown.generation(False)
    compact_landscape(folder, "a")
    store = LandscapeStore.open(folder, "a")
    assert not shown.goes_on_as(store)
    opened = Content(open_folder(folder), store)
    opened.update()
    assert opened.generation(False) != generation
    assert (opened.counts.tolist(), shown.counts.tolist()) == ([0, 20, 0, 0], [0, 20, 0, 0])


def test_a_copy_that_differs_replaces_nothing(tmp_path, monkeypatch):
    folder = computed(tmp_path)
    before = chunks_of(folder)
    from landscape.store import compact

    def wrong(arrays: Any, chunks: Any) -> None:
        written(arrays, [(name, index, values + (name == "loss")) for name, index, values in chunks])

    written = compact.write_synced
    monkeypatch.setattr(compact, "write_synced", wrong)
    with pytest.raises(LandscapeError, match=r"its copy in large tiles differs in loss at tile \(0, 0\), so it stays"):
        compact_landscape(folder, "a")
    assert chunks_of(folder) == before
    monkeypatch.undo()
    compact_landscape(folder, "a")
    assert sorted(path.name for path in (folder / "landscapes.zarr").iterdir()) == ["a", "zarr.json"]


@pytest.mark.parametrize(
    ("shape", "samples", "tile"),
    [((81, 81), 0, (41, 81)), ((64, 64), 0, (64, 64)), ((10_001,), 0, (2501,)), ((81, 81), 2048, (21, 41))],
)
def test_no_tile_is_larger_than_one_worker_mends(shape, samples, tile):
    class Array:
        def __init__(self, width: int, kind: type) -> None:
            self.shape, self.dtype = (*shape, width) if width else shape, np.dtype(kind)

    class Arrays(dict[str, Array]):
        pass

    arrays: Any = Arrays(loss=Array(0, np.float64), loss_samples=Array(samples, np.float32))
    arrays.shape, arrays.tile_names = shape, tuple(arrays)
    assert compact_tile(arrays) == tile


def test_the_record_says_in_which_tiles_it_was_computed(tmp_path):
    folder = computed(tmp_path)
    compact_landscape(folder, "a")
    document = json.loads((folder / "landscapes.zarr" / "a" / "zarr.json").read_text())
    assert document["attributes"]["computed_tile"] == [2, 3]
