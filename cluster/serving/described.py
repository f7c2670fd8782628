"""What is known of a landscape that is served: its axes, what is observed there, and how it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from landscape.digests import digest
from landscape.grid import Grid
from landscape.record import Record
from landscape.store import LandscapeStore
from landscape.surface import RISE_STDERR


@dataclass(frozen=True)
class ServedAxis:
    """An axis: where its grid begins and ends, and how many points it has. Points beyond it are answered too."""

    name: str
    low: float
    high: float
    size: int


@dataclass(frozen=True)
class Described:
    """A landscape that is served.

    Attributes:
        identity: the digest of all that decides its values to the bit: what it is computed from, and by which plan.
    """

    axes: tuple[ServedAxis, ...]
    observables: tuple[str, ...]
    num_samples: int
    precision: str
    engine: str
    identity: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a point's values, in their order."""
        return (*(name for each in self.observables for name in (each, f"{each}_stderr")), RISE_STDERR)

    def document(self) -> dict[str, Any]:
        """As the list of models has it."""
        return asdict(self)


def describe(grid: Grid, observables: Sequence[str], record: Record, plan: Mapping[str, Any]) -> Described:
    """A landscape by its grid, its record and the record of its plan."""
    axes = tuple(
        ServedAxis(name, float(axis[0]), float(axis[-1]), len(axis))
        for name, axis in zip(grid.names, grid.coordinates, strict=True)
    )
    return Described(
        axes,
        tuple(observables),
        int(record.num_samples or 0),
        str(record.precision or plan.get("precision", "")),
        str(plan.get("engine", "")),
        digest({"identity": record.digest, "plan": dict(plan)}),
    )


def describe_stored(store: LandscapeStore) -> Described | None:
    """A landscape on disk; None where its coordinates are damaged."""
    grid = store.grid()
    return None if grid is None else describe(grid, store.observables, store.record, store.plan.whole)
