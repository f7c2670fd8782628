"""`export`: a surface as a file, a picture or data. Every file appears whole or not at all."""

from __future__ import annotations

import asyncio
import csv
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from landscape.core import files
from landscape.core.errors import JobError, LandscapeError, nearest, quoted
from landscape.core.grid import Floats
from landscape.surface.record import plain
from landscape.surface.surface import STATUS_NAMES, ProjectedPath, Surface
from landscape.views.figure_spec import FigureSpec, documented, figure_name, kind_for
from landscape.views.prepare.geometry import grid_cells, triangulated
from landscape.views.prepare.scale import drawn_values, point_states

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
    except Exception:  # the search looks at many paths; after any error no browser can be used
        return None
    return str(path) if path else None


class Browser:
    """A running browser, from `browser()`."""

    def __init__(self, kaleido: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._kaleido, self._loop = kaleido, loop

    def draw(self, figure: go.Figure, format: str, scale: float = 2.0) -> bytes:
        """The figure as the bytes of a PNG, SVG or PDF file, `scale` pixels per unit of its width and height."""
        layout = figure.layout
        options = {"format": format, "width": layout.width or 800, "height": layout.height or 600, "scale": scale}
        drawn = figure.to_dict()
        # Nobody can click on the legend of a file.
        drawn["data"] = [trace for trace in drawn["data"] if trace.get("visible") != "legendonly"]
        return bytes(_wait(self._kaleido.calc_fig(drawn, opts=options), self._loop))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser for any number of pictures, closed at the end of the block.

    Raises:
        LandscapeError: kaleido or a browser is missing, or the browser does not start.
    """
    try:
        from kaleido import Kaleido
    except ImportError:
        raise LandscapeError(
            "png, svg and pdf need the package kaleido; `pip install 'loss-landscape-cluster[export]'`"
        ) from None
    path = find_browser()
    if path is None:
        raise LandscapeError(NO_BROWSER)
    # A separate event loop in its own thread: the caller may run inside a loop, such as in a notebook.
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
    """The options of an export: the figure, pixels of a PNG per pixel of the figure, and the browser for pictures.

    Without a browser, one is started for each picture.
    """

    figure: FigureSpec
    scale: float | None = None
    browser: Browser | None = None

    def pixels_for(self, format: str) -> float:
        """Pixels of a picture per pixel of the figure: a PNG for print has 300 per inch, a figure 96."""
        if self.scale is not None or format != "png":
            return self.scale or 1.0  # a scale of SVG and PDF would change the size on paper
        return 300 / 96 if self.figure.width or self.figure.preset else 2.0


Render = Callable[[Surface, ExportRequest], Writer]
Stem = Callable[[Surface, FigureSpec], str]


def figure_stem(surface: Surface, spec: FigureSpec) -> str:
    """The name, without ending, of a file that shows one figure, such as 'minimum-contour-log'."""
    return figure_name(surface, spec.kind, spec.observable, spec.log)


def observable_stem(surface: Surface, spec: FigureSpec) -> str:
    """The name, without ending, of a file that holds one observable, such as 'minimum-accuracy-log'."""
    observable = "" if spec.observable == "loss" else f"-{spec.observable}"
    return f"{surface.name}{observable}{'-log' if spec.log else ''}"


def surface_stem(surface: Surface, spec: FigureSpec) -> str:
    """The name, without ending, of a file that holds the whole surface, such as 'minimum'."""
    return surface.name


@dataclass(frozen=True)
class Format:
    """One format.

    `render` draws or checks, and returns a function that writes the file: an error in drawing must not be reported as
    an error of the disk. `stem` gives the usual name of the file, without the ending. `write_path` writes the
    trajectory to a separate file, for formats without room for it. `pictures` says that a browser draws the format.
    """

    render: Render
    stem: Stem = figure_stem
    write_path: Callable[[ProjectedPath, Path], None] | None = None
    pictures: bool = False


def data_format(
    write: Callable[[Surface, Path], None], write_path: Callable[[ProjectedPath, Path], None] | None = None
) -> Format:
    """The format of a function that writes the whole surface, whatever the figure options."""
    return Format(lambda surface, request: lambda path: write(surface, path), surface_stem, write_path)


def write_csv(surface: Surface, path: Path) -> None:
    """One row per grid point: its coordinates, every observable in full precision, the status code.

    Rows run with alpha fastest. Missing values read 'nan' and diverged ones 'inf'; `status` has the reason as a number,
    an index of `STATUS_NAMES`, so that every column holds numbers and numpy reads the table.
    """
    coordinates = np.meshgrid(*(axis.coordinates for axis in reversed(surface.axes)), indexing="ij")
    columns = dict(zip(surface.dimensions, coordinates, strict=True))
    columns = {axis.name: columns[axis.name] for axis in surface.axes}
    columns |= {name: np.asarray(values, np.float64) for name, values in surface.observables.items()}
    write_columns(path, columns | points_of(surface))


def write_path_csv(trajectory: ProjectedPath, path: Path) -> None:
    """One row per snapshot in order: its step or epoch, its coordinates, the loss there and at its projection.

    With several runs, the columns `run`, `unit` and `number` come first. `distance` is the Euclidean distance between
    snapshot and projection in weight space; `status` is as in the surface's table.
    """
    columns: dict[str, np.ndarray] = {trajectory.unit: trajectory.step}
    if trajectory.run is not None:
        of_row = [trajectory.runs[k] for k in trajectory.run]
        columns = {"run": np.array([run.label for run in of_row]), "unit": np.array([run.unit for run in of_row])}
        columns["number"] = trajectory.step
    columns |= trajectory.coordinates
    columns |= {name: getattr(trajectory, name) for name in ("loss", "projected_loss", "distance", "status")}
    write_columns(path, columns)


def write_rows(rows: Sequence[Sequence[str]], path: Path) -> Path:
    """Write a table of texts, the header first, whole or not at all; returns its path."""
    with whole_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def points_of(surface: Surface) -> dict[str, np.ndarray]:
    """The columns of each point beside its values: its status and, with merged levels, its interpolation."""
    merged = {} if surface.interpolated is None else {"interpolated": surface.interpolated}
    return {"status": surface.status, **merged}


def path_file(table: Path) -> Path:
    """The file for the path beside a surface's table; no landscape's name has a '+', so it overwrites no table."""
    return table.with_name(f"{table.stem}+path{table.suffix}")


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write arrays of one size as the columns of a table, with their names, in flat order."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(values.ravel().tolist() for values in columns.values()), strict=True))


def write_npz(surface: Surface, path: Path) -> None:
    """Write coordinates, observables, status, the path as `path_*`, and `metadata` (a JSON string), without pickle.

    With several runs, `path_run` is the place of each snapshot's run in the list `path_runs` of the metadata.
    """
    arrays: dict[str, np.ndarray] = {axis.name: axis.coordinates for axis in surface.axes}
    arrays |= {name: np.asarray(values) for name, values in surface.observables.items()}
    arrays |= points_of(surface)
    if surface.path is not None:
        arrays |= {f"path_{name}": values for name, values in surface.path.coordinates.items()}
        for name in ("step", "loss", "projected_loss", "distance", "status"):
            arrays[f"path_{name}"] = getattr(surface.path, name)
        arrays |= {} if surface.path.run is None else {"path_run": surface.path.run}
    metadata = {
        "name": surface.name,
        "dimensions": surface.dimensions,
        "axes": {axis.name: dict(axis.attributes) for axis in surface.axes},
        "path_unit": surface.path.unit if surface.path is not None else None,
        **({"path_runs": plain(surface.path.runs)} if surface.path is not None and surface.path.runs else {}),
        "status": dict(enumerate(STATUS_NAMES)),
        "attributes": dict(surface.attributes),
    }
    arrays["metadata"] = np.array(json.dumps(metadata, default=str))
    with path.open("wb") as file:  # a file, since numpy would append .npz to a name
        np.savez_compressed(file, allow_pickle=False, **arrays)


# ----------------------------------------------------------------------------------------------------
# A surface as geometry: VTK with every array on the grid, STL as a height field to view or to print.

Indices = NDArray[np.int64]

CELLS = {1: "line", 2: "quad", 3: "hexahedron"}


def write_vtk(surface: Surface, path: Path) -> None:
    """Write the grid as lines, quads or hexahedra with all observables and the status on its points.

    The grid is flat and complete; ParaView's "warp by scalar" lifts it.
    """
    meshio = _meshio()
    data: dict[str, Any] = {
        name: np.asarray(values, np.float64).ravel() for name, values in surface.observables.items()
    }
    data |= {name: values.ravel().astype(np.int32) for name, values in points_of(surface).items()}
    mesh = meshio.Mesh(grid_points(surface), [(CELLS[len(surface.axes)], grid_cells(surface.status.shape))], data)
    meshio.write(path, mesh, file_format="vtk")


def check_stl_axes(name: str, axes: int) -> None:
    """Raises JobError unless there are two axes, as a height field needs."""
    if axes != 2:
        raise JobError(f"format: stl needs 2 axes, {quoted(name)} has {axes}; use vtk")


def render_stl(surface: Surface, request: ExportRequest) -> Writer:
    """The observable (or its log10) as height over two axes; squares with a missing corner are left out.

    Raises:
        JobError: the surface has another number of axes, or no such observable.
        LandscapeError: no square has all its corners yet, or meshio is not installed.
    """
    observable = request.figure.observable
    check_stl_axes(surface.name, len(surface.axes))
    log = bool(request.figure.log)  # the heights of a relief are the values, by default
    states = point_states(np.asarray(surface[observable], np.float64), surface.status, log)
    height = drawn_values(np.asarray(surface[observable], np.float64), states, log)
    points, triangles = triangulated(surface.alpha, surface.beta, height)
    if not len(triangles):
        raise LandscapeError(
            f"stl: {quoted(surface.name)} has no square of computed {observable} yet; compute more of it first"
        )
    meshio = _meshio()
    mesh = meshio.Mesh(points, [("triangle", triangles)])

    def write(path: Path) -> None:
        meshio.write(path, mesh, file_format="stl", binary=True)

    return write


def grid_points(surface: Surface) -> Floats:
    """The grid's points [n, 3], alpha running fastest; 0 along axes that the surface does not have."""
    mesh = np.meshgrid(*(axis.coordinates for axis in reversed(surface.axes)), indexing="ij")
    columns = [coordinates.ravel() for coordinates in reversed(mesh)]
    columns += [np.zeros(columns[0].shape)] * (3 - len(columns))
    return np.stack(columns, axis=1)


def _meshio() -> Any:
    try:
        import meshio
    except ImportError:
        raise LandscapeError(
            "vtk and stl need the package meshio; `pip install 'loss-landscape-cluster[export]'`"
        ) from None
    return meshio


# ----------------------------------------------------------------------------------------------------
# A figure as a self-contained HTML page, with plotly in it.


def render_html(surface: Surface, request: ExportRequest) -> Writer:
    """The figure as a page that opens offline, with buttons that let a path grow.

    Raises:
        JobError: the kind, the observable or the range does not fit the surface.
    """
    from landscape.views.draw.style import config

    spec = request.figure
    animate = surface.path is not None if spec.animate is None else spec.animate
    drawn, settings = _draw(surface, replace(spec, animate=animate)), config(figure_stem(surface, spec))

    def write(path: Path) -> None:
        drawn.write_html(path, include_plotlyjs=True, config=settings, auto_play=False)

    return write


def render_picture(format: str, surface: Surface, request: ExportRequest) -> Writer:
    """The figure as a picture, "png", "svg" or "pdf".

    Raises:
        JobError: the kind, the observable or the range does not fit the surface.
        LandscapeError: there is no browser to draw with.
    """
    drawn = _draw(surface, request.figure)
    with nullcontext(request.browser) if request.browser is not None else browser() as drawer:
        picture = drawer.draw(drawn, format, request.pixels_for(format))

    def write(path: Path) -> None:
        path.write_bytes(picture)

    return write


def _draw(surface: Surface, spec: FigureSpec) -> go.Figure:
    from landscape.views.draw.figure import draw  # loads plotly, which the help of `landscape export` does not need

    return draw(surface, spec)


# ----------------------------------------------------------------------------------------------------

# A format is a line here, a function that renders it, and a row in docs/howto/figure.md.
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


@documented(FigureSpec, FORMATS=", ".join(FORMATS))
def export(
    surface: Surface,
    format: str,
    path: str | Path,
    *,
    kind: str | None = None,
    scale: float | None = None,
    in_browser: Browser | None = None,
    **options: Any,
) -> Path:
    """Write `surface` to `path` as FORMATS.

    With csv the trajectory goes to a separate table, NAME+path.csv.

    Args:
        kind: what to draw, as for `figure`; stl uses observable and log; csv, npz and vtk hold everything.
        scale: pixels of a PNG per pixel of the figure; default 2, and 300 per inch for a figure with a width. SVG and
            PDF have the figure's own size.
        in_browser: from `browser()`, to draw many pictures with one browser; by default each call starts its own.
        OPTIONS

    Returns:
        The path that was written.

    Raises:
        JobError: an unknown format, kind, observable or option.
        LandscapeError: the file cannot be written, or there is no browser to draw with.
    """
    choose_format(format)
    return write_export(surface, format, Path(path), ExportRequest(FigureSpec.of(kind, options), scale, in_browser))


def write_export(surface: Surface, format: str, path: Path, request: ExportRequest) -> Path:
    """The same for an `ExportRequest`."""
    chosen, surface = choose_format(format), surface.merged()
    write = chosen.render(surface, request)
    with whole_file(path) as temporary:
        write(temporary)
    if chosen.write_path is not None and surface.path is not None:
        with whole_file(path_file(path)) as temporary:
            chosen.write_path(surface.path, temporary)
    return path


def choose_format(format: str) -> Format:
    """The format of that name.

    Raises:
        JobError: the name is unknown; the message lists the known ones.
    """
    if format not in [*FORMAT_TABLE]:
        raise JobError(f"format: unknown {quoted(format)}; {nearest(str(format), FORMAT_TABLE)}")
    return FORMAT_TABLE[format]


def check_axes(name: str, axes: int, format: str, kind: str | None = None) -> None:
    """Raises JobError for a format or a kind that is unknown, or not for the `axes` axes of landscape `name`."""
    if choose_format(format).stem is figure_stem:
        kind_for(name, axes, kind)
    elif format == "stl":
        check_stl_axes(name, axes)


def files_beside(surface: Surface, format: str, path: str | Path) -> tuple[Path, ...]:
    """The files that `export` writes beside `path`: a table of points needs another one for the trajectory."""
    chosen = FORMAT_TABLE.get(format)
    has_file = chosen is not None and chosen.write_path is not None and surface.path is not None
    return (path_file(Path(path)),) if has_file else ()


def export_name(
    surface: Surface, format: str, kind: str | None = None, observable: str = "loss", log: bool | None = None
) -> str:
    """The file name that `landscape export` uses.

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
    return name_export(surface, format, FigureSpec(kind, observable, log))


def name_export(surface: Surface, format: str, spec: FigureSpec) -> str:
    """The same for a `FigureSpec`."""
    return f"{choose_format(format).stem(surface, spec)}.{format}"


# ----------------------------------------------------------------------------------------------------
# Writing drawn figures as pages and pictures.

PICTURES = tuple(name for name, entry in FORMAT_TABLE.items() if entry.pictures)
DRAWN_FORMATS = ("html", *PICTURES)


def check_formats(formats: Sequence[str], known: Sequence[str] = DRAWN_FORMATS) -> None:
    """Raises JobError for an unknown format; the message lists the known ones."""
    for format in formats:
        if format not in known:
            raise JobError(f"to: unknown {quoted(format)}; {nearest(format, known)}")


def write_drawn(figures: Mapping[str, go.Figure], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write figures, by the names of their files, in each of these formats; the paths of the files.

    Raises:
        JobError: an unknown format.
        LandscapeError: the folder cannot be written, or there is no browser to draw pictures with.
    """
    from landscape.views.draw.style import config

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
