"""The inputs of linear layers and convolutions rounded to a few bits, over ranges that are taken at the origin."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from landscape.core.rounding import AffineRange, fake_quantise


class ActivationRounding:
    """Rounds the inputs of a model's linear layers and convolutions, once their ranges are known.

    A layer that the model does not call as a module, as attention calls its output projection by its weight alone, has
    no input that could be seen: it is left as it is.

    Args:
        model: gets a hook before each of these layers, for good.
    """

    def __init__(self, model: nn.Module, bits: int) -> None:
        self._bits, self._watching = bits, False
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}
        self._ranges: dict[str, AffineRange] | None = None
        self.left: frozenset[str] = frozenset()  # layers that round their inputs themselves
        for name, module in rounded_layers(model).items():
            self._hook(name, module)

    def _hook(self, name: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # Layers derived from torch's may call it by another name.
            by = next((key for key, value in kwargs.items() if isinstance(value, Tensor)), "input")
            if self._watching:
                self._see(name, args[0] if args else kwargs[by])
                return None
            over = None if name in self.left else self.range_of(name)
            if over is None:
                return None
            if args:
                return (fake_quantise(args[0], over), *args[1:]), kwargs
            return args, {**kwargs, by: fake_quantise(kwargs[by], over)}

        module.register_forward_pre_hook(before, with_kwargs=True)

    def _see(self, name: str, values: Tensor) -> None:
        if not values.numel():
            return
        given = values.detach()
        low, high = torch.aminmax(given if given.dtype is torch.float64 else given.float())
        before = self._seen.get(name, (low, high))
        # Not Python's min and max, which would lose a NaN.
        self._seen[name] = torch.minimum(before[0], low), torch.maximum(before[1], high)

    def range_of(self, name: str) -> AffineRange | None:
        """The range of the input of a layer; None where it is not known."""
        return None if self._ranges is None else self._ranges.get(name)

    @property
    def knows_ranges(self) -> bool:
        """Whether the ranges were taken."""
        return self._ranges is not None

    def forget(self) -> None:
        """Round nothing until the ranges are taken again, as the origin is another."""
        self._ranges = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Take the ranges from what the layers get meanwhile, unrounded; none where the block raises."""
        self._seen, self._ranges, self._watching = {}, None, True
        try:
            yield
        finally:
            self._watching = False
        self._ranges = {name: AffineRange.of(low, high, self._bits) for name, (low, high) in self._seen.items()}


def rounded_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers whose inputs are rounded, by name: linear ones, convolutions, and the `Conv1D` of transformers."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, _ConvNd)) or type(module).__name__ == "Conv1D"
    }
