"""Weights rounded to b bits about zero, each row of a matrix with a scale of its own.

For b ≥ 2 the integers are symmetric, as int8 kernels have weights (Jacob et al. 2018, "Quantization and Training of
Neural Networks for Efficient Integer-Arithmetic-Only Inference"; Nagel et al. 2021, "A White Paper on Neural Network
Quantization", section 2.2): with n = 2^(b-1) - 1 levels on each side of zero,

    s = max(abs(w)) / n,    q = clamp(round(w · (1/s)), -n, n),    ŵ = s · q.

`round` is to the nearest, ties to even. The product with the reciprocal, and not a quotient, is what torch and its
int8 kernels compute; the two differ by one level where w lies within an ulp of the middle between two. The lowest
integer, -2^(b-1), is not used. With b = 2 what is left is -s, 0 and s.

For b = 1 this would leave zero alone. There ŵ = mean(abs(w)) · sign(w), with sign(0) = 1: of all rows α·{-1, 1}, that
nearest to w in the Euclidean sense (Rastegari et al. 2016, "XNOR-Net", section 3.1).

A row of zeros stays zero. So does one whose largest weight is too small for 1/s to be finite (below about 4e-37 for
8 bits in float32). A row with a weight that is not finite has no weight that is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def levels_of(bits: int) -> int:
    """The number n of levels on each side of zero: 127 for 8 bits, 1 for 2 and for 1."""
    return max(1, (1 << (bits - 1)) - 1)


def scales_of(rows: Tensor, bits: int) -> Tensor:
    """The scale s of each row: max(abs(w)) / n, or mean(abs(w)) for one bit.

    Args:
        rows: [rows, elements], in float32 or float64.

    Returns:
        [rows, 1], in the same type.
    """
    if not rows.numel():
        return rows.new_zeros(len(rows), 1)
    magnitudes = rows.abs()
    if bits == 1:
        # In float64, so that the sum of many is not rounded; the scale is rounded once.
        return magnitudes.mean(dim=1, keepdim=True, dtype=torch.float64).to(rows.dtype)
    return magnitudes.amax(dim=1, keepdim=True) / levels_of(bits)


def round_rows(rows: Tensor, scales: Tensor, bits: int) -> Tensor:
    """ŵ of every weight.

    Args:
        rows: [rows, elements], in float32 or float64.
        scales: [rows, 1], from `scales_of` of these rows or of others.

    Returns:
        [rows, elements], in memory of its own.
    """
    if bits == 1:
        signs = torch.where(rows < 0, -1.0, 1.0).to(rows.dtype)
        return (signs + (rows - rows)).mul_(scales)  # what is not finite stays so
    inverse = 1.0 / scales
    inverse = torch.where(inverse.isinf(), torch.zeros_like(inverse), inverse)
    most = levels_of(bits)
    return (rows * inverse).round_().clamp_(-most, most).mul_(scales)


# ----------------------------------------------------------------------------------------------------
# Activations rounded to b bits over a range: per tensor and affine, as in Jacob et al. 2018, section 2.1.


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
