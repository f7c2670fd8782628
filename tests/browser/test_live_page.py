"""The page while a job runs: tiles appear, the connection breaks and comes back, the job ends or is killed."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from browser_page import Look, serving
from live_landscape import LiveLandscape, driven, empty
from playwright.sync_api import Browser, Route
from torch import nn
from waiting import wait_for

from landscape import Job, Problem, extend, run

pytestmark = [pytest.mark.long, pytest.mark.page]
FINITE = "Array.from(landscapePage.view.field().drawn.values).filter(Number.isFinite).length"


@pytest.fixture
def live(runs: Path, tmp_path: Path) -> Path:
    """A run of whose landscape `plane`, 11 × 9 in tiles of 8 × 8, no point is computed."""
    folder = shutil.copytree(runs / "net", tmp_path / "net")
    empty(folder, "plane")
    return folder


class Gate:
    """Hands a server's connections on, and cuts them."""

    def __init__(self, port: int) -> None:
        self._port, self._open, self._pairs = port, True, list[socket.socket]()
        self._threads = list[threading.Thread]()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if not self._open:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._port))
                self._pairs += [client, server]
                threads = [
                    threading.Thread(target=self._hand_on, args=pair) for pair in ((client, server), (server, client))
                ]
                for thread in threads:
                    thread.start()
                self._threads += threads

    @staticmethod
    def _hand_on(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Break every connection, and take no new one."""
        self._open = False
        for connection in self._pairs:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in self._pairs:
            connection.close()
        self._pairs.clear()
        self._threads.clear()

    def mend(self) -> None:
        """Take connections again."""
        self._open = True

    def close(self) -> None:
        """End for good."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listening.close()
        self.cut()


@contextmanager
def gated(address: str) -> Iterator[tuple[str, Gate]]:
    """The address behind a gate."""
    parts = urlsplit(address)
    assert parts.port is not None
    gate = Gate(parts.port)
    try:
        yield address.replace(f":{parts.port}/", f":{gate.port}/"), gate
    finally:
        gate.close()


def test_tiles_appear_as_they_are_committed_and_the_end_is_seen(chromium: Browser, live: Path):
    with serving(live) as address, driven(live), Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic", log=0)
        look.until("document.querySelector('.heading').innerText.includes('running')")
        hatched = "plot._fullData.filter(trace => trace.meta && trace.meta.role === 'missing').map(trace => trace.name)"
        assert look.plotly(hatched) == ["not computed: 99 points"]
        writer, done = LiveLandscape(live, "plane"), 0
        for index in writer.tiles():
            writer.commit(index)
            done += int(writer.store.tile(index).shape[0] * writer.store.tile(index).shape[1])
            look.until(f"done => {FINITE} === done", done)
            if done < 99:
                look.until(
                    "name => document.querySelector('.figure .plot')._fullData.some(trace => trace.name === name)",
                    f"not computed: {99 - done} points",
                )
        look.until("document.querySelector('.heading').innerText.includes('complete')")
        expected = look.page.evaluate(
            "async run => { const body = await (await fetch(`api/csv?run=${run}&landscape=plane&kind=topographic&log=0`)).text();"
            " return body.trim().split('\\n').length - 1; }",
            look.run_id("net"),
        )
        assert expected == 99


def test_contour_lines_appear_soon_in_a_picture_that_had_no_value(chromium: Browser, live: Path):
    with serving(live) as address, driven(live), Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("net"), landscape="plane", kind="contour", log=0)
        look.until("document.querySelector('.heading').innerText.includes('running')")
        note = "document.querySelector('.figure').textContent.includes('No point has a value')"
        look.until(note)
        look.page.evaluate("landscapePage.view.milliseconds = 5000")  # as on a slow machine
        writer = LiveLandscape(live, "plane")
        writer.commit(next(iter(writer.tiles())))
        begun = time.monotonic()
        look.until(f"!({note})")
        assert time.monotonic() - begun < 6


def test_a_broken_connection_comes_back_without_a_reload(chromium: Browser, live: Path):
    with serving(live) as direct, gated(direct) as (address, gate), driven(live), Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic", log=0)
        look.until("document.getElementById('connection').dataset.kind === 'live'")
        look.page.evaluate("window.unchanged = true")
        gate.cut()
        look.until("document.getElementById('connection').dataset.kind === 'broken'")
        writer = LiveLandscape(live, "plane")
        for index in writer.tiles():
            writer.commit(index)
        gate.mend()
        look.until("document.getElementById('connection').dataset.kind === 'live'")
        look.until(f"{FINITE} === 99")
        assert look.page.evaluate("window.unchanged")
        look.errors.clear()  # the browser tells of each connection that failed


def test_an_extension_takes_the_place_of_what_is_shown(chromium: Browser, live: Path):
    samples = torch.randn(32, 3, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(3, 2)

    def problem(*metrics: str) -> Callable[[], Problem]:
        return lambda: Problem(
            model, samples, lambda net, batch: {name: ((net(batch) - 1) ** 2).mean(1) for name in ("loss", *metrics)}
        )

    spec = {"name": "small", "size": 4}
    run(Job(run=str(live), problem=problem(), landscapes=[spec], num_samples=16, batch_size=8, tile=2))
    with serving(live) as address, Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("net"), landscape="small")
        lowest = "Math.min(...landscapePage.view.field().drawn.values)"
        before = look.page.evaluate(lowest)
        choices = "[...document.querySelectorAll('.panel option')].map(one => one.value).includes('error')"
        assert not look.page.evaluate(choices)
        extended = extend(live, "small", observables=["error"], num_samples=32, problem=problem("error"))["small"]
        look.until(choices)
        look.until(f"lowest => Math.abs({lowest} - lowest) < 1e-6 * lowest", float(extended.loss.min()))
        assert before != look.page.evaluate(lowest)
        assert look.page.evaluate("landscapePage.name") == "small"


def test_a_driver_that_dies_leaves_an_interrupted_run(chromium: Browser, live: Path):
    with serving(live) as address, Look.open(chromium, address) as look:
        with driven(live):
            look.show("run", run=look.run_id("net"), landscape="plane")
            look.until("document.querySelector('.heading').innerText.includes('running')")
        look.until("document.querySelector('.heading').innerText.includes('interrupted')")
        assert "goes on where it stopped" in look.page.locator(".heading").inner_text()


def test_an_answer_that_is_older_than_the_news_does_not_undo_them(chromium: Browser, one_plane: Path):
    rows = "document.querySelectorAll('.rows .row').length"
    held: list[Route] = []
    searching: list[dict[str, Any]] = []

    def answer_as_before_the_search(route: Route) -> None:
        """Answer the first question, and hold the second one, which the page asks once it follows the search."""
        if not searching:
            searching.append({**route.fetch().json(), "scanning": True})
            route.fulfill(json=searching[0])
        else:
            held.append(route)

    with serving(one_plane) as address, Look.open(chromium, address) as look:
        look.until(f"{rows} === 1")
        list_of_runs = look.page.url
        look.page.goto("about:blank")  # the first page may be about to ask once more, which is not to be counted
        look.page.route("**/api/runs", answer_as_before_the_search)
        look.page.goto(list_of_runs)
        wait_for(lambda: look.page.evaluate(rows) and held, "the second question")
        shutil.rmtree(one_plane / "net")
        look.until(f"{rows} === 0")
        with look.page.expect_response("**/api/runs") as answer:
            held[0].fulfill(json=searching[0])
        answer.value.finished()
        look.page.evaluate("new Promise(resolve => setTimeout(resolve, 100))")
        assert look.page.evaluate(rows) == 0


def test_a_new_run_and_its_progress_appear_in_the_list(chromium: Browser, runs: Path, live: Path, tmp_path: Path):
    place = tmp_path / "place"
    shutil.copytree(runs / "team", place / "team")
    with serving(place) as address, Look.open(chromium, address) as look:
        look.until("document.querySelectorAll('.rows .row').length === 1")
        live.rename(place / "net")
        with driven(place / "net"):
            look.until("[...document.querySelectorAll('.rows .row')].some(row => row.innerText.includes('running'))")
            writer = LiveLandscape(place / "net", "plane")
            for index in writer.tiles():
                writer.commit(index)
        # A driver's document of its progress is not played here; its end is noticed all the same.
        look.until("![...document.querySelectorAll('.rows .row')].some(row => row.innerText.includes('running'))")
        rows = look.page.locator(".rows .row").all_inner_texts()
        assert len(rows) == 2
        assert all("complete" in row for row in rows)
