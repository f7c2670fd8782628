"""Exact values in a real browser: clicks, coordinates and boxes are computed by a service, where one runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_page import Look, serving
from fake_service import FakeService, fake_service, loss_at
from playwright.sync_api import Browser
from starlette.responses import JSONResponse

from landscape.views.prepare.words import value_with_error

pytestmark = pytest.mark.page

PLANE = ".figure .plot .nsewdrag"
LAID = "(document.querySelector('.figure .plot')?.data || []).filter(trace => trace.meta?.role === 'exact')"


@pytest.fixture(scope="module")
def served_page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page over the finished runs, with a home of its own for the notes of services."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with serving(runs) as address:
            yield address


@pytest.fixture
def service(served_page: str, runs: Path) -> Iterator[FakeService]:
    with fake_service(runs / "net", "plane", "line", "cube") as fake:
        yield fake


@pytest.fixture
def page(chromium: Browser, served_page: str) -> Iterator[Look]:
    with Look.open(chromium, served_page) as opened:
        yield opened


def show(page: Look, landscape: str, kind: str, served: bool = True) -> None:
    page.show("run", run=page.run_id("net"), landscape=landscape, kind=kind)
    page.until("name => landscapePage.name === name && landscapePage.serving && landscapePage.view.figure", landscape)
    page.until("served => landscapePage.exact.served === served", served)


def place_of(page: Look, *at: float) -> tuple[float, float]:
    """Where coordinates of the picture lie on the screen."""
    box = page.page.locator(PLANE).first.bounding_box()
    assert box is not None
    x, y = page.plotly(
        f"[plot._fullLayout.xaxis.d2p({at[0]}), {'plot._fullLayout.yaxis.d2p(' + str(at[1]) + ')' if len(at) > 1 else 40}]"
    )
    return box["x"] + x, box["y"] + y


def drag(page: Look, first: tuple[float, ...], last: tuple[float, ...]) -> None:
    page.page.get_by_role("button", name="Exact patch").click()
    page.page.mouse.move(*place_of(page, *first))
    page.page.mouse.down()
    page.page.mouse.move(*place_of(page, *last), steps=6)
    page.page.mouse.up()


def asked_points(service: FakeService) -> list[list[float]]:
    return [body["points"][0] for kind, body in service.asked if kind == "points"]


@pytest.mark.parametrize("kind", ["contour", "topographic"])
def test_a_click_anywhere_shows_the_exact_value(page: Look, service: FakeService, kind: str):
    show(page, "plane", kind)
    page.page.mouse.click(*place_of(page, 0.71, -1.37))
    page.until(f"{LAID}.length === 1")
    ((alpha, beta),) = asked_points(service)
    assert alpha == pytest.approx(0.71, abs=0.02)
    assert beta == pytest.approx(-1.37, abs=0.02)
    words = page.page.locator(".exactly .answer").first.inner_text()
    assert words.startswith(
        f"alpha {alpha:.6g}, beta {beta:.6g}; loss {value_with_error(loss_at(alpha, beta), 0.25)}; accuracy 0.5"
    )
    assert words.endswith("; computed now")
    assert page.page.evaluate(f"(([mark]) => [mark.x[0], mark.y[0]])({LAID})") == [alpha, beta]


def test_a_click_beside_a_grid_point_means_that_one(page: Look, service: FakeService):
    show(page, "plane", "contour")
    x, y = place_of(page, 0, 0)
    page.page.mouse.click(x + 2, y - 2)
    page.until(f"{LAID}.length === 1")
    assert asked_points(service) == [[0, 0]]
    assert page.page.locator(".exactly .answer").first.inner_text().endswith("; stored")


def test_coordinates_are_typed_and_slopes_are_told(page: Look, service: FakeService):
    show(page, "plane", "topographic")
    page.page.get_by_label("alpha", exact=True).fill("0.5")
    page.page.get_by_label("beta", exact=True).fill("-1")
    page.page.get_by_label("beta", exact=True).press("Enter")
    page.until(f"{LAID}.length === 1")
    page.page.get_by_role("button", name="Slope and curvature").click()
    page.page.get_by_text("slope of the loss along alpha 1 ± 1 (2 s.e.)").wait_for()
    assert "eigenvalues 2, 4" in page.page.locator(".exactly").inner_text()
    assert asked_points(service) == [[0.5, -1]]


def test_in_space_the_point_is_marked_at_its_height(page: Look, service: FakeService):
    show(page, "plane", "surface")
    page.page.evaluate("landscapePage.view.on.click({ x: 0.6, y: 0.75 })")  # as plotly says where the surface was hit
    page.until(f"{LAID}.length === 1 && {LAID}[0].type === 'scatter3d'")
    ((alpha, beta),) = asked_points(service)
    assert page.page.evaluate(f"(([mark]) => [mark.x[0], mark.y[0]])({LAID})") == [alpha, beta]
    log = page.page.evaluate("landscapePage.log")
    known = loss_at(alpha, beta)
    assert known is not None
    assert page.page.evaluate(f"{LAID}[0].z[0]") == pytest.approx(math.log10(known) if log else known)
    page.page.get_by_text("A box by numbers").click()
    page.page.get_by_role("button", name="Fill this box").click()
    page.page.get_by_text("A patch is drawn in the flat views").wait_for()
    assert [kind for kind, _ in service.asked] == ["points"]


def test_enter_on_the_picture_asks_for_the_point_of_the_arrow_keys(page: Look, service: FakeService):
    show(page, "plane", "contour")
    page.page.locator(".figure").focus()
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("Enter")
    page.until(f"{LAID}.length === 1")
    ((alpha, beta),) = asked_points(service)
    assert (alpha, beta) == (pytest.approx(0.6), 0)


@pytest.mark.parametrize("kind", ["contour", "topographic"])
def test_a_box_fills_while_its_rows_arrive(page: Look, service: FakeService, kind: str):
    while service.rows.acquire(blocking=False):
        pass
    show(page, "plane", kind)
    drag(page, (-1.5, 1), (0.5, -1))
    service.rows.release(3)
    page.until(f"landscapePage.exact.patch?.done === 3 && {LAID}.length === 2")
    page.until(f"{LAID}[0].z.filter(row => row.some(value => value !== null)).length === 6")  # a band has two edges
    assert "3 of 64 rows; 192 points computed" in page.page.locator(".filling").inner_text()
    service.rows.release(100)
    page.until(f"landscapePage.exact.patch.state === 'whole' && {LAID}[0]?.z.length === 64")
    left, right, low, high = page.page.evaluate(f"(([t]) => [t.x[0], t.x.at(-1), t.y[0], t.y.at(-1)])({LAID})")
    assert [left, right, low, high] == pytest.approx([-1.5, 0.5, -1, 1], abs=0.05)
    values = page.page.evaluate("landscapePage.exact.patch.table('loss')")
    across, up = page.page.evaluate("landscapePage.exact.patch.coordinates")
    assert values == [[loss_at(x, y) for x in across] for y in up]
    page.page.get_by_role("button", name="Remove the patch").click()
    page.until(f"{LAID}.length === 0")


def test_a_patch_stays_with_another_scale_observable_and_view(page: Look, service: FakeService):
    show(page, "plane", "topographic")
    drag(page, (-1, 1), (1, -1))
    page.until(f"landscapePage.exact.patch?.state === 'whole' && {LAID}[0]?.z.length === 64")
    panel = page.page.locator("aside.panel")
    for act in (
        lambda: panel.get_by_role("button", name="Logarithmic").click(),
        lambda: panel.get_by_label("Observable").select_option("accuracy"),
    ):
        before = page.page.evaluate(f"{LAID}[0].z[3][3]")
        with page.redrawn():
            act()
        page.until(f"before => {LAID}.length === 2 && {LAID}[0].z[3][3] !== before", before)
    with page.redrawn():
        page.page.get_by_role("button", name="Contour", exact=True).click()
    page.until(f"landscapePage.state.kind === 'contour' && {LAID}.length === 2")
    with page.redrawn():
        page.page.get_by_role("button", name="3-D").click()
    page.until(f"landscapePage.view.space && {LAID}.length === 0")
    assert len(service.asked) == 4  # its passes; nothing is computed again


def test_a_patch_is_cancelled(page: Look, service: FakeService):
    while service.rows.acquire(blocking=False):
        pass
    show(page, "plane", "contour")
    service.rows.release(2)
    drag(page, (-1.5, 1), (0.5, -1))
    page.until("landscapePage.exact.patch?.done === 2")
    page.page.get_by_role("button", name="Cancel").click()
    page.page.get_by_text("cancelled").wait_for()
    assert service.left.wait(20)
    page.until(f"{LAID}.length === 2")


def test_a_box_is_given_by_numbers(page: Look, service: FakeService):
    show(page, "plane", "contour")
    page.page.get_by_text("A box by numbers").click()
    for label, value in (("alpha from", "-1"), ("alpha to", "1"), ("beta from", "0"), ("beta to", "0.5")):
        page.page.get_by_label(label).fill(value)
    page.page.get_by_label("Points along a side, at most").select_option("16")
    page.page.get_by_role("button", name="Fill this box").click()
    page.until("landscapePage.exact.patch?.state === 'whole'")
    assert page.page.evaluate(
        "landscapePage.exact.patch.coordinates.map(each => [each[0], each.at(-1), each.length])"
    ) == [
        [-1, 1, 16],
        [0, 0.5, 16],
    ]
    page.page.get_by_label("beta to").fill("0")
    page.page.get_by_role("button", name="Fill this box").click()
    page.page.get_by_text("A box must have different ends along each axis.").wait_for()


def test_an_interval_of_a_line_is_filled_and_a_click_is_exact(page: Look, service: FakeService):
    show(page, "line", "curve")
    page.page.mouse.click(*place_of(page, 0.33))
    page.until(f"{LAID}.length === 2")  # of the loss and of the accuracy
    ((alpha,),) = asked_points(service)
    assert alpha == pytest.approx(0.33, abs=0.02)
    drag(page, (-0.5,), (0.2,))
    page.until(f"landscapePage.exact.patch?.state === 'whole' && {LAID}[0].x.length === landscapePage.exact.patch.all")
    assert page.page.evaluate(f"{LAID}.length") == 4
    x, y = page.page.evaluate(f"(([loss]) => [loss.x, loss.y])({LAID})")
    assert (x[0], x[-1]) == (pytest.approx(-0.5, abs=0.02), pytest.approx(0.2, abs=0.02))
    assert y == [loss_at(each) for each in x]
    assert len(x) > 100


def test_in_three_axes_the_slice_that_is_shown_is_computed(page: Look, service: FakeService):
    show(page, "cube", "slices")
    page.page.evaluate("landscapePage.view.plot._fullLayout && Plotly.relayout(landscapePage.view.plot, {})")
    drag(page, (-0.5, 0.5), (0.5, -0.5))
    page.until(f"landscapePage.exact.patch?.state === 'whole' && {LAID}.length === 2")
    assert {tuple(body["low"][2:] + body["high"][2:] + body["shape"][2:]) for _, body in service.asked} == {(0, 0, 1)}
    page.page.mouse.click(*place_of(page, 0.3, 0.3))
    page.until(f"{LAID}.length === 3")
    assert asked_points(service)[0][2] == 0
    steps = page.page.locator(".figure .slider-rail-touch-rect").bounding_box()
    assert steps is not None
    page.page.mouse.click(steps["x"] + 3, steps["y"] + steps["height"] / 2)
    page.until(f"landscapePage.state.slice === 0 && {LAID}.length === 0")
    page.page.mouse.click(*place_of(page, 0.3, 0.3))
    page.until(f"{LAID}.length === 1")
    assert asked_points(service)[1][2] == -1


def test_a_service_comes_and_goes_while_the_page_is_open(page: Look, runs: Path):
    show(page, "plane", "contour", served=False)
    hint = page.page.locator(".exactly")
    assert f"landscape serve {runs / 'net'}" in hint.inner_text()
    button = page.page.get_by_role("button", name="Exact patch")
    assert not button.is_visible()
    page.page.mouse.click(*place_of(page, 0.71, -1.37))
    assert page.page.locator(".reading").inner_text()
    with fake_service(runs / "net", "plane"):
        button.wait_for()
        page.page.mouse.click(*place_of(page, 0.71, -1.37))
        page.until(f"{LAID}.length === 1")
    button.wait_for(state="hidden")
    assert "computed now" in hint.inner_text()  # what was computed stays
    page.page.get_by_role("button", name="Topographic").click()
    page.until(f"landscapePage.state.kind === 'topographic' && {LAID}.length === 1")


def test_what_the_service_refuses_is_said_on_the_page(page: Look, service: FakeService):
    show(page, "plane", "contour")
    service.refusal = JSONResponse({"error": "queue: full"}, 429, {"retry-after": "3"})
    page.page.mouse.click(*place_of(page, 0.71, -1.37))
    page.page.get_by_text("the service has too much to do; ask again in 3 s").wait_for()
    drag(page, (-1.5, 1), (0.5, -1))
    page.page.locator(".filling").get_by_text("ask again in 3 s").wait_for()
    service.refusal = None
    page.page.mouse.click(*place_of(page, 0.71, -1.37))
    page.until(f"{LAID}.some(trace => trace.mode === 'markers')")
    page.errors.clear()  # the console names each answer of the status 503


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_beside_a_service(page: Look, service: FakeService, scheme: str):
    page.page.emulate_media(color_scheme=scheme)
    show(page, "plane", "topographic")
    page.page.get_by_text("A box by numbers").click()
    page.page.get_by_role("button", name="Fill this box").click()
    page.until("landscapePage.exact.patch?.state === 'whole'")
    found = Axe().run(page.page).response["violations"]
    assert not [one["id"] for one in found if one["impact"] in ("serious", "critical")]
