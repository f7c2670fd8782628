"""Looks at the page of `landscape view` in a browser: asserts on pixels and on plotly's own state."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from PIL import Image
from playwright.sync_api import Browser, Page
from waiting import wait_for

from landscape.views.exporting import find_browser

DRAWN = ".figure .plot[data-drawn]"


def find_chromium() -> str | None:
    """The executable of a Chromium or Chrome; None where there is none."""
    return find_browser() or shutil.which("chromium")


@contextmanager
def serving(*places: Path, port: int = 0) -> Iterator[str]:
    """The address of `landscape view` over these places, which ends with the block."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "cluster",
        "view",
        *map(str, places),
        "--no-open",
        f"--port={port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(20)


@dataclass
class Look:
    """A page in a fresh profile, and what went wrong in it so far."""

    page: Page
    address: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @staticmethod
    @contextmanager
    def open(browser: Browser, address: str, **options: Any) -> Iterator[Look]:
        """The page at that address; at the end there must be no error in the console and no request to another host."""
        context = browser.new_context(viewport={"width": 1400, "height": 1000}, **options)
        page = context.new_page()
        look = Look(page, address)
        host = urlsplit(address).netloc
        page.on("console", lambda message: look.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: look.errors.append(str(error.stack)))
        page.on("request", lambda request: look._asked(request.url, host))
        page.goto(address)
        yield look
        context.close()
        assert not look.errors, look.errors
        assert look.foreign == []

    def _asked(self, url: str, host: str) -> None:
        if urlsplit(url).scheme in ("http", "https", "ws", "wss") and urlsplit(url).netloc != host:
            self.foreign.append(url)

    def run_id(self, name: str) -> str:
        """The identifier of the run of that name."""
        found = (
            "async name => { for (;;) { const body = await (await fetch('api/runs')).json();"
            " const run = body.runs.find(one => one.name === name); if (run) return run.id;"
            " await new Promise(done => setTimeout(done, 50)); } }"
        )
        return str(self.page.evaluate(found, name))

    def show(self, view: str, **state: Any) -> None:
        """Go to a view with a state, and wait for its picture."""
        self.go(view, **state)
        self.page.wait_for_selector(DRAWN)

    def go(self, view: str, **state: Any) -> None:
        """Go to a view with a state."""
        self.page.evaluate("fragment => { location.hash = fragment; }", f"#/{view}?{urlencode(state, doseq=True)}")

    def until(self, condition: str, what: Any = None, seconds: float = 60.0) -> None:
        """Wait until an expression of the page is true, or a function of `what`.

        It is asked again and again from here: the page itself allows no text to be run as a script.
        """
        wait_for(lambda: self.page.evaluate(condition, what), condition, seconds)

    def plotly(self, expression: str) -> Any:
        """What plotly says of the first figure: `plot` is its element."""
        return self.page.evaluate(f"() => {{ const plot = document.querySelector('{DRAWN}'); return {expression}; }}")

    def colours(self, selector: str = DRAWN) -> int:
        """How many different colours an element shows."""
        return len(self.picture(selector).getcolors(maxcolors=1 << 24) or ())

    def picture(self, selector: str = DRAWN) -> Image.Image:
        """What an element looks like."""
        return Image.open(io.BytesIO(self.page.locator(selector).first.screenshot())).convert("RGB")

    def drawings(self) -> int:
        """How often the figure was drawn."""
        return int(self.plotly("Number(plot.dataset.drawn)"))

    @contextmanager
    def redrawn(self) -> Iterator[None]:
        """Wait until the figure is drawn anew by what is done in the block."""
        before = self.drawings()
        yield
        self.until(f"before => Number(document.querySelector('{DRAWN}')?.dataset.drawn || 0) > before", before)
