"""A surface from a file of other software: coordinates, observables and statuses, sorted and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import JobError, quoted
from landscape.core.grid import AXIS_NAMES, Floats, Grid
from landscape.core.validation import MAX_SIZE, RESERVED, WEIGHT
from landscape.store.format import PathPlan
from landscape.surface.derived import RISE
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, RISE_STDERR

MOST_POINTS = 1 << 24
OTHER_MEANING = RESERVED - {WEIGHT, RISE} | {"metadata"}  # names that no array of a surface may have
# The first one in a file is the loss; the scripts of PyHessian call it loss_list.
LOSSES = ("loss", "train_loss", "test_loss", "val_loss", "loss_list")


@dataclass(frozen=True)
class ImportedSurface:
    """A surface of other software.

    Attributes:
        grid: its coordinates, ascending along each axis.
        values: float64 in the shape of the grid, the last axis first: `loss`, further observables, their errors.
        status: uint8 of the same shape, an index of `surface.STATUS_NAMES`.
        kind: the format of the file, in words.
        labels: of the axes, if the file has them.
        means: the fields of a `Record` that describe the means, if the file has them.
        path: the places of the snapshots of a trajectory, the losses there, None if unknown, and at their projections.
        norms: of the directions in weight space, if they are known.
    """

    grid: Grid
    values: Mapping[str, Floats]
    status: NDArray[np.uint8]
    kind: str
    labels: Sequence[str] = ()
    means: Mapping[str, Any] = field(default_factory=dict)
    path: tuple[PathPlan, Floats | None, Floats] | None = None
    norms: Sequence[float] = ()

    @property
    def observables(self) -> tuple[str, ...]:
        """The names of the observables, `loss` first, without their standard errors."""
        names = [name for name in self.values if not (name.endswith("_stderr") and name[:-7] in self.values)]
        return ("loss", *(name for name in names if name not in ("loss", RISE_STDERR)))


class NoSurfaceError(ValueError):
    """A file holds no surface; the message is the reason and the remedy."""


def make_surface(
    kind: str,
    coordinates: Sequence[Any],
    arrays: Mapping[str, NDArray[Any]],
    status: NDArray[Any] | None = None,
    missing: float | None = None,
    **attributes: Any,
) -> ImportedSurface:
    """A surface from arrays in the shape of the grid, the last axis first; points are sorted along each axis.

    Args:
        kind: the format of the file, in words.
        coordinates: of each axis, the first axis first.
        arrays: the values by their names; one of `LOSSES` becomes `loss`.
        status: of each point; default: from the loss.
        missing: the value of points that were not computed.
        attributes: further ones of an `ImportedSurface`.

    Raises:
        NoSurfaceError: coordinates or values are not those of a surface.
    """
    axes = [_axis(name, values) for name, values in zip(AXIS_NAMES, coordinates, strict=False)]
    shape = tuple(len(axis) for axis in reversed(axes))
    if not axes or len(coordinates) > len(AXIS_NAMES):
        raise NoSurfaceError(f"must have 1 to {len(AXIS_NAMES)} axes, not {len(coordinates)}")
    if int(np.prod(shape, dtype=object)) > MOST_POINTS:
        raise NoSurfaceError(f"must have at most {MOST_POINTS} points, not {quoted(list(shape))}")
    loss_name = next((name for name in LOSSES if name in arrays), None)
    if loss_name is None:
        raise NoSurfaceError(f"has no loss; one of its arrays must be called {', '.join(LOSSES)}")
    arrays = {name: array for name, array in arrays.items() if name != RISE}  # follows from the loss
    order = np.ix_(*(np.argsort(axis, kind="stable") for axis in reversed(axes)))
    values: dict[str, Floats] = {"loss": _sorted_values(loss_name, arrays[loss_name], shape, order)}
    for name in arrays:
        if not name or set(name) & set("/\\\0") or name.startswith((".", "path_")) or name in OTHER_MEANING:
            raise NoSurfaceError(f"{quoted(name)} must not be the name of an observable; rename the array")
    values |= {name: _sorted_values(name, array, shape, order) for name, array in arrays.items() if name != loss_name}
    states = np.where(np.isfinite(values["loss"]), OK, NOT_FINITE).astype(np.uint8)
    if status is not None:
        by_loss, states = states, _sorted_values("status", status, shape, order).astype(np.float64)
        if not np.isin(states, (NOT_COMPUTED, OK, NOT_FINITE, QUARANTINED)).all():
            raise NoSurfaceError("status must be 0, 1, 2 or 3 everywhere")
        if ((states == OK) & (by_loss == NOT_FINITE)).any():
            raise NoSurfaceError("status says 1, ok, where the loss is not finite")
        states = states.astype(np.uint8)
    if missing is not None:
        states[values["loss"] == missing] = NOT_COMPUTED
        values = {name: np.where(array == missing, np.nan, array) for name, array in values.items()}
    if not np.isin(states, (OK, NOT_FINITE)).any():
        raise NoSurfaceError("has no point that was computed")
    values = {name: np.where(states == NOT_COMPUTED, np.nan, array) for name, array in values.items()}
    grid = Grid(AXIS_NAMES[: len(axes)], tuple(np.sort(axis) for axis in axes))
    return ImportedSurface(grid, values, states, kind, **attributes)


def _axis(name: str, values: Any) -> Floats:
    coordinates = _to_float64(name, values)
    if coordinates.ndim != 1 or not 1 <= len(coordinates) <= MAX_SIZE:
        shape = quoted(list(coordinates.shape))
        raise NoSurfaceError(
            f"the coordinates of {name} must be a row of 1 to {MAX_SIZE} numbers, not of shape {shape}"
        )
    if not np.isfinite(coordinates).all():
        raise NoSurfaceError(f"the coordinates of {name} must be finite numbers")
    distinct, counts = np.unique(coordinates, return_counts=True)
    if (counts > 1).any():
        raise NoSurfaceError(
            f"the coordinates of {name} must differ; {float(distinct[counts > 1][0])!r} stands "
            f"{int(counts.max())} times"
        )
    return coordinates


def _sorted_values(name: str, values: Any, shape: tuple[int, ...], order: tuple[NDArray[Any], ...]) -> Floats:
    array = _to_float64(name, values)
    if array.shape != shape:
        raise NoSurfaceError(
            f"{quoted(name)} has shape {quoted(list(array.shape))}, its coordinates {quoted(list(shape))} (the last "
            "axis first); they must agree"
        )
    return np.ascontiguousarray(array[order])


def _to_float64(name: str, values: Any) -> Floats:
    array = np.asarray(values)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 16:
        raise NoSurfaceError(f"{quoted(name)} must hold numbers, not {quoted(str(array.dtype))}")
    return array.astype(np.float64)


def refused(file: str, reason: object) -> JobError:
    """The error of a file that is not imported."""
    return JobError(f"file {quoted(file, 300)}: {reason}")
