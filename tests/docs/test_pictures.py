"""The pictures of "How to trust a landscape" are those that its code draws; `make pictures` draws them anew."""

from __future__ import annotations

import re
from pathlib import Path

from draw_pictures import not_printed

HOWTO = Path(__file__).parents[2] / "docs/howto"
TEXT = (HOWTO / "trust.md").read_text()


def test_every_picture_is_drawn_by_code_that_the_page_shows():
    drawn = {f"trust-{right}.png" for right in re.findall(r'^draw\("[\w-]+", "([\w-]+)"', TEXT, re.MULTILINE)}
    assert len(drawn) == 16
    assert set(re.findall(r"!\[.*\]\(([\w.-]+)\)", TEXT)) == drawn
    assert {picture.name for picture in HOWTO.glob("trust-*.png")} == drawn
    assert sum(picture.stat().st_size for picture in HOWTO.glob("trust-*.png")) < 300_000


def test_what_a_page_shows_and_nobody_printed_is_told(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```text\n ✓ all is\n   well\n ✗ off by 3 %\n ! the rest …\n…\n```\n")
    assert not_printed(page, " ✓ all\n   is well\n ✗ off by 4 %\n ! the rest is long\n") == ["✗ off by 3 %"]
