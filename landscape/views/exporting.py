"""`export`: a surface as a file, as picture or as data. Every file appears whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from landscape.core.errors import JobError, nearest, quoted
from landscape.surface.surface import Surface
from landscape.views.data_files import (
    check_stl_axes,
    path_file,
    render_stl,
    write_csv,
    write_npz,
    write_path_csv,
    write_vtk,
)
from landscape.views.draw.figure import figure, figure_name, kind_for
from landscape.views.draw.style import config
from landscape.views.export_files import (
    Browser,
    ExportRequest,
    Format,
    Writer,
    browser,
    data_format,
    figure_stem,
    observable_stem,
    whole_file,
)

# ----------------------------------------------------------------------------------------------------
# A figure as a self-contained HTML page, with plotly in it.


def render_html(surface: Surface, request: ExportRequest) -> Writer:
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


# ----------------------------------------------------------------------------------------------------
# A figure as a PNG, SVG or PDF picture.


def render_picture(format: str, surface: Surface, request: ExportRequest) -> Writer:
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


# ----------------------------------------------------------------------------------------------------

# A format is a line here and a file that renders it.
FORMAT_TABLE = {
    "html": Format(render_html),
    "png": Format(partial(render_picture, "png"), pictures=True),
    "svg": Format(partial(render_picture, "svg"), pictures=True),
    "pdf": Format(partial(render_picture, "pdf"), pictures=True),
    "csv": data_format(write_csv, write_path=write_path_csv),
    "npz": data_format(write_npz),
    "vtk": data_format(write_vtk),
    "stl": Format(render_stl, observable_stem),
}
FORMATS = tuple(FORMAT_TABLE)


def export(
    surface: Surface,
    format: str,
    path: str | Path,
    *,
    kind: str | None = None,
    observable: str = "loss",
    log: bool | None = None,
    scale: float | None = None,
    in_browser: Browser | None = None,
    **options: Any,
) -> Path:
    """Write `surface` to `path` as html, png, svg, pdf, csv, npz, vtk or stl.

    With csv its trajectory goes to a table of its own, NAME+path.csv.

    Args:
        kind, observable, log, options: what to draw, as for `figure`; stl uses observable and log; csv, npz and
            vtk hold everything anyway.
        scale: pixels of a PNG per pixel of the figure; default 2, and 300 to the inch where the figure has a width. SVG
            and PDF have the figure's own size.
        in_browser: from `browser()`, to draw many pictures with one; without it each call starts its own.

    Returns:
        The path that was written.

    Raises:
        JobError: an unknown format, kind, observable or option.
        LandscapeError: the file cannot be written, or there is no browser to draw with.
    """
    chosen, target, surface = choose_format(format), Path(path), surface.merged()
    write = chosen.render(
        surface, ExportRequest(kind, observable, log, scale or _usual_scale(format, options), in_browser, options)
    )
    with whole_file(target) as temporary:
        write(temporary)
    if chosen.write_path is not None and surface.path is not None:
        with whole_file(path_file(target)) as temporary:
            chosen.write_path(surface.path, temporary)
    return target


def _usual_scale(format: str, options: Mapping[str, Any]) -> float:
    """Pixels of a PNG per pixel of the figure: for print 300 to the inch, of which a figure has 96."""
    if format != "png":
        return 1.0  # of SVG and PDF it would change the size on paper
    return 300 / 96 if options.get("width") or options.get("preset") else 2.0


def choose_format(format: str) -> Format:
    """The format of that name.

    Raises:
        JobError: there is none; the message lists those that there are.
    """
    if format not in [*FORMAT_TABLE]:
        raise JobError(f"format: unknown {quoted(format)}; {nearest(str(format), FORMAT_TABLE)}")
    return FORMAT_TABLE[format]


def check_axes(name: str, axes: int, format: str, kind: str | None = None) -> None:
    """Refuse a format or a kind that is for landscapes with another number of axes than `name` has.

    Raises:
        JobError: an unknown format or kind, or one that is not for `axes` axes.
    """
    if choose_format(format).stem is figure_stem:
        kind_for(name, axes, kind)
    elif format == "stl":
        check_stl_axes(name, axes)


def files_beside(surface: Surface, format: str, path: str | Path) -> tuple[Path, ...]:
    """What `export` writes beside `path`: a table of points has no room for the trajectory, which gets its own."""
    chosen = FORMAT_TABLE.get(format)
    has_file = chosen is not None and chosen.write_path is not None and surface.path is not None
    return (path_file(Path(path)),) if has_file else ()


def export_name(
    surface: Surface, format: str, kind: str | None = None, observable: str = "loss", log: bool | None = None
) -> str:
    """The usual file name, as `landscape export` gives it.

    Raises:
        JobError: an unknown format or kind, or a kind for another number of axes.

    Example:
        >>> import numpy as np
        >>> from landscape import Axis
        >>> axis = Axis("alpha", np.linspace(-1, 1, 5))
        >>> surface = Surface("line", (axis,), {"loss": axis.coordinates**2}, status=np.ones(5, np.uint8))
        >>> export_name(surface, "png", log=True), export_name(surface, "csv")
        ('line-curve-log.png', 'line.csv')
    """
    return f"{choose_format(format).stem(surface, ExportRequest(kind, observable, log))}.{format}"


# ----------------------------------------------------------------------------------------------------
# Figures that are drawn already, written as pages and pictures.

PICTURES = ("png", "svg", "pdf")
DRAWN_FORMATS = ("html", *PICTURES)


def check_formats(formats: Sequence[str], known: Sequence[str] = DRAWN_FORMATS) -> None:
    """Refuse formats that nothing is written in.

    Raises:
        JobError: names the first one, and those that there are.
    """
    for format in formats:
        if format not in known:
            raise JobError(f"to: unknown {quoted(format)}; {nearest(format, known)}")


def write_drawn(figures: Mapping[str, go.Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures, by the names of their files, in each of these formats; the paths of the files.

    Raises:
        JobError: an unknown format.
        LandscapeError: the folder cannot be written, or there is no browser to draw pictures with.
    """
    check_formats(formats)
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawing in figures.items() if "html" in formats else ():
        path = folder / f"{name}.html"
        with whole_file(path) as temporary:
            drawing.write_html(temporary, include_plotlyjs=True, config=config(name))
        written.append(path)
    pictures = [format for format in formats if format in PICTURES]
    if pictures:
        with browser() as drawer:
            for name, drawing in figures.items():
                for format in pictures:
                    path = folder / f"{name}.{format}"
                    with whole_file(path) as temporary:
                        temporary.write_bytes(drawer.draw(drawing, format, 2.0 if format == "png" else 1.0))
                    written.append(path)
    return written
