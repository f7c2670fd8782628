"""A random direction: Gaussian, drawn from a seed, scaled to the weights (Li et al. 2018)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from landscape.core.validation import Seed
from landscape.job.directions.base import DEFAULT_IGNORE, DirectionSpec, Ignored, Normalise, scaling_label
from landscape.job.directions.computed import PartTensors

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from landscape.job.directions.base import Context
    from landscape.model.parameters import FilterScales, ParameterInfo, State

Generator = Literal["counter"]


class RandomDirection(DirectionSpec):
    """A Gaussian direction drawn from `seed`, scaled to the weights as `normalise` says (Li et al. 2018)."""

    kind: Literal["random"] = "random"
    seed: Seed | None = None
    """Of the Gaussian draw; default: 1 on the first axis, 2 on the second, 3 on the third."""
    normalise: Normalise = "filter"
    """Scale each filter, each layer or the whole direction to the norm of the weights there, or leave it as drawn."""
    ignore: tuple[Ignored, ...] = DEFAULT_IGNORE
    """What does not move: biases, normalisation layers."""
    generator: Generator = "counter"
    """What the numbers are drawn by: a counter, see `landscape.core.normal_numbers`. It is recorded."""

    in_parts: ClassVar[bool] = True

    def on_axis(self, axis: int) -> RandomDirection:
        """The direction with the seed of its axis, 1 on the first, if the job gives none."""
        return self if self.seed is not None else self.model_copy(update={"seed": axis + 1})

    def make(self, context: Context) -> State:
        """The direction, drawn for the origin of the landscape."""
        return self.draw(context.origin, context.infos)

    def draw(self, origin: State, infos: Sequence[ParameterInfo]) -> DrawnTensors:
        """The Gaussian direction of the seed, scaled to the origin.

        Raises:
            ValueError: there is no seed yet.
        """
        if self.seed is None:
            raise ValueError("seed: must be given, or filled in by `on_axis`, before a direction is drawn")
        return random_direction(origin, infos, self.seed, self.normalise, self.ignore)

    def label(self, context: Context) -> str:
        """The seed, and how the direction is scaled."""
        return f"random direction (seed {self.seed}, {scaling_label(self.normalise, self.ignore)})"


@dataclass(frozen=True)
class DrawnTensors(PartTensors):
    """The tensors of a random direction, drawn from the seed.

    Attributes:
        scales: the factors of their filters, in whose matrix parts are drawn.
    """

    seed: int
    shapes: Mapping[str, tuple[int, ...]]
    scales: Mapping[str, FilterScales]

    def __getitem__(self, name: str) -> Tensor:
        shape, scales = self.shapes[name], self.scales[name]
        return self.rectangle(name, range(scales.rows), range(scales.columns)).view(shape)

    def rectangle(
        self, name: str, rows: range, columns: range, device: torch.device | str = "cpu", leading: int | None = None
    ) -> Tensor:
        """A part of a tensor, see `PartTensors`."""
        from landscape.core.normal_numbers import key_of, normal_rectangle

        scales = self.scales[name]
        assert leading in (None, scales.leading), "drawn in the matrix of its scales"
        numbers = normal_rectangle(key_of(self.seed, name), scales.columns, rows, columns, device)
        return numbers.mul_(scales.rectangle(rows, columns, device))

    def digest(self) -> str:
        """SHA-256 over generator, seed, shapes and scales, which decide every number."""
        hashed = hashlib.sha256(f"{Generator.__args__[0]} {self.seed};".encode())  # type: ignore[attr-defined]
        for name in sorted(self.shapes):
            hashed.update(f"{name} {self.shapes[name]};".encode())
            hashed.update(self.scales[name].table.numpy().tobytes())
        return hashed.hexdigest()


def random_direction(
    origin: State,
    infos: Sequence[ParameterInfo],
    seed: int,
    normalise: Normalise = "filter",
    ignore: Sequence[Ignored] = DEFAULT_IGNORE,
) -> DrawnTensors:
    """A Gaussian direction from `seed`, normalised to the weights w of the origin (Li et al. 2018).

    d ~ N(0, I); each number depends on the seed, the name of its tensor and its place there. It is then multiplied by
    the factor of its filter, see `filter_scales`. Frozen parameters and buffers never move.

    Args:
        origin: the weights that it is scaled to, read tensor by tensor.
        infos: what each parameter is.
        ignore: the roles of parameters that stay still.

    Returns:
        A float32 tensor per parameter that moves, in its shape, drawn when it is asked for.

    Raises:
        JobError: no parameter moves.

    >>> import torch
    >>> from landscape.model.parameters import describe_parameters, state_of
    >>> model = torch.nn.Linear(2, 3)
    >>> direction = random_direction(state_of(model), describe_parameters(model), seed=1)
    >>> list(direction)  # the bias is ignored
    ['weight']
    >>> rows = direction["weight"].norm(dim=1), model.weight.norm(dim=1)  # a filter is a row
    >>> torch.allclose(*rows)
    True
    """
    from landscape.job.directions.tensors import refuse_immobile
    from landscape.model.parameters import FilterScales, filter_scales

    moved = [info for info in infos if info.trainable and info.role not in ignore]
    refuse_immobile(moved, infos, ignore)
    shapes = {info.name: info.shape for info in moved}
    drawn = DrawnTensors(seed, shapes, {info.name: FilterScales.uniform(info, 1.0) for info in moved})
    return drawn if normalise == "none" else replace(drawn, scales=filter_scales(drawn, origin, moved, normalise))
