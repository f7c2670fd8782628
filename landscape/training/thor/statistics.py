"""Sums over what a layer saw since the last step, and the Kronecker factors that they make."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from landscape.training.thor.blocks import Blocks, Split, are_finite, trace


@dataclass
class Statistics:
    """Σaaᵀ and Σggᵀ over samples and positions, in diagonal blocks.

    Attributes:
        samples: N, of the whole batch.
        rows: N·T, samples times positions: pixels of a convolution's output, tokens of a sequence.
    """

    a: Blocks
    g: Blocks
    samples: float = 0.0
    rows: float = 0.0

    @classmethod
    def empty(cls, inputs: Split, outputs: Split, dtype: torch.dtype, device: torch.device) -> Statistics:
        return cls(inputs.zeros(dtype, device), outputs.zeros(dtype, device))

    def add_inputs(self, moments: Blocks) -> None:
        """Add Σaaᵀ of some samples and positions."""
        for total, block in zip(self.a, moments, strict=True):
            total += block

    def add_gradients(self, moments: Blocks, times: int = 1) -> None:
        """Add Σggᵀ of some samples and positions; −1 times takes them off again."""
        for total, block in zip(self.g, moments, strict=True):
            total.add_(block, alpha=times)


@dataclass(frozen=True)
class Factors:
    """A = E[aaᵀ]·√T and G = E[ĝĝᵀ]·√T in diagonal blocks, so that A ⊗ G is the layer's empirical Fisher block.

    Means are over samples and positions; ĝ is the gradient of a sample's own loss. With T positions per sample F is
    T·E[aaᵀ] ⊗ E[ĝĝᵀ] (Grosse and Martens 2016, KFC, for convolutions; Eschenhagen et al. 2023, KFAC-expand, for
    sequences), and both factors get the same share of T. THOR's shipped code, which damps by √(λ/T) and multiplies
    each inverse by 1/√T, takes the same step: (X + √(λ/T))⁻¹/√T = (√T·X + √λ)⁻¹.
    """

    a: Blocks
    g: Blocks

    @classmethod
    def of(cls, statistics: Statistics, scale: float, ranks: int) -> Factors:
        """The factors of all ranks' sums.

        With the gradient of the loss that was differentiated, s·(Σ over the batch)/N, a sample's own is N/s times its
        share. Ranks whose gradients are averaged differentiate `ranks` times as much.

        Args:
            scale: s, by which the loss was multiplied.
        """
        samples, rows = statistics.samples, statistics.rows
        root = math.sqrt(rows / samples)
        own = samples / (scale * ranks)
        return cls(
            tuple(block * (root / rows) for block in statistics.a),
            tuple(block * (root / rows * own * own) for block in statistics.g),
        )

    def mixed(self, older: Factors | None, share: float) -> Factors:
        """The moving average share·older + (1 − share)·these; these alone where there are no older ones."""
        if older is None or share == 0:
            return self
        return Factors(
            tuple(old * share + new * (1 - share) for old, new in zip(older.a, self.a, strict=True)),
            tuple(old * share + new * (1 - share) for old, new in zip(older.g, self.g, strict=True)),
        )

    @property
    def traces(self) -> tuple[float, float]:
        return float(trace(self.a)), float(trace(self.g))

    @property
    def are_finite(self) -> bool:
        return are_finite(self.a) and are_finite(self.g)
