"""The page beside a `landscape serve` of its own: what a click and a box show is what the network has there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser_page import Look, serving
from playwright.sync_api import Browser
from served import serving as serving_points

from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.compute.serial import run
from landscape.job.reading import read_job

pytestmark = [pytest.mark.serve, pytest.mark.timeout(300)]

JOB = """
run: mlp
problem: served_problem:problem
num_samples: 64
engine: eager
landscapes:
  - {name: plane, size: [7, 5], range: [-1, 1]}
"""
PROBLEM = """
from landscape.bench.problems import synthetic_problem


def problem():
    return synthetic_problem("mlp", 64)
"""


def test_a_click_and_a_box_show_what_the_network_has(
    chromium: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "served_problem.py").write_text(PROBLEM)
    (tmp_path / "job.yaml").write_text(JOB)
    job = read_job(tmp_path / "job.yaml")
    run(job)
    with serving(tmp_path / "mlp") as address, Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("mlp"), landscape="plane", kind="contour")
        look.until("landscapePage.serving && !landscapePage.exact.served")
        with serving_points(["mlp"], tmp_path, "--grpc-port", "0", "--replicas", "1"):
            look.until("landscapePage.exact.served")
            pane = look.page.locator(".figure .plot .nsewdrag").first.bounding_box()
            assert pane is not None
            look.page.mouse.click(pane["x"] + 0.61 * pane["width"], pane["y"] + 0.33 * pane["height"])
            look.until("landscapePage.exact.point")
            point = look.page.evaluate("landscapePage.exact.point")
            look.page.get_by_text("A box by numbers").click()
            look.page.get_by_label("Points along a side, at most").select_option("16")
            look.page.get_by_role("button", name="Fill this box").click()
            look.until("landscapePage.exact.patch?.state === 'whole'")
            table = look.page.evaluate("landscapePage.exact.patch.table('loss')")
            across, up = look.page.evaluate("landscapePage.exact.patch.coordinates")
        look.until("!landscapePage.exact.served")
    prepared = prepare(job)
    evaluator = make_evaluator(prepared, prepared.landscapes[0])
    losses = {each["name"]: each["value"] for each in point["values"]}
    assert point["source"] == "computed"
    assert losses["loss"] == evaluator.evaluate(np.array([point["at"]])).mean["loss"][0]
    expected = evaluator.evaluate(np.array([[x, y] for y in up for x in across])).mean["loss"]
    assert np.array_equal(np.array(table).ravel(), expected)
