"""Activations rounded to b bits over a range: per tensor and affine, as in Jacob et al. 2018, section 2.1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AffineRange:
    """The range of an activation, which holds zero, as scale and zero point.

    With m = 2^b - 1, low = min(0, min x) and high = max(0, max x):

        s = (high - low) / m,    z = clamp(round(-low / s), 0, m),    x̂ = s · (clamp(round(x · (1/s)) + z, 0, m) - z).

    Zero is one of the values, so that padding stays exact. `round` is to the nearest, ties to even. This is what
    torch's MinMaxObserver and `fake_quantize_per_tensor_affine` compute for unsigned integers. Where low = high = 0,
    or s has no finite reciprocal, x̂ = 0.

    Attributes:
        scale: s, a float32 or float64 tensor of no dimension.
        zero_point: z, a whole number in the same type.
        most: m.
    """

    scale: Tensor
    zero_point: Tensor
    most: int

    @classmethod
    def of(cls, low: Tensor, high: Tensor, bits: int) -> AffineRange:
        """The range from the smallest and the largest value that were seen."""
        most = (1 << bits) - 1
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
        scale = (high - low) / most
        zero = (-low / scale).round().nan_to_num(0.0).clamp(0, most)
        return cls(scale, zero, most)


def fake_quantise(values: Tensor, over: AffineRange) -> Tensor:
    """x̂ of every value, in the type of the values; computed in the type of the range where that is larger."""
    return ((levels(values, over) - over.zero_point) * over.scale).to(values.dtype)


def levels(values: Tensor, over: AffineRange) -> Tensor:
    """clamp(round(x · (1/s)) + z, 0, m) of every value, whole numbers in the type of the range or a larger one."""
    inverse = 1.0 / over.scale
    inverse = torch.where(inverse.isinf(), torch.zeros_like(inverse), inverse)
    given = values.to(torch.promote_types(values.dtype, over.scale.dtype))
    return (given * inverse).round().add(over.zero_point).clamp(0, over.most)
