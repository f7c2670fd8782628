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


@pytest.mark.parametrize("slow", [False, True], ids=["a quick search", "a slow search"])
def test_the_first_list_after_a_rest_shows_no_row_of_before(runs, monkeypatch: pytest.MonkeyPatch, slow: bool):
    """A run is replaced, and one is moved away, while nobody looks."""
    monkeypatch.setattr(status, "REST", 0)
    monkeypatch.setattr(watching, "WANTED_SECONDS", 0.2)
    shutil.copytree(runs / "net", runs / "away")

    async def scene() -> None:
        gate = asyncio.Event()
        gate.set()

        async def in_thread(work):
            await gate.wait()
            return await asyncio.to_thread(work)

        rows = watching.RunListing(Directory([open_place(str(runs))]), in_thread, 0.01)
        searching = asyncio.create_task(rows.run())

        async def until(ready) -> dict:
            while not ready(answer := await rows.rows()):
                await asyncio.sleep(0.01)
            return {each["name"]: each for each in answer["runs"]}

        def whole(answer) -> bool:
            return len(answer["runs"]) > 0 and not any(each.get("pending") for each in answer["runs"])

        before = await until(whole)
        assert before["net"]["points"] == before["away"]["points"] > 0
        async with asyncio.timeout(20):
            while not rows.scanning:  # until it rests
                await asyncio.sleep(0.01)
        if slow:
            gate.clear()
            monkeypatch.setattr(watching, "FIRST_SECONDS", 0.01)
        shutil.rmtree(runs / "net" / "landscapes.zarr" / "cube")
        shutil.rmtree(runs / "away")
        first = await rows.rows()
        shown = {each["name"]: each for each in first["runs"]}
        assert first["scanning"] == slow
        assert all(each.get("pending") or each["points"] < before["net"]["points"] for each in shown.values())
        gate.set()
        after = await until(lambda answer: not answer["scanning"] and whole(answer))
        assert after.keys() == {"net"}
        assert after["net"]["points"] == before["net"]["points"] - 27
        searching.cancel()

    asyncio.run(scene())


@pytest.mark.parametrize("slow", [False, True], ids=["a quick search", "a slow search"])
def test_a_rest_makes_no_row_be_read_again_that_is_as_it_was(runs, monkeypatch: pytest.MonkeyPatch, slow: bool):
    """Nothing changes while nobody looks; each round looks at the files of each run once."""
    monkeypatch.setattr(status, "REST", 0)
    monkeypatch.setattr(watching, "WANTED_SECONDS", 0.2)
    read, looks = [], []
    read_row, is_due = status.read_row, Summaries.is_due
    monkeypatch.setattr(status, "read_row", lambda run: read.append(run.name) or read_row(run))
    monkeypatch.setattr(Summaries, "is_due", lambda self, run: looks.append(run.name) or is_due(self, run))

    async def scene() -> None:
        gate = asyncio.Event()
        gate.set()

        async def in_thread(work):
            await gate.wait()
            return await asyncio.to_thread(work)

        directory, searches = Directory([open_place(str(runs))]), []
        search = directory.search
        monkeypatch.setattr(directory, "search", lambda: searches.append(1) or search())
        rows = watching.RunListing(directory, in_thread, 0.01)
        searching = asyncio.create_task(rows.run())

        async def until(ready) -> dict:
            async with asyncio.timeout(20):
                while not ready(answer := await rows.rows()):
                    await asyncio.sleep(0.01)
            return answer

        def whole(answer) -> bool:
            return len(answer["runs"]) > 0 and not any(each.get("pending") for each in answer["runs"])

        before = await until(whole)
        async with asyncio.timeout(20):
            while not rows.scanning:  # until it rests
                await asyncio.sleep(0.01)
        known = sorted(read)
        if slow:
            gate.clear()
            monkeypatch.setattr(watching, "FIRST_SECONDS", 0.01)
        first = await rows.rows()
        assert first["scanning"] == slow
        assert all(each.get("pending", False) == slow for each in first["runs"])
        gate.set()
        after = await until(lambda answer: not answer["scanning"] and whole(answer))
        assert after["runs"] == before["runs"]
        assert sorted(read) == known
        assert 0 < len(looks) <= len(searches) * len(before["runs"])
        searching.cancel()

    asyncio.run(scene())
