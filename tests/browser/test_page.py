"""The page in a real browser: the list, every view, every control, comparison, keys."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from browser_page import DRAWN, Look, serving
from conftest import evaluate, plane, plane_problem
from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.long


def test_the_list_opens_a_run_whose_landscape_is_drawn(chromium: Browser, one_plane: Path):
    """The shortest way through the page; the others are run by `make test-page`."""
    with serving(one_plane) as address, Look.open(chromium, address) as look:
        look.until("document.querySelectorAll('.rows canvas[data-painted]').length === 1")
        assert "token" not in look.page.url
        assert look.colours(".rows canvas") > 5
        look.page.get_by_role("link", name="net", exact=True).click()
        look.page.wait_for_selector(DRAWN)
        assert look.plotly("plot._fullData.some(trace => trace.type === 'contour')")
        assert look.colours() > 20
        with look.redrawn():
            look.page.keyboard.press("3")
        look.until("landscapePage.view.space")
        assert look.plotly("plot._fullData.some(trace => trace.type === 'surface')")
        assert look.colours() > 200


@pytest.mark.page
@pytest.mark.parametrize(
    ("landscape", "kind", "type", "scheme"),
    [
        ("epochs-1-3", "contour", "contour", "light"),
        ("epochs-1-3", "topographic", "contour", "light"),
        ("epochs-1-3", "surface", "surface", "light"),
        ("plane", "contour", "contour", "dark"),
        ("plane", "surface", "surface", "dark"),
        ("line", "curve", "scatter", "light"),
        ("cube", "slices", "contour", "light"),
        ("cube", "volume", "isosurface|mesh3d|volume", "light"),
        ("plane", "barcode", "bar", "dark"),
    ],
)
def test_every_view_draws(look: Look, landscape: str, kind: str, type: str, scheme: str):
    look.page.emulate_media(color_scheme=scheme)
    look.show("run", run=look.run_id("net"), landscape=landscape, kind=kind)
    look.until("kind => landscapePage.state.kind === kind && landscapePage.view.figure", kind)
    assert look.plotly(f"plot._fullData.some(trace => /^({type})$/.test(trace.type))")
    assert look.colours() > 20
    paper = look.plotly("getComputedStyle(plot.querySelector('.main-svg')).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 31)"}[scheme]
    assert look.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.page
@pytest.mark.parametrize(("landscape", "kind"), [("epochs-1-3", "contour"), ("plane", "topographic")])
def test_the_first_picture_is_the_one_that_plotly_draws(look: Look, landscape: str, kind: str):
    held: list[Route] = []
    look.page.route("**/static/plotly.js", lambda route: held.append(route))
    look.go("run", run=look.run_id("net"), landscape=landscape, kind=kind)
    look.page.reload()
    look.page.wait_for_selector(".figure .sketch")
    first = look.picture(".figure .sketch")
    assert look.page.locator(DRAWN).count() == 0
    for route in held:
        route.continue_()
    look.page.wait_for_selector(DRAWN)
    assert look.page.locator(".sketch").count() == 0
    box = look.plotly(
        "(({ xaxis, yaxis }) => [xaxis._offset, yaxis._offset, xaxis._length, yaxis._length])(plot._fullLayout)"
    )
    left, top, width, height = map(round, box)
    fields = [
        np.asarray(one, float)[top + 2 : top + height - 2, left + 2 : left + width - 2]
        for one in (first, look.picture())
    ]
    differs = (np.abs(fields[0] - fields[1]).max(2) > 60).mean()
    shown = (np.abs(fields[1] - np.median(fields[1], axis=(0, 1))).max(2) > 60).mean()
    assert differs < 0.1
    assert shown > 0.01


@pytest.mark.page
def test_every_control_of_a_plane_changes_the_picture_and_the_address(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic")
    panel = look.page.locator("aside.panel")
    field = "plot._fullData.find(trace => trace.meta && trace.meta.role === 'field')"
    colours = look.plotly(f"{field}.colorscale")
    for name, act, state in [
        ("Logarithmic", lambda: panel.get_by_role("button", name="Logarithmic").click(), "log=1"),
        ("Linear", lambda: panel.get_by_role("button", name="Linear").click(), "log=0"),
        ("Observable", lambda: panel.get_by_label("Observable").select_option("accuracy"), "observable=accuracy"),
        ("Colour map", lambda: panel.get_by_label("Colour map").select_option("magma"), "scale=magma"),
        ("Contour lines", lambda: _fill(panel.get_by_label("Contour lines"), "5"), "levels=5"),
        ("exactly", lambda: panel.get_by_label("exactly").check(), "exact=1"),
        ("Percentile", lambda: _fill(panel.get_by_label("Drawn up to this percentile"), "90"), "clip=90"),
        ("Highest", lambda: _fill(panel.get_by_label("Highest value drawn"), "0.8"), "zmax=0.8"),
        ("Lowest", lambda: _fill(panel.get_by_label("Lowest value drawn"), "0.1"), "zmin=0.1"),
        ("Uncertainty", lambda: panel.get_by_label("Uncertainty").check(), "uncertainty=1"),
        ("Minima", lambda: panel.get_by_label("Minima and saddles").check(), "extrema=1"),
        ("Opacity", lambda: panel.get_by_label("Opacity").fill("0.5"), "opacity=0.5"),
    ]:
        with look.redrawn():
            act()
        assert state in look.page.url, name
    assert "clip" not in look.page.url, "the highest value takes the place of the percentile"
    assert look.plotly(f"{field}.opacity") == 0.5
    assert look.plotly(f"[{field}.zmin, {field}.zmax]") == [0.1, 0.8]
    assert look.plotly(f"{field}.colorscale") != colours
    with look.redrawn():
        panel.get_by_role("button", name="Reset").click()
    assert "opacity" not in look.page.url


def _fill(field, text: str) -> None:
    field.fill(text)
    field.press("Tab")


@pytest.mark.page
def test_the_path_has_its_colour_and_width_and_plays(look: Look):
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3", kind="contour")
    panel = look.page.locator("aside.panel")
    with look.redrawn():
        panel.get_by_label("Colour of the path").fill("#0055aa")
    with look.redrawn():
        panel.get_by_label("Width of the path").fill("6")
    path = "plot._fullData.filter(trace => trace.meta && trace.meta.role === 'path').at(-1)"
    assert look.plotly(f"[{path}.line.color, {path}.line.width]") == ["#0055aa", 6]
    look.page.get_by_label("Snapshot along the path").fill("0")
    look.until("landscapePage.view.plot.data.find(trace => trace.meta && trace.meta.role === 'path').x.length === 1")
    assert "step=1" in look.page.url
    look.page.get_by_role("button", name="Play").click()
    look.until("landscapePage.player.step === 2")
    look.until("landscapePage.view.plot.data.find(trace => trace.meta && trace.meta.role === 'path').x.length >= 3")
    look.until("document.querySelectorAll('.figure .contourlines .contourlevel, .figure .contourfill path').length > 1")
    with look.redrawn():
        panel.get_by_label("Path", exact=True).uncheck()
    assert look.plotly("plot._fullData.filter(trace => trace.meta && trace.meta.role === 'path').length") == 0


@pytest.mark.page
def test_light_and_camera_are_read_out_and_go_back(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="surface", camera="2,2,0.5")
    look.until("landscapePage.view.space")
    panel = look.page.locator("aside.panel")
    assert "x 2.00, y 2.00, z 0.50" in panel.inner_text()
    with look.redrawn():
        look.page.get_by_label("Ambient light").fill("0.2")
    assert look.plotly("plot._fullData.find(trace => trace.type === 'surface').lighting.ambient") == 0.2
    box = look.page.locator(".figure .plot").bounding_box()
    assert box is not None
    look.page.mouse.move(box["x"] + 300, box["y"] + 250)
    look.page.mouse.down()
    look.page.mouse.move(box["x"] + 380, box["y"] + 250, steps=4)
    look.page.mouse.up()
    look.until("!location.hash.includes('camera=2%2C2') && location.hash.includes('camera=')")
    with look.redrawn():
        panel.get_by_role("button", name="Reset").click()
    assert "camera" not in look.page.url
    assert look.plotly("plot.layout.scene.camera.eye.x") != 2


@pytest.mark.page
def test_the_pointer_and_the_arrow_keys_show_cross_sections(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic")
    box = look.page.locator(".figure .plot .nsewdrag").bounding_box()
    assert box is not None
    look.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.4)
    look.until("/alpha .*beta .*±/.test(document.querySelector('.reading').textContent)")
    look.until("document.querySelectorAll('.section .main-svg').length >= 2")
    look.page.locator(".figure").focus()
    look.page.keyboard.press("ArrowRight")
    look.until("location.hash.includes('at=')")
    first = look.page.locator(".reading").inner_text()
    look.page.keyboard.press("Shift+ArrowUp")
    look.until("words => document.querySelector('.reading').textContent !== words", first)
    expected = look.page.evaluate(
        "() => { const field = landscapePage.view.field(), [j, i] = landscapePage.pointer.pinned;"
        " return [field.columns.values[(j * field.x.length + i) * field.columns.shape[2]], document.querySelectorAll('.section')[0].data[2].y[i]]; }"
    )
    assert expected[0] == expected[1]


@pytest.mark.page
def test_the_pointer_shows_the_same_value_on_a_surface_as_beside_it(look: Look):
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3", kind="surface", log=0, path=0)
    look.until("landscapePage.view.space")
    box = look.page.locator(DRAWN).bounding_box()
    assert box is not None
    told = "[...plot.querySelectorAll('.hoverlayer text, .hovertext text')].map(text => text.textContent).join(' ')"
    shown: set[str] = set()
    for share in np.linspace(0.3, 0.6, 13):
        look.page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.45 * box["height"])
        look.page.wait_for_timeout(150)
        label = re.search(r"alpha\s*(\S+?)beta\s*(\S+?)loss (\S+?) ±", look.plotly(told))
        if label is None:
            continue
        place = [float(part.replace("\u2212", "-")) for part in label.groups()]
        reading = look.page.locator(".reading").inner_text()
        if f"alpha {place[0]:.4g}, beta {place[1]:.4g};" in reading:  # the sections follow in the next frame
            beside = re.search(r"; (\S+) ±", reading)  # with the digits that the point's own error allows
            assert beside is not None
            assert float(beside[1]) == pytest.approx(place[2], rel=0.05)
            shown.add(reading)
    assert len(shown) > 1


@pytest.mark.page
@pytest.mark.parametrize(("landscape", "kind"), [("plane", "topographic"), ("line", "curve")])
def test_a_box_gives_a_job(look: Look, landscape: str, kind: str):
    look.show("run", run=look.run_id("net"), landscape=landscape, kind=kind)
    look.page.get_by_role("button", name="Select a box").click()
    box = look.page.locator(".figure .plot .nsewdrag").first.bounding_box()
    assert box is not None
    look.page.mouse.move(box["x"] + 60, box["y"] + 0.2 * box["height"])
    look.page.mouse.down()
    look.page.mouse.move(box["x"] + 260, box["y"] + 0.7 * box["height"], steps=5)
    look.page.mouse.up()
    dialog = look.page.get_by_role("dialog")
    dialog.locator("pre").first.wait_for()
    assert "range:" in dialog.inner_text()
    assert "landscape run" in dialog.inner_text()
    assert "landscape refine" in dialog.inner_text()
    look.page.keyboard.press("Escape")
    look.until("!document.querySelector('dialog')")


@pytest.mark.page
def test_the_history_chooses_the_landscape_of_an_interval(look: Look):
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3")
    look.page.wait_for_selector(".training .plot[data-drawn]")
    where = look.page.evaluate(
        "() => { const plot = document.querySelector('.training .plot'), axis = plot._fullLayout.xaxis, box = plot.getBoundingClientRect();"
        " const y = plot._fullLayout.yaxis; return [box.left + axis._offset + axis.d2p(4.5), box.top + y._offset + y._length / 2]; }"
    )
    look.page.mouse.click(*where)
    look.until("landscapePage.name === 'epochs-3-5'")
    assert "landscape=epochs-3-5" in look.page.url


@pytest.mark.page
def test_a_grey_cell_that_is_clicked_has_the_command_that_says_why(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic", at="0,0")
    look.page.wait_for_selector(DRAWN)
    assert not look.page.query_selector(".why pre")
    # The corner of this one is finite; it is shown as where it is not.
    look.page.evaluate(
        "() => { const { field } = landscapePage.pointer; field.columns.values[0] = NaN;"
        " landscapePage.pointer.pin({ x: field.x[0], y: field.y[0] }); }"
    )
    command = look.page.inner_text(".why pre")
    assert re.fullmatch(r"landscape inspect \S+/net plane --at=-3,-3", command)


@pytest.mark.page
def test_rules_that_fired_in_training_are_beside_the_curve(look: Look):
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3", histunit="step")
    look.page.wait_for_selector(".training .watched li")
    assert look.page.inner_text(".training .watched li") == "step 1: weight: weight_change_too_large"
    where = "document.querySelector('.training .plot')._fullData.filter(trace => trace.meta?.role === 'watch')"
    assert look.page.evaluate(f"{where}.map(trace => Array.from(trace.x))") == [[1]]


@pytest.mark.page
def test_the_history_counts_what_is_chosen_and_keeps_it_in_the_address(look: Look):
    title = "document.querySelector('.training .plot')?._fullLayout?.xaxis.title.text"
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3")
    look.page.wait_for_selector(".training .plot[data-drawn]")
    assert look.page.evaluate(title) == "epoch"
    look.page.get_by_label("Count steps or epochs").select_option("step")
    look.until(f"{title} === 'step'")
    assert "histunit=step" in look.page.url
    look.page.reload()
    look.until(f"{title} === 'step'")


@pytest.mark.page
def test_what_is_shown_is_saved_as_png_svg_and_csv(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic")
    for name, beginning in (("PNG", b"\x89PNG"), ("SVG", b"<svg"), ("CSV", b"alpha,beta,")):
        with look.page.expect_download() as download:
            look.page.get_by_text(name, exact=True).click()
        path = download.value.path()
        assert path.read_bytes().startswith(beginning), name
        assert download.value.suggested_filename.startswith("plane")


@pytest.mark.page
def test_the_data_table_has_the_values(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane")
    look.page.get_by_text("Data table").click()
    assert look.page.locator(".scroll table tbody tr").count() == 9
    assert look.page.locator(".scroll table tbody tr").first.locator("td").count() == 11


@pytest.mark.page
def test_what_checks_found_is_listed_and_folded(look: Look):
    look.show("run", run=look.run_id("net"), landscape="cube")
    summary = look.page.get_by_text("Can this picture be trusted? nothing speaks against it, with 1 reservation")
    lines = look.page.locator(".checks li")
    assert [line.inner_text().split() for line in lines.all()] == [
        ["✓", "the", "centre", "is", "your", "model"], ["!", "off", "by", "6", "%", "size:", "81", "gives", "0.4", "%"],
    ]  # fmt: skip
    assert lines.nth(1).get_by_role("img", name="a reservation").is_visible()
    summary.click()
    assert not lines.first.is_visible()
    look.show("run", run=look.run_id("net"), landscape="plane")
    assert lines.count() == 0


@pytest.mark.page
def test_a_link_shows_the_same_picture(look: Look):
    run = look.run_id("net")
    state = {
        "run": run,
        "landscape": "plane",
        "kind": "topographic",
        "log": 1,
        "scale": "cividis",
        "levels": 6,
        "zoom": "-1,1,-1,1",
        "at": "0,0",
    }
    look.show("run", **state)
    first = look.plotly(
        "JSON.stringify([plot._fullData.map(trace => [trace.type, trace.zmin, trace.zmax]), plot._fullLayout.xaxis.range])"
    )
    address = look.page.url
    look.page.goto("about:blank")
    look.page.goto(address)
    look.page.wait_for_selector(".figure .plot[data-drawn]")
    assert (
        look.plotly(
            "JSON.stringify([plot._fullData.map(trace => [trace.type, trace.zmin, trace.zmax]), plot._fullLayout.xaxis.range])"
        )
        == first
    )


@pytest.mark.page
def test_a_link_that_names_what_is_gone_says_so_and_shows_the_rest(look: Look):
    look.show(
        "run",
        run=look.run_id("net"),
        landscape="gone",
        kind="nonsense",
        scale="<b>",
        levels="-3",
        zoom="a,b",
        camera="0,0,0",
    )
    assert 'There is no landscape "gone"' in look.page.locator("main").inner_text()
    assert look.colours() > 20


@pytest.mark.page
def test_a_run_that_is_unknown_says_so(look: Look):
    look.go("run", run="nothing")
    look.page.wait_for_selector("main .sentence")
    assert "not in the places" in look.page.locator("main").inner_text()
    look.errors.clear()


@pytest.mark.page
def test_the_list_is_filtered_sorted_and_compared(look: Look):
    look.until("document.querySelectorAll('.rows .row').length === 2 && !document.body.innerText.includes('reading…')")
    look.page.keyboard.press("/")
    look.page.keyboard.type("other")
    look.until("document.querySelectorAll('.rows .row').length === 1")
    assert "q=other" in look.page.url
    look.page.locator("#filter").fill("")
    look.until("document.querySelectorAll('.rows .row').length === 2")
    look.page.get_by_role("button", name="Run", exact=False).first.click()
    names = look.page.locator(".rows .row .name a").all_inner_texts()
    assert names == sorted(names)
    for box in look.page.locator(".rows input").all():
        box.check()
    look.page.get_by_role("button", name="Compare 2 runs").click()
    look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 2")


@pytest.fixture
def several(tmp_path: Path, runs: Path) -> Path:
    """Two runs with landscapes of the same names, and a third with others, that has a long list in its documents."""
    folder = tmp_path / "several"
    for name in ("net", "team/other"):
        shutil.copytree(runs / name, folder / Path(name).name)
    places = {"interval-1": [13, 5], "result-2": [13, 5]}
    ends = [[-2.4, 2.4], [-0.8, 0.8]]
    evaluate(
        folder / "imported",
        plane_problem(),
        [plane(0) | {"name": name, "size": size, "range": ends} for name, size in places.items()],
    )
    files = [f"/data/lenet/checkpoint_lenet-{k}_1875.ckpt" for k in range(51)]
    (folder / "imported" / "run.json").write_text(
        json.dumps({"model": "LeNet5", "optimiser": "Momentum", "files": files})
    )
    return folder


def titles(look: Look) -> list[str]:
    return look.page.locator(".tile h2").all_inner_texts()


@pytest.mark.page
def test_ticked_runs_are_compared_by_a_name_that_all_have_else_by_the_last_of_each(chromium: Browser, several: Path):
    with serving(several) as address, Look.open(chromium, address) as look:
        look.until("document.querySelectorAll('.rows input').length === 3")
        for name in ("net", "other"):
            look.page.get_by_label(f"Select {name} for comparison").check()
        look.page.get_by_role("button", name="Compare 2 runs").click()
        look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 2")
        assert titles(look) == ["net: epochs-3-5", "other: epochs-3-5"]  # the first at the end of training
        assert 'Both runs have a landscape "epochs-3-5".' in look.page.locator(".rule").inner_text()
        look.page.get_by_label("Landscape of each run").select_option("line")
        look.until("document.querySelector('.tile h2')?.innerText === 'net: line'")
        look.page.go_back()
        look.until("document.querySelectorAll('.rows input:checked').length === 2")  # the selection is in the address
        look.page.get_by_label("Select imported for comparison").check()
        look.page.get_by_role("button", name="Compare 3 runs").click()
        look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 3")
        assert titles(look) == ["net: cube", "other: cube", "imported: result-2"]
        assert "No landscape has the same name in all of these runs" in look.page.locator(".rule").inner_text()
        look.page.get_by_label("Landscape of each run").select_option("plane")
        look.until("document.querySelector('.tile h2')?.innerText === 'net: plane'")
        assert '"plane" of the 2 of 3 runs that have it, and the last' in look.page.locator(".rule").inner_text()
        look.until("document.querySelectorAll('.tile .trained table').length === 3")
        trained = look.page.locator(".tile .trained").all_inner_texts()
        assert all("loss at the origin" in text and "± " in text for text in trained)
        assert "Momentum" in trained[2]
        look.page.get_by_role("button", name="Remove other: plane").click()
        look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 2")
        look.page.get_by_role("button", name="Remove imported: result-2").click()
        look.until("document.querySelectorAll('.tiles .plot').length === 0")
        assert look.page.locator(".rule").inner_text() == ""


@pytest.mark.page
def test_columns_of_what_differs_stay_readable_and_long_values_open(chromium: Browser, several: Path):
    with serving(several) as address, Look.open(chromium, address) as look:
        items = [f"{look.run_id('net')}|plane", f"{look.run_id('imported')}|result-2"]
        look.go("compare", item=items)
        whole = look.page.locator(".differences details.whole")
        whole.first.wait_for()
        widths = "[...document.querySelectorAll('.differences td, .differences th')].map(cell => cell.offsetWidth)"
        assert max(look.page.evaluate(widths)) < 400
        (files,) = (one for one in whole.all() if "51 in all" in one.inner_text())
        files.locator("summary").click()
        assert "checkpoint_lenet-50_1875.ckpt" in files.inner_text()
        assert max(look.page.evaluate(widths)) < 400


@pytest.mark.page
def test_a_flat_plane_fills_its_place_where_that_is_asked_for(chromium: Browser, several: Path):
    with serving(several) as address, Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("imported"), landscape="result-2", kind="contour")
        lengths = "(({ xaxis, yaxis }) => [xaxis._length, yaxis._length])(plot._fullLayout)"
        across, up = look.plotly(lengths)
        assert across / up == pytest.approx(3, rel=0.05)
        with look.redrawn():
            look.page.get_by_role("button", name="Fill", exact=True).click()
        wide, high = look.plotly(lengths)
        assert high > 1.5 * up
        assert wide == pytest.approx(across, abs=2)
        assert "proportions=fill" in look.page.url
        assert "Axes not to one scale: they span 4.8 and 1.6" in look.page.locator("figcaption").inner_text()
        with look.redrawn():
            look.page.get_by_role("button", name="True", exact=True).click()
        assert "proportions" not in look.page.url
        assert look.plotly(lengths)[1] == pytest.approx(up, abs=2)


@pytest.mark.page
def test_zooms_are_undone_one_by_one_and_by_a_double_click_all(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="contour")
    ranges = "[plot._fullLayout.xaxis.range, plot._fullLayout.yaxis.range].flat().map(end => Number(end.toFixed(4)))"
    back = look.page.get_by_role("button", name="Zoom back")

    def zoom() -> list[float]:
        box = look.page.locator(f"{DRAWN} .nsewdrag").first.bounding_box()
        assert box is not None
        before = look.plotly(ranges)
        look.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
        look.page.mouse.down()
        look.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
        look.page.mouse.up()
        look.until(
            f"before => (plot => String({ranges}) !== String(before))(document.querySelector('{DRAWN}'))", before
        )
        return list(look.plotly(ranges))

    def shown(expected: list[float]) -> None:
        look.until(
            f"these => (plot => String({ranges}) === String(these))(document.querySelector('{DRAWN}'))", expected
        )

    whole = look.plotly(ranges)
    assert back.count() == 0
    first, second = zoom(), zoom()
    assert second[1] - second[0] < first[1] - first[0] < whole[1] - whole[0]
    look.page.keyboard.press("z")
    shown(first)
    look.until("location.hash.includes('zoom=')")
    back.click()
    shown(whole)
    assert back.count() == 0
    assert "zoom=" not in look.page.url
    zoom()
    look.page.reload()  # the link has the zoom: from there it is one step back, too
    look.page.wait_for_selector(DRAWN)
    zoom()
    box = look.page.locator(f"{DRAWN} .nsewdrag").first.bounding_box()
    assert box is not None
    look.page.mouse.dblclick(box["x"] + 30, box["y"] + 30)
    shown(whole)
    look.until("!location.hash.includes('zoom=') && !document.querySelector('.zoomback')")


@pytest.mark.page
def test_tiles_go_back_by_the_same_key(look: Look):
    items = [f"{look.run_id('net')}|plane", f"{look.run_id('team/other')}|plane"]
    look.go("compare", item=items, kind="contour")
    look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 2")
    box = look.page.locator(".tiles .plot .nsewdrag").last.bounding_box()
    assert box is not None
    look.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    look.page.mouse.down()
    look.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
    look.page.mouse.up()
    look.until("landscapePage.views[1].zooms.length === 1")
    look.page.keyboard.press("z")
    look.until("landscapePage.views[1].zooms.length === 0 && !document.querySelector('.zoomback')")


@pytest.mark.page
@pytest.mark.parametrize("kind", ["contour", "surface"])
@pytest.mark.parametrize("mode", ["tiled", "overlay", "difference"])
def test_two_runs_are_compared(look: Look, mode: str, kind: str):
    items = [f"{look.run_id('net')}|plane", f"{look.run_id('team/other')}|plane"]
    look.go("compare", item=items, mode=mode, kind=kind)
    look.until(
        "count => document.querySelectorAll('.tiles .plot[data-drawn]').length === count", 2 if mode == "tiled" else 1
    )
    assert look.colours(".tiles .plot") > 20
    look.page.wait_for_selector(".differences table")
    assert (
        "Lowest" in look.page.locator(".differences").inner_text()
        or "lowest" in look.page.locator(".differences").inner_text()
    )


@pytest.mark.page
def test_cameras_and_cursors_are_linked(look: Look):
    items = [f"{look.run_id('net')}|plane", f"{look.run_id('team/other')}|plane"]
    look.go("compare", item=items, mode="tiled", kind="surface")
    look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 2")
    look.page.evaluate(
        "Plotly.relayout(document.querySelector('.tiles .plot'), {'scene.camera': {eye: {x: 2, y: 0.5, z: 0.3}}})"
    )
    look.until("document.querySelectorAll('.tiles .plot')[1].layout.scene.camera.eye.x === 2")
    look.go("compare", item=items, mode="tiled", kind="contour")
    look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 2 && !landscapePage.views[0].space")
    box = look.page.locator(".tiles .plot .nsewdrag").first.bounding_box()
    assert box is not None
    look.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.4)
    look.until(
        "[...document.querySelectorAll('.tile')].filter(tile => tile.querySelector('.cross:not([hidden])')).length === 1"
    )


@pytest.mark.page
def test_a_refined_plane_says_what_is_interpolated_and_offers_to_go_on(chromium: Browser, refined_plane: Path):
    with serving(refined_plane) as address, Look.open(chromium, address) as look:
        look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic", at="-0.9,-0.375")
        assert look.plotly("plot._fullData.find(trace => trace.meta && trace.meta.role === 'field').x.length") == 21
        look.until("document.querySelector('.reading')?.innerText.includes('±')")
        look.go("run", run=look.run_id("net"), landscape="plane", kind="topographic", at="1.5,0.375")
        look.until(
            "document.querySelector('.reading')?.innerText.includes('interpolated between points that were evaluated')"
        )
        look.page.get_by_role("button", name="Select a box").click()
        drag = look.page.locator(".figure .plot .nsewdrag").first.bounding_box()
        assert drag is not None
        look.page.mouse.move(drag["x"] + 0.1 * drag["width"], drag["y"] + 0.7 * drag["height"])
        look.page.mouse.down()
        look.page.mouse.move(drag["x"] + 0.2 * drag["width"], drag["y"] + 0.8 * drag["height"], steps=5)
        look.page.mouse.up()
        finer = look.page.get_by_role("dialog").locator(".finer")
        finer.locator("pre").first.wait_for()
        assert "is finer by 2 in this box already" in finer.inner_text()
        assert finer.get_by_role("button", name="Copy").first.is_disabled()
        assert "--factor 4" in finer.locator("pre").first.inner_text()
