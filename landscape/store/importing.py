"""Imports surfaces of other software from files as landscapes of a run, all of them or none."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from landscape import __version__
from landscape.core.errors import JobError, LandscapeError, NotFoundError, message_of, nearest, quoted
from landscape.core.files import Place
from landscape.core.folders import open_folder
from landscape.core.grid import AXIS_NAMES, Floats, tile_counts
from landscape.core.lock import run_lock
from landscape.core.validation import LONGEST_LANDSCAPE_NAME
from landscape.model.mindspore_files import is_event_file, is_summary_folder
from landscape.store.commit import move_landscape, write_synced
from landscape.store.documents import FOLDER
from landscape.store.format import NewArrays, PathPlan
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


def read_hdf(file: Path) -> ImportedSurface:
    """The surface in an HDF5 file with `xcoordinates`, `ycoordinates` if it has two axes, and `train_loss`.

    `train_loss` becomes `loss`; all other arrays of its shape keep their names and values (accuracies are in percent).

    Raises:
        JobError: h5py is not installed.
        NoSurfaceError: the file holds something else, or is damaged.
    """
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
# Arrays in NPZ: our own export, Landscaper's files, and any with a loss and its coordinates. Nothing is unpickled.

MOST_ARRAYS = 1000
LONGEST_TEXT = 64 << 20  # bytes of the metadata of our own export
COORDINATES = (AXIS_NAMES, ("x", "y", "z"), ("xcoordinates", "ycoordinates", "zcoordinates"))
MEANS = ("num_samples", "weighted", "terms", "derived")  # fields of a record that describe its means
Arrays = Mapping[str, NDArray[Any]]


def read_npz(file: Path) -> ImportedSurface:
    """The surface in an NPZ file: `loss` (last axis first), `alpha`, `beta`, … or `x`, `y`, …, and further observables.

    Landscaper's files, with `loss` and `coordinates`, are read if they have one or two axes.

    Raises:
        NoSurfaceError: the file holds something else, or pickled objects, or is damaged.
    """
    try:
        arrays = _arrays(file)
    except NoSurfaceError:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, KeyError, RuntimeError) as error:
        raise NoSurfaceError(f"is no NPZ file, or is damaged: {message_of(error, 150)}") from None
    if "coordinates" in arrays and "loss" in arrays:
        return _surface_of_landscaper(arrays)
    if axes := _axis_names(arrays):
        return _surface_of_npz(arrays, axes)
    raise NoSurfaceError(
        f"has no coordinates; its arrays must include alpha and beta, or x and y, not only {quoted(sorted(arrays))}"
    )


def _axis_names(names: Container[str]) -> list[str]:
    """The names of the coordinates among those of the arrays or columns of a file; empty if there are none."""
    for known in COORDINATES:
        axes = [name for name in known if name in names]
        if axes and tuple(axes) == known[: len(axes)]:
            return axes
    return []


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MOST_ARRAYS:
            raise NoSurfaceError(f"must hold at most {MOST_ARRAYS} arrays, not {len(members)}")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name != member.filename:
                with archive.open(member) as opened:
                    arrays[name] = _array(name, opened)
    return arrays


def _array(name: str, opened: Any) -> NDArray[Any]:
    """An array. Its size and type are checked first: a small archive may declare any number of bytes."""
    version = npy.read_magic(opened)
    if version not in ((1, 0), (2, 0)):
        raise NoSurfaceError(f"{name!r} is of a version of numpy's format that no plain array needs")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_column, dtype = read_header(opened)
    if dtype.hasobject:
        raise NoSurfaceError(f"{name!r} holds pickled objects, which may run code and are not read; save plain arrays")
    count = int(np.prod(shape, dtype=object))
    if (
        count > MOST_POINTS
        or (dtype.kind in "US" and count * dtype.itemsize > LONGEST_TEXT)
        or dtype.itemsize > LONGEST_TEXT
    ):
        raise NoSurfaceError(f"{name!r} must be at most {MOST_POINTS} numbers, not {count} of {dtype}")
    expected = count * dtype.itemsize
    data = opened.read(expected + 1)
    if len(data) != expected:
        raise NoSurfaceError(
            f"{name!r} promises {expected} bytes and holds {'more' if len(data) > expected else len(data)}"
        )
    return np.frombuffer(data, dtype).reshape(shape, order="F" if by_column else "C")


def _surface_of_landscaper(arrays: Arrays) -> ImportedSurface:
    coordinates, loss = arrays["coordinates"], arrays["loss"]
    if coordinates.ndim != 2 or len(coordinates) > 2:
        raise NoSurfaceError(
            f"of Landscaper's surfaces those of one or two axes are read, not coordinates of {list(coordinates.shape)}"
        )
    others = {name: array for name, array in arrays.items() if array.shape == loss.shape and name != "coordinates"}
    return make_surface("NPZ of Landscaper", list(coordinates), others)


def _surface_of_npz(arrays: Arrays, axes: list[str]) -> ImportedSurface:
    metadata = _metadata(arrays)
    others = {*axes, "status", "metadata"}
    values = {name: array for name, array in arrays.items() if name not in others and not name.startswith("path_")}
    labels = [metadata.get("axes", {}).get(axis, {}).get("label", "") for axis in axes] if metadata else []
    record = Record.of({name: value for name, value in metadata.get("attributes", {}).items() if name in MEANS})
    return make_surface(
        "NPZ of this software" if metadata else "NPZ", [arrays[axis] for axis in axes], values, arrays.get("status"),
        labels=[label if isinstance(label, str) else "" for label in labels],
        means={name: getattr(record, name) for name in MEANS if record.states(name)},
        path=_path(arrays, axes, metadata.get("path_unit")),
    )  # fmt: skip


def _metadata(arrays: Arrays) -> dict[str, Any]:
    """The metadata of our own export; empty if other software wrote the file."""
    text = arrays.get("metadata")
    if text is None or text.dtype.kind != "U" or text.ndim:
        return {}
    try:
        metadata = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(metadata, dict) or not isinstance(metadata.get("attributes"), dict):
        return {}
    axes = metadata.get("axes")
    return metadata if isinstance(axes, dict) and all(isinstance(axis, dict) for axis in axes.values()) else {}


def _path(arrays: Arrays, axes: list[str], unit: Any) -> tuple[PathPlan, Floats, Floats] | None:
    names = [f"path_{name}" for name in ("step", *axes, "distance", "loss", "projected_loss")]
    if any(name not in arrays for name in names) or (arrays.get("path_status", np.ones(1)) == 0).any():
        return None  # also if some snapshots were not computed: they would look like diverged ones
    count = len(arrays["path_step"]) if arrays["path_step"].ndim == 1 else 0
    if not count or any(arrays[name].shape != (count,) or arrays[name].dtype.kind not in "fiu" for name in names):
        raise NoSurfaceError("its path_* arrays must be rows of numbers of one length; leave them out, or mend them")
    steps, *places, distance, loss, projected = (arrays[name] for name in names)
    at = np.stack([np.asarray(place, np.float64) for place in places], axis=1)
    plan = PathPlan(
        unit if unit == "step" else "epoch", tuple(int(step) for step in steps), at, distance.astype(np.float64)
    )
    return plan, loss.astype(np.float64), projected.astype(np.float64)


# ----------------------------------------------------------------------------------------------------
# A long table in CSV: a row per point, with its coordinates, its loss and further observables.

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
    if axes := _axis_names(names):
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

READERS: dict[str, Callable[[Path], ImportedSurface]] = {
    ".h5": read_hdf, ".hdf5": read_hdf, ".npz": read_npz, ".csv": read_table,
}  # fmt: skip
LARGEST_FILE = 4 << 30


def import_surface(file: str | Path, run: str | Path, name: str | None = None) -> str:
    """Import a surface of other software as a landscape of a run, for all views, exports and the page.

    It reads HDF5 files of `loss-landscape` by Li et al. (where -1 means not computed), NPZ files with `loss` and its
    coordinates (`alpha`, `beta` or `x`, `y`; the last axis first), Landscaper's NPZ files, CSV files with a row per
    point, and files from `landscape export --to csv,npz`. No job resumes such a landscape.

    Args:
        file: its suffix names its format: .h5, .hdf5, .npz or .csv.
        run: the run's folder or URL, which is made if it does not exist.
        name: of the landscape; default: made from the name of the file.

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
    return import_surfaces([file], run, name)[0]


def import_surfaces(files: Sequence[str | Path], run: str | Path, name: str | None = None) -> list[str]:
    """Import the surfaces in several files as landscapes of a run: all of them, or none if one cannot be read.

    Raises:
        NotFoundError, JobError, LandscapeError: as in `import_surface`.
    """
    if name is not None and len(files) != 1:
        raise JobError(f"name: must not be given for {len(files)} files; each is named by its file")
    path = open_folder(run).name
    refuse_unwritable(path)
    names = [name or name_of(Path(file)) for file in files]
    for number, new in enumerate(names):
        if new.lower() in (other.lower() for other in names[:number]):
            raise JobError(f"name: several files would make landscapes called {quoted(new)}; import them one by one")
        refuse_taken(path, new)
    surfaces = [read_surface_file(Path(file)) for file in files]
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


def read_surface_file(file: Path) -> ImportedSurface:
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
        return reader(file)
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
