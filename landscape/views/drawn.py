"""Figures that are drawn already, written as pages and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go

from landscape.core.errors import JobError, nearest, shown
from landscape.views.draw.theme import config
from landscape.views.export_files import browser
from landscape.views.files import whole_file

PICTURES = ("png", "svg", "pdf")
FORMATS = ("html", *PICTURES)


def check_formats(formats: Sequence[str], known: Sequence[str] = FORMATS) -> None:
    """Refuse formats that nothing is written in.

    Raises:
        JobError: names the first one, and those that there are.
    """
    for format in formats:
        if format not in known:
            raise JobError(f"to: unknown {shown(format)}; {nearest(format, known)}")


def write_drawn(figures: Mapping[str, go.Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures, by the names of their files, in each of these formats; the paths of the files.

    Raises:
        JobError: an unknown format.
        LandscapeError: the folder cannot be written, or there is no browser to draw pictures with.
    """
    check_formats(formats)
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items() if "html" in formats else ():
        path = folder / f"{name}.html"
        with whole_file(path) as temporary:
            figure.write_html(temporary, include_plotlyjs=True, config=config(name))
        written.append(path)
    pictures = [format for format in formats if format in PICTURES]
    if pictures:
        with browser() as drawer:
            for name, figure in figures.items():
                for format in pictures:
                    path = folder / f"{name}.{format}"
                    with whole_file(path) as temporary:
                        temporary.write_bytes(drawer.draw(figure, format, 2.0 if format == "png" else 1.0))
                    written.append(path)
    return written
