"""A landscape in memory, where the store fails while it is read or brought up to date."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from live_landscape import LiveLandscape, empty, value_at
from opened_page import opened
from torch import nn

from landscape import Job, Problem, run
from landscape.core.errors import StoreError
from landscape.page import runs as open_runs
from landscape.page.runs import LandscapeReader
from landscape.store.chunk_io import ChunkReader
from landscape.store.results import open_run


def compute(folder: Path, seed: int) -> None:
    """A run with another landscape `minimum`."""
    torch.manual_seed(seed)
    problem = Problem(nn.Linear(3, 2), torch.randn(8, 3), lambda model, batch: {"loss": model(batch).square().mean(1)})
    landscapes = [{"name": "minimum", "size": [5, 4]}]
    run(Job(run=str(folder), problem=lambda: problem, landscapes=landscapes, engine="eager", num_samples=8))


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
            threads.submit(open_runs.bound_memory, readers).result(5)
            assert readers[0].size >= sizes[0]
            assert readers[1].size < sizes[1]
            assert readers[2].size == sizes[2], "the last used one stays"
        finally:
            answers.set()
        assert np.isfinite(slow.result(20).surface["accuracy"]).all()


def test_what_the_page_first_shows_after_a_run_was_replaced_is_the_new_one(runs):
    """Nobody looks meanwhile, so that nothing is noticed before it is asked for."""
    with opened(runs, search_seconds=3600) as (client, ids):
        net = ids["net"]
        addresses = [f"/api/{name}?run={net}&landscape=minimum" for name in ("figure", "thumbnail")]
        addresses.append(f"/api/run?run={net}")
        old, lowest = [client.json(each) for each in addresses], open_run(runs / "net")["minimum"].loss.min()
        shutil.move(runs / "net", runs.parent / "old")
        compute(runs / "net", 1)
        new, lowest_now = [client.json(each) for each in addresses], open_run(runs / "net")["minimum"].loss.min()
        shutil.rmtree(runs / "net")
        gone = [client.get(each).status for each in addresses]
    assert (old[0]["low"], new[0]["low"]) == (lowest, lowest_now)
    assert lowest != lowest_now
    assert all(one != other for one, other in zip(old, new, strict=True))
    assert set(gone) <= {404, 410}
