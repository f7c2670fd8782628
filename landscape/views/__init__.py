"""Pictures of landscapes: prepared as comparable numbers, then drawn, exported, or gathered in a report."""

from landscape.views.draw import KINDS, figure, figure_name
from landscape.views.export import FORMATS, export, export_name
from landscape.views.pictures import Browser, browser, find_browser
from landscape.views.prepare import Grid, prepare
from landscape.views.report import write_report
from landscape.views.theme import COLOUR_SCALES, config

__all__ = [
    "COLOUR_SCALES",
    "FORMATS",
    "KINDS",
    "Browser",
    "Grid",
    "browser",
    "config",
    "export",
    "export_name",
    "figure",
    "figure_name",
    "find_browser",
    "prepare",
    "write_report",
]
