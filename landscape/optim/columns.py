"""What a layer multiplies its weights with, as columns: inputs a and gradients g of every sample and position.

A layer's weight gradient is Σ g aᵀ over samples and positions: pixels of a convolution's output, tokens of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_UNFOLDED = 1 << 23  # numbers of unfolded images held at a time

Pairs = Iterator[tuple[Tensor, Tensor]]


def linear_columns(module: nn.Module, given: Tensor, gradient: Tensor, dtype: torch.dtype) -> Pairs:
    """Inputs [..., I] and gradients [..., O] of a linear layer, as [1, I, L] and [1, O, L]."""
    yield _as_columns(given, dtype), _as_columns(gradient, dtype)


def embedding_columns(module: nn.Module, given: Tensor, gradient: Tensor, dtype: torch.dtype) -> Pairs:
    """How often each word of an embedding stands in the indices, [1, V, 1], and gradients [..., D] as [1, D, L].

    An embedding is a linear layer of inputs that are 1 for one word and 0 for all others: Σ aaᵀ is diagonal and holds
    the counts. Here stand their square roots, whose squares are summed. The word `padding_idx` gets no gradient.
    """
    assert isinstance(module, nn.Embedding)
    words, gradients = given.reshape(-1), gradient.reshape(-1, gradient.shape[-1])
    if module.padding_idx is not None:
        used = words != module.padding_idx
        words, gradients = words[used], gradients[used]
    counts = torch.bincount(words, minlength=module.num_embeddings)
    yield counts.to(dtype).sqrt().view(1, -1, 1), _as_columns(gradients, dtype)


def convolution_columns(module: nn.Module, given: Tensor, gradient: Tensor, dtype: torch.dtype) -> Pairs:
    """Patches [n, I, L] of a convolution's input and gradients [n, O, L], some samples at a time.

    I runs over channels, then over the kernel, as in the flattened weight; L over the pixels of the output.
    """
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    if given.ndim == len(module.kernel_size) + 1:  # one sample without a batch
        given, gradient = given.unsqueeze(0), gradient.unsqueeze(0)
    gradient = gradient.flatten(2)
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    images = F.pad(given.to(dtype), _padding(module), mode)
    if len(kernel) == 1:
        images, kernel, stride, dilation = images.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    at_once = max(1, MOST_UNFOLDED // (gradient.shape[2] * images.shape[1] * math.prod(kernel)))
    for some, gradients in zip(torch.split(images, at_once), torch.split(gradient, at_once), strict=True):
        yield F.unfold(some, kernel, dilation, 0, stride), gradients.to(dtype)


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


Columns = Callable[[nn.Module, Tensor, Tensor, torch.dtype], Pairs]
COLUMNS: dict[type[nn.Module], Columns] = {
    nn.Linear: linear_columns,
    nn.Conv1d: convolution_columns,
    nn.Conv2d: convolution_columns,
    nn.Embedding: embedding_columns,
}


def samples_in(module: nn.Module, given: Tensor) -> int:
    """The samples of a batch: its first dimension, or 1 where it has none."""
    dimensions: dict[Any, int] = {nn.Conv1d: 3, nn.Conv2d: 4, nn.Embedding: 1}
    least = next((count for kind, count in dimensions.items() if isinstance(module, kind)), 2)
    return given.shape[0] if given.ndim >= least else 1
