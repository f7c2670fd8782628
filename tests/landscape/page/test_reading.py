"""A landscape in memory, where the store fails while it is read or brought up to date."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from live_landscape import LiveLandscape, empty, value_at

from landscape.errors import StoreError
from landscape.page import runs as open_runs
from landscape.page.reading import LandscapeReader
from landscape.store.reading import ChunkReader


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arrays whose next reading of chunks fails; each once for each time that its name stands here."""
    names: list[str] = []
    read = ChunkReader.read

    def failing(self: ChunkReader, indices):
        name = Path(self._array.path).name
        if name in names and (indices := tuple(indices)):
            names.remove(name)
            raise StoreError("the store does not answer")
        return read(self, indices)

    monkeypatch.setattr(ChunkReader, "read", failing)
    return names


@pytest.mark.parametrize("array", ["status", "loss"])
def test_tiles_that_could_not_be_read_are_read_by_the_next_look(runs, fails, array):
    empty(runs / "net", "minimum")
    reader, writer = LandscapeReader(str(runs / "net"), "minimum"), LiveLandscape(runs / "net", "minimum")
    reader.view(("loss",))
    reader.look()
    writer.commit((0, 0))
    fails.append(array)
    with pytest.raises(StoreError):
        reader.look()
    assert reader.look().tiles == {(0, 0)}
    assert reader.view(("loss",)).surface.loss[1, 1] == value_at((1, 1))


@pytest.mark.parametrize("array", ["status", "loss"])
def test_a_first_reading_that_failed_is_done_again(finished, fails, array):
    reader = LandscapeReader(str(finished / "net"), "minimum")
    fails.append(array)
    with pytest.raises(StoreError):
        reader.view(("loss",))
    view = reader.view(("loss",))
    assert view.counts[1] == 20
    assert np.isfinite(view.surface.loss).all()


def test_memory_is_freed_without_waiting_for_a_store_that_keeps_a_reader_waiting(finished, monkeypatch):
    readers = [LandscapeReader(str(finished / "net"), name) for name in ("minimum", "line", "cube")]
    for reader in readers:
        reader.view(("loss",))
    sizes = [reader.size for reader in readers]
    monkeypatch.setattr(open_runs, "VALUE_BYTES", 0)
    waits, answers, read = Event(), Event(), ChunkReader.read

    def waiting(self: ChunkReader, indices):
        waits.set()
        answers.wait(20)
        return read(self, indices)

    monkeypatch.setattr(ChunkReader, "read", waiting)
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(readers[0].view, ("accuracy",))
        assert waits.wait(20)
        try:
            threads.submit(open_runs.bound, readers).result(5)
            assert readers[0].size >= sizes[0]
            assert readers[1].size < sizes[1]
            assert readers[2].size == sizes[2], "the last used one stays"
        finally:
            answers.set()
        assert np.isfinite(slow.result(20).surface["accuracy"]).all()
