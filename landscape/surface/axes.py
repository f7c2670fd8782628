"""What surfaces are laid over: axes with their coordinates, and paths of trajectories with their losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.grid import Floats
from landscape.surface.paths import PathRecord
from landscape.surface.record import parse_axis
from landscape.surface.record_parts import AxisRecord

NOT_COMPUTED, OK, NOT_FINITE, QUARANTINED = 0, 1, 2, 3  # the status of a point, and of a snapshot
CLEARLY = 3.0  # standard errors of the rise: two losses that are further apart differ by more than the noise
SEEN = 0.01  # of `Along.height`: less shows in no picture


@dataclass(frozen=True)
class Axis:
    """A direction with the `coordinates` [n] of the grid along it, ascending.

    `attributes` say what it is: kind, label, norm, explained variance.
    """

    name: str
    coordinates: Floats
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def record(self) -> AxisRecord:
        """The attributes as a typed value; what is malformed among them counts as absent."""
        return parse_axis(self.attributes)[0]

    @property
    def label(self) -> str:
        """What the axis is, in words; its name where that is not known."""
        return self.record.label or self.name


@dataclass(frozen=True)
class ProjectedPath:
    """The trajectory projected on the axes: arrays over its snapshots in the order of training.

    Of a plane through networks: these, in the order in which the plane names them, and `unit` is "network".
    `step` counts in `unit`, "step" or "epoch", and `coordinates` hold one array per axis. `loss` is the loss at the
    snapshot itself and `projected_loss` that at its projection on the axes, both NaN where not computed yet;
    `distance` is the Euclidean distance between the two in weight space. `status` is as that of a surface.

    Of several runs: their snapshots one path after another. `run` says of each snapshot which of `runs` it is of, and
    `unit` is "mixed" where some count steps and others epochs; `parts` are the paths, each by itself.
    """

    unit: str
    step: NDArray[np.int64]
    coordinates: Mapping[str, Floats]
    loss: Floats
    projected_loss: Floats
    distance: Floats
    status: NDArray[np.uint8]
    run: NDArray[np.int64] | None = None
    runs: tuple[PathRecord, ...] = ()

    @property
    def label(self) -> str:
        """What figures call the run of this path; empty for the run that the landscape lies in, and for several."""
        return self.runs[0].label if len(self.runs) == 1 else ""

    @property
    def losses(self) -> tuple[Floats, Floats]:
        """The losses at the snapshots and at their projections, infinite where one was computed and is not finite."""
        overflows = self.status == NOT_FINITE
        own, projected = (
            np.where(overflows & ~np.isfinite(each), np.inf, each) for each in (self.loss, self.projected_loss)
        )
        return own, projected

    def parts(self) -> tuple[ProjectedPath, ...]:
        """The paths of the runs, each by itself, in the order in which the job names them; of one path itself."""
        if self.run is None:
            return (self,)
        return tuple(
            self._at(self.run == k, unit=record.unit, run=None, runs=(record,))
            for k, record in enumerate(self.runs)
            if bool((self.run == k).any())
        )

    @property
    def of_own_run(self) -> ProjectedPath | None:
        """The path of the run that the landscape lies in; None where only others are drawn."""
        return next((path for path in self.parts() if not path.runs or path.runs[0].own), None)

    def without(self, unit: str) -> ProjectedPath | None:
        """What is left without the paths whose numbers count that; None where nothing is."""
        if self.run is None:
            return None if self.unit == unit else self
        left = [k for k, record in enumerate(self.runs) if record.unit != unit]
        rows = np.isin(self.run, left)
        run = np.searchsorted(left, self.run[rows]).astype(np.int64)
        return self._at(rows, run=run, runs=tuple(self.runs[k] for k in left)) if rows.any() else None

    def variables(self) -> dict[str, tuple[str, Any]]:
        """What it holds as the variables of an xarray Dataset, over the dimension `snapshot`."""
        arrays = {name: getattr(self, name) for name in ("step", "loss", "projected_loss", "distance", "status")}
        arrays |= self.coordinates
        if self.run is not None:
            arrays["run"] = np.array([self.runs[k].label for k in self.run])
        return {f"path_{name}": ("snapshot", values) for name, values in arrays.items()}

    def _at(self, rows: NDArray[np.bool_], **changes: Any) -> ProjectedPath:
        """The snapshots where a mask holds."""
        arrays = {name: getattr(self, name)[rows] for name in ("step", "loss", "projected_loss", "distance", "status")}
        places = {axis: values[rows] for axis, values in self.coordinates.items()}
        return replace(self, coordinates=places, **arrays, **changes)


@dataclass(frozen=True)
class Along:
    """The losses along a path beside those at its projections, as `Surface.along` gives them.

    Attributes:
        names: of all snapshots, such as 'epoch 3'.
        losses, plane: L(θᵢ) and L(projection) of all snapshots; NaN where it is not known, infinite where it is not
            finite.
        relief: of the surface; NaN where it is not known.
        noise: the standard error of the rise at the projections; NaN where it is not known.
    """

    names: Sequence[str]
    losses: Floats
    plane: Floats
    relief: float
    noise: Floats

    @property
    def gaps(self) -> Floats:
        """|L(θᵢ) − L(projection)|, 0 where either is not known or both are infinite."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.abs(self.losses - self.plane), nan=0.0, posinf=np.inf)

    @property
    def clear(self) -> Floats:
        """The gaps beyond 3 standard errors of the rise, 0 for the others."""
        return np.where(self.gaps > CLEARLY * np.nan_to_num(self.noise), self.gaps, 0.0)

    @property
    def ranked(self) -> Floats:
        """The gaps that the largest one is looked for among: the clear ones, or all where none is clear."""
        clear = self.clear
        return clear if clear.any() else self.gaps

    @property
    def furthest(self) -> int:
        """The snapshot with the largest gap, which checks, tables and captions name, among those where both are known.

        The first of these where no losses differ.
        """
        return int(np.argmax(np.where(np.isnan(self.losses + self.plane), -1.0, self.ranked)))

    @property
    def span(self) -> float:
        """The range of the path's own losses; 0 where fewer than two are known."""
        known = self.losses[np.isfinite(self.losses)]
        return float(np.ptp(known)) if known.size else 0.0

    @property
    def height(self) -> float:
        """What the gaps are judged by: the range of the path's own losses; the relief where these are all the same.

        NaN where neither is known.
        """
        return next((each for each in (self.span, self.relief) if each > 0), math.nan)  # none of NaN
