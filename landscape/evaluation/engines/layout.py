"""Convolution weights, and so activations, with the channel as their innermost dimension."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import fx, nn

from landscape.evaluation.engines.rewrite import Rewrite, Target


class ChannelsLast(Rewrite):
    """Lays out convolution weights of two and three dimensions with their input channel innermost.

    Whoever sets the weights lays them out as `layouts` says.
    """

    layouts: ClassVar = {4: torch.channels_last, 5: torch.channels_last_3d}

    @classmethod
    def applies(cls, target: Target) -> bool:
        """Whether a parameter has four or five dimensions."""
        return any(each.dim() in cls.layouts for each in target.model.parameters())

    @classmethod
    def install(cls, target: Target, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Install nothing in the model."""
        return cls()
