"""Linear layers and 2-D convolutions whose weights and inputs have 8 bits, by oneDNN's integer kernels on a CPU.

Products of 8-bit integers are added in 32 bits, exactly, and scaled once: y = s_x·s_w·Σ(x_q − z)·w_q + b. What is left
of a difference from layers that compute with rounded numbers is the rounding of those. The kernels are those that
torch's own compiler calls for quantised models (`torch._inductor.fx_passes.quantization`). They have no public name in
torch: where they are missing, or the processor has no instructions for them (AVX512-VNNI or AVX-VNNI, without which
sums of two products saturate at 16 bits), nothing is taken over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from landscape.core.rounding import AffineRange, levels
from landscape.evaluation.engines.activations import ActivationRounding
from landscape.evaluation.engines.rewrite import Rewrite, Target
from landscape.evaluation.rounding import WeightRounding

MOST = 127  # of an integer weight


@dataclass
class _Layer:
    """A layer that is taken over, and its packed weights; None where they are to be packed, or cannot be."""

    name: str
    module: nn.Module
    plain: Callable[[Tensor], Tensor]
    packed: tuple[Tensor, Tensor] | None = None
    is_fresh: bool = field(default=False)


class Integers(Rewrite):
    """Computes layers in integers where the ranges of their inputs are known; elsewhere as they are.

    Args:
        layers: by their names in the model that is called.
        rounded: the modules of the same names whose weights are rounded; others where batch norms are folded.
    """

    def __init__(
        self, layers: dict[str, nn.Module], rounded: dict[str, nn.Module], rounding: WeightRounding,
        activations: ActivationRounding,
    ) -> None:  # fmt: skip
        self.layers = frozenset(layers.values())
        self._rounded, self._rounding, self._activations = rounded, rounding, activations
        self._zeros: dict[int, Tensor] = {}
        self._taken = [_Layer(name, module, module.forward) for name, module in layers.items()]
        for layer in self._taken:
            layer.module.forward = partial(self._call, layer)
        activations.left = frozenset(layers)

    @classmethod
    def applies(cls, target: Target) -> bool:
        """Whether the processor has the kernels, and a layer has such weights and inputs."""
        if target.plan.quantise is None or not target.plan.quantise.is_int8 or target.plan.precision != "float32":
            return False
        return target.device.type == "cpu" and has_kernels() and bool(_layers_of(target.model, target))

    @classmethod
    def install(cls, target: Target, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Take over all such layers, except those that are taken."""
        if not has_kernels() or target.device.type != "cpu" or target.plan.precision != "float32":
            raise ValueError("int8 needs a CPU with kernels for 8-bit integers (VNNI), and precision float32")
        layers = _layers_of(target.model if graph is None else graph, target)
        layers = {name: module for name, module in layers.items() if module not in taken}
        if not layers or target.activations is None:
            raise ValueError("no linear layer or 2-D convolution could be computed in integers")
        rounded = {name: target.model.get_submodule(name) for name in layers}
        return cls(layers, rounded, target.weights.rounding, target.activations)

    def refresh(self, point: Sequence[float] | None) -> None:
        """The weights that are packed are those of another point."""
        for layer in self._taken:
            layer.is_fresh = False

    def close(self) -> None:
        """Leave the layers as they were."""
        self._activations.left = frozenset()
        for layer in self._taken:
            if "forward" in vars(layer.module):
                del layer.module.forward

    def _call(self, layer: _Layer, input: Tensor) -> Tensor:  # as torch calls it, where it is given by name
        over = self._activations.range_of(layer.name)
        if over is None:
            return layer.plain(input)
        if not layer.is_fresh:
            layer.packed, layer.is_fresh = self._pack(layer, over), True
        given = levels(input, over)
        # There is no integer for what is not finite: the layer then computes as though nothing were integers.
        if layer.packed is None or not bool(given.sum().isfinite()):
            return layer.plain((given - over.zero_point) * over.scale)
        return self._kernel(layer, given.to(torch.uint8), over)

    def _pack(self, layer: _Layer, over: AffineRange) -> tuple[Tensor, Tensor] | None:
        """The weights as integers in the kernel's layout, and the scale of each channel; None if not all are finite."""
        weight, original = layer.module.weight, self._rounded[layer.name].weight
        assert isinstance(weight, Tensor)
        assert isinstance(original, Tensor)
        _, steps = self._rounding.levels_of_rows(f"{layer.name}.weight", original)
        rows = weight.reshape(len(weight), -1)
        largest = rows.abs().amax(1)
        scales = torch.where(steps > 0, largest / steps.clamp(min=1.0), torch.ones_like(largest))
        scales = torch.where(scales > 0, scales, torch.ones_like(scales))
        if not bool(rows.isfinite().all()) or not bool(scales.isfinite().all()):
            return None
        integers = (rows / scales[:, None]).round().clamp(-MOST, MOST).to(torch.int8).reshape(weight.shape)
        if isinstance(layer.module, nn.Linear):
            return torch.ops.onednn.qlinear_prepack(integers, None), scales
        given = (scales, float(over.scale), int(over.zero_point), *_geometry(layer.module))
        return torch.ops.onednn.qconv_prepack(integers, *given, None), scales

    def _kernel(self, layer: _Layer, inputs: Tensor, over: AffineRange) -> Tensor:
        assert layer.packed is not None
        packed, scales = layer.packed
        zeros = self._zeros.setdefault(len(scales), torch.zeros(len(scales), dtype=torch.int64))
        before = (inputs, float(over.scale), int(over.zero_point), packed, scales, zeros, layer.module.bias)
        after: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
        found: Tensor
        if isinstance(layer.module, nn.Linear):
            found = torch.ops.onednn.qlinear_pointwise(*before, *after)
        else:
            found = torch.ops.onednn.qconv_pointwise(*before, *_geometry(layer.module), *after)
        return found


def has_kernels() -> bool:
    """Whether torch has the kernels here, and the processor the instructions."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    names = ("qlinear_prepack", "qlinear_pointwise", "qconv_prepack", "qconv_pointwise")
    return supported is not None and bool(supported()) and all(hasattr(torch.ops.onednn, name) for name in names)


def _geometry(module: nn.Module) -> tuple[Any, ...]:
    assert isinstance(module, nn.Conv2d)
    return list(module.stride), list(module.padding), list(module.dilation), module.groups


def _layers_of(model: nn.Module, target: Target) -> dict[str, nn.Module]:
    """The layers of torch's own types whose weight is rounded, by name."""
    rounded = target.weights.rounding.infos
    return {
        name: module
        for name, module in model.named_modules()
        if f"{name}.weight" in rounded
        and "forward" not in vars(module)
        and (type(module) is nn.Linear or (type(module) is nn.Conv2d and _is_plain(module)))
    }


def _is_plain(module: nn.Conv2d) -> bool:
    return module.padding_mode == "zeros" and not isinstance(module.padding, str)
