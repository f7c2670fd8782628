"""`make bench-page`: how quick the page of `landscape view` is, as medians and ratios of one run in Chromium.

Every figure is compared with its goal. Runs are made through the store's own writer, so that none has to be computed.

Usage: bench_page.py [--quick] [--only NAME,…] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import torch
from playwright.sync_api import Browser, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from browser_page import find_chromium
from torch import nn

from landscape import Job, Problem, open_run, run
from landscape.core.errors import Interrupted
from landscape.core.grid import SHORTEST_TILE_SECONDS
from landscape.core.lock import run_lock
from landscape.store.landscape import LandscapeStore
from landscape.views.report import write_report

FLAGS = ["--no-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader"]
DRAWN = ".figure .plot[data-drawn]"
# When the page had painted the landscape itself, before plotly: milliseconds since 1970.
FIRST_PICTURE = "performance.timeOrigin + performance.getEntriesByName('first picture')[0].startTime"
KEY_TO_REPAINT = """async text => {
  const field = document.getElementById('filter'), begun = performance.now();
  field.value = text;
  field.dispatchEvent(new Event('input'));
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begun; }"""


def problem() -> Problem:
    """Nothing of it is evaluated beyond what a landscape needs to be made."""
    torch.manual_seed(0)
    return Problem(nn.Linear(2, 2), torch.randn(8, 2), lambda model, batch: {"loss": model(batch).square().mean(1)})


def make(folder: Path, name: str, size: int, tile: int) -> None:
    """A landscape of which next to nothing is computed."""
    job = Job(
        run=str(folder), problem=problem, num_samples=8, tile=tile, engine="eager", batch_size=8,
        landscapes=[{"name": name, "size": size}],
    )  # fmt: skip
    made = folder / "landscapes.zarr" / name / "status" / "zarr.json"
    with suppress(Interrupted):
        run(job, stop=made.exists)


def values(store: LandscapeStore, tile: object) -> dict[str, np.ndarray]:
    """A bowl with ripples over the coordinates of a tile."""
    grid = store.arrays.grid()
    beta, alpha = (axis[window] for axis, window in zip(reversed(grid.coordinates), tile.windows, strict=True))
    loss = (
        alpha[None, :] ** 2
        + 2 * beta[:, None] ** 2
        + 0.1 * np.sin(9 * alpha)[None, :] * np.cos(7 * beta)[:, None]
        + 0.2
    )
    return {name: loss.ravel() if name == "loss" else np.full(loss.size, 0.01) for name in store.arrays.value_names}


def tiles(store: LandscapeStore) -> list[object]:
    """All tiles of a landscape."""
    counts = store.arrays.reader("status").counts
    return [store.tile(tuple(index)) for index in np.argwhere(np.ones(counts, bool)).tolist()]


def fill(folder: Path, name: str) -> None:
    """Commit every tile of a landscape."""
    store = LandscapeStore.open(str(folder), name, write=True)
    for tile in tiles(store):
        store.write_tiles([(tile, values(store, tile))])


@contextmanager
def serving(*places: Path) -> Iterator[tuple[str, psutil.Process]]:
    """`landscape view` over these places: its address, and the process that answers."""
    command = [sys.executable, "-W", "ignore", "-m", "cluster", "view", *map(str, places), "--no-open", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            port = urlsplit(address).port
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            server = next(
                one for one in reversed(family)
                if any(link.status == psutil.CONN_LISTEN and link.laddr.port == port for link in one.net_connections())
            )  # fmt: skip
            yield address, server
        finally:
            process.terminate()
            process.wait(20)


def median(measure: Callable[[], float], rounds: int) -> float:
    """The median of several measurements."""
    return statistics.median(measure() for _ in range(rounds))


@contextmanager
def opened(browser: Browser, address: str) -> Iterator[Page]:
    """A page in a fresh profile, at the list of runs."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.goto(address)
    yield page
    context.close()


def run_id(page: Page, name: str) -> str:
    """The identifier of the run of that name."""
    return page.evaluate(
        "async name => { for (;;) { const { runs } = await (await fetch('api/runs')).json();"
        " const run = runs.find(one => one.name === name); if (run) return run.id; await new Promise(done => setTimeout(done, 20)); } }",
        name,
    )


def wait(page: Page, expression: str, what: object = None) -> None:
    """Wait until an expression of the page is true."""
    while not page.evaluate(expression, what):
        time.sleep(0.005)


class Bench:
    """The measurements by name; each returns rows of (what, value, goal, whether it is reached)."""

    def __init__(self, browser: Browser, folder: Path, rounds: int, quick: bool) -> None:
        self.browser, self.folder, self.rounds, self.quick = browser, folder, rounds, quick

    def first_picture(self) -> list[tuple]:
        """From opening the address to the first picture, over Chromium opening the static report of the same run."""
        folder = self.folder / "first" / "net"
        make(folder, "plane", 40, 8)
        fill(folder, "plane")
        report = write_report(open_run(folder), self.folder / "report.html")
        with serving(folder) as (address, _), opened(self.browser, address) as page:
            fragment = f"#/run?run={run_id(page, 'net')}&landscape=plane&kind=contour"
            received = []
            cookies = page.context.cookies()

            def ours() -> tuple[float, float]:
                context = self.browser.new_context(viewport={"width": 1400, "height": 1000})
                context.add_cookies(cookies)
                fresh = context.new_page()
                client = context.new_cdp_session(fresh)
                client.send("Network.enable")
                size = [0]
                client.on(
                    "Network.loadingFinished", lambda event: size.__setitem__(0, size[0] + event["encodedDataLength"])
                )
                begun = time.time()
                fresh.goto(address.split("?")[0] + fragment, wait_until="commit")
                fresh.wait_for_selector(DRAWN)
                drawn = time.time() - begun
                first = fresh.evaluate(FIRST_PICTURE) / 1000 - begun
                received.append(size[0])
                context.close()
                return first, drawn

            def static() -> float:
                context = self.browser.new_context(viewport={"width": 1400, "height": 1000})
                fresh = context.new_page()
                begun = time.perf_counter()
                fresh.goto(report.as_uri(), wait_until="commit")
                fresh.wait_for_selector(".plot .contourlayer, .plot .cartesianlayer")
                seconds = time.perf_counter() - begun
                context.close()
                return seconds

            rounds = [(*ours(), static()) for _ in range(self.rounds)]
        page_s, drawn_s, report_s = (statistics.median(column) for column in zip(*rounds, strict=True))
        ratio, size = page_s / report_s, max(received) / 1e6
        return [
            (
                "first picture of 40x40, over the static report",
                f"{page_s:.2f} s / {report_s:.2f} s = {ratio:.2f}",
                "<= 0.5",
                ratio <= 0.5,
            ),
            (
                "the same until plotly has drawn it",
                f"{drawn_s:.2f} s / {report_s:.2f} s = {drawn_s / report_s:.2f}",
                "",
                True,
            ),
            ("bytes of the first load", f"{size:.2f} MB", "<= 2 MB", size <= 2),
        ]

    def click_to_drawn(self) -> list[tuple]:
        """From a click to the drawn figure, over plotly drawing the same figure in an empty page."""
        rows = []
        for size, kind, button in ((201, "surface", "3-D"), (512, "contour", "Contour")):
            folder = self.folder / "click" / f"net{size}"
            make(folder, "plane", size, 64)
            fill(folder, "plane")
            with serving(folder) as (address, _), opened(self.browser, address) as page:
                run = run_id(page, f"net{size}")
                before = f"{address.split('?')[0]}#/run?run={run}&landscape=plane&kind=topographic"
                query = f"run={run}&landscape=plane&kind={kind}&log=auto"
                pairs = [
                    (self._click(page, before, button), self._alone(page, address, query)) for _ in range(self.rounds)
                ]
            mine, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
            text = f"{mine:.2f} s / {plain:.2f} s = {mine / plain:.2f}"
            rows.append(
                (f"click to drawn, {size}x{size} {kind}, over plotly alone", text, "<= 1.3", mine / plain <= 1.3)
            )
        return rows

    @staticmethod
    def _click(page: Page, address: str, button: str) -> float:
        """Seconds from a click on a view to its drawing, on a page that is loaded anew: no cache of its own helps."""
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector(DRAWN)
        milliseconds = page.evaluate(
            """async name => {
              const { view } = landscapePage, before = Number(view.plot.dataset.drawn), begun = performance.now();
              [...document.querySelectorAll('.tools button')].find(one => one.textContent === name).click();
              while (!(Number(view.plot.dataset.drawn) > before)) await new Promise(done => setTimeout(done, 1));
              return performance.now() - begun; }""",
            button,
        )
        return float(milliseconds) / 1000

    def _alone(self, page: Page, address: str, query: str) -> float:
        """Seconds that plotly takes for the same figure in an empty page."""
        context = self.browser.new_context(viewport={"width": 1400, "height": 1000})
        context.add_cookies(page.context.cookies())
        fresh = context.new_page()
        fresh.goto(f"{address.split('?')[0]}#/compare")
        fresh.add_script_tag(url="static/plotly.js")
        milliseconds = fresh.evaluate(
            """async query => {
              const { figure } = await (await fetch('api/figure?' + query)).json(), place = document.createElement('div');
              document.body.replaceChildren(place);
              Object.assign(figure.layout, { width: 800, height: 640 });
              const begun = performance.now();
              await Plotly.newPlot(place, figure.data, figure.layout);
              return performance.now() - begun; }""",
            query,
        )
        context.close()
        return float(milliseconds) / 1000

    def large(self) -> list[tuple]:
        """A landscape of 4096 x 4096: what is sent of it, and the server's memory."""
        size = 1024 if self.quick else 4096
        folder = self.folder / "large" / "net"
        make(folder, "plane", size, 64)
        fill(folder, "plane")
        with serving(folder) as (address, server), opened(self.browser, address) as page:
            run = run_id(page, "net")
            sent = 0
            for kind in ("topographic", "surface"):
                sent = max(sent, page.evaluate(
                    "async query => { const { figure } = await (await fetch('api/figure?' + query)).json();"
                    " return Math.max(...figure.data.filter(one => one.z && one.z.shape).map(one => one.z.shape.split(',').reduce((a, b) => a * b, 1))); }",
                    f"run={run}&landscape=plane&kind={kind}",
                ))  # fmt: skip
            page.evaluate(
                "async run => { await (await fetch('api/run?run=' + run)).json(); await fetch('api/thumbnail?landscape=plane&run=' + run); }",
                run,
            )
            peak = next(
                int(line.split()[1]) / 1024
                for line in Path(f"/proc/{server.pid}/status").read_text().splitlines()
                if line.startswith("VmHWM")
            )
        return [
            (f"values sent of {size}x{size}", f"{sent}", "<= 1000000", sent <= 1_000_000),
            ("the server's memory at its highest", f"{peak:.0f} MB", "<= 300 MB", peak <= 300),
        ]

    def live(self) -> list[tuple]:
        """From the commit of a tile to its pixels, at 40 tiles/s, and the server's processor."""
        folder = self.folder / "live" / "net"
        make(folder, "plane", 40, 2)
        store = LandscapeStore.open(str(folder), "plane", write=True)
        todo = tiles(store)
        todo = [todo[(37 * k) % len(todo)] for k in range(len(todo))]
        todo = todo[: 100 if self.quick else len(todo)]
        committed: dict[tuple[int, int], float] = {}
        with run_lock(str(folder)), serving(folder) as (address, server), opened(self.browser, address) as page:
            for tile in todo[:3]:
                store.write_tiles([(tile, values(store, tile))])
            page.evaluate(
                "fragment => { location.hash = fragment; }",
                f"#/run?run={run_id(page, 'net')}&landscape=plane&kind=topographic",
            )
            page.wait_for_selector(DRAWN)
            page.evaluate(
                """() => {
                  const page = landscapePage, seen = window.seen = new Map(), redraw = page.view.redraw.bind(page.view);
                  const note = () => { const { drawn, width } = page.view.live; drawn.values.forEach((value, k) => {
                    if (Number.isFinite(value) && !seen.has(k)) seen.set(k, performance.timeOrigin + performance.now()); }); };
                  note();
                  page.view.redraw = async () => { await redraw(); await new Promise(done => requestAnimationFrame(done)); note(); }; }"""
            )
            time.sleep(3)
            before, begun = server.cpu_times(), time.perf_counter()

            def commit() -> None:
                for k, tile in enumerate(todo[3:]):
                    time.sleep(max(0.0, begun + k / 40 - time.perf_counter()))
                    store.write_tiles([(tile, values(store, tile))])
                    committed[tile.start] = time.time() * 1000

            thread = threading.Thread(target=commit)
            thread.start()
            while thread.is_alive():
                page.wait_for_timeout(100)
            seconds = time.perf_counter() - begun
            used = sum(server.cpu_times()[:2]) - sum(before[:2])
            page.wait_for_timeout(3000)
            seen = dict(page.evaluate("[...window.seen]"))
        delays = [seen[j * 40 + i] - when for (j, i), when in committed.items() if j * 40 + i in seen]
        middle, share = statistics.median(delays), used / seconds
        of_workers = share / (len(committed) / seconds * SHORTEST_TILE_SECONDS)
        return [
            (
                f"commit of a tile to its pixels, {len(committed) / seconds:.0f} tiles/s, {len(delays)} of {len(committed)} seen",
                f"{middle:.0f} ms (90 %: {np.percentile(delays, 90):.0f})",
                "<= 300 ms",
                middle <= 300,
            ),
            (
                f"the server's processor meanwhile, over workers whose tiles take {SHORTEST_TILE_SECONDS} s, the shortest",
                f"{100 * share:.1f} % of a core = {100 * of_workers:.2f} %",
                "<= 1 %",
                of_workers <= 0.01,
            ),
        ]

    def many_runs(self) -> list[tuple]:
        """A list of 1,000 runs over one of 10: to be listed, and from a key in the filter to the repaint."""
        source = self.folder / "source" / "net"
        make(source, "plane", 12, 12)
        fill(source, "plane")
        times = {}
        for count in (10, 200 if self.quick else 1000):
            folder = self.folder / f"list{count}"
            for k in range(count):
                shutil.copytree(source, folder / f"group{k % 20:02}" / f"run{k:04}")
            listed, typed = [], []
            for _ in range(self.rounds):
                with serving(folder) as (address, _), opened(self.browser, "about:blank") as page:
                    begun = time.perf_counter()
                    page.goto(address, wait_until="commit")
                    wait(
                        page,
                        "count => document.querySelectorAll('.rows .row').length > 0 && window.landscapePage?.runs?.size === count && document.querySelector('.rows canvas[data-painted]') !== null",
                        count,
                    )
                    listed.append(time.perf_counter() - begun)
                    wait(page, "() => [...landscapePage.runs.values()].every(run => !run.pending)")
                    typed += [float(page.evaluate(KEY_TO_REPAINT, text)) for text in ("run0", "run00", "group01", "")]
            times[count] = statistics.median(listed), statistics.median(typed)
        (few, few_typed), (many, many_typed) = times.values()
        return [
            (
                f"{max(times)} runs listed, over 10",
                f"{many:.2f} s / {few:.2f} s = {many / few:.2f}",
                "<= 3",
                many / few <= 3,
            ),
            (
                "a key in the filter to the repaint",
                f"{many_typed:.1f} ms / {few_typed:.1f} ms = {many_typed / few_typed:.2f}",
                "<= 2",
                many_typed / few_typed <= 2,
            ),
        ]

    def viewers(self) -> list[tuple]:
        """50 viewers of one live run: what each receives, and the server's processor."""
        folder = self.folder / "viewers" / "net"
        make(folder, "plane", 40, 2)
        store = LandscapeStore.open(str(folder), "plane", write=True)
        todo = tiles(store)[: 80 if self.quick else 400]
        with run_lock(str(folder)), serving(folder) as (address, server), opened(self.browser, address) as page:
            run = run_id(page, "net")
            cookie = "; ".join(f"{one['name']}={one['value']}" for one in page.context.cookies())
            parts = urlsplit(address)
            path = f"/api/events?run={run}&landscape=plane&log=0"
            watched = self._watch(parts.hostname, parts.port, path, cookie, server, store, todo)
            with ThreadPoolExecutor(1) as pool:  # this thread already has the browser's loop
                counts = pool.submit(asyncio.run, watched).result()
        received, used, seconds = counts
        return [
            (
                f"tiles that the slowest of 50 viewers received, of {len(todo)}",
                f"{min(received)} (median {statistics.median(received):.0f})",
                f"= {len(todo)}",
                min(received) == len(todo),
            ),
            ("the server's processor for 50 viewers", f"{used / seconds:.2f} cores", "<= 1", used / seconds <= 1),
        ]

    @staticmethod
    async def _watch(host, port, path, cookie, server, store, todo) -> tuple[list[int], float, float]:
        received = [0] * 50

        async def viewer(k: int) -> None:
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\nAccept: text/event-stream\r\n\r\n".encode()
            )
            await writer.drain()
            event = ""
            while line := await reader.readline():
                text = line.decode(errors="replace").strip()
                if text.startswith("event:"):
                    event = text[6:].strip()
                elif text.startswith("data:") and event == "tiles":
                    received[k] += len(json.loads(text[5:])["tiles"])

        watching = [asyncio.create_task(viewer(k)) for k in range(50)]
        await asyncio.sleep(3)
        before, begun = server.cpu_times(), time.perf_counter()
        for k, tile in enumerate(todo):
            await asyncio.sleep(max(0.0, begun + k / 40 - time.perf_counter()))
            await asyncio.to_thread(store.write_tiles, [(tile, values(store, tile))])
        await asyncio.sleep(3)
        seconds, after = time.perf_counter() - begun, server.cpu_times()
        for task in watching:
            task.cancel()
        return received, sum(after[:2]) - sum(before[:2]), seconds


NAMES = ("first_picture", "click_to_drawn", "large", "live", "many_runs", "viewers")


def main() -> int:
    """Measure, and print a table; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller, to see that it works")
    parser.add_argument("--only", default=",".join(NAMES), help="names of measurements, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    browser_path = find_chromium()
    if browser_path is None:
        print("no Chromium or Chrome on this machine", file=sys.stderr)
        return 2
    missed = 0
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        os.environ["XDG_STATE_HOME"] = folder
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        bench = Bench(browser, Path(folder), 2 if options.quick else options.rounds, options.quick)
        print("| what | measured | goal | |\n|---|---|---|---|")
        for name in options.only.split(","):
            for what, value, goal, reached in getattr(bench, name)():
                missed += not reached
                print(f"| {what} | {value} | {goal} | {'' if reached else 'missed'} |", flush=True)
        browser.close()
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
