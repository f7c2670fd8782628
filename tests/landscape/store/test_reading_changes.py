"""Picked points of a landscape, brought up to date by the chunks that were written since; the same on S3."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from stores import make_store

from landscape.core.folders import open_folder
from landscape.store.changes import chunk_changes
from landscape.store.landscape import LandscapeStore
from landscape.store.picked import PickedValues


def commit(store: LandscapeStore, *indices: tuple[int, ...], shift: float = 0.0) -> None:
    tiles = [store.tile(index) for index in indices]
    store.write_tiles([(tile, {"loss": value(tile, shift), "loss_stderr": value(tile, 0) * 0}) for tile in tiles])


def value(tile, shift: float) -> np.ndarray:
    places = np.argwhere(np.ones(tile.shape, bool)) + np.array(tile.start)
    return places @ 10.0 ** np.arange(places.shape[1]) + shift


@pytest.mark.parametrize("size, tile", [((7,), (3,)), ((5, 4), (2, 3)), ((3, 4, 5), (2, 2, 2))])
def test_a_look_finds_what_was_written_replaced_and_removed(tmp_path, size, tile):
    store = make_store(tmp_path, size, tile)
    counts = store.arrays.reader("status").counts
    changes = chunk_changes(open_folder(str(tmp_path)), "a", "status", counts)
    first, last = (0,) * len(size), tuple(count - 1 for count in counts)
    assert changes.look() == set()
    commit(store, first)
    assert changes.look() == {first}
    commit(store, first, last)
    assert changes.look() == {first, last}
    assert set(changes.present) == {first, last}
    shutil.rmtree(tmp_path / "landscapes.zarr" / "a" / "status" / "c")
    assert changes.look() == {first, last}
    assert changes.look() == set()
    commit(store, last)
    assert changes.look() == {last}


def test_names_that_are_no_chunks_and_links_are_left_out(tmp_path):
    store = make_store(tmp_path)
    commit(store, (0, 0))
    chunks = tmp_path / "landscapes.zarr" / "a" / "status" / "c"
    (chunks / "1").symlink_to(chunks / "0")
    (chunks / "0" / "00").write_bytes(b"")
    (chunks / "0" / "1").mkdir()
    (chunks / "x").mkdir()
    changes = chunk_changes(open_folder(str(tmp_path)), "a", "status", (2, 2))
    assert changes.look() == {(0, 0)}


def picked(store: LandscapeStore, *picks: list[int]) -> PickedValues:
    values = PickedValues(store.arrays, [np.array(pick) for pick in picks])
    values.load(["loss"])
    return values


def test_picked_points_are_those_of_the_whole_surface(tmp_path):
    store = make_store(tmp_path)
    commit(store, (0, 0), (0, 1), (1, 1))
    values = picked(store, [0, 3], [0, 2, 4])
    values.update([(0, 0), (0, 1), (1, 1)])
    whole = LandscapeStore.open(str(tmp_path), "a").read_surface()
    assert np.array_equal(values.values["loss"], whole.loss[np.ix_([0, 3], [0, 2, 4])], equal_nan=True)
    assert np.array_equal(values.status, whole.status[np.ix_([0, 3], [0, 2, 4])])
    assert values.counts.tolist() == np.bincount(whole.status.ravel(), minlength=4).tolist()
    lowest = whole.minimum()
    assert values.lowest == (lowest["loss"], (0, 0))


def test_values_that_are_asked_for_later_are_the_same(tmp_path):
    store = make_store(tmp_path)
    commit(store, (0, 0), (1, 0))
    early, late = (
        picked(store, list(range(4)), list(range(5))),
        PickedValues(store.arrays, [np.arange(4), np.arange(5)]),
    )
    for values in (early, late):
        values.update([(0, 0), (1, 0)])
    late.load(["loss"])
    assert np.array_equal(early.values["loss"], late.values["loss"], equal_nan=True)
    size = late.size
    late.forget()
    assert late.size < size
    late.load(["loss"])
    assert np.array_equal(early.values["loss"], late.values["loss"], equal_nan=True)


@pytest.mark.parametrize("damage", ["status", "loss"])
def test_a_damaged_chunk_counts_as_not_computed_until_it_is_written_again(tmp_path, damage):
    store = make_store(tmp_path)
    commit(store, (0, 0), (0, 1))
    (tmp_path / "landscapes.zarr" / "a" / damage / "c" / "0" / "0").write_bytes(b"damaged")
    values = picked(store, list(range(4)), list(range(5)))
    values.update([(0, 0), (0, 1)])
    assert values.counts.tolist() == [16, 4, 0, 0]
    assert np.isnan(values.values["loss"][:2, :3]).all()
    assert values.lowest[1] == (0, 3)
    commit(store, (0, 0), shift=-100.0)
    values.update([(0, 0)])
    assert values.counts.tolist() == [10, 10, 0, 0]
    assert values.lowest == (-100.0, (0, 0))
    values.update([(1, 1)])
    shutil.rmtree(tmp_path / "landscapes.zarr" / "a" / "status" / "c" / "0")
    values.update([(0, 0), (0, 1)])
    assert values.counts.tolist() == [20, 0, 0, 0]
    assert values.lowest is None


def test_stamps_tell_files_and_their_contents_apart(tmp_path):
    folder = open_folder(str(tmp_path))
    assert folder.stamps("none") == {}
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_text("1")
    (tmp_path / "a" / "link").symlink_to(tmp_path)
    before = folder.stamps("a")
    assert set(before) == {"b/c"}
    folder.write("a/b/c", b"2")
    assert folder.stamps("a") != before
