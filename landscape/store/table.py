"""A long table in CSV: a row per point, with its coordinates, its loss and further observables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from landscape.core.errors import message_of, shown
from landscape.store.import_surface import MOST_POINTS, ImportedSurface, NoSurfaceError, make_surface
from landscape.store.npz import COORDINATES

LONGEST_LINE = 1 << 16
MOST_COLUMNS = 1000


def read_table(file: Path) -> ImportedSurface:
    """The surface in a CSV file with the columns `alpha`, `beta`, … or `x`, `y`, …, and `loss`, in any order of rows.

    Raises:
        NoSurfaceError: the file holds something else; the message names the line.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            names, rows = _numbers(opened)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise NoSurfaceError(f"is no table of text: {message_of(error, 150)}") from None
    for known in COORDINATES:
        axes = [name for name in known if name in names]
        if axes and tuple(axes) == known[: len(axes)]:
            return _surface(names, rows, axes)
    raise NoSurfaceError(f"has no columns alpha and beta, or x and y; its first line names {shown(names)}")


def _numbers(opened: Any) -> tuple[list[str], Any]:
    reader = csv.reader(iter(lambda: opened.readline(LONGEST_LINE), ""))
    names = [name.strip() for name in next(reader, [])]
    if not names:
        raise NoSurfaceError("is empty")
    if len(names) > MOST_COLUMNS or len(set(names)) != len(names):
        raise NoSurfaceError(f"must name up to {MOST_COLUMNS} different columns in its first line, not {shown(names)}")
    rows: list[list[float]] = []
    for row in reader:
        if not row:
            continue
        if len(row) != len(names):
            raise NoSurfaceError(
                f"line {reader.line_num} has {len(row)} values, the first line names {len(names)} columns"
            )
        try:
            rows.append(list(map(float, row)))
        except ValueError:
            raise NoSurfaceError(f"line {reader.line_num} must hold numbers, not {shown(row)}") from None
        if len(rows) > MOST_POINTS // 4:
            raise NoSurfaceError(f"must have at most {MOST_POINTS // 4} rows; save such a surface as NPZ")
    if not rows:
        raise NoSurfaceError("has no rows below its first line")
    return names, np.array(rows, np.float64)


def _surface(names: list[str], rows: Any, axes: list[str]) -> ImportedSurface:
    columns = {name: rows[:, k] for k, name in enumerate(names)}
    for axis in axes:
        if not np.isfinite(columns[axis]).all():
            raise NoSurfaceError(f"column {axis} must hold finite numbers")
    split = [np.unique(columns[axis], return_inverse=True) for axis in axes]
    coordinates, places = [each[0] for each in split], [each[1] for each in split]
    shape = tuple(len(each) for each in reversed(coordinates))
    count = int(np.prod(shape, dtype=object))
    if count > MOST_POINTS or len(set(zip(*(place.tolist() for place in places), strict=True))) < len(rows):
        what = "several rows for one point" if count <= MOST_POINTS else f"{len(rows)} rows and {count} crossings"
        raise NoSurfaceError(f"must have one row per point of a grid, not {what}")
    if count != len(rows):
        sizes = " × ".join(str(len(each)) for each in coordinates)
        raise NoSurfaceError(
            f"is no whole grid: {len(rows)} rows, but {sizes} different coordinates make {count} points; add the others"
            ", with nan as their loss"
        )
    index = tuple(reversed(places))
    arrays = {}
    for name, column in columns.items():
        if name not in axes:
            arrays[name] = np.empty(shape)
            arrays[name][index] = column
    status = arrays.pop("status", None)
    return make_surface("CSV", coordinates, arrays, status)
