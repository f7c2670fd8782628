"""Chunks written and read without Zarr's event loop: the same bytes, the same values; commits of many tiles at once."""

from __future__ import annotations

import json
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.zstd import Zstd
from stores import all_tiles, constant, make_store
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from landscape.core.grid import points_per_tile, tile_at, tile_counts
from landscape.store.chunk_io import ChunkReader, DurableStore, write_chunks
from landscape.store.format import ZSTD_MAGIC, BadMetadataError, Damaged, StoredArray, decode, encode, parse_array
from landscape.store.landscape import LandscapeStore

CODECS = {
    "zstd": [ZstdCodec(level=1), Crc32cCodec()],
    "zstd, another level and a checksum": [ZstdCodec(level=7, checksum=True), Crc32cCodec()],
    "plain": [Crc32cCodec()],
}


def make_array(compressors, shape=(5, 7), chunks=(2, 3), dtype="float64", fill=np.nan):
    group = zarr.open_group(MemoryStore(), mode="a", zarr_format=3)
    return group.create_array(
        "x", shape=shape, chunks=chunks, dtype=dtype, fill_value=fill, compressors=compressors,
        config={"write_empty_chunks": True},
    )  # fmt: skip


def described(array) -> StoredArray:
    return parse_array(json.loads(json.dumps(array.metadata.to_dict())) | {"dimension_names": []}, array.path)


def stored(array) -> dict[str, bytes]:
    return {key: value.to_bytes() for key, value in array.store._store_dict.items() if "/c/" in key}


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("dtype", ["float64", "uint8", "float32"])
def test_the_bytes_are_those_that_zarr_writes(codecs, dtype):
    whole = np.random.default_rng(0).normal(0, 50, (5, 7))
    whole[1, 2], whole[4, 6], whole[0, 0] = np.nan, np.inf, -0.0
    whole = np.arange(35, dtype=dtype).reshape(5, 7) if dtype == "uint8" else whole.astype(dtype)
    theirs, ours = (make_array(CODECS[codecs], dtype=dtype, fill=0) for _ in range(2))
    theirs[...] = whole
    indices = list(np.ndindex(*tile_counts(ours.shape, ours.chunks)))
    write_chunks(
        ours.store, [(described(ours), i, whole[tile_at(i, ours.shape, ours.chunks).windows]) for i in indices]
    )
    assert stored(ours) == stored(theirs)
    assert len(stored(ours)) == 9
    np.testing.assert_array_equal(ours[...], whole)
    for index, values, damaged in ChunkReader(theirs.store, described(theirs)).read(indices):
        assert not damaged
        assert values.tobytes() == whole[tile_at(index, theirs.shape, theirs.chunks).windows].tobytes()


def test_an_array_with_another_codec_is_refused_before_it_is_opened():
    with pytest.raises(BadMetadataError, match="codecs: must be bytes, zstd and crc32c, as this software writes, not"):
        described(make_array([GzipCodec(), Crc32cCodec()]))


def test_a_chunk_made_to_unpack_to_more_than_a_chunk_is_damaged_and_not_unpacked():
    array = described(make_array(CODECS["zstd"]))
    bomb = Zstd(1).encode(bytes(1 << 26))
    frame = Zstd(1).encode(np.zeros((2, 3)).tobytes())
    for body in (bomb, frame + bomb, frame + frame, frame[:-1], b"", ZSTD_MAGIC + b"\xff" * 20, streamed(bytes(48))):
        with pytest.raises(Damaged):
            decode(array, (0, 0), body + google_crc32c.value(body).to_bytes(4, "little"))
    assert decode(array, (0, 0), frame + google_crc32c.value(frame).to_bytes(4, "little")).shape == (2, 3)


def streamed(data: bytes) -> bytes:
    """A frame that does not say what it unpacks to: one raw block behind a header without a content size."""
    return ZSTD_MAGIC + b"\x00\x58" + (len(data) << 3 | 1).to_bytes(3, "little") + data


@given(st.data())
def test_no_changed_byte_and_no_length_passes_for_the_chunk(data):
    array = described(make_array(CODECS["zstd"]))
    written = encode(array, np.arange(6.0).reshape(2, 3))
    if data.draw(st.booleans()):
        bad = written[: data.draw(st.integers(0, len(written) - 1))]
    else:
        place, bit = data.draw(st.integers(0, len(written) - 1)), data.draw(st.integers(0, 7))
        bad = written[:place] + bytes([written[place] ^ 1 << bit]) + written[place + 1 :]
    for wrong in (bad, bytes(len(written))):
        with pytest.raises(Damaged):
            decode(array, (0, 0), wrong)


def test_what_is_there_is_listed_and_what_is_not_reads_as_absent(tmp_path):
    store = make_store(tmp_path)
    tile = store.tile((1, 0))
    store.write_tiles([(tile, constant(tile, 2.0))])
    reader = store.arrays.reader("loss")
    assert np.argwhere(reader.present()).tolist() == [[1, 0]]
    assert [(index, values is None) for index, values, _ in reader.read([(0, 0), (1, 0)])] == [
        ((0, 0), True),
        ((1, 0), False),
    ]


def test_tiles_committed_together_are_those_committed_one_by_one(tmp_path):
    together, apart = make_store(tmp_path / "together", (9, 7)), make_store(tmp_path / "apart", (9, 7))
    tiles = [(tile, constant(tile, float(k) if k % 3 else np.nan)) for k, tile in enumerate(all_tiles(together))]
    together.write_tiles(tiles)
    for tile, values in tiles:
        apart.write_tiles([(tile, values)])
    for folder in (tmp_path / "together", tmp_path / "apart"):
        assert LandscapeStore.open(str(folder), "a").examine().complete

    def chunks(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("landscapes.zarr/a/*/c/**/*")
                if path.is_file()}  # fmt: skip

    assert chunks(tmp_path / "together") == chunks(tmp_path / "apart")
    assert len(chunks(tmp_path / "apart")) == 4 * len(tiles) + 4  # two axes and two directions beside


def test_a_write_that_fails_among_many_leaves_all_of_them_uncommitted(tmp_path, monkeypatch):
    store = make_store(tmp_path, (9, 7))
    tiles, real, left = all_tiles(store), DurableStore.put, [5]

    def failing(self, key, data, exclusive=False):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        real(self, key, data, exclusive)

    with monkeypatch.context() as patched:
        patched.setattr(DurableStore, "put", failing)
        with pytest.raises(OSError, match="No space left"):
            store.write_tiles([(tile, constant(tile, 1.0)) for tile in tiles])
    examined = LandscapeStore.open(str(tmp_path), "a").examine()
    assert examined.missing == {tile.index for tile in tiles}
    assert examined.damaged == ()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_points_per_tile_are_those_of_each_tile(shape, edges):
    tile_shape = tuple(edges[: len(shape)])
    found = points_per_tile(shape, tile_shape)
    assert found.shape == tile_counts(shape, tile_shape)
    assert all(found[index] == tile_at(index, shape, tile_shape).points for index in np.ndindex(found.shape))
