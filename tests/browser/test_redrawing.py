"""What a picture must keep, and must not keep, when it is drawn again; and drawings that overtake one another."""

from __future__ import annotations

import pytest
from browser_page import Look
from playwright.sync_api import Route

pytestmark = [pytest.mark.long, pytest.mark.page]
RANGE = "plot._fullLayout.xaxis.range.map(value => Number(value.toFixed(3)))"


def test_what_was_zoomed_stays_when_a_control_draws_again(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic")
    zoom = "{'xaxis.range[0]': -1, 'xaxis.range[1]': 1, 'yaxis.range[0]': -0.5, 'yaxis.range[1]': 0.5}"
    look.page.evaluate(f"Plotly.relayout(landscapePage.view.plot, {zoom})")
    assert "zoom=" in look.page.url
    with look.redrawn():
        look.page.locator("aside.panel").get_by_label("Opacity").fill("0.5")
    assert look.plotly(RANGE) == [-1, 1]
    look.page.get_by_role("button", name="Select a box").click()
    with look.redrawn():
        look.page.locator("aside.panel").get_by_label("Opacity").fill("0.7")
    assert look.plotly("plot._fullLayout.dragmode") == "select"


def test_the_path_ends_where_the_player_stands_when_a_control_draws_again(look: Look):
    look.show("run", run=look.run_id("net"), landscape="epochs-1-3", kind="contour")
    length = "landscapePage.view.plot.data.find(trace => trace.meta && trace.meta.role === 'path').x.length"
    look.page.get_by_label("Snapshot along the path").fill("0")
    look.until(f"{length} === 1")
    with look.redrawn():
        look.page.locator("aside.panel").get_by_label("Width of the path").fill("6")
    look.until(f"{length} === 1")


def test_a_drawing_that_failed_does_not_keep_the_next_one_from_being_drawn(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic")
    look.page.evaluate(
        "() => { const react = Plotly.react;"
        " Plotly.react = () => { Plotly.react = react; return Promise.reject(new Error('no room')); }; }"
    )
    panel = look.page.locator("aside.panel")
    panel.get_by_role("button", name="Logarithmic").click()
    look.until("document.querySelector('.figure').innerText.includes('no room')")
    panel.get_by_role("button", name="Linear").click()
    look.until("document.querySelector('.figure .plot[data-drawn]') && landscapePage.view.figure")
    assert look.colours() > 20


def test_the_cross_sections_follow_the_values_at_their_point(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic", at="0,0")
    look.page.wait_for_selector(".section .main-svg")
    shown = "document.querySelectorAll('.section')[0].data[2].y[5]"
    before = look.page.evaluate(shown)
    look.page.evaluate(
        "() => { const { view, pointer } = landscapePage, field = view.field(), depth = field.columns.shape[2];"
        " for (let k = 0; k < field.columns.values.length; k += depth) field.columns.values[k] += 5; pointer.again(); }"
    )
    look.until(f"before => Math.abs({shown} - before - 5) < 1e-3", before)


def test_the_ends_of_the_range_are_not_taken_over_to_another_landscape(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane", kind="topographic", zmax="0.8", zmin="0.1")
    look.page.keyboard.press("]")
    look.until("landscapePage.name === 'line'")
    assert "zm" not in look.page.url


def test_slices_are_tabulated_as_they_are_shown_and_a_volume_has_its_csv(look: Look):
    look.show("run", run=look.run_id("net"), landscape="cube", kind="slices")
    values = "Array.from(landscapePage.view.field().drawn.values)"
    first = look.page.evaluate(values)
    look.page.evaluate("Plotly.animate(landscapePage.view.plot, ['0'], {mode: 'immediate', frame: {duration: 0}})")
    look.page.evaluate("Plotly.relayout(landscapePage.view.plot, {'sliders[0].active': 0})")
    look.until(f"first => JSON.stringify({values}) !== JSON.stringify(first)", first)
    look.page.get_by_text("Data table").click()
    assert look.page.locator(".scroll table caption").inner_text() == "gamma = -1"
    with look.redrawn():
        look.page.keyboard.press("2")
    look.until("landscapePage.view.space")
    assert look.page.evaluate("landscapePage.view.field()") is None


def test_a_link_shows_the_slice_that_was_chosen(look: Look):
    look.show("run", run=look.run_id("net"), landscape="cube", kind="slices", slice=4)
    field = "landscapePage.view.field()"
    drawn = "plot._fullData.find(trace => trace.meta.role === 'field').z.flatMap(row => Array.from(row))"
    assert look.plotly("plot.layout.sliders[0].active") == 4
    assert look.page.evaluate(f"{field}.place") == "gamma = 1"
    assert look.plotly(f"{drawn}[0]") == look.page.evaluate(f"{field}.drawn.values[0]")
    look.page.evaluate("landscapePage.view.plot.emit('plotly_sliderchange', { slider: { active: 0 } })")
    assert "slice=0" in look.page.url
    with look.redrawn():
        look.page.locator("aside.panel").get_by_label("Opacity").fill("0.5")
    assert look.plotly("plot.layout.sliders[0].active") == 0
    assert look.page.evaluate(f"{field}.place") == "gamma = -1"


def test_what_cannot_be_copied_is_not_called_copied(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane")
    button = look.page.get_by_role("button", name="Copy link")
    look.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    look.page.evaluate("document.execCommand = () => { return false; }")
    button.click()
    look.until("document.body.innerText.includes('Not copied')")
    assert look.page.evaluate("document.querySelectorAll('textarea').length") == 0


def test_tiles_of_a_comparison_that_was_overtaken_are_not_added(look: Look):
    items = [f"{look.run_id('net')}|plane", f"{look.run_id('team/other')}|plane"]
    look.go("compare", item=items, mode="tiled", kind="contour")
    look.until("document.querySelectorAll('.tiles .plot[data-drawn]').length === 2")
    look.page.evaluate(
        "() => { const { tile } = landscapePage;"
        " landscapePage.tile = async function (answer) { await tile.call(this, answer); await new Promise(done => setTimeout(done, 500)); };"
        " landscapePage.draw(); setTimeout(() => landscapePage.set({ mode: 'overlay' }), 300); }"
    )
    look.until("document.querySelectorAll('.tiles .tile').length === 1 && landscapePage.state.mode === 'overlay'")
    look.page.wait_for_timeout(1500)
    assert look.page.locator(".tiles .tile").count() == 1
    assert look.page.evaluate("landscapePage.views.length") == 1


def test_scenes_shown_as_images_stay_images_in_another_theme(look: Look):
    net = look.run_id("net")
    items = [f"{net}|{name}" for name in ("plane", "epochs-1-3", "epochs-3-5")]
    look.page.route("**/static/compare.js", lambda route: few_scenes(route))
    look.page.reload()
    look.go("compare", item=items, mode="tiled", kind="surface", lock="0")
    look.until("document.querySelectorAll('.tiles .asimage').length === 2")
    look.page.locator("#theme").select_option("dark")
    look.until("document.querySelectorAll('.tiles .asimage').length === 2 && !document.querySelector('[aria-busy]')")
    look.until("landscapePage.views.filter(view => view.space).length === 1")


def few_scenes(route: Route) -> None:
    """Answer with the comparison's script, which keeps one scene at a time."""
    answer = route.fetch()
    route.fulfill(response=answer, body=answer.text().replace("MOST_SCENES = 8", "MOST_SCENES = 1"))


def test_a_whole_figure_that_is_slow_to_come_is_waited_for(look: Look):
    look.show("run", run=look.run_id("net"), landscape="plane")
    asked = look.page.evaluate(
        "async () => { const { Follower } = await import('./static/follow.js'); let begun = 0, running = 0, most = 0;"
        " const page = { run: landscapePage.run, name: 'plane', state: {}, landscape: landscapePage.landscape, view: { live: null, milliseconds: 0 },"
        "  draw: async () => { begun++; most = Math.max(most, ++running); await new Promise(done => setTimeout(done, 1500)); running--; } };"
        " const follower = new Follower(page, { changed() {} });"
        " const timer = setInterval(() => follower.drawSoon(), 50);"
        " await new Promise(done => setTimeout(done, 4000)); clearInterval(timer); follower.end(); return [begun, most]; }"
    )
    assert asked == [2, 1]
