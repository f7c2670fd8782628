"""Pictures of landscapes: prepared as comparable numbers, then drawn, exported, or gathered in a report.

Names are imported when they are first used: code that only prepares values does not load plotly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscape.core.late_imports import import_on_use

if TYPE_CHECKING:
    from landscape.views.draw.comparison import ComparedFigure, compare, compare_figures
    from landscape.views.draw.figure import caption, figure
    from landscape.views.draw.style import config
    from landscape.views.exporting import FORMATS, Browser, browser, export, export_name, find_browser
    from landscape.views.figure_spec import COLOUR_SCALES, COMPARISON_KINDS, KINDS, figure_name
    from landscape.views.notebook import run_bundle, surface_bundle
    from landscape.views.plots.plot import plot, plot_compare, plot_hessian, plot_path
    from landscape.views.prepare.figure import FigureData, prepare_figure
    from landscape.views.report import write_report

_HOMES = {
    "draw.comparison": ("ComparedFigure", "compare", "compare_figures"),
    "draw.figure": ("caption", "figure"),
    "draw.style": ("config",),
    "exporting": ("FORMATS", "Browser", "browser", "export", "export_name", "find_browser"),
    "figure_spec": ("COLOUR_SCALES", "COMPARISON_KINDS", "KINDS", "figure_name"),
    "notebook": ("run_bundle", "surface_bundle"),
    "plots.plot": ("plot", "plot_compare", "plot_hessian", "plot_path"),
    "prepare.figure": ("FigureData", "prepare_figure"),
    "report": ("write_report",),
}

__all__ = [
    "COLOUR_SCALES",
    "COMPARISON_KINDS",
    "FORMATS",
    "KINDS",
    "Browser",
    "ComparedFigure",
    "FigureData",
    "browser",
    "caption",
    "compare",
    "compare_figures",
    "config",
    "export",
    "export_name",
    "figure",
    "figure_name",
    "find_browser",
    "plot",
    "plot_compare",
    "plot_hessian",
    "plot_path",
    "prepare_figure",
    "run_bundle",
    "surface_bundle",
    "write_report",
]


__getattr__ = import_on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
