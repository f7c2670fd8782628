"""What surfaces are laid over: axes with their coordinates, and the path of a trajectory on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.grid import Floats
from landscape.record import AxisRecord, parse_axis


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
    """The trajectory projected on the axes: arrays over its snapshots in order, the convergence point last.

    Of a plane through networks: these, in the order in which the plane names them, and `unit` is "network".
    `step` counts in `unit`, "step" or "epoch", and `coordinates` hold one array per axis. `loss` is the loss at the
    snapshot itself and `projected_loss` that at its projection on the axes, both NaN where not computed yet;
    `distance` is the Euclidean distance between the two in weight space. `status` is as that of a surface.
    """

    unit: str
    step: NDArray[np.int64]
    coordinates: Mapping[str, Floats]
    loss: Floats
    projected_loss: Floats
    distance: Floats
    status: NDArray[np.uint8]
