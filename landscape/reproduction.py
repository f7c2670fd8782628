"""Whether a process computes the values that a landscape holds: one point off the origin, in equal bits.

Before its first value counts, every process evaluates the origin and one point beside it. The first one's values are
kept with the landscape; each later one must have the same bits, whatever made them differ: other code, another kind
of processor, another version, a network that is not the same in every process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from landscape.arithmetic import is_out_of_memory, processor_name
from landscape.errors import Interrupted, JobError
from landscape.evaluation import Evaluator, Values
from landscape.grid import Grid
from landscape.store import LandscapeStore

ATTRIBUTE = "check"
ROUNDING = 1e-3  # relative: what kernels that add in no fixed order may differ by, from one call to the next
Numbers = Mapping[str, float]  # `loss`, `loss_stderr`, …


@dataclass(frozen=True)
class Witness:
    """What one process computes at the origin and at `point`, and on which processor.

    `repeatable` says that it had the same bits twice. Kernels that add in no fixed order do not, and no process can
    then have those of another.
    """

    point: tuple[float, ...]
    values: Numbers
    origin: Numbers
    processor: str = ""
    repeatable: bool = True

    def attributes(self) -> dict[str, Any]:
        """As a landscape keeps it; the values in hexadecimal, which keeps every bit, NaN and infinity among them."""
        kept = {
            "point": list(self.point),
            "values": {name: float(value).hex() for name, value in self.values.items()},
            "processor": self.processor,
            "repeatable": self.repeatable,
        }
        found: dict[str, Any] = {ATTRIBUTE: kept}
        for name in ("loss", "loss_stderr"):
            value = self.origin.get(name, math.nan)
            found[f"origin_{name}"] = value if math.isfinite(value) else None
        return found

    def differs_from(self, other: Witness) -> str:
        """The first value with other bits here than there, or beyond rounding where bits cannot be asked for; or ''."""
        exact = self.repeatable and other.repeatable
        for name, value in self.values.items():
            there = other.values.get(name)
            if there is None or value.hex() == there.hex():
                continue
            if exact or not np.isclose(value, there, rtol=ROUNDING, atol=ROUNDING, equal_nan=True):
                return f"{name} {value:.9g}, not {there:.9g}"
        return ""

    @property
    def place(self) -> str:
        return ", ".join(f"{coordinate:.4g}" for coordinate in self.point)


def check_point(grid: Grid) -> tuple[float, ...]:
    """The grid's coordinates nearest to the origin that are not zero: off it along every axis, and likely finite."""

    def nearest(axis: np.ndarray) -> float:
        return float(min((each for each in axis.tolist() if each), key=lambda each: (abs(each), each)))

    return tuple(nearest(axis) for axis in grid.coordinates)


def bear_witness(evaluator: Evaluator, point: Sequence[float]) -> Witness | None:
    """Evaluate the origin and the point; None where user code raises there, or the planned batch does not fit.

    What raises here is left to the tile of this point to tell.
    """
    try:
        where = np.array([point], np.float64)
        there = evaluator.within_memory(lambda: evaluator.evaluate(where))
        if evaluator.batch_size != evaluator.plan.batch_size:
            return None  # another batch, other bits
        values, again = _numbers(there), {}
        if evaluator.device.type != "cpu" or evaluator.plan.threads > 1:
            again = {name: value.hex() for name, value in _numbers(evaluator.evaluate(where)).items()}
        repeatable = all(again.get(name, value.hex()) == value.hex() for name, value in values.items())
        origin, processor = _numbers(evaluator.origin()), processor_name(evaluator.device)
        return Witness(tuple(point), values, origin, processor, repeatable)
    except Exception as error:
        if isinstance(error, Interrupted) or is_out_of_memory(error):
            raise
        return None


def _numbers(values: Values) -> dict[str, float]:
    """Of one point; what is derived from the origin is not asked for, as it is the same where these are."""
    return {
        name: float(array[0])
        for key in values.mean
        for name, array in ((key, values.mean[key]), (f"{key}_stderr", values.stderr[key]))
    }


def recorded(store: LandscapeStore, grid: Grid) -> Witness | None:
    """What a process must reproduce: what was kept as the landscape began, else a point of one that has no such record.

    Landscapes of version 0.1.0 have none. Tiles that needed smaller batches have other bits, and are passed over.
    """
    kept = _parsed(store.attributes.get(ATTRIBUTE), len(grid.coordinates))
    if kept is not None:
        return kept
    reduced = set(store.attributes.get("progress", {}).get("reduced_batches", {}))
    found = store.computed_point(lambda tile: f"tile {tile}" not in reduced)
    if found is None:
        return None
    index, values = found
    point = tuple(float(axis[i]) for axis, i in zip(grid.coordinates, reversed(index), strict=True))
    return Witness(point, values, {})


def _parsed(record: Any, axes: int) -> Witness | None:
    """A record as it was kept; one that is damaged counts as none."""
    try:
        point = tuple(float(each) for each in record["point"])
        values = {str(name): float.fromhex(value) for name, value in record["values"].items()}
        processor, repeatable = str(record.get("processor", "")), record.get("repeatable") is not False
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return None
    return Witness(point, values, {}, processor, repeatable) if len(point) == axes and values else None


class NotReproduced(JobError):
    """This process computes something else than the landscape holds, so that it may not even say that it was there."""


def refusal(name: str, expected: Witness, found: Witness, difference: str) -> NotReproduced:
    """A landscape is not gone on with by what computes something else."""
    before = f" on {expected.processor}" if expected.processor else ""
    return NotReproduced(
        f"landscape {name!r} was computed{before} by other code, on another processor or with other versions: at "
        f"({expected.place}) {found.processor} gives {difference}; go back to those, or give it another name or run"
    )
