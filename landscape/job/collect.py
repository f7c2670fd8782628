"""The collector's options, in the words of the tutorial, and the landscapes that they stand for."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator

from landscape.core.errors import shown
from landscape.core.validation import Count, Frozen, Intervals, Size, Unit, is_list, snapshots
from landscape.job.landscape import Landscape

COLLECTED_SIZE, DEFAULT_SAMPLES = 40, 2048  # MindSpore's


class CreateLandscape(Frozen):
    """Which landscapes a collected run stands for: `train` along the trajectory, `result` around its end."""

    train: bool = True
    """A landscape along the trajectory, for each interval."""
    result: bool = True
    """A random plane around the end."""


class CollectLandscape(Frozen):
    """The collector's options, in the words, with the meaning and the defaults of the tutorial.

    `landscape_size` reaches further here (3 to 65536; the tutorial stops at 256), and `num_samples` refuses
    0 and negative numbers, which the tutorial lets pass.
    """

    landscape_size: Size = COLLECTED_SIZE
    """Points per axis."""
    unit: Unit = "step"
    """What `intervals` count."""
    create_landscape: CreateLandscape = CreateLandscape()
    """Which landscapes the run stands for."""
    num_samples: Count = DEFAULT_SAMPLES
    """Samples that every value is the mean of."""
    intervals: Intervals
    """Lists of at least 3 epochs or steps each, at which the weights are kept."""

    @field_validator("intervals", mode="before")
    @classmethod
    def _intervals(cls, value: Any) -> Any:
        if not is_list(value) or not value:
            raise ValueError(
                f"must be a list of lists of epochs or steps, such as [[1, 2, 3], [7, 8, 9]], not {shown(value)}"
            )
        intervals = [snapshots(interval) for interval in value]
        if "all" in intervals:
            raise ValueError("must list its epochs or steps; 'all' serves in a job's trajectory only")
        return tuple(intervals)

    @property
    def snapshots(self) -> tuple[int, ...]:
        """Every epoch or step at which the weights are kept, ascending."""
        return tuple(sorted({number for interval in self.intervals for number in interval}))

    def landscapes(self) -> tuple[Landscape, ...]:
        """What a run with these options computes when its job lists no landscapes."""
        landscapes: list[Landscape] = []
        for interval in self.intervals if self.create_landscape.train else ():
            name = f"{self.unit}s-{interval[0]}-{interval[-1]}"
            taken = sum(landscape.name.split("_")[0] == name for landscape in landscapes)
            unique = f"{name}_{taken + 1}" if taken else name
            landscapes.append(Landscape(name=unique, trajectory=interval, size=(self.landscape_size,)))
        if self.create_landscape.result:
            landscapes.append(Landscape(name="result", origin="last", size=(self.landscape_size,)))
        return tuple(landscapes)
