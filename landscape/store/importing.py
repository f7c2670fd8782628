"""Files of surfaces made landscapes of a run, all of them or none."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from landscape import __version__
from landscape.core.errors import JobError, LandscapeError, NotFoundError, nearest, shown
from landscape.core.folders import open_folder
from landscape.core.lock import run_lock
from landscape.core.validation import LONGEST_LANDSCAPE_NAME
from landscape.store import ImportedValues, refuse_unwritable, survey, write_error, write_imported
from landscape.store.hdf import read_hdf
from landscape.store.import_surface import ImportedSurface, NoSurfaceError, refused
from landscape.store.npz import read_npz
from landscape.store.rename import refuse_taken
from landscape.store.table import read_table
from landscape.surface.record import Record
from landscape.surface.record_parts import ImportRecord, ProgressRecord, Provenance
from landscape.surface.surface import NOT_COMPUTED, OK

READERS: dict[str, Callable[[Path], ImportedSurface]] = {
    ".h5": read_hdf, ".hdf5": read_hdf, ".npz": read_npz, ".csv": read_table,
}  # fmt: skip
LARGEST_FILE = 4 << 30


def import_surface(file: str | Path, run: str | Path, name: str | None = None) -> str:
    """Make a surface that other software computed a landscape of a run, which all views, exports and the page take.

    Read are HDF5 files of Li et al.'s `loss-landscape` (points that they mark by -1 count as not computed), NPZ files
    with `loss` and its coordinates (`alpha`, `beta` or `x`, `y`; the last axis first), Landscaper's NPZ files, CSV
    files with a row per point, and what `landscape export --to csv,npz` writes. No job goes on with such a landscape.

    Args:
        file: its ending says its format: .h5, .hdf5, .npz or .csv.
        run: the run's folder or URL; it is made if need be.
        name: that of the landscape; default: made of the file's name.

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
    """Make the surfaces in several files landscapes of a run: all of them, or none where one cannot be read.

    Raises:
        NotFoundError, JobError, LandscapeError: as `import_surface` has them.
    """
    if name is not None and len(files) != 1:
        raise JobError(f"name: must not be given for {len(files)} files; each is named by its file")
    path = open_folder(run).name
    refuse_unwritable(path)
    names = [name or name_of(Path(file)) for file in files]
    for number, each in enumerate(names):
        if each.lower() in (other.lower() for other in names[:number]):
            raise JobError(f"name: several files would make landscapes called {shown(each)}; import them one by one")
        refuse_taken(path, each)
    surfaces = [read_surface_file(Path(file)) for file in files]
    records = [_record(Path(file), surface) for file, surface in zip(files, surfaces, strict=True)]
    try:
        with run_lock(path):
            for each in names:
                refuse_taken(path, each)
            for each, surface, record in zip(names, surfaces, records, strict=True):
                values = ImportedValues(
                    surface.grid, surface.observables, surface.values, surface.status, surface.labels, surface.path
                )
                position = 1 + max((known.record.position or 0 for known in survey(path).readable.values()), default=-1)
                write_imported(path, each, values, record.changed(position=position))
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(path, error) from error
    return names


def read_surface_file(file: Path) -> ImportedSurface:
    """The surface in a file, by the file's ending.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is of no known format, or holds no surface.
    """
    reader = READERS.get(file.suffix.lower())
    if not file.exists():
        raise NotFoundError(f"file {shown(str(file), 300)} does not exist")
    if not file.is_file():
        raise refused(str(file), "must be a file")
    if reader is None:
        raise refused(
            str(file), f"its ending must say its format, not {shown(file.suffix)}; {nearest(file.suffix, READERS)}"
        )
    if not 0 < file.stat().st_size <= LARGEST_FILE:
        raise refused(str(file), "is empty" if not file.stat().st_size else f"must be at most {LARGEST_FILE >> 30} GiB")
    try:
        return reader(file)
    except NoSurfaceError as error:
        raise refused(str(file), error) from None


def name_of(file: Path) -> str:
    """The name of a landscape made of that of a file: what a name cannot have becomes a '-'.

    >>> name_of(Path("res net_[-1.0,1.0,51].h5"))
    'res-net_-1.0-1.0-51'
    """
    plain = re.sub(r"[^0-9A-Za-z._-]+", "-", file.stem)
    plain = re.sub(r"-{2,}", "-", plain)[:LONGEST_LANDSCAPE_NAME].strip("-._")
    return plain or "surface"


def _record(file: Path, surface: ImportedSurface) -> Record:
    """What the document of the landscape says, beside its arrays."""
    with file.open("rb") as opened:
        content = hashlib.file_digest(opened, "sha256").hexdigest()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    points, done = surface.status.size, int((surface.status != NOT_COMPUTED).sum())
    record = Record().changed(
        imported=ImportRecord(file=file.name, format=surface.kind, digest=content),
        observables=list(surface.observables), provenance=Provenance(created=now, versions={"landscape": __version__}),
        failures=[], origin_loss=_at_origin(surface, "loss"), origin_loss_stderr=_at_origin(surface, "loss_stderr"),
        progress=ProgressRecord(
            state="complete" if (surface.status == OK).all() or done == points else "partial",
            points=points, points_done=done, updated=now,
        ),
    )  # fmt: skip
    return record.changed(**surface.means)


def _at_origin(surface: ImportedSurface, name: str) -> float | None:
    """The value where all coordinates are zero; None where the grid has no such point, or no such value there."""
    places = [(axis == 0).nonzero()[0] for axis in surface.grid.coordinates]
    if name not in surface.values or any(len(place) == 0 for place in places):
        return None
    index = tuple(int(place[0]) for place in reversed(places))
    value = float(surface.values[name][index])
    return value if value == value and surface.status[index] == OK else None
