"""The straight line from the origin to other weights (Goodfellow et al. 2015)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from landscape.core.errors import JobError
from landscape.core.grid import Floats, coordinates_through_zero_and_one
from landscape.core.validation import Reference
from landscape.job.directions.base import DirectionSpec, Range

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.job.directions.context import Context
    from landscape.model.parameters import State


class TowardsDirection(DirectionSpec):
    """The straight line from the origin (0) to `target` (1): a snapshot's name or number, or a file of weights."""

    kind: Literal["towards"] = "towards"
    target: Reference
    """A snapshot's number, `first`, `last`, `problem`, or a file of weights."""

    default_range: ClassVar[Range | None] = (-0.2, 1.2)
    version_1_range: ClassVar[Range | None] = (-0.2, 1.2)
    reaches_to: ClassVar[str] = "both ends of the line"

    def coordinates(self, size: int) -> Floats | None:
        """Both ends of the line, 0 and 1, are points of the grid, where its size allows."""
        return coordinates_through_zero_and_one(size)

    @property
    def weights(self) -> tuple[int | str, ...]:
        """The far end of the line."""
        return (self.target,)

    def identity(self, context: Context) -> dict[str, Any]:
        """The weights at the far end, by whatever name."""
        return {"kind": "towards", "target": context.digest(self.target)}

    def make(self, context: Context) -> dict[str, Tensor]:
        """The step from the origin to the target."""
        return towards_direction(context.origin, context.state(self.target))

    def label(self, context: Context) -> str:
        """The target, a file by its name alone."""
        return f"towards {Path(context.name(self.target)).name} (at 1)"


def towards_direction(origin: State, target: State) -> dict[str, Tensor]:
    """d = θ_target − θ₀, buffers included, so that coordinate 1 is the target network as a whole.

    Integer buffers (counters) stay at the origin's. Frozen parameters move where the two differ: the far end
    would be no network that was ever trained otherwise.

    Returns:
        A float32 tensor per name whose values differ, in its shape.

    Raises:
        JobError: the two have the same weights, or their difference is not finite.
    """
    moved = {name: step.float() for name, step in step_towards(origin, target).items()}
    direction = {name: tensor for name, tensor in moved.items() if bool(tensor.any())}
    if not direction:
        raise JobError("directions: the target has the same weights as the origin; name another target or origin")
    return direction


def step_towards(origin: State, target: State) -> dict[str, Tensor]:
    """θ_target − θ₀ in float64, over the floating-point tensors, buffers included.

    Raises:
        JobError: the difference is not finite in the type of the directions, float32.
    """
    from landscape.model.parameters import difference

    # Infinity minus infinity is NaN: a mask that both have does not move.
    steps = difference(target, origin).items()
    moved = {name: step.masked_fill(target[name] == origin[name], 0.0) for name, step in steps}
    bad = [name for name, tensor in moved.items() if not bool(tensor.float().isfinite().all())]
    if bad:
        raise JobError(f"directions: the target must be finite; {bad[0]} holds NaN or infinity")
    return moved
