"""Sets of points of different sizes, one for every term of a loss: drawn each by a seed of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from landscape.problem.batches import Batch, batch_bytes, batch_length, map_tensors, not_finite, samples_digest
from landscape.problem.samples import Samples


@dataclass(frozen=True)
class PointData:
    """What `Problem.data` holds for a loss of several terms: all points of every term, by its name."""

    sets: Mapping[str, Batch]

    @property
    def length(self) -> int:
        """The number of points of the largest set."""
        return max(map(batch_length, self.sets.values()))


@dataclass(frozen=True)
class PointSets(Samples):
    """Points by the name of their term. Batch k takes the points [k·B, (k+1)·B) of every set that has some left."""

    sets: Mapping[str, Batch]

    @property
    def length(self) -> int:
        """The number of points of the largest set: batches go on until it is used up."""
        return max(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """The number of points of every set."""
        return {name: batch_length(points) for name, points in self.sets.items()}

    @property
    def rows(self) -> None:
        """None: the sets have different sizes."""

    @property
    def nbytes(self) -> int:
        """Of all sets."""
        return sum(map(batch_bytes, self.sets.values()))

    def batch(self, start: int, stop: int) -> dict[str, Batch]:
        """The points from `start` to before `stop` of every set; sets that are used up are absent."""
        return {
            name: map_tensors(lambda tensor: tensor[start:stop], points)
            for name, points in self.sets.items()
            if batch_length(points) > start
        }

    def count(self, start: int, stop: int, batch: Batch) -> None:
        """None: every term has a number of its own."""

    def few(self, count: int) -> PointSets:
        """The first `count` points of every set."""
        return PointSets(self.batch(0, count))

    def digest(self) -> str:
        """SHA-256 over the names and points of all sets."""
        text = " ".join(f"{name}:{samples_digest(points)}" for name, points in self.sets.items())
        return hashlib.sha256(text.encode()).hexdigest()

    def not_finite(self) -> dict[str, int]:
        """How many points hold NaN or infinity, by term."""
        counts = {name: sum(not_finite(points).values()) for name, points in self.sets.items()}
        return {name: count for name, count in counts.items() if count}
