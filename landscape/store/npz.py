"""Arrays in NPZ: our own export, Landscaper's files, and any with a loss and its coordinates. Nothing is unpickled."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from landscape.core.errors import message_of, shown
from landscape.core.grid import AXIS_NAMES
from landscape.store.format import PathPlan
from landscape.store.import_surface import MOST_POINTS, ImportedSurface, NoSurfaceError, make_surface
from landscape.surface.record import Record

MOST_ARRAYS = 1000
LONGEST_TEXT = 64 << 20  # bytes of the text with what our own export says of the surface
COORDINATES = (AXIS_NAMES, ("x", "y", "z"), ("xcoordinates", "ycoordinates", "zcoordinates"))
MEANS = ("num_samples", "weighted", "terms", "derived")  # what a record says of the means that its values are
Arrays = Mapping[str, NDArray[Any]]


def read_npz(file: Path) -> ImportedSurface:
    """The surface in an NPZ file: `loss` (last axis first), `alpha`, `beta`, … or `x`, `y`, …, and further observables.

    Of Landscaper's files, `loss` and `coordinates`, those of one and two axes are read.

    Raises:
        NoSurfaceError: the file holds something else, objects that would have to be unpickled, or is damaged.
    """
    try:
        arrays = _arrays(file)
    except NoSurfaceError:
        raise
    except (
        zipfile.BadZipFile,
        OSError,
        ValueError,
        EOFError,
        KeyError,
        NotImplementedError,
        RuntimeError,
        zlib.error,
    ) as error:
        raise NoSurfaceError(f"is no NPZ file, or is damaged: {message_of(error, 150)}") from None
    if "coordinates" in arrays and "loss" in arrays:
        return _landscaper(arrays)
    for names in COORDINATES:
        axes = [name for name in names if name in arrays]
        if axes and tuple(axes) == names[: len(axes)]:
            return _plain(arrays, axes)
    raise NoSurfaceError(
        f"has no coordinates; its arrays must include alpha and beta, or x and y, not only {shown(sorted(arrays))}"
    )


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
    """An array, whose size and type are looked at first: a small archive may promise any number of bytes."""
    version = npy.read_magic(opened)
    if version not in ((1, 0), (2, 0)):
        raise NoSurfaceError(f"{name!r} is of a version of numpy's format that no plain array needs")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_column, dtype = read(opened)
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


def _landscaper(arrays: Arrays) -> ImportedSurface:
    coordinates, loss = arrays["coordinates"], arrays["loss"]
    if coordinates.ndim != 2 or len(coordinates) > 2:
        raise NoSurfaceError(
            f"of Landscaper's surfaces those of one or two axes are read, not coordinates of {list(coordinates.shape)}"
        )
    others = {name: array for name, array in arrays.items() if array.shape == loss.shape and name != "coordinates"}
    return make_surface("NPZ of Landscaper", list(coordinates), others)


def _plain(arrays: Arrays, axes: list[str]) -> ImportedSurface:
    about = _metadata(arrays)
    taken = {*axes, "status", "metadata"}
    values = {name: array for name, array in arrays.items() if name not in taken and not name.startswith("path_")}
    labels = [about.get("axes", {}).get(axis, {}).get("label", "") for axis in axes] if about else []
    told = Record.of({name: value for name, value in about.get("attributes", {}).items() if name in MEANS})
    return make_surface(
        "NPZ of this software" if about else "NPZ", [arrays[axis] for axis in axes], values, arrays.get("status"),
        labels=[label if isinstance(label, str) else "" for label in labels],
        means={name: getattr(told, name) for name in MEANS if told.states(name)},
        path=_path(arrays, axes, about.get("path_unit")),
    )  # fmt: skip


def _metadata(arrays: Arrays) -> dict[str, Any]:
    """What our own export says of the surface; empty where the file is another one."""
    text = arrays.get("metadata")
    if text is None or text.dtype.kind != "U" or text.ndim:
        return {}
    try:
        about = json.loads(str(text))
    except (ValueError, RecursionError):
        return {}
    parts = [about.get(name) for name in ("axes", "attributes")] if isinstance(about, dict) else [None, None]
    axes, attributes = parts
    if not isinstance(axes, dict) or not isinstance(attributes, dict):
        return {}
    return about if all(isinstance(axis, dict) for axis in axes.values()) else {}


def _path(
    arrays: Arrays, axes: list[str], unit: Any
) -> tuple[PathPlan, NDArray[np.float64], NDArray[np.float64]] | None:
    names = [f"path_{name}" for name in ("step", *axes, "distance", "loss", "projected_loss")]
    if any(name not in arrays for name in names) or (arrays.get("path_status", np.ones(1)) == 0).any():
        return None  # also where some snapshots were not computed: who reads it would take them for diverged ones
    count = len(arrays["path_step"]) if arrays["path_step"].ndim == 1 else 0
    if not count or any(arrays[name].shape != (count,) or arrays[name].dtype.kind not in "fiu" for name in names):
        raise NoSurfaceError("its path_* arrays must be rows of numbers of one length; leave them out, or mend them")
    steps, *places, distance, loss, projected = (arrays[name] for name in names)
    at = np.stack([np.asarray(place, np.float64) for place in places], axis=1)
    plan = PathPlan(
        unit if unit == "step" else "epoch", tuple(int(step) for step in steps), at, distance.astype(np.float64)
    )
    return plan, loss.astype(np.float64), projected.astype(np.float64)
