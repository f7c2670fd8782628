"""Rounding weights and activations to a few bits, as quantisation after training does: pure functions of tensors."""

from landscape.quantisation.scheme import MOST_BITS, Quantisation

__all__ = ["MOST_BITS", "Quantisation"]
