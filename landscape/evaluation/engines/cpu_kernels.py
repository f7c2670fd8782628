"""Kernels of the CPU: a layer with the addition and the ReLU after it, layers of 8 bits, max-pooling by maxima.

One kernel computes a layer together with the residual addition and the ReLU after it: the output is written once, not
two or three times. The kernels are oneDNN's, as torch's own compiler calls them
(`torch._inductor.fx_passes.mkldnn_fusion`). They have no public name in torch: if they are missing, nothing is fused.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.functional import max_pool2d
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from landscape.evaluation.engines.base import Rewrite, RewriteTarget, fold_norms, traced
from landscape.evaluation.model_rounding import ActivationRounding, AffineRange, WeightRounding, levels
from landscape.problem.batches import first_of

RELU = (torch.relu, torch.relu_, F.relu, F.relu_, "relu", "relu_")
ADD = (operator.add, operator.iadd, torch.add, "add", "add_")
# Functions and modules whose result has its own memory and is never a view of an input.
FRESH = (operator.add, operator.mul, torch.add, torch.mul, torch.relu, F.pad, "add", "mul", "relu")
FRESH_MODULES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, _BatchNorm)


class Fused(Rewrite):
    """Fuses each layer with the addition after it, if one kernel can compute both, and with the ReLU, in place."""

    traces = True

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether statistics are fixed, the device is a CPU, and there is a layer to fuse."""
        if not target.plan.statistics.fixed or target.device.type != "cpu":
            return False
        graph = traced(target.model)
        fold_norms(graph)  # a batch norm between a convolution and its ReLU would prevent fusing
        return bool(fuse(graph))

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Fuse all layers of the graph that can be fused, except the taken ones."""
        if graph is None or (not fuse(graph, taken) and not taken):
            raise ValueError("no layer is followed by an addition or a ReLU that its kernel could compute")
        return cls()


class FusedLayer(nn.Module):
    """A linear layer or 2-D convolution, then optionally `+ residual` in the same kernel, then optionally ReLU.

    Args:
        layer: is not copied, so weights set in it between calls are used.
        relu: whether max(0, ·) comes last.
        overwrite: whether the sum may be written to the memory of the residual.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, *, relu: bool, overwrite: bool = False) -> None:
        super().__init__()
        self.layer, self.relu, self.overwrite = layer, relu, overwrite
        self._held = (layer,)  # an attribute that is a module takes long to read

    def forward(self, inputs: Tensor, residual: Tensor | None = None) -> Tensor:
        """relu(layer(inputs) + residual), both optional; by torch if the kernel does not support these tensors."""
        layer = self._held[0]
        weight, bias = cast(tuple[Tensor, Tensor | None], (layer._parameters["weight"], layer._parameters["bias"]))
        dtype = weight.dtype
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            inputs, weight, bias = inputs.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        if not self._takes(layer, inputs, residual, dtype):
            return self._plain(inputs, residual)
        output = self._by_kernel(layer, inputs, weight, bias, residual)
        # Not in the kernel, whose ReLU of NaN is 0: a network that has diverged would have a finite loss.
        return torch.relu_(output) if self.relu else output

    def _by_kernel(
        self, layer: nn.Linear | nn.Conv2d, inputs: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None
    ) -> Tensor:
        if isinstance(layer, nn.Linear):
            return _kernel("_linear_pointwise")(inputs, weight, bias, "none", [], "")
        given = (weight, bias, layer.padding, layer.stride, layer.dilation, layer.groups)
        if residual is None:
            return _kernel("_convolution_pointwise")(inputs, *given, "none", [], "")
        if self.overwrite:
            return _kernel("_convolution_pointwise_", "binary")(residual, inputs, *given, "add", 1.0, None, [], "")
        return _kernel("_convolution_pointwise", "binary")(inputs, residual, *given, "add", 1.0, None, [], "")

    def _takes(self, layer: nn.Linear | nn.Conv2d, inputs: Tensor, residual: Tensor | None, dtype: torch.dtype) -> bool:
        """Whether the kernel supports these tensors."""
        if inputs.dtype != dtype or dtype not in (torch.float32, torch.bfloat16) or not inputs.numel():
            return False
        if torch.is_grad_enabled():
            return False  # the kernel has no derivative
        if dtype is torch.bfloat16 and not _computes_bfloat16():
            return False
        if isinstance(layer, nn.Linear):
            return inputs.dim() > 1
        if inputs.dim() != 4 or residual is None:
            return inputs.dim() == 4
        # The kernel that adds a residual exists for this memory format only.
        channels_last = inputs.is_contiguous(memory_format=torch.channels_last) and not inputs.is_contiguous()
        fits = residual.dtype == dtype and residual.shape == _shape(layer, inputs.shape)
        return fits and channels_last and layer.groups == 1

    def _plain(self, inputs: Tensor, residual: Tensor | None) -> Tensor:
        output: Tensor = self.layer(inputs)
        if residual is not None:
            output = output + residual
        return torch.relu(output) if self.relu else output


@functools.cache
def _computes_bfloat16() -> bool:
    """Whether the kernels of this processor compute in bfloat16; below AVX-512 they raise."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@functools.cache
def _kernel(name: str, overload: str = "default") -> Callable[..., Tensor]:
    return cast(Callable[..., Tensor], getattr(getattr(torch.ops.mkldnn, name), overload))


def _shape(layer: nn.Conv2d, inputs: Sequence[int]) -> tuple[int, ...]:
    assert not isinstance(layer.padding, str)
    steps = zip(inputs[2:], layer.padding, layer.dilation, layer.kernel_size, layer.stride, strict=True)
    window = ((n + 2 * pad - gap * (taps - 1) - 1) // step + 1 for n, pad, gap, taps, step in steps)
    return (inputs[0], layer.out_channels, *window)


def fuse(model: fx.GraphModule, leave: frozenset[nn.Module] = frozenset()) -> int:
    """Rewrite a traced model in place, and return how many layers were fused. `leave` names layers to leave alone.

    A ReLU that could not be fused is moved behind the max-pooling that follows it, to fewer values:
    max(0, max xᵢ) = max max(0, xᵢ).
    """
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_convolution_pointwise"):  # type: ignore[no-untyped-call]
        return 0
    count = 0
    for node in list(model.graph.nodes):
        layer = _layer(model, node)
        if layer is None or layer in leave:
            continue
        chain = _Chain.of(model, node, may_add=isinstance(layer, nn.Conv2d))
        if chain.last is node and isinstance(layer, nn.Conv2d):
            continue  # nothing to fuse
        name = f"fused_{count}"
        model.add_submodule(name, FusedLayer(layer, relu=chain.relu, overwrite=chain.may_overwrite(model)))
        with model.graph.inserting_after(chain.last):
            arguments = (node.args[0],) if chain.residual is None else (node.args[0], chain.residual)
            fused = model.graph.call_module(name, arguments)
        chain.last.replace_all_uses_with(fused)
        for call in reversed(chain.nodes):
            model.graph.erase_node(call)
        count += 1
    for node in list(model.graph.nodes):
        if _is_relu(model, node) and len(node.args) == 1 and not node.kwargs:
            _cheapen(model, node)
    return count


def _cheapen(model: fx.GraphModule, relu: fx.Node) -> None:
    """Compute a ReLU after max-pooling instead of before it, and in place if nothing else reads its input."""
    [given] = cast(tuple[fx.Node], relu.args)
    if len(given.users) > 1 or not _is_fresh(model, given):
        return
    reader = next(iter(relu.users)) if len(relu.users) == 1 else None
    after = given
    if reader is not None and _pools(model, reader) and reader.args[0] is relu:
        reader.replace_input_with(relu, given)
        after = reader
    with model.graph.inserting_after(after):
        cheap = model.graph.call_function(torch.relu_, (after,))
    (relu if after is given else after).replace_all_uses_with(cheap, delete_user_cb=lambda user: user is not cheap)
    model.graph.erase_node(relu)


def _pools(model: fx.GraphModule, node: fx.Node) -> bool:
    """Whether the call is max-pooling that returns the maxima without their indices."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return type(module) is nn.MaxPool2d and not module.return_indices
    return _callee(node) in (*POOLING, pool_by_maxima) and not node.kwargs.get("return_indices") and len(node.args) < 7


@dataclass
class _Chain:
    """A layer's call and the calls after it that its kernel can compute too: [layer], [layer, relu], [layer, add], …"""

    nodes: list[fx.Node]
    residual: fx.Node | None = None
    relu: bool = False

    @property
    def last(self) -> fx.Node:
        return self.nodes[-1]

    @classmethod
    def of(cls, model: fx.GraphModule, node: fx.Node, *, may_add: bool) -> _Chain:
        """The longest chain in which each call is the only reader of the one before, and nothing writes in between.

        The fused layer runs at the place of the chain's last call, so it would see what a call in between had written
        to its inputs.
        """
        chain = cls([node])
        reader = chain._reader()
        if may_add and reader is not None and (residual := _other_summand(model, reader, node)) is not None:
            chain = cls([node, reader], residual)
            reader = chain._reader()
        if reader is not None and _is_relu(model, reader):
            chain = cls([*chain.nodes, reader], chain.residual, relu=True)
        between = _between(model, chain.nodes[0], chain.last)
        return cls([node]) if any(_writes(model, other) for other in between if other not in chain.nodes) else chain

    def _reader(self) -> fx.Node | None:
        return next(iter(self.last.users)) if len(self.last.users) == 1 else None

    def may_overwrite(self, model: fx.GraphModule) -> bool:
        """Whether nothing, not even the layer itself, reads the residual's memory after the sum is written to it."""
        residual = self.residual
        if residual is None or residual is self.nodes[0].args[0] or not _is_fresh(model, residual):
            return False
        earlier = set(_between(model, residual, self.last))
        return all(user in earlier and (user in self.nodes or _is_fresh(model, user)) for user in residual.users)


def _layer(model: fx.GraphModule, node: fx.Node) -> nn.Linear | nn.Conv2d | None:
    """The called layer, if its kernel can do more than the layer alone."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = model.get_submodule(str(node.target))
    if type(module) is nn.Linear:
        return module
    if type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        return module
    return None


def _other_summand(model: fx.GraphModule, node: fx.Node, layer: fx.Node) -> fx.Node | None:
    """The other summand of a call that adds something to a layer's output; None for other calls."""
    if _callee(node) not in ADD or len(node.args) != 2 or node.kwargs:
        return None
    one, other = node.args
    summand = other if one is layer else one
    return summand if isinstance(summand, fx.Node) and summand is not layer else None


def _is_relu(model: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return type(model.get_submodule(str(node.target))) is nn.ReLU
    return _callee(node) in RELU


def _is_fresh(model: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        # A fused layer overwrites its residual only if nothing reads the residual any more.
        return isinstance(model.get_submodule(str(node.target)), (*FRESH_MODULES, FusedLayer))
    return _callee(node) in FRESH and not _writes(model, node)


def _writes(model: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call may write to its arguments."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        return bool(getattr(module, "inplace", False)) or getattr(module, "overwrite", False)
    called = _callee(node)
    name = called if isinstance(called, str) else getattr(called, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name == "setitem"
    augmented = getattr(called, "__module__", "") == "_operator" and name in _AUGMENTED
    # `inplace=True` may also be a positional argument, as in F.relu(x, True).
    asked = (
        "out" in node.kwargs or node.kwargs.get("inplace") is True or any(argument is True for argument in node.args)
    )
    return in_place or augmented or asked


_AUGMENTED = frozenset(name.strip("_") for name in dir(operator) if name.startswith("__i") and name != "__inv__")


def _callee(node: fx.Node) -> Any:
    """The function, or the name of the method, that a node calls."""
    return node.target if node.op in ("call_function", "call_method") else None


def _between(model: fx.GraphModule, first: fx.Node, last: fx.Node) -> list[fx.Node]:
    """The nodes after `first` up to and including `last`, in the order of execution."""
    order = list(model.graph.nodes)
    return order[order.index(first) + 1 : order.index(last) + 1]


# ----------------------------------------------------------------------------------------------------
# Linear layers and 2-D convolutions whose weights and inputs have 8 bits, by oneDNN's integer kernels on a CPU.
#
# Products of 8-bit integers are added exactly in 32 bits, and scaled once: y = s_x·s_w·Σ(x_q − z)·w_q + b. Layers that
# compute with rounded floating-point numbers differ by their own rounding only. The kernels are those that torch's
# compiler calls for quantised models (`torch._inductor.fx_passes.quantization`). They have no public name in torch: if
# they are missing, or the processor lacks AVX512-VNNI and AVX-VNNI (without which sums of two products saturate at 16
# bits), no layer is replaced.

MOST = 127  # of an integer weight


@dataclass
class _Layer:
    """A replaced layer and its packed weights; None before they are packed, or if they cannot be."""

    name: str
    module: nn.Module
    plain: Callable[[Tensor], Tensor]
    packed: tuple[Tensor, Tensor] | None = None
    is_fresh: bool = field(default=False)


class Integers(Rewrite):
    """Computes layers in integers if the ranges of their inputs are known; otherwise unchanged.

    Args:
        layers: by their names in the model that is called.
        rounded: the modules of the same names whose weights are rounded; folding a batch norm makes them differ.
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
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether the processor has the kernels, and a layer has 8-bit weights and inputs."""
        if target.plan.quantise is None or not target.plan.quantise.is_int8 or target.plan.precision != "float32":
            return False
        return target.device.type == "cpu" and has_kernels() and bool(_layers_of(target.model, target))

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Replace all such layers, except the taken ones."""
        if not has_kernels() or target.device.type != "cpu" or target.plan.precision != "float32":
            raise ValueError("int8 needs a CPU with kernels for 8-bit integers (VNNI), and precision float32")
        layers = _layers_of(target.model if graph is None else graph, target)
        layers = {name: module for name, module in layers.items() if module not in taken}
        if not layers or target.activations is None:
            raise ValueError("no linear layer or 2-D convolution could be computed in integers")
        rounded = {name: target.model.get_submodule(name) for name in layers}
        return cls(layers, rounded, target.weights.rounding, target.activations)

    def refresh(self, point: Sequence[float] | None) -> None:
        """Drop the packed weights: they belong to another point."""
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
        # NaN and infinity have no integer: the layer then computes in floating point.
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


def _layers_of(model: nn.Module, target: RewriteTarget) -> dict[str, nn.Module]:
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


# ----------------------------------------------------------------------------------------------------
# Max-pooling by elementwise maxima: the same bits by a faster kernel.

POOLING = (max_pool2d, torch.max_pool2d)


class PoolingByMaxima(TorchFunctionMode):
    """While active and gradients are off, 2-D max-pooling is `pool_by_maxima`; at ties its gradients differ."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False  # whether a call to max-pooling was seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in POOLING and not torch.is_grad_enabled():
            self.met, func = True, pool_by_maxima
        return func(*args, **(kwargs or {}))


def pool_by_maxima(input: Tensor, *window: Any, **options: Any) -> Any:
    """`max_pool2d` by elementwise maxima of strided views: the same values to the bit, NaN included.

    torch's CPU kernel walks window by window and is not vectorised over contiguous images; this is several times
    faster. Calls without such a form (indices, ceil_mode, integers) are left to torch.
    """
    pooling = _Window.of(input, *window, **options)
    with torch._C.DisableTorchFunction():
        return max_pool2d(input, *window, **options) if pooling is None else pooling.pool(input)


def use_maxima(graph: fx.GraphModule) -> None:
    """Replace every max-pooling in a traced graph by `pool_by_maxima`."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in POOLING:
            node.target = pool_by_maxima
        elif node.op == "call_module" and type(module := graph.get_submodule(str(node.target))) is nn.MaxPool2d:
            options = (module.kernel_size, module.stride, module.padding, module.dilation)
            more = {"ceil_mode": module.ceil_mode, "return_indices": module.return_indices}
            with graph.graph.inserting_before(node):
                pooled = graph.graph.call_function(pool_by_maxima, (*node.args, *options), {**node.kwargs, **more})
            node.replace_all_uses_with(pooled)
            graph.graph.erase_node(node)
    graph.recompile()


class Maxima(Rewrite):
    """Max-pooling by elementwise maxima: replaced once in a graph, or by a mode that sees every function call."""

    compiler_passes = (use_maxima,)

    def __init__(self, mode: PoolingByMaxima | None) -> None:
        self.mode = mode

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether the device is a CPU and `observe` of a few samples pools in two dimensions."""
        if target.device.type != "cpu":
            return False
        mode = PoolingByMaxima()
        with torch.no_grad(), mode:
            target.observe(target.model, first_of(target.first_batch(), 2))
        return mode.met

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Replace the pooling in the graph; without a graph, by a mode that is active during every call."""
        if graph is None:
            return cls(PoolingByMaxima())
        use_maxima(graph)
        return cls(None)


@dataclass(frozen=True)
class _Window:
    """What to pool: size, step, padding and dilation, each as (rows, columns)."""

    size: tuple[int, int]
    step: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(
        cls, input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> _Window | None:  # fmt: skip
        """The window of a call to `max_pool2d`; None if the call is left to torch."""
        if ceil_mode or return_indices or not input.is_floating_point() or input.dim() < 3:
            return None
        size = _pair(kernel_size)
        return cls(size, size if stride in (None, [], ()) else _pair(stride), _pair(padding), _pair(dilation))

    def pool(self, images: Tensor) -> Tensor:
        """Pool rows first, whose views are contiguous, then columns."""
        if any(self.padding):
            rows, columns = self.padding
            images = nn.functional.pad(images, (columns, columns, rows, rows), value=float("-inf"))
        return self._along(self._along(images, 0), 1)

    def _along(self, images: Tensor, axis: int) -> Tensor:
        size, step, dilation = self.size[axis], self.step[axis], self.dilation[axis]
        place = images.dim() - 2 + axis
        count = (images.shape[place] - dilation * (size - 1) - 1) // step + 1
        views = [_every(images, place, tap * dilation, step, count) for tap in range(size)]
        maxima = views[0]
        for view in views[1:]:
            maxima = torch.maximum(maxima, view)
        return maxima


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, *rest = value
    return int(first), int(rest[0] if rest else first)


def _every(images: Tensor, dim: int, start: int, step: int, count: int) -> Tensor:
    index = [slice(None)] * images.dim()
    index[dim] = slice(start, start + (count - 1) * step + 1, step)
    return images[tuple(index)]
