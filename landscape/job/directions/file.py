"""Directions from a file with one tensor per parameter, and eigenvectors of the Hessian at the origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from landscape.core.errors import JobError, quoted
from landscape.core.text import number_text, plus_minus
from landscape.core.validation import Seed, Steps
from landscape.job.directions.base import DirectionSpec, Ignored, Normalise, Range, scaling_label
from landscape.job.directions.computed import ComputedTensors, itself

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.job.directions.base import Context, Eigenpair, Spectrum
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

    in_parts: ClassVar[bool] = True

    @field_validator("path")
    @classmethod
    def _some_path(cls, path: str) -> str:
        if not path.strip():
            raise ValueError(f"must be a file of weights, not {quoted(path)}")
        return path

    @property
    def files(self) -> tuple[str, ...]:
        """The file of the direction."""
        return (self.path,)

    def identity(self, context: Context) -> dict[str, Any]:
        """The digest of the tensors in the file, wherever it lies, and how they are scaled."""
        from landscape.model.parameters import state_digest

        options = self.model_dump(mode="json", exclude={"path"})
        return options | {"tensors": state_digest(context.tensors(self.path))}

    def make(self, context: Context) -> State:
        """The tensors of the file, scaled as asked."""
        tensors, source = context.tensors(self.path), f"direction file {quoted(self.path)}"
        return supplied_direction(tensors, context.origin, context.infos, source, self.normalise, self.ignore)

    def label(self, context: Context) -> str:
        """The name of the file, and how the direction is scaled."""
        return f"direction from {Path(self.path).name} ({scaling_label(self.normalise, self.ignore)})"


def supplied_direction(
    tensors: State,
    origin: State,
    infos: Sequence[ParameterInfo],
    source: str,
    normalise: Normalise = "none",
    ignore: Sequence[Ignored] = (),
) -> ComputedTensors:
    """A direction from a file: one finite tensor per parameter, tied ones once, nothing missing or extra.

    Args:
        tensors: of the file.
        source: the file's name in errors.
        ignore: the roles of parameters that do not move, whatever the file holds for them.

    Returns:
        A float32 tensor per parameter that is not ignored, in its shape, computed when it is asked for.

    Raises:
        JobError: the file does not fit the model, or its direction is zero or not finite.
    """
    _refuse_unfitting(tensors, origin, infos, source)
    from landscape.model.parameters import filter_scales

    moved = [info for info in infos if info.role not in ignore and origin[info.name].is_floating_point()]
    direction = ComputedTensors.over([info.name for info in moved], itself, tensors)
    if normalise != "none":
        given = {info.name: tensors[info.name] for info in moved}  # in the type of the file
        direction = replace(direction, scales=filter_scales(given, origin, moved, normalise))
    if not any(bool(tensor.any()) for tensor in direction.values()):
        raise JobError(f"{source}: is zero for every parameter that moves; give a direction of some length")
    return direction


def _refuse_unfitting(tensors: State, origin: State, infos: Sequence[ParameterInfo], source: str) -> None:
    """Refuse tensors with other names or shapes than the model's, not finite, or not zero where nothing can move."""
    from landscape.model.parameters import refuse_mismatch

    shapes = {info.name: info.shape for info in infos}
    refuse_mismatch(
        source,
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
        raise JobError(f"{source}: must be finite; {bad[0]} holds NaN or infinity")
    still = (name for name in shapes if not origin[name].is_floating_point())
    moving = next((name for name in still if bool(tensors[name].any())), None)
    if moving is not None:
        raise JobError(
            f"{source}: must be zero for {moving}, which is {str(origin[moving].dtype).removeprefix('torch.')}: only "
            "real floating-point weights move"
        )


# ----------------------------------------------------------------------------------------------------
# An eigenvector of the Hessian of the loss at the origin.

# Of the length of the weights, that an axis reaches at the least: with a loss near zero, it would be infinitely short,
# and float32 rounds weights to 6e-8 of their size.
LEAST_REACH = 1e-3
# Of Lanczos. On a spectrum of 2,000 with ten outliers, 20 steps gave both ends to four digits, 10 steps the largest
# alone; 60 leave room for the flat bulk of a network's Hessian.
STEPS = 60
# Cost of a product with the Hessian, in evaluations of all samples: a gradient costs 2.2, a product three gradients.
PRODUCT_EVALUATIONS = 7
PLACES = {1: "first", 2: "second", -1: "last"}


class EigenDirection(DirectionSpec):
    """An eigenvector of the Hessian at the origin, of unit length, over all trainable parameters; never normalised."""

    kind: Literal["eigen"] = "eigen"
    rank: Literal[1, 2, -1] = 1
    """Of which eigenvalue: 1 the largest, 2 the second largest, -1 the smallest, the most negative one."""
    steps: Steps = STEPS
    """Steps of the Lanczos method at most, a product with the Hessian each."""
    seed: Seed = 0
    """Of the vector that it starts from."""

    default_range: ClassVar[Range | None] = None
    is_costly: ClassVar[bool] = True
    follows_samples: ClassVar[bool] = True

    def identity(self, context: Context) -> dict[str, Any]:
        """The fields alone: origin and samples are in the identity of every landscape."""
        return self.model_dump(mode="json")

    def make(self, context: Context) -> dict[str, Tensor]:
        """The eigenvector, in float32."""
        return dict(self._pair(context).vector)

    def range_at(self, context: Context) -> Range | None:
        """±max(√(2·L₀/|λ|), ‖θ₀‖/1000), to three digits, see `half_width`."""
        from landscape.model.parameters import norm

        spectrum = self._spectrum(context)
        if spectrum.foreseen:
            return (-1.0, 1.0)
        weights = norm({info.name: context.origin[info.name] for info in context.infos})
        half = float(f"{half_width(spectrum.pairs[self.rank].value, spectrum.loss, weights):.3g}")
        return (-half, half)

    def label(self, context: Context) -> str:
        """The rank and the size of the eigenvalue."""
        name = f"{PLACES[self.rank]} eigenvector of the Hessian"
        spectrum = self._spectrum(context)
        if spectrum.foreseen:
            return f"{name}, computed when the job runs"
        pair = spectrum.pairs[self.rank]
        size = number_text(pair.value) if pair.stderr is None else f"{plus_minus(pair.value, pair.stderr)}, 2 s.e."
        doubt = "" if pair.is_resolved else f", not resolved: residual {pair.residual:.2g}"
        return f"{name} (λ = {size}{doubt})"

    def attributes(self, context: Context) -> dict[str, Any]:
        """The eigenvalue, the residual of its equation, its standard error, and how it was computed."""
        spectrum = self._spectrum(context)
        if spectrum.foreseen:
            return {"foreseen": True}
        pair = spectrum.pairs[self.rank]
        return {
            "eigenvalue": pair.value,
            "eigenvalue_residual": pair.residual,
            "eigenvalue_stderr": pair.stderr,
            "lanczos_steps": spectrum.steps,
            "second_derivatives": spectrum.method,
        }

    def _pair(self, context: Context) -> Eigenpair:
        return self._spectrum(context).pairs[self.rank]

    def _spectrum(self, context: Context) -> Spectrum:
        """One Lanczos run for all axes with the same steps and seed."""
        same = [
            axis
            for axis in context.axes
            if isinstance(axis, EigenDirection) and (axis.steps, axis.seed) == (self.steps, self.seed)
        ]
        ranks = tuple(sorted({axis.rank for axis in same}))
        return context.once(
            ("spectrum", ranks, self.steps, self.seed), lambda: context.spectrum(ranks, self.steps, self.seed)
        )


def half_width(value: float, loss: float, weights: float = 0.0) -> float:
    """max(√(2·L₀/|λ|), ‖θ₀‖/1000): where the parabola of the eigenvalue λ has risen by the loss L₀; infinite if λ is 0.

    Args:
        weights: ‖θ₀‖, the length of the weights at the origin.
    """
    return max(math.sqrt(2 * max(loss, 0.0) / abs(value)), LEAST_REACH * weights) if value else math.inf
