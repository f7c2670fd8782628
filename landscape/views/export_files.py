"""The system's Chromium, which draws figures as PNG, SVG and PDF through kaleido; one browser serves many pictures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from landscape.core import files
from landscape.core.errors import LandscapeError, quoted
from landscape.surface.surface import ProjectedPath, Surface
from landscape.views.draw.figure import choose_kind, figure_name

TIMEOUT = 180.0  # seconds for one picture; 3-D without a graphics card takes about ten on a busy machine
NO_BROWSER = (
    "png, svg and pdf are drawn by Chromium or Chrome, and none was found; install one "
    "(Debian, Ubuntu: apt install chromium) or set the environment variable BROWSER_PATH to its executable"
)


def find_browser() -> str | None:
    """The browser that kaleido would use: BROWSER_PATH, its own download, or the system's."""
    try:
        from choreographer.browsers.chromium import Chromium
    except ImportError:
        return None
    try:
        path = Chromium.find_browser(skip_local=False)
    except Exception:  # it looks at many paths, and whatever goes wrong there, no browser can be used
        return None
    return str(path) if path else None


class Browser:
    """A running browser, as `browser()` gives it."""

    def __init__(self, kaleido: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._kaleido, self._loop = kaleido, loop

    def draw(self, figure: go.Figure, format: str, scale: float = 2.0) -> bytes:
        """The figure as the bytes of a PNG, SVG or PDF file, `scale` pixels per unit of its width and height."""
        layout = figure.layout
        options = {"format": format, "width": layout.width or 800, "height": layout.height or 600, "scale": scale}
        return bytes(_wait(self._kaleido.calc_fig(figure.to_dict(), opts=options), self._loop))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser for any number of pictures, which ends with the block.

    Raises:
        LandscapeError: kaleido or a browser is missing, or it does not start.
    """
    try:
        from kaleido import Kaleido
    except ImportError:
        raise LandscapeError("png, svg and pdf need the package kaleido; `pip install kaleido`") from None
    path = find_browser()
    if path is None:
        raise LandscapeError(NO_BROWSER)
    # A loop of its own, in a thread of its own: the caller may itself run inside one, as in a notebook.
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        kaleido = _open(Kaleido, path, loop)
        try:
            yield Browser(kaleido, loop)
        finally:
            _wait(kaleido.__aexit__(None, None, None), loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        if not loop.is_running():
            loop.close()


def _open(make: Any, path: str, loop: asyncio.AbstractEventLoop) -> Any:
    async def start() -> Any:
        return await make(n=1, timeout=TIMEOUT).__aenter__()

    try:
        return _wait(start(), loop)
    except Exception as error:
        raise LandscapeError(
            f"the browser {quoted(path)} does not start ({error}); set BROWSER_PATH to another one"
        ) from error


def _wait(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(TIMEOUT)


# ----------------------------------------------------------------------------------------------------
# Writing an export as a whole or not at all.


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; it takes `path`'s name when the block ends without an error.

    Raises:
        LandscapeError: the folder cannot be written, or the disk is full; then nothing is left behind.
    """
    target = Path(path)
    try:
        with files.whole_file(target) as temporary:
            yield temporary
    except OSError as error:
        raise LandscapeError(
            f"{quoted(str(target))} cannot be written: {error.strerror or error}; name another folder"
        ) from error


# ----------------------------------------------------------------------------------------------------
# What an export format is: how it renders a surface, how its files are named, what else it writes.

Writer = Callable[[Path], None]


@dataclass(frozen=True)
class ExportRequest:
    """What is asked of an export: what to draw, as for `figure`, and how to draw pictures, as for `export`."""

    kind: str | None = None
    observable: str = "loss"
    log: bool | None = None
    scale: float = 2.0
    browser: Browser | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


Render = Callable[[Surface, ExportRequest], Writer]
Stem = Callable[[Surface, ExportRequest], str]


def figure_stem(surface: Surface, request: ExportRequest) -> str:
    """The name, without ending, of a file that shows one figure, such as 'minimum-contour-log'."""
    return figure_name(surface, choose_kind(surface, request.kind), request.observable, request.log)


def observable_stem(surface: Surface, request: ExportRequest) -> str:
    """The name, without ending, of a file that holds one observable, such as 'minimum-accuracy-log'."""
    observable = "" if request.observable == "loss" else f"-{request.observable}"
    return f"{surface.name}{observable}{'-log' if request.log else ''}"


def surface_stem(surface: Surface, request: ExportRequest) -> str:
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
