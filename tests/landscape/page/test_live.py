"""A run that is computed while the page shows it: tiles, state, logs, and landscapes that come and go."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from live_landscape import LiveLandscape, driven, empty, value_at
from opened_page import opened
from page_client import Client, array

from landscape import Job, Problem, extend, run
from landscape.core.errors import StoreError
from landscape.page import watching
from landscape.page.answers import Viewer, event
from landscape.page.description import LogTails, state_facts
from landscape.page.runs import RunReader
from landscape.store.status import FoundRun, read_row


@pytest.fixture
def live(runs: Path) -> Iterator[tuple[Client, Path, str]]:
    """The page over a run of which nothing is computed, and its identifier."""
    run = runs / "net"
    empty(run, "minimum")
    with opened(runs, search_seconds=0.1) as (client, ids):
        yield client, run, ids["net"]


def landscape_of(state: dict, name: str) -> dict:
    return next(each for each in state["landscapes"] if each["name"] == name)


def test_tiles_come_as_they_are_committed_and_fit_into_the_figure(live):
    client, run, net = live
    figure = f"/api/figure?run={net}&landscape=minimum"
    before = client.json(figure)
    assert before["low"] is None
    with driven(run), client.stream(f"/api/events?run={net}&landscape=minimum") as stream:
        state = stream.next("state")
        assert state["alive"]
        known = landscape_of(state, "minimum")
        assert (known["state"], known["done"], known["missing"]) == ("running", 0, 20)
        writer = LiveLandscape(run, "minimum")
        seen = np.full((4, 5), np.nan)
        for index in writer.tiles():
            writer.commit(index)
            event = stream.next("tiles")
            (tile,) = event["tiles"]
            start, drawn = tile["start"], array(tile["drawn"])
            seen[start[0] : start[0] + tile["shape"][0], start[1] : start[1] + tile["shape"][1]] = drawn
            assert (array(tile["states"]) == 1).all()
            assert array(tile["customdata"]).shape == (*tile["shape"], 4)
        assert np.array_equal(seen, [[value_at((j, i)) for i in range(5)] for j in range(4)])
        while landscape_of(stream.next("state"), "minimum")["missing"]:
            pass
    after = client.json(figure)
    field = next(trace for trace in after["figure"]["data"] if (trace.get("meta") or {}).get("role") == "field")
    assert np.array_equal(array(field["z"]), seen.astype(np.float32))
    assert array(field["customdata"]).shape == (4, 5, 4)
    assert (after["low"], after["high"]) == (1.0, value_at((3, 4)))


def test_an_extension_is_seen_and_takes_the_place_of_its_landscape(live, caplog):
    client, folder, net = live
    model, samples = torch.nn.Linear(3, 2), torch.randn(16, 3)

    def problem() -> Problem:
        return Problem(model, samples, lambda net, batch: {"loss": net(batch).square().mean(1)})

    landscapes = [{"name": "small", "size": 3, "origin": "problem"}]
    run(Job(run=str(folder), problem=problem, landscapes=landscapes, num_samples=8, batch_size=8, tile=3))
    figure = f"/api/figure?run={net}&landscape=small"
    before = client.json(figure)
    with client.stream(f"/api/events?run={net}&landscape=small") as stream:
        stream.next("state")
        surface = extend(folder, "small", num_samples=16, problem=problem)["small"]
        told = set()
        while "small" not in told:
            told.add(stream.next("landscape")["name"])
        while "small.extending" in {each["name"] for each in stream.next("state")["landscapes"]}:
            pass
        assert [name for name, _ in stream.events.queue if name in ("problem", "gone")] == []
    after = client.json(figure)
    assert after["generation"] != before["generation"]
    assert after["low"] == pytest.approx(surface.loss.min())
    assert client.get(f"/api/figure?run={net}&landscape=small.extending").status in (404, 410)
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


def test_the_generation_of_the_last_tiles_is_that_of_the_figure(live):
    client, run, net = live
    with driven(run):
        writer = LiveLandscape(run, "minimum")
        with client.stream(f"/api/events?run={net}&landscape=minimum") as stream:
            stream.next("state")
            writer.commit((1, 1))
            event = stream.next("tiles")
            answer = client.json(f"/api/figure?run={net}&landscape=minimum")
            assert answer["generation"] == event["generation"]
            state = stream.next("state")
            assert landscape_of(state, "minimum")["generation"] == event["generation"]


def test_a_tile_on_a_logarithmic_scale_and_of_another_observable(live):
    client, run, net = live
    writer = LiveLandscape(run, "minimum")
    events = f"/api/events?run={net}&landscape=minimum"
    with client.stream(f"{events}&log=1") as one, client.stream(f"{events}&observable=accuracy") as other:
        one.next("state"), other.next("state")
        writer.commit((0, 0))
        (tile,) = one.next("tiles")["tiles"]
        assert np.allclose(array(tile["drawn"])[0, 0], np.log10(value_at((0, 0))))
        (tile,) = other.next("tiles")["tiles"]
        assert (array(tile["drawn"]) == 0.5).all()
        assert array(tile["customdata"]).shape == (2, 2, 2), "the value and its error; only the loss has a rise"


def test_what_the_driver_has_not_begun_waits_and_the_counts_are_those_of_the_status(live):
    client, run, net = live
    for name in ("path", "line"):
        empty(run, name)
    found = FoundRun(net, "net", str(run))

    def shown():
        """The name, state and counts of each landscape by the page, the event that keeps it live, and the list."""
        facts, reader = client.json(f"/api/run?run={net}")["landscapes"], RunReader(found)
        live = state_facts(reader, reader.alive())["landscapes"]
        listed, names = read_row(found)["landscapes"], ("name", "state", "done", "points")
        return [[tuple(one[name] for name in names) for one in each] for each in (facts, live, listed)]

    with driven(run):
        page, live_page, listed = shown()
        assert page == live_page == listed
        waiting = [("path", "waiting", 0, 25 + 2 * 3), ("line", "waiting", 0, 6), ("cube", "complete", 27, 27)]
        assert page == [("minimum", "running", 0, 20), *waiting]
        line = LiveLandscape(run, "line")
        line.store.update_attributes(progress=replace(line.store.record.progress, state="running"))
        page, live_page, listed = shown()
        assert page == live_page == listed
        assert [state for _, state, *_ in page] == ["waiting", "waiting", "running", "complete"]
        caption = client.json(f"/api/figure?run={net}&landscape=path")["caption"]
        assert "Waiting: 0 of 25 points of the grid, 0 of 3 snapshots of the path" in caption
    assert [state for _, state, *_ in shown()[0]] == ["interrupted", "interrupted", "interrupted", "complete"]


def test_a_driver_that_ends_leaves_an_interrupted_landscape(live):
    client, run, net = live
    with client.stream(f"/api/events?run={net}") as stream:
        with driven(run):
            while landscape_of(stream.next("state"), "minimum")["state"] != "running":
                pass
        while (found := landscape_of(stream.next("state"), "minimum"))["state"] != "interrupted":
            pass
        assert found["state_text"].startswith("interrupted: 0 of 20 points")
        assert found["eta_seconds"] is None


def test_a_landscape_that_is_removed_or_made_anew_is_told(live):
    client, run, net = live
    folder, kept = run / "landscapes.zarr" / "line", run.parent / "kept"
    with client.stream(f"/api/events?run={net}&landscape=line") as stream:
        stream.next("state")
        folder.rename(kept)
        assert stream.next("landscape") == {"name": "line"}
        assert client.get(f"/api/figure?run={net}&landscape=line").status == 410
        shutil.copytree(kept, folder)
        assert stream.next("landscape") == {"name": "line"}
        assert client.get(f"/api/figure?run={net}&landscape=line").status == 200


def test_a_store_that_answers_again_is_told_by_the_state(live, monkeypatch):
    client, _, net = live
    monkeypatch.setattr(watching, "SLOW_SECONDS", 0.01)
    with client.stream(f"/api/events?run={net}") as stream:
        stream.next("state")
        with monkeypatch.context() as failing:
            failing.setattr(RunReader, "look", lambda self: (_ for _ in ()).throw(StoreError("it does not answer")))
            assert stream.next("problem") == {"error": "it does not answer"}
        assert not stream.next("state", 5)["alive"]


def test_a_run_that_is_deleted_ends_its_streams_with_a_sentence(live):
    client, run, net = live
    with client.stream(f"/api/events?run={net}") as stream:
        stream.next("state")
        shutil.rmtree(run)
        assert "deleted or moved away" in stream.next("gone")["error"]
    reply = client.get(f"/api/run?run={net}")
    assert reply.status == 410


def test_the_last_lines_of_logs_come_as_they_are_written(live):
    client, run, net = live
    (run / "logs").mkdir()
    log = run / "logs" / "rank-0.log"
    log.write_text("".join(f"line {k}\n" for k in range(100)))
    (run / "logs" / "rank-1.log").symlink_to("/etc/passwd")
    assert client.json(f"/api/run?run={net}")["logs"] == [
        {"name": "rank-0.log", "lines": [f"line {k}" for k in range(50, 100)]}
    ]
    with client.stream(f"/api/events?run={net}") as stream:
        stream.next("state")
        time.sleep(0.05)
        with log.open("a") as file:
            file.write("\x1b[1mlast\n")
        told = stream.next("log")
        assert (told["name"], told["lines"][-1]) == ("rank-0.log", "\\u001b[1mlast")


def test_a_log_that_begins_while_nobody_has_any_is_told_at_once(tmp_path):
    tails = LogTails(str(tmp_path))
    assert tails.news() == []
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("out of memory\n")
    assert tails.news() == [{"name": "rank-0.log", "lines": ["out of memory"]}]
    assert tails.news() == []


def test_the_list_tells_rows_as_they_are_read_and_runs_that_come_and_go(live):
    client, run, net = live
    with client.stream("/api/events") as stream:
        (run.parent / "deep").mkdir()
        # Moved there in one step: a row that is read while a run is copied is that of half a run.
        shutil.copytree(run, run.parent.parent / "copy").rename(run.parent / "deep" / "copy")
        rows: dict[str, dict] = {}
        while not any(row["name"] == "deep/copy" and not row.get("pending") for row in rows.values()):
            rows |= {row["id"]: row for row in stream.next("runs")["changed"]}
        (copy,) = (row for row in rows.values() if row["name"] == "deep/copy")
        assert (copy["model"], copy["state"], copy["points"]) == ("Linear", "interrupted", 20 + 31 + 6 + 27)
        shutil.rmtree(run.parent / "deep")
        while copy["id"] not in stream.next("runs")["removed"]:
            pass
    rows = client.json("/api/runs")["runs"]
    assert [row["id"] for row in rows] == [net]
    (row,) = rows
    assert row["lowest"] == min(each["lowest"] for each in row["landscapes"] if each["lowest"] is not None)
    assert [each["size"] for each in row["landscapes"]] == [[5, 4], [5, 5], [6], [3, 3, 3]]


def test_events_of_what_is_not_there_are_an_answer(live):
    client, _, net = live
    assert client.get("/api/events?run=nothing").status == 404
    assert client.get(f"/api/events?run={net}&landscape=x&log=7").status == 400
    assert client.get(f"/api/events?run={net}&landscape=x").status == 404
    assert client.get(f"/api/events?run={net}&landscape=line&observable=x").status == 400


def test_a_viewer_that_takes_nothing_is_told_the_state_when_it_takes_again():
    viewer = Viewer()
    for k in range(1000):
        viewer.put(event("tiles", {"number": k}))
    assert viewer.behind
    viewer.put(event("tiles", {"number": 1000}))
    viewer.catch_up(event("state", {"all": 1}))
    viewer.put(event("tiles", {"number": 1001}))
    viewer.end()

    async def taken() -> list[bytes]:
        return [one async for one in viewer.events()]

    assert asyncio.run(taken()) == [event("state", {"all": 1}), event("tiles", {"number": 1001})]
