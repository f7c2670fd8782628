"""Plots for print, measured by the boxes of their words: whole, apart, 7 to 9 pt, over no path, at both widths."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from typing import Any

import label_boxes
import numpy as np
import print_problems
import pytest

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.text import Text  # noqa: E402

from landscape.core.errors import JobError  # noqa: E402
from landscape.views import caption  # noqa: E402
from landscape.views.figure_spec import kinds_of  # noqa: E402
from landscape.views.plots.plot import plot_compare  # noqa: E402

WIDTHS = {"column": 3.3, "page": 6.9}
PROBLEMS = print_problems.problems()
# Scenes take the longest to lay out: those whose numbers, axes or marks differ most.
SCENES = {
    "a bowl",
    "values of 1e-12",
    "values of 1e12",
    "both signs",
    "a flat plane",
    "axes of two sizes",
    "a hole and a rim",
}
CASES = [
    (name, kind)
    for name, surface in PROBLEMS.items()
    for kind in kinds_of(len(surface.axes))
    if kind in ("curve", "topographic", "contour", "slices") or (kind == "surface" and name in SCENES)
]
RIM = 0.6  # pixels that boxes may share: they hold the empty edges of letters too


@pytest.fixture(autouse=True)
def pyplot() -> Iterator[Any]:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"figure.dpi": 150}):
        yield pyplot
    pyplot.close("all")


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draws a figure; returns all texts that matplotlib has drawn in it."""
    drawn: list[Text] = []
    draw = Text.draw

    def spy(text: Text, renderer: Any) -> None:
        if text.get_visible() and text.get_text().strip():
            drawn.append(text)
        draw(text, renderer)

    monkeypatch.setattr(Text, "draw", spy)

    def draw_figure(figure: Any) -> list[Text]:
        figure.canvas.draw()
        drawn.clear()
        figure.canvas.draw()
        return list(drawn)

    return draw_figure


def box(text: Text, figure: Any) -> label_boxes.Box:
    extent = text.get_window_extent(figure.canvas.get_renderer())
    return (extent.x0, extent.y0, extent.x1, extent.y1)


def check(figure: Any, texts: list[Text], what: str) -> list[label_boxes.Box]:
    """All texts are whole, apart, and of the sizes of print."""
    boxes = [box(text, figure) for text in texts]
    for text, (left, bottom, right, top) in zip(texts, boxes, strict=True):
        assert left >= 0, f"{what}: {text.get_text()!r} is cut off at the left"
        assert bottom >= 0, f"{what}: {text.get_text()!r} is cut off below"
        assert right <= figure.bbox.width, f"{what}: {text.get_text()!r} is cut off at the right"
        assert top <= figure.bbox.height, f"{what}: {text.get_text()!r} is cut off above"
        assert 7 <= text.get_size() <= 9, f"{what}: {text.get_text()!r} has {text.get_size()} pt"
    for a, b in label_boxes.overlapping(boxes, RIM):
        raise AssertionError(f"{what}: {texts[a].get_text()!r} overlaps {texts[b].get_text()!r}")
    return boxes


def in_suite(name: str, kind: str, preset: str) -> Any:
    """A figure of each kind is drawn by every suite, the rest by `make test-faults`: they take minutes."""
    every = preset == "column" and name in ("a bowl", "a line over two decades", "three axes")
    return pytest.param(
        name, kind, preset, marks=[pytest.mark.long] if every else [pytest.mark.long, pytest.mark.faults]
    )


@pytest.mark.parametrize(("name", "kind", "preset"), [in_suite(*case, preset) for case in CASES for preset in WIDTHS])
def test_all_words_are_whole_and_apart(name: str, kind: str, preset: str, words: Any) -> None:
    ax = PROBLEMS[name].plot(kind=kind, preset=preset)
    figure = ax.figure
    texts = words(figure)
    assert figure.get_figwidth() == pytest.approx(WIDTHS[preset])
    assert len(texts) > 5
    boxes = check(figure, texts, f"{name}, {kind}, {preset}")
    if PROBLEMS[name].path is not None and kind != "surface":
        on_paths = [line for line in ax.lines if line.get_label() == "trajectory"]
        inside = [
            (text, own) for text, own in zip(texts, boxes, strict=True) if text.get_text().isdigit() and within(own, ax)
        ]
        for line, (text, own) in itertools.product(on_paths, inside):
            places = line.get_transform().transform(line.get_xydata())
            assert not label_boxes.on_line(own, places), f"{name}, {kind}: {text.get_text()!r} lies on the path"


def within(own: label_boxes.Box, ax: Any) -> bool:
    frame = ax.bbox
    return own[0] >= frame.x0 and own[1] >= frame.y0 and own[2] <= frame.x1 and own[3] <= frame.y1


@pytest.mark.long
@pytest.mark.faults
@pytest.mark.parametrize("preset", WIDTHS)
@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("tiled", "topographic"),
        ("tiled", "contour"),
        ("tiled", "surface"),
        ("overlay", "contour"),
        ("difference", "topographic"),
    ],
)
def test_comparisons_are_whole_too_and_share_one_colour_bar(mode: str, kind: str, preset: str, words: Any) -> None:
    one, two = PROBLEMS["a bowl"], print_problems.plane(lambda a, b: 1 + 2 * print_problems.bowl(a, b))
    axes = plot_compare([("SGD, seed 1", one), ("Adam, seed 1", two)], mode, kind=kind, preset=preset)
    figure = axes[0].figure
    check(figure, words(figure), f"{mode}, {kind}, {preset}")
    bars = len(figure.axes) - len(axes)
    assert bars == (0 if kind == "contour" else 1)
    if kind == "surface":
        assert len({(ax.elev, ax.azim, *ax.get_zlim(), *ax.get_box_aspect()) for ax in axes}) == 1


@pytest.mark.long
def test_a_plane_and_a_line_stand_one_above_the_other_in_a_column(words: Any) -> None:
    plane = next(surface for surface in PROBLEMS.values() if surface.path is not None and len(surface.axes) == 2)
    line = PROBLEMS["a line over two decades"]
    axes = plot_compare([("the path", plane), ("a line", line)], "tiled", preset="column")
    check(axes[0].figure, words(axes[0].figure), "a plane and a line")
    assert axes[0].get_position().y0 > axes[1].get_position().y1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["topographic", "surface", "contour"])
def test_planes_with_a_bar_are_stacked_in_a_column_and_axes_of_one_title_have_one_form_of_it(kind: str) -> None:
    plane = next(surface for surface in PROBLEMS.values() if surface.path is None and len(surface.axes) == 2)
    axes = plot_compare([("one", plane), ("two", plane)], "tiled", kind=kind, preset="column")
    assert (axes[0].get_position().y0 > axes[1].get_position().y1) == (kind != "contour")
    for name in ("get_xlabel", "get_ylabel"):
        assert len({getattr(ax, name)() for ax in axes}) == 1


def test_a_caption_is_that_of_one_surface() -> None:
    with pytest.raises(JobError, match="compare_figures"):
        caption(list(PROBLEMS.values())[:2])


def test_the_settings_of_the_user_count_without_a_preset(pyplot: Any, words: Any) -> None:
    with matplotlib.rc_context(
        {"font.size": 14, "font.family": "serif", "axes.labelsize": 13, "axes.edgecolor": "red"}
    ):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), layout="constrained")
        PROBLEMS["a bowl"].plot(left)
        PROBLEMS["a bowl"].plot(right, kind="contour")
        texts = words(figure)
        assert {text.get_fontfamily()[0] for text in texts} == {"serif"}
        assert left.yaxis.label.get_size() <= 13
        assert left.spines["left"].get_edgecolor()[:3] == (1.0, 0.0, 0.0)
        boxes = [box(text, figure) for text in texts]
        assert all(own[0] >= 0 and own[1] >= 0 and own[2] <= figure.bbox.width for own in boxes)
        assert len(figure.axes) == 3, "the colour bar has axes that every layout knows"


def test_a_legend_of_the_user_is_not_written_over(pyplot: Any, words: Any) -> None:
    figure, ax = pyplot.subplots(figsize=(5, 4))
    PROBLEMS["a bowl"].plot(ax, kind="contour")
    legend = ax.legend(loc="center right")
    texts = words(figure)
    extent = legend.get_window_extent(figure.canvas.get_renderer())
    frame = (extent.x0, extent.y0, extent.x1, extent.y1)
    inside = set(legend.get_texts())
    beside = [text for text in texts if text not in inside]
    assert not [text.get_text() for text in beside if label_boxes.overlap(box(text, figure), frame)]


def test_a_saved_file_has_the_width_and_whole_words(tmp_path: Any, words: Any) -> None:
    ax = PROBLEMS["a flat plane"].plot(preset="column")
    words(ax.figure)
    ax.figure.savefig(tmp_path / "a.pdf", bbox_inches=None)
    box_of_page = (tmp_path / "a.pdf").read_bytes().partition(b"/MediaBox [ 0 0 ")[2].split(b" ")[0]
    assert float(box_of_page) == pytest.approx(3.3 * 72, abs=0.1)
    image = tmp_path / "a.png"
    ax.figure.savefig(image, bbox_inches=None, dpi=100)
    edge = np.asarray(matplotlib.image.imread(image))[..., :3]
    for rim in (edge[0], edge[-1], edge[:, 0], edge[:, -1]):
        assert (rim == 1).all(), "something reaches the edge of the page"


@pytest.mark.pgf
def test_pgf_has_the_words_as_text_for_latex(tmp_path: Any) -> None:
    if shutil.which("xelatex") is None:
        pytest.skip("no xelatex on this machine: PGF is not tested")
    ax = PROBLEMS["long names of axes"].plot(kind="contour", preset="column")
    ax.figure.savefig(tmp_path / "a.pgf")
    text = (tmp_path / "a.pgf").read_text()
    assert f"{{{3.3:.6f}in}}" in text
    assert "last snapshot (epoch 500000)" in text
