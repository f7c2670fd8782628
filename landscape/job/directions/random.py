"""A random direction: Gaussian, drawn from a seed, scaled to the weights (Li et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from landscape.job.directions.base import (
    DEFAULT_IGNORE,
    TENSOR_BY_TENSOR,
    Ignored,
    Normalise,
    Numbers,
    SeededDirection,
    scaling_label,
)

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.job.directions.base import Context
    from landscape.model.parameters import ParameterInfo, State


class RandomDirection(SeededDirection):
    """A Gaussian direction drawn from `seed`, scaled to the weights as `normalise` says (Li et al. 2018)."""

    kind: Literal["random"] = "random"
    normalise: Normalise = "filter"
    """Scale each filter, each layer or the whole direction to the norm of the weights there, or leave it as drawn."""
    ignore: tuple[Ignored, ...] = DEFAULT_IGNORE
    """What does not move: biases, normalisation layers."""
    numbers: Numbers = "float32"
    """The type that its numbers are rounded to. In bfloat16 it takes 2 bytes a weight beside weights in bfloat16."""

    @model_serializer(mode="wrap")
    def _without_default(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `numbers` where it is the default: landscapes and jobs were recorded without it."""
        fields: dict[str, Any] = serialise(self)
        return {name: value for name, value in fields.items() if (name, value) != ("numbers", "float32")}

    def draw(self, origin: State, infos: Sequence[ParameterInfo]) -> dict[str, Tensor]:
        """The Gaussian direction of the seed, scaled to the origin.

        Raises:
            ValueError: there is no seed yet.
        """
        if self.seed is None:
            raise ValueError("seed: must be given, or filled in by `on_axis`, before a direction is drawn")
        return random_direction(origin, infos, self.seed, self.normalise, self.ignore, self.numbers)

    def label(self, context: Context) -> str:
        """The seed, how the direction is scaled, and what it is rounded to."""
        rounded = "" if self.numbers == "float32" else f", in {self.numbers}"
        return f"random direction (seed {self.seed}, {scaling_label(self.normalise, self.ignore)}{rounded})"


def random_direction(
    origin: State,
    infos: Sequence[ParameterInfo],
    seed: int,
    normalise: Normalise = "filter",
    ignore: Sequence[Ignored] = DEFAULT_IGNORE,
    numbers: Numbers = "float32",
) -> dict[str, Tensor]:
    """A Gaussian direction from `seed`, normalised to the weights.

    d ~ N(0, I) is drawn for every parameter in order, moved or not, so that what is ignored does not change
    the rest; then `normalise_direction` applies. Frozen parameters and buffers never move.

    With `numbers` bfloat16 each number is then rounded to bfloat16, and that is the direction: nothing is lost where it
    is held in bfloat16. The norm of a filter of n numbers changes by about 0.3 % / √n.

    Args:
        origin: the weights that it is scaled to.
        infos: what each parameter is, in the order in which they are drawn.
        ignore: the roles of parameters that stay still.
        numbers: the type that the numbers are rounded to.

    Returns:
        A float32 tensor per parameter that moves, in its shape.

    Raises:
        JobError: no parameter moves.

    >>> import torch
    >>> from landscape.model.parameters import describe_parameters
    >>> from landscape.model.parameters import state_of
    >>> model = torch.nn.Linear(2, 3)
    >>> direction = random_direction(state_of(model), describe_parameters(model), seed=1)
    >>> list(direction)  # the bias is ignored
    ['weight']
    >>> rows = direction["weight"].norm(dim=1), model.weight.norm(dim=1)  # a filter is a row
    >>> torch.allclose(*rows)
    True
    """
    import torch

    from landscape.job.directions.tensors import normalise_direction, refuse_immobile

    moved = [info for info in infos if info.trainable and info.role not in ignore]
    refuse_immobile(moved, infos, ignore)
    names = {info.name for info in moved}
    generator, direction = torch.Generator().manual_seed(seed), dict[str, "Tensor"]()
    for info in infos:
        drawn = {info.name: torch.randn(info.shape, generator=generator, dtype=torch.float32)}
        if info.name in names:
            # Tensor by tensor where that gives the same, so that a large model's float64 never exists all at once.
            alone = normalise in TENSOR_BY_TENSOR
            direction |= normalise_direction(drawn, origin, [info], normalise) if alone else drawn
    if normalise not in TENSOR_BY_TENSOR:
        direction = normalise_direction(direction, origin, moved, normalise)
    if numbers == "bfloat16":
        direction = {name: tensor.bfloat16().float() for name, tensor in direction.items()}
    return direction
