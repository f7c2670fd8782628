"""Tensors, NumPy arrays and generators that a model holds beside its weights: their values, and putting them back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.evaluation.checksum import checksums

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


class Array:
    """A tensor that is neither parameter nor buffer, or a NumPy array: where it lies, and its values."""

    def __init__(self, name: str, array: Any) -> None:
        self.name, self.always = name, False
        self._tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
        self.home = self._tensor.detach()
        self._before, self._wants_gradient = self.home.clone(), self._tensor.requires_grad
        self.sum, self._mark = checksums([self.home])[0], self._now()

    def _now(self) -> tuple[Any, ...]:
        each = self._tensor
        return each._version, each.data_ptr(), each.shape, each.stride(), each.requires_grad, each.grad is None

    def changed(self) -> bool:
        """Whether it was written to, moved or replaced since the last `restore`, as far as torch's counters show it."""
        return self.always or self._now() != self._mark

    def restore(self) -> None:
        """Put back its values, its memory, and whether it wants a gradient."""
        if not self._tensor.is_leaf:
            self._tensor.detach_()
        self._tensor.requires_grad_(self._wants_gradient).grad = None
        self._tensor.data = self.home
        self.home.copy_(self._before)
        self._mark = self._now()


def is_plain(array: Tensor | np.ndarray) -> bool:
    """Whether it has values of its own that can be kept and put back."""
    if isinstance(array, np.ndarray):
        return array.flags.writeable and array.dtype.kind in "biufc" and array.dtype.isnative and array.size > 0
    strided = type(array) in (Tensor, nn.Parameter) and array.layout is torch.strided and array.is_leaf
    own = strided and not (array.is_meta or array.is_quantized or array.is_inference())
    # An expanded tensor cannot be written to, and so needs no keeping.
    return own and not any(step == 0 and size > 1 for step, size in zip(array.stride(), array.shape, strict=True))


def generator_state(generator: Any) -> Any:
    """The state of one of `GENERATORS`, to be given to `set_generator_state`."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set a generator back to a state of its own."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
