"""A direction that the user supplies: a file with one tensor per parameter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from landscape.core.errors import JobError, shown
from landscape.job.directions.base import DirectionSpec
from landscape.job.directions.options import Ignored, Normalise, scaling_label

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.job.directions.context import Context
    from landscape.model.parameters import ParameterInfo, State


class FileDirection(DirectionSpec):
    """A direction supplied by the user: a safetensors file with one tensor per parameter."""

    kind: Literal["file"] = "file"
    path: str
    """A safetensors file with one tensor per parameter, under the names of `state_dict()`."""
    normalise: Normalise = "none"
    """As for a random direction; by default the direction is taken as it is."""
    ignore: tuple[Ignored, ...] = ()
    """What does not move: biases, normalisation layers."""

    @field_validator("path")
    @classmethod
    def _some_path(cls, path: str) -> str:
        if not path.strip():
            raise ValueError(f"must be a file of weights, not {shown(path)}")
        return path

    @property
    def files(self) -> tuple[str, ...]:
        """The file of the direction."""
        return (self.path,)

    def identity(self, context: Context) -> dict[str, Any]:
        """The tensors in the file, wherever it lies, and how they are scaled."""
        from landscape.model.parameters import state_digest

        options = self.model_dump(mode="json", exclude={"path"})
        return options | {"tensors": state_digest(context.tensors(self.path))}

    def make(self, context: Context) -> dict[str, Tensor]:
        """The tensors of the file, scaled as asked."""
        tensors, what = context.tensors(self.path), f"direction file {shown(self.path)}"
        return supplied_direction(tensors, context.origin, context.infos, what, self.normalise, self.ignore)

    def label(self, context: Context) -> str:
        """The name of the file, and how the direction is scaled."""
        return f"direction from {Path(self.path).name} ({scaling_label(self.normalise, self.ignore)})"


def supplied_direction(
    tensors: State,
    origin: State,
    infos: Sequence[ParameterInfo],
    what: str,
    normalise: Normalise = "none",
    ignore: Sequence[Ignored] = (),
) -> dict[str, Tensor]:
    """A direction from a file: one finite tensor per parameter, tied ones once, nothing missing or extra.

    Args:
        tensors: what the file holds.
        what: how an error names the file.
        ignore: the roles of parameters that stay still, whatever the file says of them.

    Returns:
        A float32 tensor per parameter that is not ignored, in its shape.

    Raises:
        JobError: the file does not fit the model, or its direction is zero or not finite.
    """
    _refuse_unfitting(tensors, origin, infos, what)
    from landscape.job.directions.scaling import normalise_direction

    moved = [info for info in infos if info.role not in ignore and origin[info.name].is_floating_point()]
    direction = normalise_direction({info.name: tensors[info.name] for info in moved}, origin, moved, normalise)
    if not any(bool(tensor.any()) for tensor in direction.values()):
        raise JobError(f"{what}: is zero for every parameter that moves; give a direction of some length")
    return direction


def _refuse_unfitting(tensors: State, origin: State, infos: Sequence[ParameterInfo], what: str) -> None:
    """Refuse tensors of other names or shapes than the model's, that are not finite, or that move what cannot move."""
    from landscape.model.parameters import refuse_mismatch

    shapes = {info.name: info.shape for info in infos}
    refuse_mismatch(
        what,
        [name for name in shapes if name not in tensors],
        [name for name in tensors if name not in shapes],
        [
            f"{name} {tuple(tensors[name].shape)} where the model has {shape}"
            for name, shape in shapes.items()
            if name in tensors and tuple(tensors[name].shape) != shape
        ],
    )
    bad = [name for name in shapes if not bool(tensors[name].isfinite().all())]
    if bad:
        raise JobError(f"{what}: must be finite; {bad[0]} holds NaN or infinity")
    still = (name for name in shapes if not origin[name].is_floating_point())
    odd = next((name for name in still if bool(tensors[name].any())), None)
    if odd is not None:
        raise JobError(
            f"{what}: must be zero for {odd}, which is {str(origin[odd].dtype).removeprefix('torch.')}: only real "
            "floating-point weights move"
        )
