"""The weights of a model rounded to a few bits after they are set: which ones, over which rows, by which scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from landscape.core.quantisation import Quantisation
from landscape.core.rounding import round_rows, scales_of
from landscape.model.parameters import ParameterInfo, describe_parameters, filter_unview, filter_view


@dataclass(frozen=True)
class WeightRounding:
    """Rounds the weights of a model, each tensor by itself.

    Args:
        quantise: how.
        infos: of the tensors that are rounded, by name.
        scales: of these tensors [rows, 1], where they are those of the origin; empty where each point has its own.
    """

    quantise: Quantisation
    infos: Mapping[str, ParameterInfo]
    scales: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, quantise: Quantisation | None) -> WeightRounding:
        """What is rounded of a model; nothing where nothing, or activations alone, are quantised."""
        if quantise is None or not quantise.weights:
            return NOTHING_ROUNDED
        return cls(quantise, {info.name: info for info in rounded_weights(model)})

    def at_origin(self, origin: Mapping[str, Tensor]) -> WeightRounding:
        """The same rounding for these weights at the origin, from which it takes the scales where it is asked to."""
        if self.quantise.scale != "origin":
            return self
        scales = {
            name: scales_of(self._rows(name, origin[name]), self.quantise.bits) for name in self.infos if name in origin
        }
        return WeightRounding(self.quantise, self.infos, scales)

    def round_in_place(self, name: str, tensor: Tensor) -> None:
        """Round a tensor of this name, in whatever memory format it lies; nothing where it is not to be rounded.

        It is computed in float32, or in float64 where the tensor is of that: a tensor in bfloat16 gets what is nearest
        in bfloat16.
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
        """Of each output channel the largest rounded weight, and how many steps that is: [channels] each."""
        scales = self.scales.get(name)
        if scales is None:
            scales = scales_of(self._rows(name, rounded), self.quantise.bits)
        largest = filter_view(rounded, self.infos[name]).abs().amax(1)
        return largest, (largest / scales[:, 0]).nan_to_num(0.0).round()

    def changes_per_length(self, name: str, origin: Tensor, direction: Tensor) -> float:
        """About how many weights of a tensor change their level per unit of length along a direction: Σ abs(d) / s."""
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
    """What is rounded of a model: its real floating-point weights of two dimensions or more, frozen ones as well.

    Biases and what normalisation layers hold are left as they are, as in quantisation after training.
    """
    kinds = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
    return tuple(
        info
        for info in describe_parameters(model)
        if info.role == "weight" and len(info.shape) > 1 and info.name in kinds
    )
