"""`export`: a surface as a file, as picture or as data. Every file appears whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from landscape.errors import JobError, nearest, shown
from landscape.surface import Surface
from landscape.views.exports.files import whole_file
from landscape.views.exports.meshes import write_stl, write_vtk
from landscape.views.exports.pictures import Browser, browser
from landscape.views.exports.tables import path_file, write_csv, write_npz, write_path_csv
from landscape.views.figures.draw import choose_kind, figure, figure_name
from landscape.views.figures.theme import config

DATA: dict[str, Callable[[Surface, Path], None]] = {"csv": write_csv, "npz": write_npz, "vtk": write_vtk}
FORMATS = ("html", "png", "svg", "csv", "npz", "vtk", "stl")


def export(
    surface: Surface,
    format: str,
    path: str | Path,
    *,
    kind: str | None = None,
    observable: str = "loss",
    log: bool = False,
    scale: float = 2.0,
    in_browser: Browser | None = None,
    **options: Any,
) -> Path:
    """Write `surface` to `path` as html, png, svg, csv, npz, vtk or stl; with csv its trajectory to NAME+path.csv.

    Args:
        kind, observable, log, options: what to draw, as for `figure`; stl uses observable and log; csv, npz and
            vtk hold everything anyway.
        scale: pixels of a PNG per unit of the figure.
        in_browser: from `browser()`, to draw many pictures with one; without it each call starts its own.

    Raises:
        JobError: an unknown format, kind, observable or option.
        LandscapeError: the file cannot be written, or there is no browser to draw with.
    """
    if format not in FORMATS:
        raise JobError(f"format: unknown {shown(format)}; {nearest(str(format), FORMATS)}")
    target = Path(path)
    if format in DATA:
        with whole_file(target) as temporary:
            DATA[format](surface, temporary)
        for beside in files_beside(surface, format, target):
            assert surface.path is not None
            with whole_file(beside) as temporary:
                write_path_csv(surface.path, temporary)
    elif format == "stl":
        with whole_file(target) as temporary:
            write_stl(surface, temporary, observable, log)
    elif format == "html":
        options = {"animate": surface.path is not None} | options
        drawn = figure(surface, kind, observable=observable, log=log, **options)
        name = figure_name(surface, kind, observable, log)
        with whole_file(target) as temporary:
            drawn.write_html(temporary, include_plotlyjs=True, config=config(name), auto_play=False)
    else:
        drawn = figure(surface, kind, observable=observable, log=log, **options)
        with nullcontext(in_browser) if in_browser is not None else browser() as drawer:
            picture = drawer.draw(drawn, format, scale)
        with whole_file(target) as temporary:
            temporary.write_bytes(picture)
    return target


def files_beside(surface: Surface, format: str, path: str | Path) -> tuple[Path, ...]:
    """What `export` writes beside `path`: a table of points has no room for the trajectory, which gets its own."""
    return (path_file(Path(path)),) if format == "csv" and surface.path is not None else ()


def export_name(
    surface: Surface, format: str, kind: str | None = None, observable: str = "loss", log: bool = False
) -> str:
    """The usual file name: 'minimum.csv', 'minimum-contour-log.png'."""
    if format in DATA:
        return f"{surface.name}.{format}"
    if format == "stl":
        shown = "" if observable == "loss" else f"-{observable}"
        return f"{surface.name}{shown}{'-log' if log else ''}.stl"
    return f"{figure_name(surface, choose_kind(surface, kind), observable, log)}.{format}"
