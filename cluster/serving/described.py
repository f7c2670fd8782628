"""What is known of a landscape that is served: its axes, what is observed there, and how it is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from landscape.core.digests import digest
from landscape.core.grid import Floats, Grid
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record
from landscape.surface.surface import RISE_STDERR


@dataclass(frozen=True)
class ServedAxis:
    """An axis of a grid, by its coordinates; points beyond it are answered too."""

    name: str
    coordinates: Floats = field(repr=False, compare=False)

    def document(self) -> dict[str, Any]:
        """Where the axis begins and ends, and how many points it has."""
        ends = {"low": float(self.coordinates[0]), "high": float(self.coordinates[-1])}
        return {"name": self.name, **ends, "size": len(self.coordinates)}


@dataclass(frozen=True)
class Described:
    """A landscape that is served.

    Attributes:
        observables: what is computed and kept.
        identity: the digest of all that decides its values to the bit: what it is computed from, and by which plan.
        derived: surfaces that follow from observables, each with its formula.
    """

    axes: tuple[ServedAxis, ...]
    observables: tuple[str, ...]
    num_samples: int
    precision: str
    engine: str
    identity: str
    derived: tuple[tuple[str, str], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values that are computed and kept of a point, in their order."""
        return (*(name for each in self.observables for name in (each, f"{each}_stderr")), RISE_STDERR)

    def document(self) -> dict[str, Any]:
        """As the list of models has it."""
        derived = [name for name, _ in self.derived if name not in self.observables]
        document = {
            **vars(self),
            "axes": [axis.document() for axis in self.axes],
            "observables": [*self.observables, *derived],
        }
        del document["derived"]  # whose names stand among the observables
        return document


def describe(grid: Grid, observables: Sequence[str], record: Record, plan: Mapping[str, Any]) -> Described:
    """A landscape by its grid, its record and the record of its plan."""
    axes = tuple(map(ServedAxis, grid.names, grid.coordinates))
    return Described(
        axes,
        tuple(observables),
        int(record.num_samples or 0),
        str(record.precision or plan.get("precision", "")),
        str(plan.get("engine", "")),
        digest({"identity": record.digest, "plan": dict(plan)}),
        tuple(record.derived.items()),
    )


def describe_stored(store: LandscapeStore) -> Described | None:
    """A landscape on disk; None where its coordinates are damaged."""
    grid = store.grid()
    return None if grid is None else describe(grid, store.observables, store.record, store.plan.whole)
