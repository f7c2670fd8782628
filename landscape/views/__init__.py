"""Pictures of landscapes: prepared as comparable numbers, then drawn, exported, or gathered in a report.

Names are imported when they are first used: what only prepares values need not load plotly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscape.core.lazy_names import import_on_use

if TYPE_CHECKING:
    from landscape.views.exports.browser import Browser, browser, find_browser
    from landscape.views.exports.export import FORMATS, export, export_name
    from landscape.views.exports.notebook import run_bundle, surface_bundle
    from landscape.views.figures.colours import COLOUR_SCALES
    from landscape.views.figures.comparison import COMPARISON_KINDS, ComparedFigure, compare, compare_figures
    from landscape.views.figures.draw import figure, figure_name
    from landscape.views.figures.kinds import KINDS
    from landscape.views.figures.theme import config
    from landscape.views.plots.plot import plot
    from landscape.views.prepared.figure_data import FigureData, prepare_figure
    from landscape.views.prepared.figure_data import FigureData as Grid
    from landscape.views.prepared.figure_data import prepare_figure as prepare
    from landscape.views.report.page import write_report

_HOMES = {
    "exports.browser": ("Browser", "browser", "find_browser"),
    "exports.export": ("FORMATS", "export", "export_name"),
    "exports.notebook": ("run_bundle", "surface_bundle"),
    "figures.colours": ("COLOUR_SCALES",),
    "figures.comparison": ("COMPARISON_KINDS", "ComparedFigure", "compare", "compare_figures"),
    "figures.draw": ("figure", "figure_name"),
    "figures.kinds": ("KINDS",),
    "figures.theme": ("config",),
    "plots.plot": ("plot",),
    "prepared.figure_data": ("FigureData", "prepare_figure", "FigureData", "prepare_figure"),
    "report.page": ("write_report",),
}

__all__ = [
    "COLOUR_SCALES",
    "COMPARISON_KINDS",
    "FORMATS",
    "KINDS",
    "Browser",
    "ComparedFigure",
    "FigureData",
    "Grid",
    "browser",
    "compare",
    "compare_figures",
    "config",
    "export",
    "export_name",
    "figure",
    "figure_name",
    "find_browser",
    "plot",
    "prepare",
    "prepare_figure",
    "run_bundle",
    "surface_bundle",
    "write_report",
]


__getattr__ = import_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
