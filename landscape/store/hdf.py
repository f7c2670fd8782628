"""The HDF5 files of Li et al.'s `loss-landscape` (2018): coordinates, losses and accuracies, -1 where not computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from landscape.core.errors import JobError, message_of, nearest
from landscape.store.import_surface import MOST_POINTS, ImportedSurface, NoSurfaceError, make_surface

MISSING = -1.0
KIND = "HDF5 of loss-landscape"


def read_hdf(file: Path) -> ImportedSurface:
    """The surface in an HDF5 file with `xcoordinates`, `ycoordinates` where it has two axes, and `train_loss`.

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
            return _surface(opened, h5py)
    except NoSurfaceError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise NoSurfaceError(f"is no HDF5 file, or is damaged: {message_of(error, 150)}") from None


def _surface(opened: Any, h5py: Any) -> ImportedSurface:
    # Links into other files are not followed: whoever wrote the file would choose what is read here.
    names = [name for name in opened if isinstance(opened.get(name, getlink=True), h5py.HardLink)]
    arrays = {name: opened[name] for name in names if isinstance(opened[name], h5py.Dataset)}
    if "xcoordinates" not in arrays:
        known = nearest("xcoordinates", sorted(arrays))
        raise NoSurfaceError(f"has no array xcoordinates, as surfaces of loss-landscape have; {known}")
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
    # That software makes the array [x, y] and fills it in the order of numpy's meshgrid, in which x runs fastest.
    turned = {name: array.ravel().reshape(tuple(reversed(shape))) for name, array in values.items()}
    return make_surface(KIND, axes, turned, missing=MISSING)


def _read(name: str, array: Any) -> Any:
    """The values of a dataset, whose size is looked at first: a small file may promise any number of them."""
    if array.size is None or array.size > MOST_POINTS or array.dtype.kind not in "fiu":
        raise NoSurfaceError(f"{name!r} must be at most {MOST_POINTS} numbers, not {array.size} of {array.dtype}")
    if array.external or array.is_virtual:
        raise NoSurfaceError(f"{name!r} lies in another file, which is not read; copy the values into one file")
    return array[()]
