"""The rows of the list: read again whenever their files have changed."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from landscape.page import watching
from landscape.store import status
from landscape.store.state import unreadable_status
from landscape.store.status import Directory, FoundRun, Summaries, open_place, progress_of


def test_what_is_written_while_a_row_is_read_is_read_again(runs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(status, "REST", 0)
    info, found, known = runs / "net" / "run.json", FoundRun("net", "net", str(runs / "net")), Summaries()
    read_row = status.read_row

    def meanwhile(run):
        row = read_row(run)
        info.write_text(json.dumps(json.loads(info.read_text()) | {"learning_rate": 0.25}))
        return row

    monkeypatch.setattr(status, "read_row", meanwhile)
    known.read(found)
    assert known.row(found)["learning_rate"] is None
    monkeypatch.setattr(status, "read_row", read_row)
    assert known.is_due(found)
    known.read(found)
    assert known.row(found)["learning_rate"] == 0.25
    assert not known.is_due(found)


@pytest.mark.parametrize("rates", [(2.0, 0.0), (1.0, 1.0)], ids=["one after another", "at once"])
def test_the_time_left_is_that_of_all_landscapes_together(rates):
    landscapes = [
        unreadable_status(name, "") | {"state": "running", "missing": 100, "rate": rate, "problems": []}
        for name, rate in zip("ab", rates, strict=True)
    ]
    assert progress_of(landscapes, True, [])["eta_seconds"] == 100


def test_a_run_of_unknown_speed_has_no_time_left():
    waiting = unreadable_status("a", "") | {"state": "running", "missing": 100}
    assert progress_of([waiting], True, [])["eta_seconds"] is None
    ended = waiting | {"state": "interrupted", "rate": 2.0}
    assert progress_of([ended], False, [])["eta_seconds"] is None


class Listing:
    """The listing of a folder of runs, searched in a loop that a closed gate holds up."""

    def __init__(self, directory: Directory) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.rows = watching.RunListing(directory, self._in_thread, 0.01)

    async def _in_thread(self, work):
        await self.gate.wait()
        return await asyncio.to_thread(work)

    async def whole(self) -> dict:
        """The first answer of a finished search that has read every row."""
        async with asyncio.timeout(20):
            while (answer := await self.rows.rows())["scanning"] or not is_whole(answer):
                await asyncio.sleep(0.01)
        return answer

    async def rest(self) -> None:
        async with asyncio.timeout(20):
            while not self.rows.scanning:
                await asyncio.sleep(0.01)


def is_whole(answer: dict) -> bool:
    return len(answer["runs"]) > 0 and not any(each.get("pending") for each in answer["runs"])


def by_name(answer: dict) -> dict:
    return {each["name"]: each for each in answer["runs"]}


@pytest.fixture
def rested(runs, monkeypatch: pytest.MonkeyPatch):
    """Run a scene on a listing that has been read, and then rested; before it goes on, the search may be held up."""
    monkeypatch.setattr(status, "REST", 0)
    monkeypatch.setattr(watching, "WANTED_SECONDS", 0.2)

    def play(scene, directory: Directory, slow: bool) -> None:
        async def played() -> None:
            listing = Listing(directory)
            searching = asyncio.create_task(listing.rows.run())
            before = await listing.whole()
            await listing.rest()
            if slow:
                listing.gate.clear()
                monkeypatch.setattr(watching, "FIRST_SECONDS", 0.01)
            await scene(listing, before)
            searching.cancel()

        asyncio.run(played())

    return play


SEARCHES = pytest.mark.parametrize("slow", [False, True], ids=["a quick search", "a slow search"])


@SEARCHES
def test_the_first_list_after_a_rest_shows_no_row_of_before(runs, rested, slow: bool):
    """A run is replaced, and one is moved away, while nobody looks."""
    shutil.copytree(runs / "net", runs / "away")

    async def scene(listing: Listing, answer: dict) -> None:
        before = by_name(answer)
        assert before["net"]["points"] == before["away"]["points"] > 0
        shutil.rmtree(runs / "net" / "landscapes.zarr" / "cube")
        shutil.rmtree(runs / "away")
        first = await listing.rows.rows()
        assert first["scanning"] == slow
        assert all(each.get("pending") or each["points"] < before["net"]["points"] for each in first["runs"])
        listing.gate.set()
        after = by_name(await listing.whole())
        assert after.keys() == {"net"}
        assert after["net"]["points"] == before["net"]["points"] - 27

    rested(scene, Directory([open_place(str(runs))]), slow)


@SEARCHES
def test_a_rest_makes_no_row_be_read_again_that_is_as_it_was(runs, rested, monkeypatch: pytest.MonkeyPatch, slow: bool):
    """Nothing changes while nobody looks; each round looks at the files of each run once."""
    read, looks, searches = [], [], []
    read_row, is_due, directory = status.read_row, Summaries.is_due, Directory([open_place(str(runs))])
    search = directory.search
    monkeypatch.setattr(status, "read_row", lambda run: read.append(run.name) or read_row(run))
    monkeypatch.setattr(Summaries, "is_due", lambda self, run: looks.append(run.name) or is_due(self, run))
    monkeypatch.setattr(directory, "search", lambda: searches.append(1) or search())

    async def scene(listing: Listing, before: dict) -> None:
        known = sorted(read)
        first = await listing.rows.rows()
        assert first["scanning"] == slow
        assert all(each.get("pending", False) == slow for each in first["runs"])
        listing.gate.set()
        after = await listing.whole()
        assert after["runs"] == before["runs"]
        assert sorted(read) == known
        assert 0 < len(looks) <= len(searches) * len(before["runs"])

    rested(scene, directory, slow)
