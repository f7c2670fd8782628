"""The arrays of a landscape on disk: names, dimensions, chunks, codecs. A tile is a chunk; each ends in a CRC32C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from landscape.core.grid import Grid, Index
from landscape.job.directions.kinds import is_seeded
from landscape.store.metadata import StoredArray
from landscape.surface.record import parse_axis, plain
from landscape.surface.record_entries import PathRecord
from landscape.surface.surface import (
    LOSS_SAMPLES,
    MOMENT_PARTS,
    MOMENTS,
    ORIGIN_SAMPLES,
    PATH_MOMENTS,
    RISE_STDERR,
    SAMPLE_INDEX,
    SAMPLE_WEIGHTS,
)

if TYPE_CHECKING:
    from landscape.model.parameters import State

SCHEMA_VERSION = 1
DIRECTION_BYTES = 1 << 30  # above it a random direction is kept as its seed and digest alone
DIRECTION_CHUNK = 1 << 24
# Names in the documents of the arrays.
LAYOUT, STORED = "layout", "stored"  # of `directions`: the places of the parameters, and which rows are written
UNIT, RUNS = "unit", "runs"  # of `path_step`, and of `path_run`
# xarray wants one length of each dimension, and a path has moments of fewer rows than the grid.
PATH_MOMENT, FORMER_PATH_MOMENT = "path_moment", "moment"  # the dimension of `path_moments`, and what it was before
NETWORK = "network"  # the unit where the arrays of the path hold the networks that a plane runs through
MIXED = "mixed"  # the unit of paths of which some count steps and others epochs


@dataclass(frozen=True)
class PathPlan:
    """Where the snapshots of a trajectory, or the networks of a plane, lie, before their losses are known.

    Attributes:
        run: of each snapshot, the place of its run among `runs`, where a job names `paths`; else empty, as `runs` is.
    """

    unit: str
    step: tuple[int, ...]
    coordinates: NDArray[np.float64]  # [snapshots, axes]
    distance: NDArray[np.float64]
    run: tuple[int, ...] = ()
    runs: tuple[PathRecord, ...] = ()

    @property
    def labels(self) -> list[str]:
        """What figures call the runs that the job names; none of the run's own path."""
        return [run.label for run in self.runs if run.unit != NETWORK]


@dataclass(frozen=True)
class NewArrays:
    """What the arrays of a new landscape are made from.

    Attributes:
        tile_shape: points per dimension of a tile, the last axis first.
        observables: their names, `loss` first.
        axes: what the document of each axis says, of which `record.AxisRecord` is a part.
        directions: the tensors of each axis.
        layout: the places of the parameters in a direction, as `layout` of the parameters has them.
        path: the snapshots on the plane; None where the landscape has no path.
        moment_rows: what moments are kept of, see `evaluation.reduction`; empty where none are kept.
        sample_index: the places of the samples in the data, int64, in the order of the samples.
        kept_samples: of how many samples the losses are stored; 0 where they are not.
    """

    grid: Grid
    tile_shape: Index
    observables: Sequence[str]
    axes: Sequence[Mapping[str, Any]]
    directions: Sequence[State]
    layout: Sequence[Mapping[str, Any]]
    path: PathPlan | None = None
    moment_rows: Sequence[str] = ()
    sample_index: NDArray[np.int64] | None = None
    kept_samples: int = 0


def path_moment_rows(moment_rows: Sequence[str]) -> list[str]:
    """What moments are kept of along the path: of the loss or its terms, at the snapshots and at their projections.

    >>> path_moment_rows(["loss", "accuracy", "loss-rise"])
    ['loss', 'projected-loss']
    """
    names = [row.removesuffix("-rise") for row in moment_rows if row.endswith("-rise")]
    return [*names, *(f"projected-{name}" for name in names)]


def expected_array(name: str, axes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The type and the dimensions of an array by its name, on a landscape of these axes: observables are the rest."""
    if name in axes:
        return "float64", (name,)
    if name == "directions":
        return "float32", ("axis", "parameter")
    if name == MOMENTS:
        return "float64", (*reversed(axes), "moment")
    if name == PATH_MOMENTS:
        return "float64", ("snapshot", PATH_MOMENT)
    if name == LOSS_SAMPLES:
        return "float32", (*reversed(axes), "sample")
    if name in (ORIGIN_SAMPLES, SAMPLE_WEIGHTS):
        return ("float32" if name == ORIGIN_SAMPLES else "float64"), ("sample",)
    if name == SAMPLE_INDEX:
        return "int64", ("sample",)
    if name in ("path_status", "path_step", "path_run"):
        return ("uint8" if name == "path_status" else "int64"), ("snapshot",)
    if name in (*(f"path_{axis}" for axis in axes), "path_distance", "path_loss", "path_projected_loss"):
        return "float64", ("snapshot",)
    return ("uint8" if name == "status" else "float64"), tuple(reversed(axes))


def parameter_layout(directions: StoredArray) -> list[dict[str, Any]]:
    """Where each parameter lies in a row of the stored directions."""
    return list(directions.attributes[LAYOUT])


def rows_written(directions: StoredArray) -> list[bool]:
    """Per axis, whether its direction is stored; one that is not is kept as its seed."""
    return list(directions.attributes[STORED])


def path_unit(steps: StoredArray) -> str:
    """What the numbers of the snapshots count; networks of a plane, which are no path, are kept in the same arrays."""
    unit = steps.attributes.get(UNIT)
    return str(unit) if unit in ("step", NETWORK, MIXED) else "epoch"


def lay_out(group: zarr.Group, new: NewArrays, *, of_level: bool = False) -> None:
    """Make every array of a landscape in its Zarr group, with nothing computed.

    Args:
        of_level: leave out what a level of refinement shares with its landscape: samples, directions and path.
    """
    grid = new.grid
    for axis, coordinates, described in zip(grid.names, grid.coordinates, new.axes, strict=True):
        _make(group, axis, coordinates, (axis,), attributes=dict(described))
    for values in (*with_stderr(new.observables), RISE_STDERR):
        _make_empty(group, values, np.float64, np.nan, grid.shape, new.tile_shape, grid.dimensions)
    _make_empty(group, "status", np.uint8, 0, grid.shape, new.tile_shape, grid.dimensions)
    if new.moment_rows:
        width, dimensions = MOMENT_PARTS * len(new.moment_rows), (*grid.dimensions, "moment")
        _make_empty(group, MOMENTS, np.float64, np.nan, (*grid.shape, width), (*new.tile_shape, width), dimensions)
    if of_level:
        return
    if new.kept_samples:
        _make_samples(group, new, new.kept_samples)
    if new.sample_index is not None:
        _make(group, SAMPLE_INDEX, np.asarray(new.sample_index, np.int64), ("sample",))
    make_directions(group, new)
    if new.path is not None:
        _make_path(group, grid, new.path, int(np.prod(new.tile_shape)), len(path_moment_rows(new.moment_rows)))


def _make_samples(group: zarr.Group, new: NewArrays, count: int) -> None:
    grid, tile = new.grid, new.tile_shape
    _make_empty(
        group, LOSS_SAMPLES, np.float32, np.nan, (*grid.shape, count), (*tile, count), (*grid.dimensions, "sample")
    )
    _make_empty(group, ORIGIN_SAMPLES, np.float32, np.nan, (count,), (count,), ("sample",))
    _make_empty(group, SAMPLE_WEIGHTS, np.float64, np.nan, (count,), (count,), ("sample",))


def with_stderr(observables: Sequence[str]) -> Iterator[str]:
    """The names of the arrays of values: each observable, followed by its standard error."""
    for name in observables:
        yield name
        yield f"{name}_stderr"


def _make(group: zarr.Group, name: str, data: NDArray[Any], dimensions: tuple[str, ...], **options: Any) -> None:
    group.create_array(
        name, data=data, chunks=tuple(max(1, n) for n in data.shape), compressors=[Crc32cCodec()],
        dimension_names=dimensions, config={"write_empty_chunks": True}, **options,
    )  # fmt: skip


def _make_empty(
    group: zarr.Group, name: str, dtype: Any, fill: float, shape: Index, chunks: Index, dimensions: tuple[str, ...]
) -> None:
    # Without write_empty_chunks a tile of nothing but NaN would leave no trace.
    group.create_array(
        name, shape=shape, chunks=chunks, dtype=dtype, fill_value=fill, dimension_names=dimensions,
        compressors=[ZstdCodec(level=1), Crc32cCodec()], config={"write_empty_chunks": True},
    )  # fmt: skip


def make_directions(group: zarr.Group, new: NewArrays) -> None:
    """Create the array of the directions, one row of all parameters per axis, and write those that are stored.

    Drawn ones are stored where that takes at most DIRECTION_BYTES; the others are drawn again from their seeds.
    """
    from landscape.model.parameters import flatten  # of torch

    directions, layout = new.directions, new.layout
    size = sum(int(np.prod(place["shape"], dtype=np.int64)) for place in layout)
    fits = 4 * size * len(directions) <= DIRECTION_BYTES
    stored = [fits or not is_seeded(parse_axis(axis)[0].kind) for axis in new.axes]
    array = group.create_array(
        "directions", shape=(len(directions), size), chunks=(1, min(max(size, 1), DIRECTION_CHUNK)), dtype=np.float32,
        fill_value=0.0, compressors=[Crc32cCodec()], dimension_names=("axis", "parameter"),
        attributes={LAYOUT: [dict(place) for place in layout], STORED: stored},
        config={"write_empty_chunks": True},
    )  # fmt: skip
    for k, direction in enumerate(directions):
        if stored[k]:
            array[k] = flatten(direction, layout)


def _make_path(group: zarr.Group, grid: Grid, path: PathPlan, tile_points: int, moment_rows: int) -> None:
    count, dimension = len(path.step), ("snapshot",)
    _make(group, "path_step", np.array(path.step, np.int64), dimension, attributes={UNIT: path.unit})
    for k, axis in enumerate(grid.names):
        _make(group, f"path_{axis}", np.ascontiguousarray(path.coordinates[:, k]), dimension)
    _make(group, "path_distance", np.asarray(path.distance, np.float64), dimension)
    if path.runs:
        _make(group, "path_run", np.array(path.run, np.int64), dimension, attributes={RUNS: plain(path.runs)})
    # A snapshot costs two evaluations, and its weights travel to the worker: few at a time.
    chunk = (max(1, min(count, tile_points // 2, 8)),)
    for name in ("path_loss", "path_projected_loss"):
        _make_empty(group, name, np.float64, np.nan, (count,), chunk, dimension)
    if moment_rows:
        width = MOMENT_PARTS * moment_rows
        _make_empty(group, PATH_MOMENTS, np.float64, np.nan, (count, width), (*chunk, width), (*dimension, PATH_MOMENT))
    _make_empty(group, "path_status", np.uint8, 0, (count,), chunk, dimension)
