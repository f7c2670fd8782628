"""The page of several runs: each run's landscapes, their comparison, and what differs, in one offline file."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from landscape.surface.surface import Surface
from landscape.views.exporting import find_browser
from landscape.views.report import comparison_section, differences_table, groups, write_report
from landscape.views.report_sections import Bundle, ReportRun, read_runs


class Run(dict[str, Surface]):
    """Stands in for an open run."""

    def __init__(self, path: str, surfaces: list[Surface], optimiser: str) -> None:
        super().__init__({surface.name: surface for surface in surfaces})
        self.path = path
        self.info = {"model": "LeNet5", "optimiser": optimiser, "steps_per_epoch": 4}
        self.history = [{"step": k, "epoch": 1 + k // 4, "loss": 2.0 / (k + 1), "accuracy": 0.1 * k} for k in range(9)]
        self.measures: dict[str, Any] = {"sharpness": len(optimiser)}


@pytest.fixture(scope="module")
def pair(make: ModuleType) -> list[Run]:
    first = [make.quadratic(9, 8, path=make.spiral()), make.line(11), make.pca_plane()]
    second = [make.quadratic(7, 8, offset=0.5, path=make.spiral(4)), make.line(11), make.block()]
    return [Run("runs/sgd", first, "SGD"), Run("runs/adam", second, "Adam")]


@pytest.fixture(scope="module")
def page(pair: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(pair, tmp_path_factory.mktemp("several") / "report.html")


def data(page: Path) -> Any:
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]


def test_landscapes_of_one_name_and_as_many_axes_are_compared(pair: list[Run]) -> None:
    found = groups(read_runs(pair))
    assert [(group.name, [run.label for run in group.runs]) for group in found] == [
        ("minimum", ["sgd", "adam"]),
        ("line", ["sgd", "adam"]),
    ]


def test_where_no_names_agree_the_first_of_each_run_are_compared(make: ModuleType) -> None:
    plane, line = make.quadratic(5, 5), make.line(9)
    runs = [
        ReportRun("a", (plane, line)),
        ReportRun("b", (dataclasses.replace(plane, name="other"),)),
        ReportRun("c", ()),
    ]
    (group,) = groups(runs)
    assert (group.name, [surface.name for surface in group.surfaces]) == ("Planes", ["minimum", "other"])
    assert groups([ReportRun("a", (line,)), ReportRun("b", (plane,))]) == []


def test_planes_of_other_axes_lie_side_by_side_alone(make: ModuleType) -> None:
    plane, bundle = make.pca_plane(), Bundle()
    turned = dataclasses.replace(
        plane,
        axes=tuple(
            dataclasses.replace(axis, attributes={**axis.attributes, "digest": f"other {axis.name}"})
            for axis in plane.axes
        ),
    )
    for other, modes in ((plane, ["overlay", "difference", "tiled"]), (turned, ["tiled"])):
        runs = read_runs([Run("runs/a", [plane], "SGD"), Run("runs/b", [other], "SGD")])
        (group,) = groups(runs)
        bundle.comparisons.clear()
        text = comparison_section(group, 0, bundle)
        assert list(dict.fromkeys(key.split("/")[1] for key in bundle.comparisons)) == modes
        assert ("Overlaid" in text) == ("overlay" in modes)


def test_a_comparison_of_the_first_of_many_runs_says_so(make: ModuleType) -> None:
    (group,) = groups([ReportRun(f"run-{k}", (make.line(9),)) for k in range(11)])
    assert group.labels.endswith("run-6, run-7: the first 8 of 11 runs")
    (group,) = groups([ReportRun(f"run-{k}", (make.line(9),)) for k in range(2)])
    assert group.labels == "run-0, run-1"


def test_it_holds_each_run_and_every_comparison(page: Path) -> None:
    text, store = page.read_text(encoding="utf-8"), data(page)
    assert [name for name in re.findall(r"<h2>(.*?)</h2>", text) if ":" in name] == [
        "Comparison: minimum",
        "Comparison: line",
        *("sgd: minimum", "sgd: line", "sgd: epochs-1-26"),
        *("adam: minimum", "adam: line", "adam: cube"),
    ]
    choices = {name: len(figures) for name, figures in store["comparisons"].items() if name.endswith("linear")}
    assert choices == {
        "0/overlay/flat/linear": 1,
        "0/overlay/surface/linear": 1,
        "0/difference/flat/linear": 1,
        "0/difference/surface/linear": 1,
        "0/tiled/flat/linear": 2,
        "0/tiled/surface/linear": 2,
        "1/overlay/curve/linear": 1,
        "1/difference/curve/linear": 1,
        "1/tiled/curve/linear": 2,
    }
    assert set().union(*store["comparisons"].values()) <= set(store["figures"])
    assert len([trace for trace in store["figures"]["history"]["data"] if trace["meta"].get("column") == "loss"]) == 2
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?http", text)


def test_its_tables_say_what_differs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    row = "<tr><th scope='row'>{}</th><td>{}</td><td>{}</td></tr>"
    assert row.format("optimiser", "SGD", "Adam") in text
    assert row.format("sharpness", "3", "4") in text
    assert row.format("points", "9 × 8", "7 × 8") in text
    equal = re.findall(r"<details><summary>(\d+ equal lines?)</summary>(.*?)</details>", text, re.S)
    assert row.format("model", "LeNet5", "LeNet5") in equal[0][1]


def test_a_table_is_escaped() -> None:
    from landscape.views.prepare.differences import TableItem, tabulate

    table = differences_table(tabulate([TableItem("<a>", info={"<k>": "<v>"}), TableItem("b")]))
    assert "&lt;a&gt;" in table
    assert "<v>" not in table


def test_one_run_in_a_sequence_has_the_page_of_one_run(pair: list[Run], tmp_path: Path) -> None:
    alone = Run("runs/sgd", [pair[0]["line"]], "SGD")
    one = write_report(alone, tmp_path / "one.html").read_text(encoding="utf-8")
    assert write_report([alone], tmp_path / "list.html").read_text(encoding="utf-8") == one
    assert "Comparison" not in re.sub(r"<script.*?</script>", "", one, flags=re.S)
    assert data(tmp_path / "one.html")["comparisons"] == {}


@pytest.mark.page
def test_it_draws_every_comparison_in_a_browser(page: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("no Chromium or Chrome on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    errors: list[str] = []
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--enable-unsafe-swiftshader"]
        )
        tab = chromium.new_page(viewport={"width": 1200, "height": 900})
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        tab.goto(page.as_uri())
        drawn = tab.evaluate(
            """async () => {
              const [view] = landscapeReport.views, shown = {};
              for (const [mode, kind] of [["overlay", "flat"], ["difference", "flat"], ["tiled", "surface"]]) {
                await landscapeReport.show(0, { mode, kind });
                const drawn = place => place.plot._fullData.some(trace => trace.visible === true);
                shown[`${mode} ${kind}`] = view.places.map(drawn);
              }
              return shown;
            }"""
        )
        titles = tab.locator("#comparison-0 .tiles h3").all_inner_texts()
        wide = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        chromium.close()
    assert errors == []
    assert drawn == {"overlay flat": [True], "difference flat": [True], "tiled surface": [True, True]}
    assert titles == ["sgd: minimum", "adam: minimum"]
    assert wide <= 0
