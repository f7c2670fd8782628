"""Imports surfaces of other software from files as landscapes of a run, all of them or none."""

from __future__ import annotations

import csv
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from landscape import __version__
from landscape.core.errors import JobError, LandscapeError, NotFoundError, message_of, nearest, quoted
from landscape.core.files import Place
from landscape.core.folders import open_folder
from landscape.core.grid import tile_counts
from landscape.core.lock import run_lock
from landscape.core.validation import LONGEST_LANDSCAPE_NAME
from landscape.model.mindspore_files import is_event_file, is_summary_folder
from landscape.store.commit import move_landscape, write_synced
from landscape.store.documents import FOLDER
from landscape.store.format import NewArrays
from landscape.store.import_arrays import ArrayPlaces, Maker, axis_names, read_npy, read_npz
from landscape.store.import_surface import MOST_POINTS, ImportedSurface, NoSurfaceError, make_surface, refused
from landscape.store.landscape import LandscapeStore
from landscape.store.results import refuse_taken, staged_name
from landscape.store.runs import Move, refuse_unwritable, survey, write_error
from landscape.surface.record import Record
from landscape.surface.record_parts import ImportRecord, ProgressRecord, Provenance
from landscape.surface.surface import NOT_COMPUTED, OK

# ----------------------------------------------------------------------------------------------------
# The HDF5 files of `loss-landscape` by Li et al. (2018): coordinates, losses and accuracies, -1 where not computed.

MISSING = -1.0
KIND = "HDF5 of loss-landscape"


def read_hdf(file: Path, places: ArrayPlaces) -> ImportedSurface:
    """The surface in an HDF5 file with `xcoordinates`, `ycoordinates` if it has two axes, and `train_loss`.

    `train_loss` becomes `loss`; all other arrays of its shape keep their names and values (accuracies are in percent).

    Raises:
        JobError: h5py is not installed.
        NoSurfaceError: the file holds something else, or is damaged.
    """
    places.refuse_needless("holds its coordinates")
    try:
        import h5py
    except ImportError:
        raise JobError("HDF5 files need the package h5py; `pip install 'loss-landscape-cluster[h5]'`") from None
    try:
        with h5py.File(file, "r") as opened:
            return _surface_of_hdf(opened, h5py)
    except NoSurfaceError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise NoSurfaceError(f"is no HDF5 file, or is damaged: {message_of(error, 150)}") from None


def _surface_of_hdf(opened: Any, h5py: Any) -> ImportedSurface:
    # Do not follow links into other files: the author of the file would decide what is read on this machine.
    names = [name for name in opened if isinstance(opened.get(name, getlink=True), h5py.HardLink)]
    arrays = {name: opened[name] for name in names if isinstance(opened[name], h5py.Dataset)}
    if "xcoordinates" not in arrays:
        remedy = nearest("xcoordinates", sorted(arrays))
        raise NoSurfaceError(f"has no array xcoordinates, as surfaces of loss-landscape have; {remedy}")
    axes = [_read(name, arrays[name]) for name in ("xcoordinates", "ycoordinates") if name in arrays]
    shape = tuple(len(axis) for axis in axes)
    values = {
        name: _read(name, array)
        for name, array in arrays.items()
        if name not in ("xcoordinates", "ycoordinates") and array.dtype.kind in "fiu" and array.ndim
    }
    for name, array in values.items():
        if array.shape != shape:
            raise NoSurfaceError(
                f"{name!r} has shape {list(array.shape)}, its coordinates make {list(shape)}; they must agree"
            )
    # loss-landscape makes the array [x, y] and fills it in the order of numpy's meshgrid, where x runs fastest.
    transposed = {name: array.ravel().reshape(tuple(reversed(shape))) for name, array in values.items()}
    return make_surface(KIND, axes, transposed, missing=MISSING)


def _read(name: str, array: Any) -> Any:
    """The values of a dataset. Its size is checked first: a small file may declare any number of values."""
    if array.size is None or array.size > MOST_POINTS or array.dtype.kind not in "fiu":
        raise NoSurfaceError(f"{name!r} must be at most {MOST_POINTS} numbers, not {array.size} of {array.dtype}")
    if array.external or array.is_virtual:
        raise NoSurfaceError(f"{name!r} lies in another file, which is not read; copy the values into one file")
    return array[()]


# ----------------------------------------------------------------------------------------------------
# The values of an imported landscape, written at once.

TILE = {1: 4096, 2: 256, 3: 32}  # points per axis of a tile, by the number of axes


def write_imported(run: Place, name: str, surface: ImportedSurface, record: Record) -> None:
    """Write a landscape under the lock of the run; readers find it once all its values are written.

    Raises:
        LandscapeError: its folder is not empty.
        OSError: the run cannot be written.
    """
    from landscape.model.parameters import direction_digest  # needs torch

    folder, staged, grid = open_folder(run), staged_name(name), surface.grid
    if folder.folders(f"{FOLDER}/{staged}"):
        move_landscape(folder, Move(staged))  # left by an import that was killed
    digest = direction_digest({})  # an imported landscape has no directions
    labels = [*surface.labels, *[""] * len(grid.names)]
    axes: list[dict[str, Any]] = [
        {"kind": "imported", "label": label, "digest": digest} for label in labels[: len(grid.names)]
    ]
    for axis, norm in zip(axes, surface.norms, strict=False):
        axis["norm"] = norm
    tile = tuple(min(size, TILE[len(grid.shape)]) for size in grid.shape)
    plan = surface.path[0] if surface.path else None
    new = NewArrays(grid, tile, tuple(surface.observables), axes, [{} for _ in grid.names], [], plan)
    store = LandscapeStore.create(folder, staged, new, record)
    for index in np.ndindex(tile_counts(grid.shape, tile)):
        at = store.tile(index)
        unknown = np.full(at.shape, math.nan)
        values = {array: surface.values[array][at.windows] for array in surface.values}
        write_synced(store.arrays, [(name, index, values.get(name, unknown)) for name in store.arrays.value_names])
        write_synced(store.arrays, [("status", index, surface.status[at.windows])])
    if surface.path is not None:
        _, loss, projected = surface.path
        losses = {"path_projected_loss": projected} | ({} if loss is None else {"path_loss": loss})
        for start in range(0, len(projected), store.path_chunk):
            window = slice(start, min(start + store.path_chunk, len(projected)))
            store.write_path(window, {name: values[window] for name, values in losses.items()})
    move_landscape(folder, Move(staged, name))


# ----------------------------------------------------------------------------------------------------
# A long table in CSV: a row per point, with its coordinates, its loss and further observables.

LONGEST_LINE = 1 << 16
MOST_COLUMNS = 1000


def read_table(file: Path, places: ArrayPlaces) -> ImportedSurface:
    """The surface in a CSV file with the columns `alpha`, `beta`, … or `x`, `y`, …, and `loss`, in any order of rows.

    Raises:
        NoSurfaceError: the file holds something else; the message names the line.
    """
    places.refuse_needless("holds its coordinates")
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            names, rows = _numbers(opened)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise NoSurfaceError(f"is no table of text: {message_of(error, 150)}") from None
    if axes := axis_names(names):
        return _surface_of_table(names, rows, axes)
    raise NoSurfaceError(f"has no columns alpha and beta, or x and y; its first line names {quoted(names)}")


def _numbers(opened: Any) -> tuple[list[str], Any]:
    reader = csv.reader(iter(lambda: opened.readline(LONGEST_LINE), ""))
    names = [name.strip() for name in next(reader, [])]
    if not names:
        raise NoSurfaceError("is empty")
    if len(names) > MOST_COLUMNS or len(set(names)) != len(names):
        raise NoSurfaceError(f"must name up to {MOST_COLUMNS} different columns in its first line, not {quoted(names)}")
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
            raise NoSurfaceError(f"line {reader.line_num} must hold numbers, not {quoted(row)}") from None
        if len(rows) > MOST_POINTS // 4:
            raise NoSurfaceError(f"must have at most {MOST_POINTS // 4} rows; save such a surface as NPZ")
    if not rows:
        raise NoSurfaceError("has no rows below its first line")
    return names, np.array(rows, np.float64)


def _surface_of_table(names: list[str], rows: Any, axes: list[str]) -> ImportedSurface:
    columns = {name: rows[:, k] for k, name in enumerate(names)}
    for axis in axes:
        if not np.isfinite(columns[axis]).all():
            raise NoSurfaceError(f"column {axis} must hold finite numbers")
    coordinates, places = zip(*(np.unique(columns[axis], return_inverse=True) for axis in axes), strict=True)
    shape = tuple(len(values) for values in reversed(coordinates))
    count = int(np.prod(shape, dtype=object))
    if count > MOST_POINTS or len(set(zip(*(place.tolist() for place in places), strict=True))) < len(rows):
        fault = "several rows for one point" if count <= MOST_POINTS else f"{len(rows)} rows and {count} crossings"
        raise NoSurfaceError(f"must have one row per point of a grid, not {fault}")
    if count != len(rows):
        sizes = " × ".join(str(len(values)) for values in coordinates)
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


# ----------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path, ArrayPlaces], ImportedSurface]] = {
    ".h5": read_hdf, ".hdf5": read_hdf, ".npz": read_npz, ".npy": read_npy, ".csv": read_table,
}  # fmt: skip
LARGEST_FILE = 4 << 30


def import_surface(
    file: str | Path,
    run: str | Path,
    name: str | None = None,
    *,
    range: Sequence[tuple[float, float]] = (),
    made_by: Maker | None = None,
    distance: float | None = None,
) -> str:
    """Import a surface of other software as a landscape of a run, for all views, exports and the page.

    It reads HDF5 files of `loss-landscape` by Li et al. (where -1 means not computed), NPZ files with `loss` and its
    coordinates (`alpha`, `beta` or `x`, `y`; the last axis first), Landscaper's NPZ files, arrays that functions of
    `loss-landscapes` returned (NPY, or NPZ without coordinates), CSV files with a row per point, and files from
    `landscape export --to csv,npz`. No job resumes such a landscape.

    Args:
        file: its suffix names its format: .h5, .hdf5, .npz, .npy or .csv.
        run: the run's folder or URL, which is made if it does not exist.
        name: of the landscape; default: made from the name of the file.
        range, made_by, distance: where the points of arrays without coordinates lie, see `ArrayPlaces`.

    Returns:
        The name of the landscape.

    Raises:
        NotFoundError: there is no such file.
        JobError: the file holds no surface, or the name is taken; nothing is written then.
        LandscapeError: a driver writes the run, or it cannot be written.

    Example:
        >>> import numpy
        >>> from landscape import open_run
        >>> x, y = numpy.linspace(-1, 1, 5), numpy.linspace(-1, 1, 3)
        >>> numpy.savez("bowl.npz", x=x, y=y, loss=x[None, :] ** 2 + y[:, None] ** 2)
        >>> import_surface("bowl.npz", "runs/imported")
        'bowl'
        >>> open_run("runs/imported")["bowl"].loss.shape
        (3, 5)
    """
    return import_surfaces([file], run, name, ArrayPlaces(range, made_by, distance))[0]


def import_surfaces(
    files: Sequence[str | Path], run: str | Path, name: str | None = None, places: ArrayPlaces | None = None
) -> list[str]:
    """Import the surfaces in several files as landscapes of a run: all of them, or none if one cannot be read.

    Raises:
        NotFoundError, JobError, LandscapeError: as in `import_surface`.
    """
    places = places or ArrayPlaces()
    if name is not None and len(files) != 1:
        raise JobError(f"name: must not be given for {len(files)} files; each is named by its file")
    path = open_folder(run).name
    refuse_unwritable(path)
    names = [name or name_of(Path(file)) for file in files]
    for number, new in enumerate(names):
        if new.lower() in (other.lower() for other in names[:number]):
            raise JobError(f"name: several files would make landscapes called {quoted(new)}; import them one by one")
        refuse_taken(path, new)
    surfaces = [read_surface_file(Path(file), places) for file in files]
    records = [_record(Path(file), surface) for file, surface in zip(files, surfaces, strict=True)]
    try:
        with run_lock(path):
            for new in names:
                refuse_taken(path, new)
            for new, surface, record in zip(names, surfaces, records, strict=True):
                positions = (summary.record.position or 0 for summary in survey(path).readable.values())
                write_imported(path, new, surface, record.changed(position=1 + max(positions, default=-1)))
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(path, error) from error
    return names


def read_surface_file(file: Path, places: ArrayPlaces) -> ImportedSurface:
    """Read the surface in a file, whose suffix names its format.

    Raises:
        NotFoundError: there is no such file.
        JobError: its format is unknown, or it holds no surface.
    """
    reader = READERS.get(file.suffix.lower())
    if not file.exists():
        raise NotFoundError(f"file {quoted(str(file), 300)} does not exist")
    if is_event_file(file) or (file.is_dir() and is_summary_folder(file)):
        folder = file if file.is_dir() else file.parent
        raise refused(
            str(file), f"is of MindSpore; `landscape import-mindspore {quoted(str(folder))} --run RUN` imports it"
        )
    if not file.is_file():
        raise refused(str(file), "must be a file")
    if reader is None:
        raise refused(
            str(file),
            f"its ending must say its format, not {quoted(file.suffix)}; {nearest(file.suffix, READERS)}",
        )
    if not 0 < file.stat().st_size <= LARGEST_FILE:
        raise refused(str(file), "is empty" if not file.stat().st_size else f"must be at most {LARGEST_FILE >> 30} GiB")
    try:
        return reader(file, places)
    except NoSurfaceError as error:
        raise refused(str(file), error) from None


def name_of(file: Path) -> str:
    """The name of a landscape made from that of a file; characters that a name cannot have become a '-'.

    >>> name_of(Path("res net_[-1.0,1.0,51].h5"))
    'res-net_-1.0-1.0-51'
    """
    plain = re.sub(r"[^0-9A-Za-z._-]+", "-", file.stem)
    plain = re.sub(r"-{2,}", "-", plain)[:LONGEST_LANDSCAPE_NAME].strip("-._")
    return plain or "surface"


def _record(file: Path, surface: ImportedSurface) -> Record:
    with file.open("rb") as opened:
        content = hashlib.file_digest(opened, "sha256").hexdigest()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    points, points_done = surface.status.size, int((surface.status != NOT_COMPUTED).sum())
    record = Record().changed(
        imported=ImportRecord(file=file.name, format=surface.kind, digest=content),
        observables=list(surface.observables), provenance=Provenance(created=now, versions={"landscape": __version__}),
        failures=[], origin_loss=_at_origin(surface, "loss"), origin_loss_stderr=_at_origin(surface, "loss_stderr"),
        progress=ProgressRecord(
            state="complete" if points_done == points else "partial", points=points, points_done=points_done,
            updated=now,
        ),
    )  # fmt: skip
    return record.changed(**surface.means)


def _at_origin(surface: ImportedSurface, name: str) -> float | None:
    """The value at the point whose coordinates are all zero; None if there is no such point, or it has no value."""
    places = [(axis == 0).nonzero()[0] for axis in surface.grid.coordinates]
    if name not in surface.values or any(len(place) == 0 for place in places):
        return None
    index = tuple(int(place[0]) for place in reversed(places))
    value = float(surface.values[name][index])
    return value if value == value and surface.status[index] == OK else None
