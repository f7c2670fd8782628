"""Pictures of landscapes: prepared as comparable numbers, then drawn, exported, or gathered in a report."""

from landscape.views.exports.export import FORMATS, export, export_name
from landscape.views.exports.pictures import Browser, browser, find_browser
from landscape.views.figures.draw import KINDS, figure, figure_name
from landscape.views.figures.theme import COLOUR_SCALES, config
from landscape.views.prepared.prepare import Grid, prepare
from landscape.views.report.page import write_report

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
