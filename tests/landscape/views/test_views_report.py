"""The report: one offline file that holds the right numbers, escapes what it is given, and draws in a browser."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from one_run import prepare_history, render_report

from landscape.compute.tasks import Task
from landscape.core.errors import LandscapeError
from landscape.core.plan import Engine
from landscape.core.text import number_text
from landscape.evaluation.tuning.choices import Trial
from landscape.surface.record import plain
from landscape.surface.record_parts import Failure
from landscape.surface.topology import topology_of
from landscape.views.exporting import find_browser
from landscape.views.prepare.history import PathInterval, name_rows
from landscape.views.prepare.tables import landscape_rows, observable_rows, provenance_rows
from landscape.views.prepare.uncertainty import topology_rows
from landscape.views.prepare.words import ENTEZARI, FRANKLE, GIT_RE_BASIN, caption, state_text
from landscape.views.report import write_report

NASTY = "</script><script>alert(1)</script>"


class Run(dict[str, Any]):
    """Stands in for an open run: a mapping of surfaces with what training left."""

    path = "/somewhere/runs/digits"
    info: ClassVar[dict[str, Any]] = {
        "model": "LeNet5",
        "optimiser": "SGD",
        "learning_rate": 0.05,
        "steps_per_epoch": 12,
        "hyperparameters": [{"momentum": 0.9}],
    }
    history: ClassVar[list[dict[str, Any]]] = [
        {"step": k, "epoch": 1 + (k - 1) // 12, "loss": 2.0 / k, "learning_rate": 0.05} for k in range(1, 121)
    ] + [{"step": 12 * e, "epoch": e, "accuracy": 0.09 * e, "epoch_end": True} for e in range(1, 11)]


@pytest.fixture(scope="module")
def page(make: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    tasks = [Task("holes", tile=(0, 3)), Task("holes", path=(4, 7))]
    failures = [Failure(task.label, 3, "w-2", f"ValueError: {NASTY}", "Traceback …") for task in tasks]
    holed = dataclasses.replace(make.with_record(make.holed(), failures=failures, job={"run": NASTY}), name="holes")
    holed = dataclasses.replace(holed, observables={"loss": holed.loss})
    surfaces = [make.pca_plane(), holed, make.line(path=True), make.block()]
    path = write_report(Run({each.name: each for each in surfaces}), tmp_path_factory.mktemp("report") / "report.html")
    return path.read_text(encoding="utf-8")


def data(page: str) -> Any:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]


def array(store: Any, value: Any) -> np.ndarray:
    """What the page's script makes of a reference."""
    kept = store["arrays"][value["$array"]]
    flat = np.frombuffer(base64.b64decode(kept["bdata"]), kept["dtype"])
    return flat.reshape([int(n) for n in kept["shape"].split(",")]) if "shape" in kept else flat


def test_it_is_one_offline_file_with_plotly_once(page: str) -> None:
    assert page.count("* plotly.js v") == 1
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?http", page)
    assert len(page) < 8_000_000


def test_every_view_scale_and_observable_is_there(page: str) -> None:
    figures = data(page)["figures"]
    expected = {
        f"0/{kind}/{name}/{log}"
        for kind in ("contour", "topographic", "surface")
        for name in ("loss", "accuracy")
        for log in (False, True)
    }
    assert expected <= set(figures)
    assert {"2/curve/loss/False", "3/volume/loss/True", "3/slices/loss/False", "history"} <= set(figures)


def test_figures_share_their_arrays_and_hold_the_values(page: str, make: ModuleType) -> None:
    store = data(page)
    one, other = (store["figures"][f"0/{kind}/loss/False"]["data"][0]["z"] for kind in ("topographic", "surface"))
    assert one == other
    np.testing.assert_allclose(array(store, one), make.pca_plane().loss, rtol=1e-6)


def test_text_from_outside_stays_text(page: str) -> None:
    assert NASTY not in page
    scripts: list[str] = []

    class Scripts(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if tag == "script":
                scripts.append(tag)

    Scripts().feed(page)
    assert len(scripts) == 3
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page


def test_numbers_and_provenance_are_in_the_page(page: str, make: ModuleType) -> None:
    for part in (
        "LeNet5",
        "SGD",
        "steps per epoch",
        "momentum 0.9",
        "cosine of alpha and beta",
        "0.0031",
        "81.2\u00a0%",
    ):
        assert part in page
    assert make.attributes()["digest"] in page
    assert "barrier between 0 and 1" in page
    assert "partial: 1\u202f104 of 1\u202f200 points of the grid, 40 points not finite, 16 points quarantined" in page
    assert "4 landscapes: 2 complete, 2 partial; " in page
    assert "2 failed tasks" in page
    assert "<b>tile (0, 3)</b>, 3 attempts on w-2: ValueError" in page
    assert "<b>path 4-6</b>, 3 attempts on w-2: ValueError" in page


def test_rows_say_what_the_closed_form_says(make: ModuleType) -> None:
    rows = dict(observable_rows(make.quadratic(41, 31), "loss"))
    assert rows["lowest"] == "0.1 ± 0.008 (2 s.e.) at alpha 0, beta 0"
    assert rows["at the origin"] == "0.1 ± 0.008 (2 s.e.)"
    assert rows["highest"].startswith("3.54 ± 0.21 (2 s.e.)")
    assert dict(observable_rows(make.quadratic(40, 30), "loss"))["at the origin"] == "no grid point there"
    nowhere = dataclasses.replace(make.quadratic(6, 5), observables={"loss": np.full((5, 6), np.nan)})
    assert observable_rows(nowhere, "loss") == [("values", "none is finite")]
    facts = dict(landscape_rows(make.quadratic(40, 30)))
    assert facts["resolution"] == "40 × 30 points"
    assert facts["time"] == "12.3 s"
    assert dict(provenance_rows(make.quadratic()))["versions"] == "torch 2.13.0, numpy 2.3.1"


def test_the_page_tells_the_minima_of_the_loss(make: ModuleType) -> None:
    surface = make.two_bowls()
    rows = dict(topology_rows(surface))
    assert rows["minima above the noise"] == f"2, persistence over {number_text(topology_of(surface).threshold, 3)}"
    assert rows["deepest other basin"] == "0.3 at alpha 0.5, beta 0; barrier 0.16, saddle at alpha 0.1, beta 0"
    assert rows["points per basin"].endswith("\u00a0%")
    assert "(with the origin), " in rows["points per basin"]
    assert rows["mean depth of the basins (SMAD)"] == "0.26"  # (0.36 + 0.16) / 2
    assert dict(topology_rows(make.quadratic(41, 31)))["deepest other basin"] == "none"
    page = render_report([dataclasses.replace(surface, observables={"loss": surface.loss})])
    assert "Minima of the loss" in page
    assert "a minimum of this slice is not a minimum of the network" in page
    assert "0/barcode/loss/False" in page


def test_the_barrier_of_a_line_between_networks_has_its_error(make: ModuleType) -> None:
    line = make.line(29)
    held = {"loss_rise_stderr": np.full(29, 0.01)}
    attributes = make.with_record(line, origin_loss=0.05).attributes
    with_errors = dataclasses.replace(line, observables={**line.observables, **held}, attributes=attributes)
    assert dict(landscape_rows(line))[ENTEZARI] == "1 at alpha 0.5"
    assert dict(landscape_rows(with_errors))[ENTEZARI] == "1 ± 0.03 (2 s.e.) at alpha 0.5"
    assert dict(landscape_rows(with_errors))[GIT_RE_BASIN] == "1 ± 0.03 (2 s.e.) at alpha 0.5"
    steep = dataclasses.replace(line, observables={**line.observables, "accuracy": 1 - 0.01 * line.loss})
    assert dict(landscape_rows(steep))[FRANKLE].endswith("below 2.0\u00a0%")
    assert "Entezari's barrier: 1 ± 0.03 (2 s.e.) at alpha 0.5" in caption(with_errors, "loss")
    assert not any("arrier" in part for part in caption(with_errors, "accuracy"))
    half = np.where(np.arange(29) == 14, np.nan, line.loss)
    unknown = dataclasses.replace(line, observables={**line.observables, "loss": half})
    assert dict(landscape_rows(unknown))[ENTEZARI].startswith("not known before all of [0, 1]")
    # Along a random direction 1 is a place like any other.
    axis = dataclasses.replace(line.axes[0], attributes={"kind": "random"})
    assert ENTEZARI not in dict(landscape_rows(dataclasses.replace(line, axes=(axis,))))


def test_the_head_counts_landscapes_by_state_and_points(make: ModuleType, tmp_path: Path) -> None:
    def lead(*surfaces: Any) -> str:
        page = render_report(surfaces)
        return re.search(r"<p>(.*?)</p>", page)[1]  # type: ignore[index]

    whole = make.line(1200)  # whose figures are drawn soonest
    progress = dataclasses.replace(make.holed().record.progress, state="partial")
    status = np.where(np.arange(1200) < 96, 0, 1).astype(np.uint8)
    holed = make.with_record(dataclasses.replace(whole, status=status), progress=progress)
    running = make.with_record(holed, progress=dataclasses.replace(progress, state="running"))
    assert lead() == "no landscapes"
    assert lead(make.line(9)) == "1 landscape: complete; 9 grid points computed"
    assert lead(whole, whole) == "2 landscapes: complete; 2\u202f400 grid points computed"
    expected = "3 landscapes: 1 complete, 1 running, 1 partial; 3\u202f408 of 3\u202f600 grid points computed"
    assert lead(holed, running, whole) == expected
    # A driver that was killed said last that it was running; nobody holds this run's lock.
    page = write_report(Run(minimum=running), tmp_path / "r.html").read_text(encoding="utf-8")
    assert '<span class="state interrupted">interrupted: 1\u202f104 of 1\u202f200 points' in page
    assert "1 landscape: interrupted; 1\u202f104 of" in page
    # What its record says is older than its points, also where the path is what is left.
    assert state_text(dataclasses.replace(whole, attributes=running.attributes)) == "complete"
    path = make.spiral()
    path = dataclasses.replace(path, status=np.where(path.step > 8, 0, 1).astype(np.uint8))
    left = dataclasses.replace(make.quadratic(), path=path, attributes=running.attributes)
    assert state_text(left) == "running: 8 of 10 snapshots of the path"


def test_batch_norm_is_named_only_where_the_model_has_any(make: ModuleType) -> None:
    def with_layers(**count: int) -> Any:
        surface = make.quadratic(5, 5)
        return make.with_record(surface, provenance=dataclasses.replace(surface.record.provenance, **count))

    for surface in (with_layers(), with_layers(batch_norm_layers=2)):  # what earlier versions kept says nothing of it
        assert dict(landscape_rows(surface))["batch norm"] == "eval"
        assert "batch norm eval" in caption(surface, "loss")[0]
    own = " (the origin's statistics at every point)"
    assert caption(with_layers(batch_norm_layers=2), "loss")[0].endswith(f"batch norm eval{own}")
    recalibrated = make.with_record(with_layers(batch_norm_layers=2), batch_norm="recalibrate")
    assert caption(recalibrated, "loss")[0].endswith("batch norm recalibrate"), "statistics are those of each point"
    without = with_layers(batch_norm_layers=0)
    assert "batch norm" not in dict(landscape_rows(without))
    assert not {"batch norm", "plan: batch norm"} & set(dict(provenance_rows(without)))
    assert caption(without, "loss")[0] == "Mean loss of 512 samples, float32"


def told(surface: Any, observable: str) -> str:
    """What a caption says of the values alone."""
    return caption(surface, observable)[0].removesuffix(", float32, batch norm eval")


def test_a_caption_says_of_each_term_over_how_many_points_its_mean_is(make: ModuleType) -> None:
    terms = {"interior": {"weight": 1.0, "samples": 700}, "boundary": {"weight": 10.0, "samples": 90}}
    terms["data"] = {"weight": 0.5, "samples": 150}
    surface = make.with_record(make.quadratic(5, 5), num_samples=700, terms=terms, derived={"size": "sqrt(boundary)"})
    assert told(surface, "loss") == "Loss: weighted sum of 3 means, over 700, 90 and 150 points"
    assert told(surface, "boundary") == "Mean boundary of 90 points"
    assert told(surface, "boundary_stderr") == "Standard error of the boundary of 90 points"
    assert told(surface, "size") == "Size = sqrt(boundary) with the mean of 90 points"
    assert told(surface, "loss_rise_stderr").endswith("origin, a weighted sum of 3 means, over 700, 90 and 150 points")
    assert dict(landscape_rows(surface))["samples"] == "700 of interior, 90 of boundary, 150 of data"
    unknown = make.with_record(surface, terms={name: {"weight": 1.0, "samples": None} for name in terms})
    assert (told(unknown, "loss"), told(unknown, "data")) == ("Loss: weighted sum of 3 means", "Mean data")
    one = make.with_record(surface, terms={"boundary": terms["boundary"]})
    assert told(one, "loss") == "Mean loss of 90 points, times 10"


def test_a_caption_says_where_samples_count_differently(make: ModuleType) -> None:
    surface = make.with_record(make.quadratic(5, 5), weighted=True, derived={"perplexity": "exp(loss)"})
    assert told(surface, "loss") == "Weighted mean loss of 512 samples"
    assert told(surface, "perplexity") == "Perplexity = exp(loss) with the weighted mean of 512 samples"
    assert told(surface, "loss_stderr") == "Standard error of the loss, a weighted mean of 512 samples"
    assert dict(landscape_rows(surface))["samples"] == "512, weighted"


def test_a_derived_surface_is_not_called_a_mean(make: ModuleType) -> None:
    surface = make.with_record(make.quadratic(5, 5), derived={"perplexity": "exp(loss)"})
    assert caption(surface, "perplexity")[0].startswith("Perplexity = exp(loss) with the mean of 512 samples")


def test_the_choice_of_an_engine_is_said_in_words(make: ModuleType) -> None:
    trials = [
        Trial(Engine.parse("eager"), 256, 1240.4).record(),
        Trial(Engine.parse("eager+folded"), 128, refused="differs by 0.1").record(),
        Trial(Engine.parse("compile"), 64).record(),
    ]

    def rows(**record: Any) -> list[tuple[str, str]]:
        surface = make.quadratic(5, 5)
        found = {"seconds_per_point": 0.01234, "trials": [], "since": None, **record}
        rows = provenance_rows(make.with_record(surface, provenance={"host": "a", "engine": found}))
        assert not any("{" in value for _, value in rows)
        return [(name, value) for name, value in rows if name.startswith("engine")]

    assert rows() == [("engine", "not searched for, 0.0123 s a point when measured")]
    assert rows(by="rule")[0][1].startswith("by rule, not searched for, ")
    assert rows(by="search")[0][1].startswith("searched for another landscape of the job, ")
    assert rows(by="kept")[0][1].startswith("kept from an earlier job, ")
    assert rows(trials=5) == rows()
    assert rows(trials=[None]) == rows()
    assert rows(since="2026-11-22T01:02:03")[0][1].startswith("kept from a choice of 2026-11-22, ")
    assert rows(trials=[plain(each) for each in trials]) == [
        ("engine", "the fastest of 3 tried, 0.0123 s a point when measured"),
        ("engine tried", "eager, batches of 256: 1\u202f240 samples/s"),
        ("engine tried", "eager+folded, batches of 128: differs by 0.1"),
        ("engine tried", "compile, batches of 64: not timed"),
    ]


def test_the_callbacks_own_weights_are_called_so(make: ModuleType) -> None:
    surface = make.quadratic(5, 5)
    surface = make.with_record(surface, origin="problem")
    assert dict(landscape_rows(surface))["origin"] == "the model as given"
    assert "Origin: the model as given" in caption(surface, "loss")


def test_missing_attributes_cost_no_page(make: ModuleType, tmp_path: Path) -> None:
    bare = dataclasses.replace(make.quadratic(6, 5), attributes={})
    empty = dataclasses.replace(
        make.quadratic(6, 5),
        name="empty",
        status=np.zeros((5, 6), np.uint8),
        observables={"loss": np.full((5, 6), np.nan)},
    )
    page = write_report({"bare": bare, "empty": empty}, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "none computed yet" in page
    assert "no landscape yet" in write_report({}, tmp_path / "none.html").read_text(encoding="utf-8")


def test_a_damaged_landscape_is_said_and_the_others_are_shown(make: ModuleType, tmp_path: Path) -> None:
    class Damaged(Run):
        def __getitem__(self, name: str) -> Any:
            if name == "bad":
                raise LandscapeError("chunk 3 of 'bad' is damaged")
            return super().__getitem__(name)

    page = write_report(Damaged(minimum=make.quadratic(6, 5), bad=None), tmp_path / "r.html").read_text(
        encoding="utf-8"
    )
    assert "chunk 3 of &#x27;bad&#x27; is damaged" in page
    assert "0/contour/loss/False" in data(page)["figures"]


def test_history_counts_in_the_unit_of_the_paths(make: ModuleType) -> None:
    history = prepare_history(Run.history, [make.pca_plane()], steps_per_epoch=12)
    assert history is not None
    assert history.unit == "epoch"
    assert [each.name for each in history.series] == ["loss", "accuracy", "learning_rate"]
    np.testing.assert_allclose(history.series[0].x, np.arange(1, 121) / 12)
    np.testing.assert_allclose(history.series[1].y, 0.09 * np.arange(1, 11))
    assert history.intervals == (PathInterval("epochs-1-26", 1.0, 26.0),)
    steps = prepare_history(Run.history, [make.line(path=True)])
    assert steps is not None
    assert steps.unit == "step"
    assert prepare_history([], [make.pca_plane()]) is None


def test_names_of_intervals_side_by_side_share_a_row() -> None:
    apart = [PathInterval("epochs-1-3", 1, 3), PathInterval("epochs-7-10", 7, 10)]
    assert name_rows(apart, 0, 10) == [0, 0]
    assert name_rows([PathInterval("epochs-1-9", 1, 9), PathInterval("epochs-2-9", 2, 9)], 0, 10) == [0, 1]


@pytest.mark.parametrize(
    ("scheme", "width"), [pytest.param(0, 1200, marks=pytest.mark.faults), pytest.param(1, 600, marks=pytest.mark.page)]
)
def test_it_draws_in_a_browser_in_light_and_dark(page: str, tmp_path: Path, scheme: int, width: int) -> None:
    """Runs the page's own script: every landscape draws, no error, one WebGL scene only where one is shown."""
    browser = find_browser() or shutil.which("chromium")
    if browser is None:
        pytest.skip("no Chromium or Chrome on this machine")
    probe = (
        """<script>window.addEventListener('error', e => document.body.dataset.error = e.message);</script></head>"""
    )
    after = """<script type="module">(async () => {
      const errors = []; window.addEventListener('unhandledrejection', e => errors.push(String(e.reason)));
      const r = window.landscapeReport, shown = [];
      for (const view of r.views) for (const log of [true, false]) {
        await r.show(view.index, {kind: view.first, log});
        shown.push(view.plot.querySelectorAll('.main-svg').length > 0);
      }
      document.body.dataset.result = JSON.stringify({shown, errors, scenes: document.querySelectorAll('canvas').length,
        wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
        cloud: [...document.querySelectorAll('.modebar-btn')].filter(
          b => /share|cloud/i.test(b.dataset.title || '')).length,
        paper: getComputedStyle(document.querySelector('.main-svg')).backgroundColor});
    })();</script></body>"""
    path = tmp_path / "page.html"
    path.write_text(page.replace("</head>", probe, 1).replace("</body>", after, 1), encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-unsafe-swiftshader",
        f"--user-data-dir={tmp_path}/chrome",
    ]
    flags += [
        f"--window-size={width},2000",
        f"--blink-settings=preferredColorScheme={scheme}",
        "--virtual-time-budget=20000",
    ]
    done = subprocess.run(
        [browser, *flags, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=250, check=False
    )
    body = re.search(r"<body[^>]*>", done.stdout)
    assert body is not None, done.stderr[-800:]
    assert "data-error" not in body[0]
    found = re.search(r'data-result="([^"]*)"', body[0])
    assert found is not None, body[0]
    result = json.loads(found[1].replace("&quot;", '"'))
    assert result["errors"] == []
    assert result["shown"] == [True] * 8
    assert result["wide"] <= 0
    assert result["cloud"] == 0
    assert result["paper"] == ("rgb(20, 24, 31)" if scheme == 0 else "rgb(255, 255, 255)")


def test_a_caption_says_where_the_samples_are_one_random_draw(make: ModuleType) -> None:
    line = make.line(29)
    record = {"fields": ["inputs (field 0)"], "unseeded": [], "checked": 16, "unchecked": ""}
    augmented = make.with_record(line, random_data=record)
    assert "one random draw of inputs (field 0)" in caption(augmented, "loss")[0]
    for known in ({**record, "fields": []}, None, 7, {"fields": 3}):
        plain = make.with_record(line, random_data=known)
        assert caption(plain, "loss") == caption(line, "loss")
