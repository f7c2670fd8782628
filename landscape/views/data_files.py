"""A surface as plain data: a long table in CSV, or named arrays in NPZ."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, LandscapeError, quoted
from landscape.core.grid import Floats
from landscape.surface.record import plain
from landscape.surface.surface import STATUS_NAMES, ProjectedPath, Surface
from landscape.views.export_files import ExportRequest, Writer, whole_file
from landscape.views.prepare.geometry import grid_cells, triangulated
from landscape.views.prepare.scale import drawn_values, point_states


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

    Of several runs the columns `run`, `unit` and `number` say first which it is. `distance` is the Euclidean distance
    between the two in weight space; `status` is as in the surface's table.
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
    """A table of texts, the header first, whole or not at all; returns its path."""
    with whole_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def points_of(surface: Surface) -> dict[str, np.ndarray]:
    """What is said of each point beside its values: its status and, where levels are merged, how it is interpolated."""
    merged = {} if surface.interpolated is None else {"interpolated": surface.interpolated}
    return {"status": surface.status, **merged}


def path_file(table: Path) -> Path:
    """The file for the path beside a surface's table; its '+' is in no landscape's name, so it overwrites no table."""
    return table.with_name(f"{table.stem}+path{table.suffix}")


def write_columns(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Arrays of one size as columns of a table, under their names, row by row of their flat order."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(values.ravel().tolist() for values in columns.values()), strict=True))


def write_npz(surface: Surface, path: Path) -> None:
    """Coordinates, observables, status, the path as `path_*`, and `metadata`: JSON in a string. Needs no pickle.

    Of several runs, `path_run` is the place of each snapshot's run in the list `path_runs` of the metadata.
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
    with path.open("wb") as file:  # a file, since numpy would add .npz to a name of its own
        np.savez_compressed(file, allow_pickle=False, **arrays)


# ----------------------------------------------------------------------------------------------------
# A surface as geometry: VTK with every array on the grid, STL as a height field to look at or to print.

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
        raise JobError(f"format: stl needs 2 axes, {quoted(name)} has {axes}; use vtk")


def render_stl(surface: Surface, request: ExportRequest) -> Writer:
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
        raise LandscapeError("vtk and stl need the package meshio; `pip install meshio`") from None
    return meshio
