"""Pictures of landscapes: prepared as comparable numbers, then drawn, exported, or gathered in a report."""

from landscape.views.exports.browser import Browser, browser, find_browser
from landscape.views.exports.export import FORMATS, export, export_name
from landscape.views.figures.colours import COLOUR_SCALES
from landscape.views.figures.draw import figure, figure_name
from landscape.views.figures.kinds import KINDS
from landscape.views.figures.theme import config
from landscape.views.prepared.figure_data import FigureData, prepare_figure
from landscape.views.report.page import write_report

Grid, prepare = FigureData, prepare_figure  # their names in version 0.1.0

__all__ = [
    "COLOUR_SCALES",
    "FORMATS",
    "KINDS",
    "Browser",
    "FigureData",
    "Grid",
    "browser",
    "config",
    "export",
    "export_name",
    "figure",
    "figure_name",
    "find_browser",
    "prepare",
    "prepare_figure",
    "write_report",
]
