"""Rounding to b bits: of weights whenever they are set, of the inputs of layers whenever they are called.

For b ≥ 2 the integers are symmetric, like the weights of int8 kernels (Jacob et al. 2018, "Quantization and Training of
Neural Networks for Efficient Integer-Arithmetic-Only Inference"; Nagel et al. 2021, "A White Paper on Neural Network
Quantization", section 2.2): with n = 2^(b-1) - 1 levels on each side of zero,

    s = max(abs(w)) / n,    q = clamp(round(w · (1/s)), -n, n),    ŵ = s · q.

`round` is to the nearest, ties to even. torch and its int8 kernels multiply by the reciprocal instead of dividing; the
results differ by one level if w lies within an ulp of the middle between two levels. The lowest integer, -2^(b-1), is
not used, so that b = 2 gives -s, 0 and s.

For b = 1 this formula would give only zero. There ŵ = mean(abs(w)) · sign(w), with sign(0) = 1: of all rows α·{-1, 1}
the one nearest to w in the Euclidean norm (Rastegari et al. 2016, "XNOR-Net", section 3.1).

A row of zeros stays zero, and so does a row whose largest weight is so small that 1/s is not finite (below about 4e-37
for 8 bits in float32). If one weight of a row is not finite, none of the rounded row is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from landscape.core.quantisation import Quantisation
from landscape.model.parameters import ParameterInfo, describe_parameters, filter_unview, filter_view

# ----------------------------------------------------------------------------------------------------
# Rows of numbers, each rounded with a scale of its own.


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


# ----------------------------------------------------------------------------------------------------
# The weights of a model, each tensor by itself.


@dataclass(frozen=True)
class WeightRounding:
    """Rounds the weights of a model, each tensor by itself.

    Args:
        quantise: bits and granularity.
        infos: the rounded tensors, by name.
        scales: of these tensors [rows, 1], if they are those of the origin; empty if each point has its own.
    """

    quantise: Quantisation
    infos: Mapping[str, ParameterInfo]
    scales: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, quantise: Quantisation | None) -> WeightRounding:
        """The rounding of a model's weights; of no tensor if only activations, or nothing, is quantised."""
        if quantise is None or not quantise.weights:
            return NOTHING_ROUNDED
        return cls(quantise, {info.name: info for info in rounded_weights(model)})

    def at_origin(self, origin: Mapping[str, Tensor]) -> WeightRounding:
        """The same rounding for this origin; takes its scales from the origin if `quantise` says so."""
        if self.quantise.scale != "origin":
            return self
        scales = {
            name: scales_of(self._rows(name, origin[name]), self.quantise.bits) for name in self.infos if name in origin
        }
        return WeightRounding(self.quantise, self.infos, scales)

    def round_in_place(self, name: str, tensor: Tensor) -> None:
        """Round the tensor of this name, in any memory format; nothing if it is not among the rounded ones.

        Computed in float32, or in float64 for a float64 tensor; a bfloat16 tensor gets the nearest bfloat16 numbers.
        """
        info = self.infos.get(name)
        if info is None:
            return
        rows = self._rows(name, tensor)
        scales = self.scales.get(name)
        if scales is None:
            scales = scales_of(rows, self.quantise.bits)
        rounded = round_rows(rows, scales, self.quantise.bits)
        tensor.copy_(rounded.reshape(info.shape) if self._whole else filter_unview(rounded, info))

    def levels_of_rows(self, name: str, rounded: Tensor) -> tuple[Tensor, Tensor]:
        """Per output channel the largest rounded weight, and how many steps that is: [channels] each."""
        scales = self.scales.get(name)
        if scales is None:
            scales = scales_of(self._rows(name, rounded), self.quantise.bits)
        largest = filter_view(rounded, self.infos[name]).abs().amax(1)
        return largest, (largest / scales[:, 0]).nan_to_num(0.0).round()

    def changes_per_length(self, name: str, origin: Tensor, direction: Tensor) -> float:
        """About how many weights of a tensor change their level per unit of length along a direction: Σ abs(d)/s."""
        scales = scales_of(self._rows(name, origin), self.quantise.bits)
        steps = 2 * scales if self.quantise.bits == 1 else scales
        rates = self._rows(name, direction).abs() / steps
        return float(rates[steps.expand_as(rates) > 0].sum(dtype=torch.float64))

    @property
    def _whole(self) -> bool:
        return self.quantise.scheme == "per-tensor"

    def _rows(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor in float32 or float64 as one row for each scale; elements in the same order in every format."""
        given = tensor if tensor.dtype is torch.float64 else tensor.float()
        return given.reshape(1, -1) if self._whole else filter_view(given, self.infos[name])


NOTHING_ROUNDED = WeightRounding(Quantisation(8, weights=False), {})


def rounded_weights(model: nn.Module) -> tuple[ParameterInfo, ...]:
    """The weights of a model that are rounded: real floating point, two dimensions or more, frozen ones included.

    Biases and the tensors of normalisation layers are not rounded, as in quantisation after training.
    """
    kinds = {name: parameter for name, parameter in model.named_parameters() if parameter.is_floating_point()}
    return tuple(
        info
        for info in describe_parameters(model)
        if info.role == "weight" and len(info.shape) > 1 and info.name in kinds
    )


class ActivationRounding:
    """Rounds the inputs of a model's linear layers and convolutions, once their ranges are known.

    The input of a layer that is not called as a module is not rounded, since no hook sees it: attention, for example,
    uses only the weight of its output projection.

    Args:
        model: gets a permanent hook before each of these layers.
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
            # Layers derived from torch's may give the argument another name.
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
        # Python's min and max would lose a NaN.
        self._seen[name] = torch.minimum(before[0], low), torch.maximum(before[1], high)

    def range_of(self, name: str) -> AffineRange | None:
        """The range of a layer's input; None if it is not known."""
        return None if self._ranges is None else self._ranges.get(name)

    @property
    def knows_ranges(self) -> bool:
        """Whether the ranges were measured."""
        return self._ranges is not None

    def forget(self) -> None:
        """Forget the ranges, for another origin; nothing is rounded until they are measured again."""
        self._ranges = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Measure the ranges from the unrounded inputs within the block; no ranges if the block raises."""
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
