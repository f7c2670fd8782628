"""A surface as plain data: a long table in CSV, or named arrays in NPZ."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from landscape.surface.record import plain
from landscape.surface.surface import STATUS_NAMES, ProjectedPath, Surface
from landscape.views.files import whole_file


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
