"""Figures for print: their size, the size of their words, and that nothing is cut off or overlaps there."""

from __future__ import annotations

import itertools
import re
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from landscape.core.errors import JobError
from landscape.views.draw.figure import figure
from landscape.views.exporting import Browser, export, find_browser
from landscape.views.figure_spec import PRESETS, pixels

FLAT = [
    ("holed", "contour"),
    ("holed", "topographic"),
    ("pca_plane", "topographic"),
    ("line", "curve"),
    ("block", "slices"),
]


@pytest.mark.parametrize(
    ("length", "px"), [("3.25in", 312), ("8.255 cm", 312), ("82.55mm", 312), ("234pt", 312), ("312px", 312), (312, 312)]
)
def test_lengths_are_read_in_the_units_of_print(length: str | float, px: float) -> None:
    assert pixels("width", length, 100, 1000) == pytest.approx(px)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": "wide"}, "width: must be a length such as 3.3in, 8cm, 80mm, 240pt or 312px, not 'wide'"),
        ({"width": "1in"}, r"width: must be from 144 to 4000 px, not 96 px \('1in'\)"),
        ({"width": True}, "width: must be a length"),
        ({"font_size": "100pt"}, "font_size: must be from 5 to 40 px"),
        ({"title": "x" * 301}, "title: must have at most 300 characters, not 301; shorten it"),
        ({"preset": "colum"}, "preset: unknown 'colum'; did you mean 'column'"),
    ],
)
def test_impossible_sizes_are_refused(make: ModuleType, options: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        figure(make.line(), **options)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("name", "kind"), [*FLAT, ("holed", "surface"), ("block", "volume")])
def test_a_preset_has_its_width_and_words_of_seven_to_nine_points(
    make: ModuleType, name: str, kind: str, preset: str
) -> None:
    drawn = figure(getattr(make, name)(), kind, preset=preset)
    assert drawn.layout.width == pytest.approx(pixels("width", PRESETS[preset].width, 1, 4000), abs=0.5)
    assert drawn.layout.title.text is None
    assert not [note for note in drawn.layout.annotations if note.name == "caption"]
    assert not drawn.frames
    assert not drawn.layout.sliders
    space = drawn.layout.scene if drawn.layout.meta.get("space") else None
    axes = [space.xaxis, space.yaxis, space.zaxis] if space else [drawn.layout.xaxis, drawn.layout.yaxis]
    sizes = [drawn.layout.font.size, drawn.layout.legend.font.size, *(axis.title.font.size for axis in axes)]
    sizes += [axis.tickfont.size for axis in axes]
    sizes += [note.font.size for note in drawn.layout.annotations]
    assert all(7 <= size * 72 / 96 <= 9 for size in sizes)


def test_what_is_given_beside_a_preset_counts(make: ModuleType) -> None:
    options = {"title": "Loss <around> the minimum", "caption": True, "width": "10cm", "levels": 4, "font": "Times"}
    drawn = figure(make.quadratic(), "contour", preset="column", **options)
    assert drawn.layout.title.text == "Loss &lt;around&gt; the minimum"
    assert drawn.layout.width == 378
    assert drawn.layout.font.family.startswith("Times, ")
    assert [note.name for note in drawn.layout.annotations] == ["caption"]
    assert "the nearest to 4" in drawn.layout.meta["caption"] or "4 contour lines" in drawn.layout.meta["caption"]


def test_a_figure_for_the_screen_keeps_its_sizes(make: ModuleType) -> None:
    plain, named = figure(make.quadratic(), "contour"), figure(make.quadratic(), "contour", font="Georgia", title=False)
    assert named.layout.font.family.startswith("Georgia, ")
    assert (plain.layout.width, plain.layout.margin.l) == (named.layout.width, named.layout.margin.l)
    assert named.layout.title.text is None
    wide = figure(make.quadratic(), "contour", width="1000px")
    assert (wide.layout.width, wide.layout.font.size) == (1000, 12)


def test_a_slice_for_print_says_which_it_is(make: ModuleType) -> None:
    notes = figure(make.block(), "slices", preset="page").layout.annotations
    assert "gamma = 0" in [note.text for note in notes]


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_a_title_of_several_lines_has_room_above_the_plot(make: ModuleType, preset: str | None) -> None:
    words = "The loss of <LeNet-5> & its last snapshot, trained on handwritten digits for ten epochs " * 2
    short = figure(make.quadratic(), preset=preset, title="Loss").layout
    long = figure(make.quadratic(), preset=preset, title=words.strip()).layout
    lines = long.title.text.split("<br>")
    assert len(lines) > 1
    assert all(len(line) * 0.5 * long.title.font.size <= long.width for line in map(unescape, lines) if preset)
    font = long.title.font.size or 17
    assert long.margin.t - short.margin.t >= 1.25 * font * (len(lines) - 1)
    assert long.height - short.height == pytest.approx(long.margin.t - short.margin.t, abs=1)


@pytest.mark.page
def test_nothing_is_cut_off_and_no_words_overlap_at_the_size_of_print(
    make: ModuleType, tmp_path: Path, drawer: Browser
) -> None:
    """The boxes of all words, as Chromium lays them out, of every flat kind at every preset."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = chromium.new_page()
        for preset, (name, kind), caption in itertools.product(PRESETS, FLAT, (False, True)):
            options = {"kind": kind, "preset": preset, "caption": caption, "in_browser": drawer}
            path = export(getattr(make, name)(), "svg", tmp_path / "a.svg", **options)
            page.set_content(f"<body style='margin:0'>{path.read_text()}</body>")
            size, boxes = page.evaluate(MEASURE)
            assert size[0] == pytest.approx(pixels("width", PRESETS[preset].width, 1, 4000), abs=0.5)
            assert len(boxes) > 8
            for words, left, top, right, bottom in boxes:
                inside = left >= 0 and top >= 0 and right <= size[0] and bottom <= size[1]
                assert inside, f"{kind}, {preset}: {words!r} is cut off"
            for one, other in itertools.combinations(boxes, 2):
                assert not overlap(one, other), f"{kind}, {preset}: {one[0]!r} overlaps {other[0]!r}"
        chromium.close()


def overlap(one: list[Any], other: list[Any], spare: float = 1.0) -> bool:
    """Whether two boxes (name, left, top, right, bottom) share more than a rim of `spare` pixels."""
    across = min(one[3], other[3]) - max(one[1], other[1])
    upwards = min(one[4], other[4]) - max(one[2], other[2])
    return across > spare and upwards > spare


# All words but those on lines, which lie in the plot and leave a gap there, and those that nobody sees.
MEASURE = """() => {
  const picture = document.querySelector("svg").getBoundingClientRect();
  const words = [...document.querySelectorAll("text")].filter(text => text.textContent.trim()
    && !text.closest(".contourlabels") && getComputedStyle(text).opacity !== "0");
  return [[picture.width, picture.height], words.map(text => {
    const box = text.getBoundingClientRect();
    return [text.textContent, box.left, box.top, box.right, box.bottom];
  })];
}"""


def test_a_pdf_has_the_width_that_was_asked_for(make: ModuleType, tmp_path: Path, drawer: Browser) -> None:
    path = export(make.line(), "pdf", tmp_path / "a.pdf", preset="column", in_browser=drawer)
    data = path.read_bytes()
    assert data.startswith(b"%PDF")
    box = re.search(rb"MediaBox \[0 0 ([0-9.]+) ([0-9.]+)\]", data)
    assert box is not None
    assert float(box[1]) == pytest.approx(3.3 * 72, abs=1)
