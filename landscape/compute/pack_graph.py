"""Graphs that torch exported, as the plain values of `landscape.model.packed_graph`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from landscape.compute.refusals import place_of_node
from landscape.core.errors import JobError, shown
from landscape.model.packed_graph import DTYPES, FORMATS, options_of
from landscape.model.packed_operations import ALLOWED, PYTHON
from landscape.model.packed_rules import RULES

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
FORMAT_NAMES = {value: name for name, value in FORMATS.items()}
PYTHON_NAMES: dict[Any, str] = {function: name for name, function in PYTHON.items()}
# Assertions of what was seen while it was exported.
DROPPED = re.compile(r"(_assert_\w+|sym_constrain_range\w*|_functional_sym_constrain_range\w*)")
# The operation that a layer of torch's calls, and how many of its arguments are the layer's own tensors.
CALLS = {
    "Linear": ("linear.default", ("weight", "bias")),
    "Conv1d": ("conv1d.", ("weight", "bias")),
    "Conv2d": ("conv2d.", ("weight", "bias")),
    "Conv3d": ("conv3d.", ("weight", "bias")),
    "BatchNorm1d": ("batch_norm.default", ("weight", "bias", "running_mean", "running_var")),
    "BatchNorm2d": ("batch_norm.default", ("weight", "bias", "running_mean", "running_var")),
    "BatchNorm3d": ("batch_norm.default", ("weight", "bias", "running_mean", "running_var")),
    "ConvTranspose1d": ("conv_transpose1d.default", ("weight", "bias")),
    "ConvTranspose2d": ("conv_transpose2d.input", ("weight", "bias")),
    "ConvTranspose3d": ("conv_transpose3d.input", ("weight", "bias")),
}


@dataclass
class Exported:
    """A function of a model and a batch as a graph of operations.

    Attributes:
        graph: of torch's operations.
        tensors: what a placeholder of the graph stands for, by its name: a parameter or buffer by its path in the
            model, or a constant.
        module: holds what the graph gets by name.
    """

    graph: fx.Graph
    tensors: Mapping[str, str | Tensor]
    module: nn.Module


@dataclass
class Constants:
    """The tensors that graphs hold beside parameters and buffers."""

    tensors: list[Tensor] = field(default_factory=list)

    def place_of(self, tensor: Tensor) -> int:
        """The number of a constant, which is kept once."""
        for place, known in enumerate(self.tensors):
            if known is tensor or (known.dtype == tensor.dtype and torch.equal(known, tensor)):
                return place
        self.tensors.append(tensor.detach().cpu().clone())
        return len(self.tensors) - 1


def described_graph(exported: Exported, model: nn.Module, constants: Constants, *, lowered: bool) -> dict[str, Any]:
    """The graph as plain values; layers of torch are called as such.

    Args:
        constants: takes the tensors that the graph holds.
        lowered: whether the job computes some operations in lower precision, so that regions of their own matter.

    Raises:
        JobError: it holds an operation that no portable graph may hold; names it and its place.
    """
    return _Writer(exported, model, constants, lowered).written()


class _Writer:
    def __init__(self, exported: Exported, model: nn.Module, constants: Constants, lowered: bool) -> None:
        self._exported, self._model, self._constants, self._lowered = exported, model, constants, lowered
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._nodes: list[list[Any]] = []
        self._values: dict[fx.Node, Any] = {}
        self._inputs = 0

    def written(self) -> dict[str, Any]:
        outputs: list[Any] = []
        for node in self._exported.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = self._placeholder(node)
            elif node.op == "output":
                outputs = [self._argument(value, node) for value in node.args[0]]
            else:
                self._values[node] = self._computed(node, self._exported.module)
        return {"inputs": self._inputs, "nodes": self._nodes, "outputs": outputs}

    def _placeholder(self, node: fx.Node) -> dict[str, Any]:
        stands = self._exported.tensors.get(node.name)
        if isinstance(stands, str):
            return {"tensor": stands}
        if stands is not None:
            return {"constant": self._constants.place_of(stands)}
        self._inputs += 1
        return {"input": self._inputs - 1}

    def _computed(self, node: fx.Node, owner: nn.Module) -> Any:
        """What later nodes name the node by: its number, or for a region what the region returns."""
        if "stands_for" in node.meta:
            return {"tensor": node.meta["stands_for"]}
        if node.op == "get_attr":
            value = _attribute(owner, str(node.target))
            return {"constant": self._constants.place_of(value)} if isinstance(value, Tensor) else value
        target: Any = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._region(node, owner)
        if target is operator.getitem and isinstance(self._values.get(node.args[0]), list):  # type: ignore[arg-type]
            return self._values[node.args[0]][node.args[1]]  # type: ignore[index]
        if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
            packet = target._schema.name.removeprefix("aten::")
            if DROPPED.fullmatch(packet):
                return None
            name = f"{packet}.{target._overloadname}"
            if name not in ALLOWED:
                raise self._refused(node, str(target), "")
            if why := _why_not(packet, node):
                raise self._refused(node, str(target), f": {why}")
            if (layer := self._layer(node)) is not None:
                return self._add("layer", layer, [self._argument(node.args[0], node)], {})
            arguments = [self._argument(value, node) for value in node.args]
            options = {key: self._argument(value, node) for key, value in node.kwargs.items() if key != "pin_memory"}
            return self._add("aten", name, arguments, options)
        if target in PYTHON_NAMES:
            arguments = [self._argument(value, node) for value in node.args]
            return self._add("python", PYTHON_NAMES[target], arguments, {})
        if getattr(target, "__name__", "") in ("sym_constrain_range_for_size", "_assert"):
            return None
        raise self._refused(node, str(getattr(target, "name", lambda: target)() if callable(target) else target), "")

    def _add(self, kind: str, name: str, arguments: list[Any], options: dict[str, Any]) -> dict[str, Any]:
        self._nodes.append([kind, name, arguments, options])
        return {"node": len(self._nodes) - 1}

    def _region(self, node: fx.Node, owner: nn.Module) -> list[Any]:
        """The nodes of a region without gradients, or of a precision of its own, put in its place."""
        name = str(node.target)
        *settings, body = _split(node, self._values)
        if "autocast" in name and self._lowered:
            raise self._refused(node, "torch.autocast", ", in a job of precision bfloat16; pack it in float32")
        if "set_grad_enabled" not in name and "autocast" not in name:
            raise self._refused(node, name, "")
        graph_module, given = body
        places: dict[fx.Node, Any] = {}
        placeholders = [each for each in graph_module.graph.nodes if each.op == "placeholder"]
        for placeholder, value in zip(placeholders, given, strict=True):
            places[placeholder] = self._argument(value, node)
        outer, self._values = self._values, {**self._values, **places}
        returned: list[Any] = []
        for inner in graph_module.graph.nodes:
            if inner.op == "output":
                returned = [self._argument(value, inner) for value in inner.args[0]]
            elif inner.op != "placeholder":
                self._values[inner] = self._computed(inner, graph_module)
        self._values = outer
        if "set_grad_enabled" in name and settings and settings[0] is False:
            returned = [self._add("aten", "detach.default", [value], {}) for value in returned]
        return returned

    def _layer(self, node: fx.Node) -> str | None:
        """The path of the layer whose whole call this operation is; None where it is none."""
        stack = node.meta.get("nn_module_stack") or {}
        path = re.sub(r"@\d+", "", [*stack.values()][-1][0]) if stack else ""
        if not path.startswith("model."):
            return None
        path = path.removeprefix("model.")
        module = self._modules.get(path)
        kind = type(module).__name__
        if module is None or kind not in CALLS or options_of(module) is None or _has_hooks(module):
            return None
        operation, own = CALLS[kind]
        if not f"{node.target}".startswith(f"aten.{operation}") or getattr(module, "padding_mode", "zeros") != "zeros":
            return None
        given = [*node.args[1 : 1 + len(own)], *[None] * len(own)]
        for name, value in zip(own, given, strict=False):
            mine = getattr(module, name, None)
            if mine is None and value is None:
                continue
            stands = self._values.get(value, {}) if isinstance(value, fx.Node) else {}
            if not isinstance(stands, dict) or self._tensor(stands.get("tensor")) is not mine:
                return None
        return path

    def _tensor(self, path: Any) -> Tensor | None:
        return None if path is None else _attribute(self._model, path)

    def _argument(self, value: Any, node: fx.Node) -> Any:
        if isinstance(value, fx.Node):
            return self._values[value]
        if isinstance(value, (list, tuple)):
            return [self._argument(each, node) for each in value]
        if isinstance(value, float) and not math.isfinite(value):
            return {"number": str(value)}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, slice):
            return {"slice": [self._argument(each, node) for each in (value.start, value.stop, value.step)]}
        if isinstance(value, torch.device):
            return {"device": True}
        if isinstance(value, torch.dtype) and value in DTYPE_NAMES:
            return {"dtype": DTYPE_NAMES[value]}
        if value is torch.strided:
            return {"layout": "strided"}
        if isinstance(value, torch.memory_format):
            return {"memory_format": FORMAT_NAMES[value]}
        raise self._refused(node, str(node.target), f", which is given a {type(value).__name__}")

    def _refused(self, node: fx.Node, name: str, why: str) -> JobError:
        return JobError(
            f"model: must be made of operations that a packed graph may hold, not {shown(name)}{why}"
            f"{place_of_node(node)}; write it with others of torch, or run the job from its source"
        )


def _split(node: fx.Node, values: Mapping[fx.Node, Any]) -> list[Any]:
    """The settings of a region, and its graph with what it is given."""
    for place, each in enumerate(node.args):
        if isinstance(each, fx.Node) and isinstance(values.get(each), fx.GraphModule):
            return [*node.args[:place], (values[each], node.args[place + 1 :])]
    raise AssertionError(f"{node.target} without a graph")


def _why_not(packet: str, node: fx.Node) -> str:
    """What a reader would say against the call, by the shapes that it was exported with; empty where it would not."""
    rule = RULES.get(packet)
    if rule is None:
        return ""
    try:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda each: each.meta["val"])
        return rule(*args, **kwargs)
    except Exception:  # it is given sizes that are not known yet: the reader looks at them when they are
        return ""


def _attribute(owner: nn.Module, path: str) -> Any:
    value: Any = owner
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"))
