"""The page where a part of it fails or comes late: what else there is goes on, and a second try is one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from browser_page import DRAWN, Look, serving
from playwright.sync_api import Browser, Route

pytestmark = [pytest.mark.long, pytest.mark.page]


def test_a_drawing_library_that_failed_to_load_once_is_loaded_for_the_next_picture(chromium: Browser, served: str):
    with Look.open(chromium, served) as look:
        run, fails = look.run_id("net"), [True]
        look.page.route("**/plotly.js", lambda route: route.abort() if fails[0] else route.continue_())
        look.go("run", run=run, landscape="plane")
        look.page.wait_for_selector(".figure .sentence")
        assert "did not load" in look.page.locator(".figure .sentence").inner_text()
        fails[0] = False
        look.page.get_by_role("button", name="Topographic").click()
        look.page.wait_for_selector(DRAWN)
        look.errors.clear()  # which the browser itself reports


def test_a_comparison_that_another_one_overtakes_leaves_no_tiles(chromium: Browser, served: str):
    with Look.open(chromium, served) as look:
        held: list[Route] = []
        look.page.route("**/plotly.js", lambda route: held.append(route))
        run = look.run_id("net")
        look.go("compare", item=[f"{run}|{name}" for name in ("plane", "epochs-1-3", "epochs-3-5")], kind="contour")
        look.page.wait_for_selector(".tile")
        first = look.page.locator(".tile h2").first.inner_text()
        look.page.get_by_role("button", name="Overlaid").click()
        look.until(f"document.querySelector('.tile h2')?.textContent !== {first!r}")
        for route in held:
            route.continue_()
        look.page.wait_for_selector(DRAWN)
        look.page.wait_for_timeout(300)
        assert look.page.locator(".tile").count() == 1


def test_a_landscape_that_cannot_be_read_is_not_asked_for_again_and_again(
    chromium: Browser, runs: Path, tmp_path: Path
):
    run = shutil.copytree(runs / "net", tmp_path / "runs" / "net")
    landscapes = run / "landscapes.zarr"
    for name in ("epochs-1-3", "epochs-3-5", "line", "cube"):
        shutil.rmtree(landscapes / name)
    (landscapes / "zarr.json").unlink()
    for chunk in (landscapes / "plane" / "alpha" / "c").rglob("*"):
        chunk.write_bytes(b"damaged")
    with serving(tmp_path / "runs") as address, Look.open(chromium, address) as look:
        asked: list[str] = []
        look.page.on("request", lambda request: asked.append(request.url) if "api/run?" in request.url else None)
        look.go("run", run=look.run_id("net"))
        look.page.wait_for_selector("text=its coordinates are damaged on disk")
        look.page.wait_for_timeout(1500)
        assert len(asked) < 4


def test_a_window_too_narrow_for_a_first_picture_shows_the_figure(chromium: Browser, served: str):
    with Look.open(chromium, served) as look:
        look.page.set_viewport_size({"width": 80, "height": 600})
        look.show("run", run=look.run_id("net"), landscape="plane")
        assert look.page.locator(".figure .sentence").count() == 0


def test_a_server_that_asks_for_another_token_is_told_from_one_that_does_not_answer(chromium: Browser, served: str):
    with Look.open(chromium, served) as look:
        look.page.context.clear_cookies()
        look.page.evaluate(
            "async () => { const { listen } = await import('./static/live.js'); window.stop = listen({}, {}); }"
        )
        look.until("document.getElementById('connection').innerText.includes('open the whole address')")
        look.page.evaluate("stop()")
        look.errors.clear()  # which the browser itself reports


def test_a_run_that_is_deleted_is_selected_no_more(chromium: Browser, runs: Path, tmp_path: Path):
    for name in ("a", "b"):
        shutil.copytree(runs / "net", tmp_path / "runs" / name)
    with serving(tmp_path / "runs") as address, Look.open(chromium, address) as look:
        look.until("document.querySelectorAll('.rows input').length === 2")
        for box in look.page.locator(".rows input").all():
            box.check()
        look.until("document.body.innerText.includes('Compare 2 runs')")
        shutil.rmtree(tmp_path / "runs" / "a")
        look.until("document.body.innerText.includes('Select two or more to compare')")


def test_an_address_with_as_many_landscapes_as_can_be_compared_is_read_to_its_end(chromium: Browser, served: str):
    with Look.open(chromium, served) as look:
        items = [f"0123456789ab|{'x' * 98}{number:02}" for number in range(64)]
        look.go("compare", item=items)
        look.until("landscapePage.items?.length > 0")
        assert look.page.evaluate("landscapePage.items") == items
        look.page.wait_for_selector("p[role=alert]")
        look.errors.clear()  # which the browser itself reports, as there is no such run


def test_switches_in_the_address_that_are_neither_on_nor_off_are_off(chromium: Browser, served: str):
    with Look.open(chromium, served) as look:
        look.show("run", run=look.run_id("net"), landscape="plane", exact="nan", uncertainty="[]", log="2")
        assert look.page.locator(".figure .sentence").count() == 0
