"""A figure as a self-contained HTML page, with plotly in it."""

from __future__ import annotations

from pathlib import Path

from landscape.surface.surface import Surface
from landscape.views.draw.figure import figure, figure_name
from landscape.views.draw.theme import config
from landscape.views.format import Request, Writer


def render_html(surface: Surface, request: Request) -> Writer:
    """The figure, with buttons that let the path grow where there is one, as a page that opens offline.

    Raises:
        JobError: an unknown kind, observable or option.
    """
    options = {"animate": surface.path is not None} | dict(request.options)
    drawn = figure(surface, request.kind, observable=request.observable, log=request.log, **options)
    settings = config(figure_name(surface, request.kind, request.observable, request.log))

    def write(path: Path) -> None:
        drawn.write_html(path, include_plotlyjs=True, config=settings, auto_play=False)

    return write
