"""Reads surfaces from NPZ and NPY files: our own export, Landscaper's, and arrays that other software returned."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from landscape.core.errors import JobError, message_of, nearest, quoted
from landscape.core.grid import AXIS_NAMES, Floats
from landscape.store.format import PathPlan
from landscape.store.import_surface import LOSSES, MOST_POINTS, ImportedSurface, NoSurfaceError, make_surface
from landscape.surface.record import Record
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK

Arrays = Mapping[str, NDArray[Any]]

# ----------------------------------------------------------------------------------------------------
# The arrays of a file. Nothing is unpickled.

MOST_ARRAYS = 1000
LONGEST_TEXT = 64 << 20  # bytes of the metadata of our own export
DAMAGES = (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, KeyError, RuntimeError)


@contextmanager
def _naming_damage(format: str) -> Iterator[None]:
    try:
        yield
    except NoSurfaceError:
        raise
    except DAMAGES as error:
        raise NoSurfaceError(f"is no {format} file, or is damaged: {message_of(error, 150)}") from None


def _arrays(file: Path) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    with _naming_damage("NPZ"), zipfile.ZipFile(file) as archive:
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


# ----------------------------------------------------------------------------------------------------
# Arrays without coordinates: what made them, or their ends, says where their points lie.

LossLandscapes = Literal["random_line", "random_plane", "linear_interpolation", "planar_interpolation"]
Maker = Literal[LossLandscapes, "landscaper"]
PLANES = ("random_plane", "planar_interpolation")
DISTANCES = {"random_line": 0.1, "random_plane": 1.0}  # the defaults of these functions
TO_ENDS = ("towards the first end", "towards the second end")
RANDOM = "random direction, in lengths of the weights"


@dataclass(frozen=True)
class ArrayPlaces:
    """Where the points of arrays lie, if their file does not say so.

    Args:
        range: (low, high) of each axis, alpha first, or one pair for all axes; points are evenly spaced between them.
        made_by: the function of loss-landscapes that returned the array; or "landscaper", whose files report
            coordinates n/(n−1) times as far out as its `compute` evaluates n points: they are put where it does.
        distance: the argument of `random_line` and `random_plane`; default: theirs, 0.1 and 1.

    Raises:
        JobError: options do not fit each other.
    """

    range: Sequence[tuple[float, float]] = ()
    made_by: Maker | None = None
    distance: float | None = None

    def __post_init__(self) -> None:
        if self.made_by is not None and self.made_by not in MAKERS:
            raise JobError(
                f"made_by: must name what made the array, not {quoted(self.made_by)}; {nearest(self.made_by, MAKERS)}"
            )
        if self.range and self.made_by:
            raise JobError(f"range: must be left out with made_by={self.made_by}, which gives the coordinates")
        if self.distance is not None:
            if self.made_by not in DISTANCES:
                raise JobError("distance: must be left out but with made_by=random_line or made_by=random_plane")
            if not 0 < self.distance < float("inf"):
                raise JobError(f"distance: must be above 0, as loss-landscapes divides by it, not {self.distance}")

    def refuse_needless(self, holder: str) -> None:
        """Refuse options that would be ignored.

        Raises:
            NoSurfaceError: one of them is given.
        """
        for name in ("range", "made_by"):
            if getattr(self, name):
                raise NoSurfaceError(f"{holder}, so that {name} must be left out")


MAKERS: tuple[str, ...] = (*get_args(LossLandscapes), "landscaper")


def _surface_without_coordinates(arrays: Arrays, places: ArrayPlaces) -> ImportedSurface:
    """The surface of arrays as numpy saves them: one alone is the loss, of several one must be called so."""
    if len(arrays) == 1:
        arrays = {"loss": next(iter(arrays.values()))}
    loss_name = next((name for name in LOSSES if name in arrays), None)
    if loss_name is None:
        raise NoSurfaceError(f"has no loss; one of its arrays must be called {', '.join(LOSSES)}")
    shape = arrays[loss_name].shape
    alike = {name: array for name, array in arrays.items() if array.shape == shape and array.dtype.kind in "fiu"}
    if loss_name not in alike:
        raise NoSurfaceError(f"{quoted(loss_name)} must hold numbers, not {quoted(str(arrays[loss_name].dtype))}")
    if places.made_by is None:
        return make_surface("arrays", _evenly_spaced(places.range, shape), alike)
    if places.made_by == "landscaper":
        raise NoSurfaceError("made_by=landscaper is for its NPZ files, with the arrays loss and coordinates")
    dimensions = 2 if places.made_by in PLANES else 1
    if len(shape) != dimensions or len(set(shape)) != 1:
        wanted = "[steps, steps]" if dimensions == 2 else "[steps]"
        raise NoSurfaceError(f"made_by={places.made_by} returns losses of {wanted}, not of {quoted(list(shape))}")
    make = _plane_of_loss_landscapes if dimensions == 2 else _line_of_loss_landscapes
    return make(f"{places.made_by} of loss-landscapes", alike, alike[loss_name], places)


def _evenly_spaced(ranges: Sequence[tuple[float, float]], shape: tuple[int, ...]) -> list[Floats]:
    pairs = list(ranges) * len(shape) if len(ranges) == 1 else list(ranges)
    if len(pairs) != len(shape) or not all(low < high for low, high in pairs):
        raise NoSurfaceError(
            f"range must be LOW,HIGH for all axes, or for each of {len(shape)}, not {quoted([list(p) for p in ranges])}"
        )
    return [np.linspace(low, high, size) for (low, high), size in zip(pairs, reversed(shape), strict=True)]


def _line_of_loss_landscapes(kind: str, arrays: Arrays, loss: Floats, places: ArrayPlaces) -> ImportedSurface:
    """Loss-landscapes takes a step before each evaluation: value i of n lies at i + 1 steps, and none at the start."""
    is_random, steps = places.made_by in DISTANCES, len(loss)
    whole = 1 / (places.distance or DISTANCES["random_line"]) if is_random else 1.0
    labels = [RANDOM] if is_random else ["towards the end"]
    return make_surface(kind, [whole * np.arange(1, steps + 1) / steps], arrays, labels=labels)


def _plane_of_loss_landscapes(kind: str, arrays: Arrays, loss: Floats, places: ArrayPlaces) -> ImportedSurface:
    """Loss-landscapes walks to and fro along its second direction, and takes a step before each evaluation.

    So value [i, j] of n×n lies at i and j + 1 steps if i is even, and at i and j steps if it is odd. The plane gets
    n + 1 places along the second axis; at either end every other one is not computed. With `random_plane`, the start is
    n/2 steps from the corner along either axis, and a step is ‖θ₀‖/(distance·n); else it is the corner, and a step 1/n.
    """
    is_random, steps = places.made_by in DISTANCES, len(loss)
    whole, start = (1 / (places.distance or DISTANCES["random_plane"]), steps / 2) if is_random else (1.0, 0)
    axes = [whole * (np.arange(size) - start) / steps for size in (steps, steps + 1)]
    known = _unfolded(np.where(np.isfinite(loss), OK, NOT_FINITE))
    status = np.where(np.isnan(known), NOT_COMPUTED, known).T
    placed = {name: _unfolded(array).T for name, array in arrays.items()}
    return make_surface(kind, axes, placed, status, labels=[RANDOM] * 2 if is_random else TO_ENDS)


def _unfolded(array: NDArray[Any]) -> Floats:
    """Each even row one place further along; NaN where nothing was evaluated."""
    rows, columns = array.shape
    wide = np.full((rows, columns + 1), np.nan)
    wide[::2, 1:], wide[1::2, :-1] = array[::2], array[1::2]
    return wide


# ----------------------------------------------------------------------------------------------------
# Arrays with their coordinates: our own export, Landscaper's files, scripts with PyHessian, and any others.

COORDINATES = (AXIS_NAMES, ("x", "y", "z"), ("xcoordinates", "ycoordinates", "zcoordinates"), ("lams",))
DENSITY = ("density_eigen", "density_weight")  # as the scripts of PyHessian call them
REMEDY = "give range, or made_by for what a function of loss-landscapes returned (--range, --made-by)"
MEANS = ("num_samples", "weighted", "terms", "derived")  # fields of a record that describe its means


def read_npz(file: Path, places: ArrayPlaces) -> ImportedSurface:
    """The surface in an NPZ file: `loss` (last axis first), `alpha`, `beta`, … or `x`, `y`, …, and further observables.

    Landscaper's files hold `loss`, its first direction first, and `coordinates`; those of scripts with PyHessian
    `loss_list` over `lams`. Without coordinates, `places` says where the points lie.

    Raises:
        NoSurfaceError: the file holds something else, or pickled objects, or is damaged.
    """
    arrays = _arrays(file)
    if "coordinates" in arrays and "loss" in arrays:
        return _surface_of_landscaper(arrays, places)
    if axes := axis_names(arrays):
        places.refuse_needless("holds its coordinates")
        return _surface_of_npz(arrays, axes)
    if set(DENSITY) <= set(arrays):
        raise NoSurfaceError(
            f"holds {' and '.join(DENSITY)}, the density of a spectrum and no surface; "
            "landscape.curvature.Density takes these two arrays"
        )
    if not (places.range or places.made_by):
        raise NoSurfaceError(
            "has no coordinates; its arrays must include alpha and beta, or x and y, not only "
            f"{quoted(sorted(arrays))}; {REMEDY}"
        )
    return _surface_without_coordinates(arrays, places)


def read_npy(file: Path, places: ArrayPlaces) -> ImportedSurface:
    """The surface in an NPY file, an array of losses (last axis first), whose points lie where `places` says.

    Raises:
        NoSurfaceError: the file holds something else, or pickled objects, or is damaged; or `places` says nothing.
    """
    with _naming_damage("NPY"), file.open("rb") as opened:
        array = _array("loss", opened)
    if not (places.range or places.made_by):
        raise NoSurfaceError(f"has no coordinates; {REMEDY}")
    return _surface_without_coordinates({"loss": array}, places)


def axis_names(names: Container[str]) -> list[str]:
    """The names of the coordinates among those of the arrays or columns of a file; empty if there are none."""
    for known in COORDINATES:
        axes = [name for name in known if name in names]
        if axes and tuple(axes) == known[: len(axes)]:
            return axes
    return []


def _surface_of_landscaper(arrays: Arrays, places: ArrayPlaces) -> ImportedSurface:
    coordinates, loss = arrays["coordinates"], arrays["loss"]
    if places.range or places.made_by not in (None, "landscaper"):
        places.refuse_needless("holds the coordinates of Landscaper")
    if coordinates.ndim != 2 or loss.ndim != len(coordinates):
        raise NoSurfaceError(
            f"must have a row of coordinates for each axis of its loss, not {quoted(list(coordinates.shape))} for "
            f"{quoted(list(loss.shape))}"
        )
    others = {name: array.T for name, array in arrays.items() if array.shape == loss.shape and name != "coordinates"}
    axes = list(coordinates) if places.made_by is None else [_visited_by_landscaper(axis) for axis in coordinates]
    return make_surface("NPZ of Landscaper", axes, others)


def _visited_by_landscaper(reported: NDArray[Any]) -> Floats:
    """Where Landscaper evaluates n points that it reports from −d to d: at (i − ⌊n/2⌋)·2d/n, in lengths of θ₀."""
    count, end = len(reported), float(reported[-1])
    if not np.allclose(reported, np.linspace(-end, end, count)):
        raise NoSurfaceError("does not hold coordinates of Landscaper's compute, so that made_by must be left out")
    return (np.arange(count) - count // 2) * 2 * end / count


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
