"""The paths of several runs on the page: each in its own colour, played together, and named beside the slider."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_page import Look, serving
from small_models import make_job, quadratic_problem, wandering, write_trajectory

from landscape import run

LINES = "filter(trace => trace.meta && trace.meta.role === 'path' && trace.mode === 'lines+markers')"
SHOWN, DRAWN = f"plot._fullData.{LINES}", f"landscapePage.view.plot.data.{LINES}"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings, of five epochs and of three steps, and a run with the landscape of both."""
    folder, model = tmp_path_factory.mktemp("paths"), quadratic_problem().model
    write_trajectory(folder / "sgd", wandering(model, 5, seed=1))
    write_trajectory(folder / "thor", wandering(model, 3, seed=2), "step")
    paths = [str(folder / "sgd"), {"run": str(folder / "thor"), "label": "THOR"}]
    spec = {"name": "both", "paths": paths, "size": [9, 7]}
    run(make_job(folder / "both", quadratic_problem, [spec], engine="eager", num_samples=23, tile=9))
    return folder


@pytest.mark.page
def test_paths_of_several_runs_are_told_apart_and_play_together(chromium, both: Path):
    with serving(both) as address, Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("both"), landscape="both", kind="contour", pathcolour="#0055aa")
        assert look.plotly(f"{SHOWN}.map(trace => trace.name)") == ["sgd (epochs 1 to 5)", "THOR (steps 1 to 3)"]
        colours = look.plotly(f"{SHOWN}.map(trace => trace.line.color)")
        assert len(set(colours)) == 2
        assert "#0055aa" not in colours, "one colour would not tell the runs apart"
        assert look.page.get_by_label("Colour of the path").count() == 0
        words = look.page.locator(".player output")
        assert words.text_content() == "sgd epoch 5, THOR step 3"
        look.page.get_by_label("Snapshot along the path").fill("1")
        look.until(f"{DRAWN}.every(trace => trace.x.length === 2)")
        assert words.text_content() == "sgd epoch 2, THOR step 2"
        assert "step=2" in look.page.url
        look.page.get_by_label("Snapshot along the path").fill("3")
        look.until(f"{DRAWN}[0].x.length === 4")
        assert look.plotly(f"{SHOWN}[1].x.length") == 3, "the shorter path stays at its end"
        assert words.text_content() == "sgd epoch 4, THOR step 3"
        with look.redrawn():
            look.page.locator("aside.panel").get_by_label("Path", exact=True).uncheck()
        squeezed = "th => { th.textContent = 'n'.repeat(60); return th.nextElementSibling.clientWidth; }"
        assert look.page.locator(".facts th").first.evaluate(squeezed) > 100, "a long name leaves its value some width"
        assert look.plotly("plot._fullData.filter(trace => /path|end/.test(trace.meta?.role || '')).length") == 0
