"""What a user takes along from the page, a link or a command, and the button that takes everything back."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from browser_page import DRAWN, Look
from playwright.sync_api import Browser

pytestmark = [pytest.mark.long, pytest.mark.page]
CLIPBOARD = ["clipboard-read", "clipboard-write"]
TILES = (
    "document.querySelectorAll('.tiles .plot[data-drawn]').length === 2 && !document.querySelector('.tiles[aria-busy]')"
)
FIELD = "trace => trace.meta && trace.meta.role === 'field'"


def state(look: Look) -> dict[str, list[str]]:
    """The parameters of the address."""
    return parse_qs(urlsplit(look.page.url).fragment.partition("?")[2])


def compare(look: Look, **options: str) -> None:
    items = [f"{look.run_id('net')}|plane", f"{look.run_id('team/other')}|plane"]
    look.go("compare", item=items, **options)
    look.until(TILES)


def zoom(look: Look) -> None:
    """Drag a box over the first tile."""
    box = look.page.locator(".tiles .plot .nsewdrag").first.bounding_box()
    assert box is not None
    look.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.3 * box["height"])
    look.page.mouse.down()
    look.page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
    look.page.mouse.up()
    look.until("landscapePage.views[0].zooms.length === 1")


def ranges(look: Look) -> list[float]:
    found = look.page.evaluate(
        "(({ xaxis, yaxis }) => [...xaxis.range, ...yaxis.range])(landscapePage.views[0].plot._fullLayout)"
    )
    return [float(end) for end in found]


def test_a_link_of_a_comparison_brings_back_range_lines_values_and_zoom(chromium: Browser, served: str):
    with Look.open(chromium, served, permissions=CLIPBOARD) as look:
        compare(look, kind="topographic")
        tools = look.page.locator(".tools").last
        assert tools.get_by_role("button", name="Above the origin").get_attribute("aria-pressed") == "true"
        tools.get_by_role("button", name="Loss", exact=True).click()
        look.until("landscapePage.answer.rise === false")
        for label, text in (("Highest value drawn", "8"), ("Lowest value drawn", "0.5"), ("Contour lines", "4")):
            tools.get_by_label(label).fill(text)
            tools.get_by_label(label).press("Tab")
            look.until("text => location.hash.includes(`=${text}`)", text)
        look.until(f"({TILES}) && landscapePage.views[0].plot._fullData.find({FIELD})?.zmax === 8")
        zoom(look)
        shown = ranges(look)
        tools.get_by_role("button", name="Copy link").click()
        look.until("document.querySelector('.tools:last-of-type') && document.body.innerText.includes('Copied.')")
        link = str(look.page.evaluate("navigator.clipboard.readText()"))
        look.page.goto("about:blank")
        look.page.goto(link)
        look.until(TILES)
        look.until("landscapePage.views[0].zooms.length === 1")
        assert ranges(look) == pytest.approx(shown, rel=1e-4)
        field = f"landscapePage.views[0].plot._fullData.find({FIELD})"
        assert look.page.evaluate(f"[{field}.zmin, {field}.zmax]") == [0.5, 8]
        tools = look.page.locator(".tools").last
        assert tools.get_by_label("Contour lines").input_value() == "4"
        tools.get_by_role("button", name="Reset").click()
        look.until(f"({TILES}) && landscapePage.answer.rise === true && !landscapePage.views[0].zooms.length")
        assert set(state(look)) == {"item", "mode", "kind"}
        assert tools.get_by_label("Contour lines").input_value() == ""
        assert ranges(look) != pytest.approx(shown, rel=1e-2)


def test_reset_takes_back_everything_but_the_landscape_and_its_view(look: Look):
    options = {
        "zmax": 3,
        "levels": 5,
        "path": 0,
        "pathcolour": "#00aa00",
        "ambient": 0.3,
        "step": 2,
        "at": "0,0",
        "log": 1,
    }
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3", kind="surface", camera="2,0.5,0.3", **options)
    look.until("landscapePage.view.plot.layout?.scene?.camera.eye.x === 2")
    with look.redrawn():
        look.page.locator("aside.panel").get_by_role("button", name="Reset").click()
    assert set(state(look)) == {"run", "landscape", "kind"}
    assert state(look)["kind"] == ["surface"]
    assert look.plotly("plot.layout.scene.camera.eye.x") == pytest.approx(0.95)
    assert look.plotly("plot._fullData.some(trace => trace.meta && trace.meta.role === 'path')")
    assert look.page.locator(".player output").inner_text() == "epoch 3"
    assert look.page.locator("aside.panel").get_by_label("Highest value drawn").input_value() == ""


def test_the_copied_command_draws_what_is_seen(chromium: Browser, served: str, runs: Path, tmp_path: Path):
    with Look.open(chromium, served, permissions=CLIPBOARD, color_scheme="dark") as look:
        look.show(
            "run", run=look.run_id("net"), landscape="epochs-1-3", kind="surface", zmax=3, path=0, camera="2,0.5,0.3"
        )
        look.page.get_by_role("button", name="Copy command").click()
        look.until("document.body.innerText.includes('Copied.')")
        words = shlex.split(str(look.page.evaluate("navigator.clipboard.readText()")))
        assert words[:4] == ["landscape", "export", str(runs / "net"), "epochs-1-3"]
        assert {"--theme=dark", "--camera=2,0.5,0.3", "--no-path", "--zmax=3", "--kind=surface"} <= set(words)
        command = [sys.executable, "-W", "ignore", "-m", "cluster", *words[1:], f"--out={tmp_path}"]
        subprocess.run(command, check=True, timeout=300)
        assert [file.name for file in tmp_path.iterdir()] == ["epochs-1-3-surface.png"]
        compare(look, kind="contour")
        zoom(look)
        _, left = look.page.evaluate("(({ command, left }) => [command, left])(landscapePage.commandOf())")
        assert left == ["zoom"], "only one of the two tiles is zoomed"


def test_the_titles_of_axes_are_whole_in_a_narrow_window(look: Look):
    look.page.set_viewport_size({"width": 420, "height": 800})
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3", kind="surface")
    assert "PC 1" in look.plotly("plot._fullLayout.scene.xaxis.title.text")
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3", kind="contour")
    look.until(f"document.querySelector('{DRAWN}')?._fullLayout.xaxis.title.text.includes('PC 1')")
