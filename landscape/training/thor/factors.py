"""Second moments of what a layer multiplies its weights with: inputs a and gradients g of every sample and position.

A layer's weight gradient is Σ g aᵀ over samples and positions: pixels of a convolution's output, tokens of a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from landscape.training.thor.blocks import Blocks, Split, gram
from landscape.training.thor.patches import patch_gram


def linear_inputs(module: nn.Module, given: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """Σaaᵀ of inputs [..., I]."""
    return gram(_as_columns(given, dtype), split)


def linear_gradients(module: nn.Module, given: Tensor, gradient: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """Σggᵀ of gradients [..., O]."""
    return gram(_as_columns(gradient, dtype), split)


def embedding_inputs(module: nn.Module, given: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """How often each word of an embedding stands in the indices.

    An embedding is a linear layer of inputs that are 1 for one word and 0 for all others: Σaaᵀ is diagonal and holds
    the counts. The word `padding_idx` gets no gradient.
    """
    assert isinstance(module, nn.Embedding)
    words = given[given != module.padding_idx] if module.padding_idx is not None else given.flatten()
    return (torch.bincount(words, minlength=module.num_embeddings).to(dtype).view(-1, 1, 1),)


def embedding_gradients(module: nn.Module, given: Tensor, gradient: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """Σggᵀ of gradients [..., D], those of the word `padding_idx` left out."""
    assert isinstance(module, nn.Embedding)
    used = gradient[given != module.padding_idx] if module.padding_idx is not None else gradient
    return gram(_as_columns(used, dtype), split)


def convolution_inputs(module: nn.Module, given: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """Σaaᵀ of the patches that a convolution's kernel meets, over channels, then over the kernel, as in its weight."""
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    images, sides = given.to(dtype), _padding(module)
    if images.ndim == len(kernel) + 1:  # one sample without a batch
        images = images.unsqueeze(0)
    if any(sides):
        images = F.pad(images, sides, "constant" if module.padding_mode == "zeros" else module.padding_mode)
    if len(kernel) == 1:
        images, kernel, stride, dilation = images.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    return patch_gram(images, kernel, stride, dilation, split)


def convolution_gradients(
    module: nn.Module, given: Tensor, gradient: Tensor, split: Split, dtype: torch.dtype
) -> Blocks:
    """Σggᵀ of gradients [N, O, …], over samples and pixels."""
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    if gradient.ndim == len(module.kernel_size) + 1:
        gradient = gradient.unsqueeze(0)
    return gram(gradient.flatten(2).to(dtype), split)


def _as_columns(rows: Tensor, dtype: torch.dtype) -> Tensor:
    return rows.reshape(-1, rows.shape[-1]).to(dtype).t().unsqueeze(0)


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """What `torch.nn.functional.pad` takes: before and after each dimension, the last one first."""
    sides: list[int] = []
    for number, (size, dilation) in enumerate(zip(module.kernel_size, module.dilation, strict=True)):
        if module.padding == "same":
            both = dilation * (size - 1)
            before, after = both // 2, both - both // 2
        else:
            before = after = 0 if isinstance(module.padding, str) else module.padding[number]
        sides = [before, after, *sides]
    return sides


class Moments(NamedTuple):
    """How Σaaᵀ and Σggᵀ of a type of layers are taken from one use of it, in diagonal blocks."""

    of_inputs: Callable[[nn.Module, Tensor, Split, torch.dtype], Blocks]
    of_gradients: Callable[[nn.Module, Tensor, Tensor, Split, torch.dtype], Blocks]


CONVOLUTION = Moments(convolution_inputs, convolution_gradients)
MOMENTS: dict[type[nn.Module], Moments] = {
    nn.Linear: Moments(linear_inputs, linear_gradients),
    nn.Conv1d: CONVOLUTION,
    nn.Conv2d: CONVOLUTION,
    nn.Embedding: Moments(embedding_inputs, embedding_gradients),
}


def moments_of(module: nn.Module) -> Moments:
    """Those of the module's type."""
    return next(moments for kind, moments in MOMENTS.items() if isinstance(module, kind))


def samples_in(module: nn.Module, given: Tensor) -> int:
    """The samples of a batch: its first dimension, or 1 where it has none."""
    dimensions: dict[Any, int] = {nn.Conv1d: 3, nn.Conv2d: 4, nn.Embedding: 1}
    least = next((count for kind, count in dimensions.items() if isinstance(module, kind)), 2)
    return given.shape[0] if given.ndim >= least else 1
