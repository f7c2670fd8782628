"""What an export format is: how it renders a surface, how its files are named, what else it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from landscape.surface.surface import ProjectedPath, Surface
from landscape.views.draw.figure import choose_kind, figure_name
from landscape.views.export_files import Browser

Writer = Callable[[Path], None]


@dataclass(frozen=True)
class Request:
    """What is asked of an export: what to draw, as for `figure`, and how to draw pictures, as for `export`."""

    kind: str | None = None
    observable: str = "loss"
    log: bool | None = None
    scale: float = 2.0
    browser: Browser | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


Render = Callable[[Surface, Request], Writer]
Stem = Callable[[Surface, Request], str]


def figure_stem(surface: Surface, request: Request) -> str:
    """The name, without ending, of a file that shows one figure, such as 'minimum-contour-log'."""
    return figure_name(surface, choose_kind(surface, request.kind), request.observable, request.log)


def observable_stem(surface: Surface, request: Request) -> str:
    """The name, without ending, of a file that holds one observable, such as 'minimum-accuracy-log'."""
    observable = "" if request.observable == "loss" else f"-{request.observable}"
    return f"{surface.name}{observable}{'-log' if request.log else ''}"


def surface_stem(surface: Surface, request: Request) -> str:
    """The name, without ending, of a file that holds the whole surface, such as 'minimum'."""
    return surface.name


@dataclass(frozen=True)
class Format:
    """One format.

    `render` draws or checks, and returns a function that writes the file. The two are apart because an error in drawing
    must not be reported as an error of the disk. `stem` is the usual name of its file, without the ending. `write_path`
    writes the trajectory to a file of its own, where the format has no room for it. `pictures` are drawn by a browser.
    """

    render: Render
    stem: Stem = figure_stem
    write_path: Callable[[ProjectedPath, Path], None] | None = None
    pictures: bool = False


def data_format(
    write: Callable[[Surface, Path], None], write_path: Callable[[ProjectedPath, Path], None] | None = None
) -> Format:
    """The format of a function that writes the whole surface, whatever is asked to be drawn."""
    return Format(lambda surface, request: lambda path: write(surface, path), surface_stem, write_path)
