"""A figure as a PNG, SVG or PDF picture."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from landscape.surface.surface import Surface
from landscape.views.draw.figure import figure
from landscape.views.export_files import browser
from landscape.views.format import Request, Writer


def render_picture(format: str, surface: Surface, request: Request) -> Writer:
    """The figure as a picture, "png", "svg" or "pdf", drawn by the browser of the request or by one started for it.

    Raises:
        JobError: an unknown kind, observable or option.
        LandscapeError: there is no browser to draw with.
    """
    options = dict(request.options)
    drawn = figure(surface, request.kind, observable=request.observable, log=request.log, **options)
    with nullcontext(request.browser) if request.browser is not None else browser() as drawer:
        picture = drawer.draw(drawn, format, request.scale)

    def write(path: Path) -> None:
        path.write_bytes(picture)

    return write
