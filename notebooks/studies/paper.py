"""Figures for a paper as a notebook shows them: drawn by the browser that exports use, else by matplotlib."""

from __future__ import annotations

from typing import Any

from landscape.surface.surface import Surface
from landscape.views.exporting import browser, find_browser
from studies.pictures import planes
from studies.settings import SMALL, size
from studies.shown import Picture

SCALE = 2.0  # pixels of the picture to those of the layout, as of a dense screen


def printed(surface: Surface, figure: Any) -> Picture:
    """A figure of the surface as a PNG, which plotly would show live.

    A small study, and a machine without a Chromium, draw the surface with matplotlib instead, and say so.
    """
    if size() == SMALL or find_browser() is None:
        drawn = planes({surface.name: surface})
        return Picture(drawn.png, f"{surface.name}, drawn with matplotlib: a figure of plotly needs a Chromium")
    with browser() as drawer:
        return Picture(drawer.draw(figure, "png", SCALE), f"{surface.name}, as printed")
