"""What every kind of direction answers: what it is made of, what decides its values, how it is labelled and sent.

A file of a kind imports torch in the functions that compute only: a job is read without torch, which takes seconds to
import.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from landscape.core.validation import Frozen, Seed
from landscape.surface.record import parse_axis
from landscape.surface.record_parts import AxisRecord

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.core.grid import Floats
    from landscape.job.directions.context import Context
    from landscape.model.parameters import ParameterInfo, State

Range = tuple[float, float]


@dataclass(frozen=True)
class DirectionTensors:
    """One axis in weight space.

    Attributes:
        tensors: a float32 tensor per name; names that do not move are left out.
        attributes: what is recorded of the axis.
    """

    tensors: Mapping[str, Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def record(self) -> AxisRecord:
        """The attributes that every kind has, as a typed value."""
        return parse_axis(self.attributes)[0]


class DirectionSpec(Frozen, ABC):
    """What a job says of one direction. A subclass is a kind, and is listed in `kinds.KINDS`.

    Attributes:
        kind: the word by which a job names the kind.
        title: what messages call the kind; default: `kind`.
        default_range: the ends of the axis where the job leaves them out; None where they are fitted to the path, which
            a kind may ask for that names `snapshots`.
        version_1_range: the ends that version 1 of the defaults wrote out, where it did.
        reaches_to: what the axis has to reach, where that and not the loss says how far it runs.
        is_costly: whether its label and attributes take long to make, and are those recorded where a landscape is on
            disk.
        follows_samples: whether it is another one where the same job takes more samples.
    """

    kind: str

    title: ClassVar[str] = ""
    default_range: ClassVar[Range | None] = (-1.0, 1.0)
    version_1_range: ClassVar[Range | None] = None
    reaches_to: ClassVar[str] = ""
    is_costly: ClassVar[bool] = False
    follows_samples: ClassVar[bool] = False

    def on_axis(self, axis: int) -> Self:
        """The same direction with what depends on its place among the axes, from 0, filled in."""
        return self

    def under_defaults(self, version: int) -> Self:
        """What it stood for when an earlier version of the defaults filled in the fields that its job leaves out."""
        return self

    def coordinates(self, size: int) -> Floats | None:
        """The coordinates where the job leaves the range out; None: `size` points evenly over the default range."""
        return None

    def places(self, context: Context) -> Floats | None:
        """Coordinates on the axis to which it is fitted where the job leaves the range out and there is no path."""
        return None

    def range_at(self, context: Context) -> Range | None:
        """The ends where the job leaves the range out and they follow from the origin; None: not from it."""
        return None

    @property
    def weights(self) -> tuple[int | str, ...]:
        """The sets of weights that it names: snapshots by `first`, `last` or number, `problem`, files."""
        return ()

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it names besides; with those of `weights` they travel with the job to a cluster."""
        return ()

    @property
    def snapshots(self) -> tuple[int, ...] | Literal["all"] | None:
        """The snapshots that it is computed from, which make the landscape's path; None where it needs none."""
        return None

    def check(self, context: Context) -> None:
        """Refuse, before anything else is read, what can be seen not to work.

        Raises:
            JobError: the run does not hold what the direction is made from.
        """

    def identity(self, context: Context) -> dict[str, Any]:
        """What decides the direction's values, as plain values: a landscape on disk with others is refused."""
        return self.model_dump(mode="json")

    @abstractmethod
    def make(self, context: Context) -> dict[str, Tensor]:
        """The direction: a float32 tensor per name, in the shape of the model's; names that do not move left out.

        Raises:
            JobError: it cannot be computed, or would be zero or not finite.
        """

    @abstractmethod
    def label(self, context: Context) -> str:
        """What figures call the axis."""

    def attributes(self, context: Context) -> dict[str, Any]:
        """What is recorded of the axis beside the specification, norm, label and digest."""
        return {}


class SeededDirection(DirectionSpec):
    """A direction that is drawn from a seed, and scaled to the origin at most.

    Where it is large it is kept and sent as its fields and the digest of its tensors, and drawn anew from them.
    """

    seed: Seed | None = None
    """Of the Gaussian draw; default: 1 on the first axis, 2 on the second, 3 on the third."""

    def on_axis(self, axis: int) -> Self:
        """Where the job gives no seed, the axis gives it: 1 on the first."""
        return self if self.seed is not None else self.model_copy(update={"seed": axis + 1})

    @abstractmethod
    def draw(self, origin: State, infos: Sequence[ParameterInfo]) -> dict[str, Tensor]:
        """The direction, from the seed, the origin and the parameters alone: the same bits every time."""

    def make(self, context: Context) -> dict[str, Tensor]:
        """The direction, drawn for the origin of the landscape."""
        return self.draw(context.origin, context.infos)
