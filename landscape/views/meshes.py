"""A surface as geometry: VTK with every array on the grid, STL as a relief to look at or to print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.errors import JobError, LandscapeError, shown
from landscape.surface import Surface
from landscape.views.scale import drawn_values, point_states

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
    data["status"] = surface.status.ravel().astype(np.int32)
    mesh = meshio.Mesh(grid_points(surface), [(CELLS[len(surface.axes)], grid_cells(surface.status.shape))], data)
    meshio.write(path, mesh, file_format="vtk")


def write_stl(surface: Surface, path: Path, observable: str = "loss", log: bool = False) -> None:
    """A relief over two axes, the observable (or its log10) as height; squares with a missing corner are left out."""
    if len(surface.axes) != 2:
        raise JobError(f"format: stl needs 2 axes, {shown(surface.name)} has {len(surface.axes)}; use vtk")
    states = point_states(np.asarray(surface[observable], np.float64), surface.status, log)
    height = drawn_values(np.asarray(surface[observable], np.float64), states, log)
    points, triangles = relief(surface.alpha, surface.beta, height)
    if not len(triangles):
        raise LandscapeError(
            f"stl: {shown(surface.name)} has no square of computed {observable} yet; compute more of it first"
        )
    meshio = _meshio()
    meshio.write(path, meshio.Mesh(points, [("triangle", triangles)]), file_format="stl", binary=True)


def grid_points(surface: Surface) -> Floats:
    """[points, 3] with alpha fastest; axes that are not there are 0."""
    mesh = np.meshgrid(*(axis.coordinates for axis in reversed(surface.axes)), indexing="ij")
    columns = [each.ravel() for each in reversed(mesh)]
    columns += [np.zeros(columns[0].shape)] * (3 - len(columns))
    return np.stack(columns, axis=1)


def grid_cells(shape: tuple[int, ...]) -> Indices:
    """Corner numbers of every cell, in VTK's order: around the bottom, then around the top."""
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    if len(shape) == 1:
        return np.stack([numbers[:-1], numbers[1:]], axis=1)
    if len(shape) == 2:
        around = [numbers[:-1, :-1], numbers[:-1, 1:], numbers[1:, 1:], numbers[1:, :-1]]
    else:
        low, high = numbers[:-1], numbers[1:]
        around = [layer[:, rows, columns] for layer in (low, high) for rows, columns in _square()]
    return np.stack([each.ravel() for each in around], axis=1)


def _square() -> list[tuple[slice, slice]]:
    near, far = slice(None, -1), slice(1, None)
    return [(near, near), (near, far), (far, far), (far, near)]


def relief(alpha: Floats, beta: Floats, height: Floats) -> tuple[Floats, Indices]:
    """Points and triangles, counter-clockwise from above, of the squares whose four corners are finite."""
    quads = grid_cells(height.shape)
    quads = quads[np.isfinite(height.ravel()[quads]).all(axis=1)]
    triangles = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    used, index = np.unique(triangles, return_inverse=True)
    y, x = np.meshgrid(beta, alpha, indexing="ij")
    points = np.stack([x.ravel(), y.ravel(), height.ravel()], axis=1)[used]
    return points, index.reshape(-1, 3)


def _meshio() -> Any:
    try:
        import meshio
    except ImportError:
        raise LandscapeError("vtk and stl need the package meshio; `pip install meshio`") from None
    return meshio
