"""The page where something is missing: WebGL, motion, the token, the connection, the run; and for those who do not see."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_page import Look, serving
from playwright.sync_api import Browser

pytestmark = [pytest.mark.long, pytest.mark.page]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["runs", "run", "compare"])
def test_axe_has_no_serious_findings(look: Look, view: str, scheme: str):
    look.page.emulate_media(color_scheme=scheme)
    run = look.run_id("net")
    if view == "run":
        look.show("run", run=run, landscape="plane", at="0,0")
        look.page.wait_for_selector(".section .main-svg")
    elif view == "compare":
        look.go("compare", item=[f"{run}|plane", f"{look.run_id('team/other')}|plane"])
        look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 2")
    else:
        look.until("document.querySelectorAll('.rows canvas[data-painted]').length >= 4")
    findings = Axe().run(look.page).response["violations"]
    serious = [
        (one["id"], one["nodes"][0]["html"][:200]) for one in findings if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_without_webgl_the_picture_is_flat_and_says_so(chromium: Browser, served: str):
    with Look.open(chromium, served) as look:
        look.page.add_init_script(
            "const made = HTMLCanvasElement.prototype.getContext; HTMLCanvasElement.prototype.getContext ="
            " function (kind, ...more) { return /webgl/.test(kind) ? null : made.call(this, kind, ...more); };"
        )
        look.page.reload()
        look.show("run", run=look.run_id("net"), landscape="plane", kind="surface")
        assert "no WebGL" in look.page.locator("figcaption").inner_text()
        assert look.plotly("plot._fullData.some(trace => trace.type === 'contour')")


def test_reduced_motion_plays_no_animation(chromium: Browser, served: str):
    with Look.open(chromium, served, reduced_motion="reduce") as look:
        look.show("run", run=look.run_id("net"), landscape="epochs-1-3")
        look.page.get_by_role("button", name="Play").click()
        look.until("landscapePage.player.step === 0")
        assert look.page.evaluate("landscapePage.player.timer") == 0


def test_a_wrong_token_opens_nothing(chromium: Browser, served: str):
    parts = urlsplit(served)
    page = chromium.new_context().new_page()
    for address in (f"{parts.scheme}://{parts.netloc}/", f"{parts.scheme}://{parts.netloc}/?token=wrong"):
        answer = page.goto(address)
        assert answer is not None
        assert answer.status == 401
        assert "token" in page.inner_text("body")
    for route in ("api/runs", "static/main.js", "static/..%2f..%2fpyproject.toml"):
        answer = page.request.get(f"{parts.scheme}://{parts.netloc}/{route}")
        assert answer.status in (401, 404), route
    page.context.close()


def test_nothing_outside_the_places_is_sent(look: Look):
    base = look.page.url.split("#")[0]
    for route in (
        "static/..%2f..%2f..%2fpyproject.toml",
        "static/%2e%2e/app.py",
        "api/run?run=..%2F..",
        "api/run?run=%2Fetc",
    ):
        answer = look.page.request.get(base + route)
        assert answer.status == 404, route
        assert "loss-landscape-cluster" not in answer.text()


def test_a_damaged_landscape_says_so_and_the_rest_is_shown(chromium: Browser, runs: Path, tmp_path: Path):
    folder = shutil.copytree(runs / "net", tmp_path / "net")
    shutil.rmtree(folder / "landscapes.zarr" / "cube" / "alpha")
    document = json.loads((folder / "landscapes.zarr" / "plane" / "zarr.json").read_text())
    document["attributes"]["schema_version"] = 99
    (folder / "landscapes.zarr" / "plane" / "zarr.json").write_text(json.dumps(document))
    with serving(folder) as address, Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("net"))
        words = look.page.locator("main").inner_text()
        assert "cube:" in words
        assert "plane:" in words
        assert look.colours() > 20


def test_a_run_that_is_deleted_while_it_is_shown_says_so(chromium: Browser, runs: Path, tmp_path: Path):
    folder = shutil.copytree(runs / "net", tmp_path / "runs" / "net")
    with serving(folder.parent) as address, Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("net"), landscape="plane")
        shutil.rmtree(folder)
        look.until("/gone|not there|deleted/.test(document.querySelector('main').innerText)")
        look.errors.clear()


def test_a_folder_without_runs_says_so_and_shows_one_that_appears(chromium: Browser, runs: Path, tmp_path: Path):
    with serving(tmp_path) as address, Look.open(chromium, address) as look:
        look.until("document.querySelector('main').innerText.includes('There is no run in')")
        shutil.copytree(runs / "net", tmp_path / "late")
        look.until("document.querySelectorAll('.rows .row').length === 1")
