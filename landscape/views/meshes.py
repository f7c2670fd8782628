"""A surface as geometry: VTK with every array on the grid, STL as a height field to look at or to print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, LandscapeError, shown
from landscape.surface.surface import Surface
from landscape.views.data_files import points_of
from landscape.views.format import Request, Writer
from landscape.views.prepare.scale import drawn_values, point_states
from landscape.views.prepare.triangles import grid_cells, triangulated

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

CELLS = {1: "line", 2: "quad", 3: "hexahedron"}


def write_vtk(surface: Surface, path: Path) -> None:
    """The grid as lines, quads or hexahedra with all observables and the status on its points.

    The grid stays flat, also where values are missing; ParaView's "warp by scalar" lifts it.
    """
    meshio = _meshio()
    data: dict[str, Any] = {
        name: np.asarray(values, np.float64).ravel() for name, values in surface.observables.items()
    }
    data |= {name: values.ravel().astype(np.int32) for name, values in points_of(surface).items()}
    mesh = meshio.Mesh(grid_points(surface), [(CELLS[len(surface.axes)], grid_cells(surface.status.shape))], data)
    meshio.write(path, mesh, file_format="vtk")


def check_stl_axes(name: str, axes: int) -> None:
    """Refuse a landscape of so many axes where they are not two, over which a height stands.

    Raises:
        JobError: they are not.
    """
    if axes != 2:
        raise JobError(f"format: stl needs 2 axes, {shown(name)} has {axes}; use vtk")


def render_stl(surface: Surface, request: Request) -> Writer:
    """The observable (or its log10) as height over two axes; squares with a missing corner are left out.

    Raises:
        JobError: the surface has another number of axes, or no such observable.
        LandscapeError: no square has all its corners yet, or meshio is not installed.
    """
    observable = request.observable
    check_stl_axes(surface.name, len(surface.axes))
    log = bool(request.log)  # a relief to print is as high as its values, unless asked for otherwise
    states = point_states(np.asarray(surface[observable], np.float64), surface.status, log)
    height = drawn_values(np.asarray(surface[observable], np.float64), states, log)
    points, triangles = triangulated(surface.alpha, surface.beta, height)
    if not len(triangles):
        raise LandscapeError(
            f"stl: {shown(surface.name)} has no square of computed {observable} yet; compute more of it first"
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
        raise LandscapeError("vtk and stl need the package meshio; `pip install meshio`") from None
    return meshio
