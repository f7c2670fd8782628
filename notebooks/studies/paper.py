"""Figures for a paper as a notebook shows them: drawn by the browser that exports use, else by matplotlib."""

from __future__ import annotations

from typing import Any

from landscape.surface.surface import Surface
from landscape.views.draw.figure import figure
from landscape.views.exporting import browser, find_browser
from studies.pictures import planes
from studies.settings import SMALL, size
from studies.shown import Picture

SCALE = 2.0  # pixels of the picture to those of the layout, as of a dense screen


def printed(surface: Surface, kind: str, *, preset: str, **options: Any) -> Picture:
    """The figure with a preset for print, as a PNG.

    A small study, and a machine without a Chromium, draw it with matplotlib instead, and say so.
    """
    if size() == SMALL or find_browser() is None:
        drawn = planes({surface.name: surface}, kind=kind)
        return Picture(drawn.png, f"{surface.name}, drawn with matplotlib: the preset needs a Chromium")
    with browser() as drawer:
        png = drawer.draw(figure(surface, kind, preset=preset, **options), "png", SCALE)
    return Picture(png, f"{surface.name}, {preset}")
