"""Makes a function from a graph of operations in JSON, every word of which is checked.

    {"inputs": 2, "nodes": [["aten", "relu.default", [{"node": 3}], {}], …], "outputs": [{"node": 7}]}

An argument is a number, text, null, a list of arguments, or a dict of one key: `node` and `input` for earlier results,
`tensor` for a parameter or buffer by its path, `constant`, `dtype`, `layout`, `memory_format`, `number` for infinity
and NaN; `device` is that of the first input, wherever the model has been moved to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from landscape.model.packed_bounds import BY_VALUES, report_sizes
from landscape.model.packed_operations import operation, refuse_types
from landscape.model.packed_rules import largest

# ----------------------------------------------------------------------------------------------------
# The modules that hold a portable model's parameters. Layers that were of torch's own classes are so again, since
# batch-norm modes, filters of directions and engines that fold or fuse recognise layers by their types.

PATH = re.compile(r"\w{1,200}(\.\w{1,200})*", re.ASCII)
PLAIN_TYPES = (bool, int, float, type(None))
# The layers that are made again, each with the options of its class, which are attributes of a layer too.
_CONVOLUTION = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode",
)  # fmt: skip
_TRANSPOSED = (*_CONVOLUTION, "output_padding")
_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")
LAYERS: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "Linear": (nn.Linear, ("in_features", "out_features")),
    "Conv1d": (nn.Conv1d, _CONVOLUTION),
    "Conv2d": (nn.Conv2d, _CONVOLUTION),
    "Conv3d": (nn.Conv3d, _CONVOLUTION),
    "ConvTranspose1d": (nn.ConvTranspose1d, _TRANSPOSED),
    "ConvTranspose2d": (nn.ConvTranspose2d, _TRANSPOSED),
    "ConvTranspose3d": (nn.ConvTranspose3d, _TRANSPOSED),
    "BatchNorm1d": (nn.BatchNorm1d, _NORM),
    "BatchNorm2d": (nn.BatchNorm2d, _NORM),
    "BatchNorm3d": (nn.BatchNorm3d, _NORM),
    "LayerNorm": (nn.LayerNorm, ("normalized_shape", "eps")),
    "GroupNorm": (nn.GroupNorm, ("num_groups", "num_channels", "eps")),
    "Embedding": (nn.Embedding, ("num_embeddings", "embedding_dim", "padding_idx")),
}
WITH_BIAS = {name for name in LAYERS if name.startswith(("Linear", "Conv"))}
LARGEST = 1 << 40  # number of channels; layers are made without memory


def options_of(module: nn.Module) -> dict[str, Any] | None:
    """The options to make a layer again; None if it is no plain layer of torch."""
    kind = type(module).__name__
    plain = kind in LAYERS and type(module) is LAYERS[kind][0] and "forward" not in vars(module)
    if not plain or getattr(module, "padding_mode", "zeros") != "zeros":
        return None
    return {name: getattr(module, name) for name in LAYERS[kind][1]}


def make_layer(kind: str, options: Mapping[str, Any], *, bias: bool) -> nn.Module:
    """A layer of torch without memory, whose parameters are set afterwards.

    Raises:
        ValueError: there is no such layer, or it has no such options.
    """
    if kind not in LAYERS or set(options) != set(LAYERS[kind][1]):
        raise ValueError(f"a layer {str(kind)[:40]!r} that is none")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    for name, value in values.items():
        _check_option(name, value)
    if kind in WITH_BIAS:
        values["bias"] = bias
    try:
        return LAYERS[kind][0](**values, device="meta")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"a layer {kind} that cannot be made: {str(error)[:80]}") from None


def _check_option(name: str, value: Any) -> None:
    numbers = value if isinstance(value, tuple) else (value,)
    words = ("zeros",) if name == "padding_mode" else ("same", "valid") if name == "padding" else ()
    if value not in words and not all(
        type(number) in PLAIN_TYPES and abs(number or 0) < min(LARGEST, largest(name)) for number in numbers
    ):
        raise ValueError(f"a layer's {name} that is no number")


def build_tree(root: nn.Module, entries: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> None:
    """Put modules, parameters and buffers into a module, in their order and under their names.

    Args:
        entries: for every module its `path` ('' for the root), `parameters` {name: [tensor, trained]} and `buffers`
            {name: [tensor, saved]} with names in `tensors`, None for an absent one; `layer` with `options` for a layer
            of torch; or `same`, the path of the same module.
        tensors: by the names in the entries; a tensor that two entries name is tied.

    Raises:
        ValueError: an entry is malformed.
    """
    modules: dict[str, nn.Module] = {"": root}
    parameters: dict[str, nn.Parameter] = {}
    for entry in entries:
        path = entry["path"]
        if path:
            if not isinstance(path, str) or not PATH.fullmatch(path) or path in modules:
                raise ValueError(f"a module at {str(path)[:60]!r}")
            parent, _, name = path.rpartition(".")
            module = modules[entry["same"]] if "same" in entry else _make_module(entry)
            modules[path] = module
            modules[parent].add_module(name, module)
            if "same" in entry:
                continue
        _fill(modules[path], entry, tensors, parameters)


def _make_module(entry: Mapping[str, Any]) -> nn.Module:
    if "layer" not in entry:
        return nn.Module()
    return make_layer(entry["layer"], entry["options"], bias=entry["parameters"].get("bias") is not None)


def _fill(
    module: nn.Module, entry: Mapping[str, Any], tensors: Mapping[str, Tensor], parameters: dict[str, nn.Parameter]
) -> None:
    if "layer" in entry:
        # In the order in which the packed layer had them.
        module._parameters.clear()
        module._buffers.clear()
        module._non_persistent_buffers_set.clear()
    for name, value in entry["parameters"].items():
        _refuse_name(name)
        if value is None:
            module.register_parameter(name, None)
            continue
        tensor, trained = value
        if tensor not in parameters:
            parameters[tensor] = nn.Parameter(tensors[tensor], requires_grad=trained is True)
        module.register_parameter(name, parameters[tensor])
    for name, value in entry["buffers"].items():
        _refuse_name(name)
        tensor, saved = (None, True) if value is None else value
        module.register_buffer(name, None if tensor is None else tensors[tensor], persistent=saved is True)
    module.eval()


def _refuse_name(name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"\w{1,200}", name, re.ASCII):
        raise ValueError(f"a parameter called {str(name)[:60]!r}")


Program = Callable[..., Any]
DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
        "complex128",
    )
}  # fmt: skip
FORMATS = {
    name: getattr(torch, name) for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
}
NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
MOST_NODES = 200_000  # they take about a minute to follow
MOST_INPUTS = 1000
DEEPEST = 8  # lists in lists of an argument
LONGEST_TEXT = 200


def program_of(graph: Any, root: nn.Module, constants: int) -> tuple[Program, fx.Graph]:
    """The function `program(root, *inputs)` that runs a graph and returns a tuple; and the graph.

    Args:
        root: holds the modules, parameters and buffers that the graph names.
        constants: how many tensors `root.constants` holds.

    Raises:
        ValueError: the graph holds something that is not allowed.
    """
    return _Reader(root, constants).read(graph)


class _Reader:
    """Makes nodes of torch.fx from those of a file."""

    def __init__(self, root: nn.Module, constants: int) -> None:
        self._root, self._constants = root, constants
        self._modules = dict(root.named_modules(remove_duplicate=False))
        named = (*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False))
        self._tensors = {name for name, _ in named}
        self._graph = fx.Graph()
        self._inputs: list[fx.Node] = []
        self._nodes: list[fx.Node] = []
        self._read: dict[str, fx.Node] = {}
        self._device: fx.Node | None = None

    def read(self, graph: Any) -> tuple[Program, fx.Graph]:
        if not isinstance(graph, dict) or set(graph) != {"inputs", "nodes", "outputs"}:
            raise ValueError("a graph that is none")
        count, nodes = graph["inputs"], graph["nodes"]
        if type(count) is not int or not 1 <= count <= MOST_INPUTS or not isinstance(nodes, list):
            raise ValueError("a graph without inputs or nodes")
        if len(nodes) > MOST_NODES:
            raise ValueError(f"a graph of {len(nodes)} nodes, more than {MOST_NODES}")
        self._inputs = [self._graph.placeholder(f"input_{place}") for place in range(count)]
        for node in nodes:
            self._nodes.append(self._node(node))
        self._graph.output(tuple(self._arguments(graph["outputs"])))
        self._graph.lint()
        module = fx.GraphModule(self._root, self._graph)
        program: Program = type(module).forward
        return program, self._graph

    def _node(self, node: Any) -> fx.Node:
        if not isinstance(node, list) or len(node) != 4 or not isinstance(node[1], str):
            raise ValueError("a node that is none")
        kind, name, args, kwargs = node
        arguments = tuple(self._arguments(args))
        if kind == "layer":
            if (
                name not in self._modules
                or type(self._modules[name]) in (nn.Module, nn.Embedding)  # indices are checked in operations only
                or kwargs
                or not PATH.fullmatch(name)
            ):
                raise ValueError(f"a call of {name[:60]!r}, which is no layer")
            return self._graph.call_module(name, arguments)
        if kind not in ("aten", "python"):
            raise ValueError(f"a node of the kind {str(kind)[:40]!r}")
        function = operation(name if kind == "aten" else f"python.{name}")
        if kind == "aten" and name in BY_VALUES:
            function = report_sizes(function)
        options = self._options(function, name, kwargs) if kwargs else {}
        refuse_types(function, arguments, options)
        return self._graph.call_function(function, arguments, options)

    def _options(self, function: Any, name: str, kwargs: Any) -> dict[str, Any]:
        allowed = {argument.name for argument in getattr(getattr(function, "_schema", None), "arguments", ())}
        if not allowed and function is not None:
            allowed = {"alpha", "ceil_mode", "stride", "padding", "dilation"}  # of functions by names of torch
        if not isinstance(kwargs, dict) or not set(kwargs) <= allowed:
            raise ValueError(f"arguments that {name} does not take")
        return {key: self._argument(value) for key, value in kwargs.items()}

    def _arguments(self, values: Any, deepest: int = DEEPEST) -> list[Any]:
        if not isinstance(values, list) or not deepest:
            raise ValueError("arguments that are no list")
        return [self._argument(value, deepest - 1) for value in values]

    def _argument(self, value: Any, deepest: int = DEEPEST) -> Any:
        if value is None or type(value) in (bool, int, float):
            return value
        if isinstance(value, str) and len(value) <= LONGEST_TEXT:
            return value
        if isinstance(value, list):
            return self._arguments(value, deepest)
        if isinstance(value, dict) and len(value) == 1:
            [(key, content)] = value.items()
            return self._special(key, content)
        raise ValueError("an argument that is none")

    def _special(self, key: str, content: Any) -> Any:
        if key in ("node", "input"):
            return _at(self._nodes if key == "node" else self._inputs, content)
        if key == "tensor" and content in self._tensors:
            return self._parameter(content)
        if key == "constant" and type(content) is int and 0 <= content < self._constants:
            return self._constant(content)
        if key == "device":
            return self._device_of_inputs()
        tables: Mapping[str, Mapping[str, Any]] = {"dtype": DTYPES, "memory_format": FORMATS, "number": NUMBERS}
        if key == "layout" and content == "strided":
            return torch.strided
        if key == "slice":
            return slice(*self._arguments(content))
        if isinstance(content, str) and content in tables.get(key, {}):
            return tables[key][content]
        raise ValueError(f"an argument of the kind {str(key)[:40]!r} that is none")

    def _parameter(self, name: str) -> fx.Node:
        if name not in self._read:
            self._read[name] = self._at_the_start(lambda: self._graph.get_attr(name))
        return self._read[name]

    def _constant(self, place: int) -> fx.Node:
        """The constant on the device of the inputs."""
        name, device = f"constant {place}", self._device_of_inputs()
        if name not in self._read:
            function = torch.Tensor.to
            got = self._at_the_start(
                lambda: self._graph.call_function(_constant_of, (self._own(), place)), after=device
            )
            self._read[name] = self._at_the_start(lambda: self._graph.call_function(function, (got, device)), after=got)
        return self._read[name]

    def _own(self) -> fx.Node:
        if "constants" not in self._read:
            self._read["constants"] = self._at_the_start(lambda: self._graph.get_attr("constants"))
        return self._read["constants"]

    def _device_of_inputs(self) -> fx.Node:
        if self._device is None:
            first = self._inputs[0]
            self._device = self._at_the_start(lambda: self._graph.call_function(getattr, (first, "device")))
        return self._device

    def _at_the_start(self, make: Callable[[], fx.Node], after: fx.Node | None = None) -> fx.Node:
        with self._graph.inserting_after(after or self._inputs[-1]):
            return make()


def _constant_of(constants: Sequence[torch.Tensor], place: int) -> torch.Tensor:
    return constants[place]


def _at(nodes: Sequence[fx.Node], place: Any) -> fx.Node:
    if type(place) is not int or not 0 <= place < len(nodes):
        raise ValueError("an argument that is computed later")
    return nodes[place]
