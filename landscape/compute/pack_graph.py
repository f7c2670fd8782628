"""Graphs that torch exported, as the plain values of `landscape.model.packed_graph`."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import operator
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from landscape.core.errors import JobError, quoted
from landscape.evaluation.twice_differentiable import without_reentrant_checkpoints
from landscape.model.packed_graph import DTYPES, FORMATS, options_of
from landscape.model.packed_model import batch_structure, fill_batch, leaves_of
from landscape.model.packed_operations import ALLOWED, PYTHON
from landscape.model.packed_rules import RULES
from landscape.problem.user_code import INSTALLED, OURS, STANDARD, in_words, user_line

# ----------------------------------------------------------------------------------------------------
# The error of a model that does not export: the operation, its place in the source, and the remedy.

DATA_DEPENDENT = re.compile(r"data-dependent|Data dependent|GuardOnDataDependent|aten::_local_scalar_dense|unbacked")
SPECIALISED = re.compile(r"specialized it to be a constant|Constraints violated|your code specialized")
LINE = re.compile(r'File "([^"\n]+)", line (\d+)')
ELSEWHERE = "; or run the job from its source"


def export_refusal(error: Exception, export: Callable[[Noticing], Any]) -> JobError:
    """The error of a function that does not export.

    Args:
        error: the exception of the export.
        export: exports the function again, while a `Noticing` finds where the batch size becomes a constant.
    """
    if isinstance(error, JobError):
        return error
    if SPECIALISED.search(f"{type(error).__name__} {error}"):
        noticing = Noticing()
        with contextlib.suppress(Exception):
            export(noticing)
        by_length = noticing.name == "__len__"
        what = "len() of a tensor" if by_length else f"{quoted(noticing.name)} of torch"
        taken = f" by {what} ({noticing.place})" if noticing.place else ""
        remedy = "write other operations" if taken and not by_length else "write tensor.shape[0]"
        return JobError(
            "model: must take any number of samples to be packed, and the batch size becomes a constant"
            f"{taken}; {remedy}{ELSEWHERE}"
        )
    where = user_line(error)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return JobError(
            f"model: must be made of operations that torch exports, not {quoted(str(error.func))}"
            f"{f' ({where})' if where else ''}, which looks at values; write it with others of torch{ELSEWHERE}"
        )
    if is_data_dependent(error):
        return JobError(
            f"model: must do the same operations whatever the data are to be packed, and a value decides"
            f"{f' at {where}' if where else ''}; write it with tensors alone: torch.where for if, no .item(), "
            f"float() or bool(){ELSEWHERE}"
        )
    return JobError(f"model: cannot be exported by torch to be packed: it {in_words(error)[:300]}{ELSEWHERE}")


def is_data_dependent(error: Exception) -> bool:
    """Whether the export failed because control flow depends on a value or the batch size; tracing would hide that."""
    text = f"{type(error).__name__} {error}"
    return bool(SPECIALISED.search(text) or DATA_DEPENDENT.search(text))


def place_of_node(node: fx.Node) -> str:
    """The user's line that an operation comes from, in brackets; empty if torch has not kept it."""
    lines = LINE.findall(str(node.meta.get("stack_trace") or ""))
    users = [(file, line) for file, line in lines if is_users(file)]
    return f" ({_short(users[-1][0])}:{users[-1][1]})" if users else ""


def is_users(file: str) -> bool:
    """Whether a file of a traceback is the user's own."""
    return not file.startswith(("<", *OURS, *INSTALLED, *STANDARD))


def _short(file: str) -> str:
    """A file's path, relative to the working directory if it lies below it."""
    with contextlib.suppress(OSError, ValueError):
        return str(Path(file).resolve().relative_to(Path.cwd()))
    return file


def sizes_of(tensors: Sequence[Tensor]) -> list[torch.SymInt]:
    """The sizes that are symbols while a function is exported."""
    sizes: list[Any] = [size for tensor in tensors for size in tensor.shape]
    return [size for size in sizes if isinstance(size, torch.SymInt)]


class Noticing(TorchFunctionMode):
    """While a function is exported, finds the call of torch that turns a symbolic size into a constant.

    Attributes:
        sizes: symbolic sizes of the function's tensors; set by the caller.
        place: the user's line of that call; empty if there was none.
        name: of the call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[torch.SymInt] = []
        self.place, self.name, self._is_over = "", "", False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._is_over = self._is_over or self._is_constant()  # became constant between two calls: no line is known
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if not self._is_over and (func is Tensor.__len__ or self._is_constant()):
                users = [frame for frame in traceback.extract_stack() if is_users(frame.filename)]
                self.place = f"{_short(users[-1].filename)}:{users[-1].lineno}" if users else ""
                self.name, self._is_over = getattr(func, "__name__", ""), True

    def _is_constant(self) -> bool:
        return any(size.node.expr.is_number for size in self.sizes)


DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
FORMAT_NAMES = {value: name for name, value in FORMATS.items()}
PYTHON_NAMES: dict[Any, str] = {function: name for name, function in PYTHON.items()}
# Assertions that the export adds about sizes and values.
DROPPED = re.compile(r"(_assert_\w+|sym_constrain_range\w*|_functional_sym_constrain_range\w*)")
# The operation that a layer of torch calls, and how many of its arguments are the layer's own tensors.
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
        tensors: the meaning of the graph's placeholders, by name: a parameter or buffer by its path in the model, or
            a constant.
        module: holds the objects that the graph refers to by name.
    """

    graph: fx.Graph
    tensors: Mapping[str, str | Tensor]
    module: nn.Module


@dataclass
class Constants:
    """The tensors that graphs hold beside parameters and buffers."""

    tensors: list[Tensor] = field(default_factory=list)

    def place_of(self, tensor: Tensor) -> int:
        """The number of a constant; each constant is stored once."""
        for place, known in enumerate(self.tensors):
            if known is tensor or (known.dtype == tensor.dtype and torch.equal(known, tensor)):
                return place
        self.tensors.append(tensor.detach().cpu().clone())
        return len(self.tensors) - 1


def describe_graph(exported: Exported, model: nn.Module, constants: Constants, *, lowered: bool) -> dict[str, Any]:
    """The graph as plain values; layers of torch stay layers.

    Args:
        constants: collects the tensors that the graph holds.
        lowered: whether the job computes some operations in lower precision, so that autocast regions matter.

    Raises:
        JobError: the graph holds a forbidden operation; names it and its place.
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
                self._values[node] = self._compute_reference(node, self._exported.module)
        return {"inputs": self._inputs, "nodes": self._nodes, "outputs": outputs}

    def _placeholder(self, node: fx.Node) -> dict[str, Any]:
        stands = self._exported.tensors.get(node.name)
        if isinstance(stands, str):
            return {"tensor": stands}
        if stands is not None:
            return {"constant": self._constants.place_of(stands)}
        self._inputs += 1
        return {"input": self._inputs - 1}

    def _compute_reference(self, node: fx.Node, owner: nn.Module) -> Any:
        """How later nodes refer to this node: by its number, or for a region by the region's outputs."""
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
                raise self._refusal(node, str(target), "")
            if why := _why_not(packet, node):
                raise self._refusal(node, str(target), f": {why}")
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
        raise self._refusal(node, str(getattr(target, "name", lambda: target)() if callable(target) else target), "")

    def _add(self, kind: str, name: str, arguments: list[Any], options: dict[str, Any]) -> dict[str, Any]:
        self._nodes.append([kind, name, arguments, options])
        return {"node": len(self._nodes) - 1}

    def _region(self, node: fx.Node, owner: nn.Module) -> list[Any]:
        """Inline the nodes of a region without gradients, or with its own precision."""
        name = str(node.target)
        *settings, body = _split(node, self._values)
        if "autocast" in name and self._lowered:
            raise self._refusal(node, "torch.autocast", ", in a job of precision bfloat16; pack it in float32")
        if "set_grad_enabled" not in name and "autocast" not in name:
            raise self._refusal(node, name, "")
        graph_module, given = body
        places: dict[fx.Node, Any] = {}
        placeholders = [inner for inner in graph_module.graph.nodes if inner.op == "placeholder"]
        for placeholder, value in zip(placeholders, given, strict=True):
            places[placeholder] = self._argument(value, node)
        outer, self._values = self._values, {**self._values, **places}
        returned: list[Any] = []
        for inner in graph_module.graph.nodes:
            if inner.op == "output":
                returned = [self._argument(value, inner) for value in inner.args[0]]
            elif inner.op != "placeholder":
                self._values[inner] = self._compute_reference(inner, graph_module)
        self._values = outer
        if "set_grad_enabled" in name and settings and settings[0] is False:
            returned = [self._add("aten", "detach.default", [value], {}) for value in returned]
        return returned

    def _layer(self, node: fx.Node) -> str | None:
        """The path of the layer if this operation is the whole call of a layer; else None."""
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
            return [self._argument(item, node) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            return {"number": str(value)}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, slice):
            return {"slice": [self._argument(bound, node) for bound in (value.start, value.stop, value.step)]}
        if isinstance(value, torch.device):
            return {"device": True}
        if isinstance(value, torch.dtype) and value in DTYPE_NAMES:
            return {"dtype": DTYPE_NAMES[value]}
        if value is torch.strided:
            return {"layout": "strided"}
        if isinstance(value, torch.memory_format):
            return {"memory_format": FORMAT_NAMES[value]}
        raise self._refusal(node, str(node.target), f", which is given a {type(value).__name__}")

    def _refusal(self, node: fx.Node, name: str, why: str) -> JobError:
        return JobError(
            f"model: must be made of operations that a packed graph may hold, not {quoted(name)}{why}"
            f"{place_of_node(node)}; write it with others of torch, or run the job from its source"
        )


def _split(node: fx.Node, values: Mapping[fx.Node, Any]) -> list[Any]:
    """The settings of a region, and its graph with its arguments."""
    for place, argument in enumerate(node.args):
        if isinstance(argument, fx.Node) and isinstance(values.get(argument), fx.GraphModule):
            return [*node.args[:place], (values[argument], node.args[place + 1 :])]
    raise AssertionError(f"{node.target} without a graph")


def _why_not(packet: str, node: fx.Node) -> str:
    """Why a reader would refuse the call, with the shapes of the export; empty if it would not."""
    rule = RULES.get(packet)
    if rule is None:
        return ""
    try:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda argument: argument.meta["val"])
        return rule(*args, **kwargs)
    except Exception:  # symbolic sizes: the reader checks them when they are known
        return ""


def _attribute(owner: nn.Module, path: str) -> Any:
    value: Any = owner
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"))


# ----------------------------------------------------------------------------------------------------
# Functions of a model and a batch as graphs: exported by torch, or traced if they take derivatives themselves.

Function = Callable[[nn.Module, Any], Any]
FILTERING = "_filter_traceback_frames"  # of newer versions of torch


def export_function(
    function: Function, model: nn.Module, batch: Any, what: str = "observe", free: Sequence[int] = (0,)
) -> tuple[Exported, Any, Any]:
    """A function as a graph, and the structures of its argument and return value.

    Args:
        function: of the model and a batch.
        model: in eval mode; its parameters require no gradients.
        batch: a few samples, see `example_of`.
        what: the name of the function in messages.
        free: the dimensions of the batch's tensors that differ from batch to batch.

    Raises:
        JobError: the function does not export; says why, where, and what to do.
    """
    try:
        takes = batch_structure(batch)
    except TypeError as error:
        raise JobError(f"data: batches must be tensors in tuples, lists and dicts to be packed, not {error}") from None
    calling = _Calling(function, model, takes, what)
    leaves = tuple(leaves_of(takes, batch))

    def again(noticing: Noticing) -> None:
        calling.noticing = noticing
        _by_export(calling, leaves, free)

    with _make_exportable():
        try:
            found = _by_export(calling, leaves, free)
        except JobError:
            raise
        except Exception as error:
            if is_data_dependent(error):
                raise export_refusal(error, again) from error
            try:
                found = _by_tracing(calling, leaves)
            except Exception:
                raise export_refusal(error, again) from error
    return found, takes, calling.returns_of()


def example_of(batch: Any) -> Any:
    """The first samples of a batch of rows, repeated if needed: a number that differs from every other size."""
    leaves = leaves_of(batch_structure(batch), batch)
    sizes = {size for leaf in leaves for size in leaf.shape[1:]}
    count = next(count for count in (5, 7, 11, 13, 17, 19, 23, *range(25, 10_000)) if count not in sizes)
    rows = torch.arange(count) % leaves[0].shape[0]
    return fill_batch(batch_structure(batch), iter([leaf[rows] for leaf in leaves]))


class _Calling(nn.Module):
    """The function as a module that takes and returns tensors, with the model as its submodule."""

    def __init__(self, function: Function, model: nn.Module, takes: Any, what: str) -> None:
        super().__init__()
        self.model = model
        self.noticing: Noticing | None = None
        # In a closure: torch restores attributes of modules, and would treat a criterion as a part of the model.
        self._observe, self.returns_of = _note_structure(function, takes, what)

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        if self.noticing is None:
            return self._observe(self.model, leaves)
        self.noticing.sizes = sizes_of(leaves)
        with self.noticing:
            return self._observe(self.model, leaves)


def _note_structure(
    function: Function, takes: Any, what: str
) -> tuple[Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]], Callable[[], Any]]:
    """The function of leaves, and a function that returns the structure of the value after a call."""
    noted: list[Any] = []

    def observe(model: nn.Module, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        value = function(model, fill_batch(takes, iter(leaves)))
        try:
            noted[:] = [batch_structure(value)]
        except TypeError as error:
            raise JobError(
                f"{what}: must return tensors in tuples, lists and dicts to be packed, not {error}"
            ) from None
        return tuple(leaves_of(noted[0], value))

    return observe, lambda: noted[0]


@contextlib.contextmanager
def _make_exportable() -> Iterator[None]:
    """Turn off what does not export (fused attention, the inspection of masks, checkpoints), and torch's output.

    Also make torch keep all user lines of each operation, not only those of `forward`.
    """
    filtering: Any = getattr(fx.proxy.TracerBase, FILTERING, None)
    fast, disabled = torch.backends.mha.get_fastpath_enabled(), logging.root.manager.disable
    detect = transformer._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    # Torch inspects a mask's values to choose the causal kernel; the general kernel gives the same up to rounding.
    transformer._detect_is_causal_mask = _is_said_to_be_causal
    try:
        if filtering is not None:
            setattr(fx.proxy.TracerBase, FILTERING, _users_frames)
        # torch prints the partial graph, in addition to raising.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            with without_reentrant_checkpoints():
                yield
    finally:
        if filtering is not None:
            setattr(fx.proxy.TracerBase, FILTERING, filtering)
        logging.disable(disabled)
        transformer._detect_is_causal_mask = detect
        torch.backends.mha.set_fastpath_enabled(fast)


def _users_frames(self: Any, frames: traceback.StackSummary) -> traceback.StackSummary:
    return traceback.StackSummary.from_list([frame for frame in frames if is_users(frame.filename)])


def _is_said_to_be_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


def _by_export(calling: _Calling, leaves: tuple[Tensor, ...], free: Sequence[int]) -> Exported:
    dynamic = (tuple(dict.fromkeys(free, torch.export.Dim.DYNAMIC) for _ in leaves),)
    program = torch.export.export(calling, leaves, dynamic_shapes=dynamic, strict=False)
    changed = program.graph_signature.buffers_to_mutate
    if changed:
        raise JobError(
            f"model: must not change its buffers in eval mode to be packed, as it does {next(iter(changed.values()))}"
        )
    tensors: dict[str, str | Tensor] = {}
    held = (calling.model.named_parameters(remove_duplicate=False), calling.model.named_buffers(remove_duplicate=False))
    named = {f"model.{name}" for names in held for name, _ in names}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            target = str(spec.target)
            known: Mapping[str, Any] = {**program.constants, **program.state_dict}
            tensors[spec.arg.name] = target.removeprefix("model.") if target in named else known[target]
    return Exported(program.graph, tensors, program.graph_module)


def _by_tracing(calling: _Calling, leaves: tuple[Tensor, ...]) -> Exported:
    """Trace the operations that run, including those of derivatives; sizes stay symbols."""
    with _CuttingByCopies():
        traced = make_fx(calling, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*leaves)
    _mend_cuts(traced.graph)
    named = (*calling.model.named_parameters(), *calling.model.named_buffers())
    paths = {id(tensor): name for name, tensor in named}
    for node in list(traced.graph.nodes):
        value = getattr(traced, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(value, Tensor) and id(value) in paths:
            node.meta["stands_for"] = paths[id(value)]
    return Exported(traced.graph, {}, traced)


class _CuttingByCopies(TorchFunctionMode):
    """While active, `detach` in user code makes a copy, to tell it from autograd's own `detach` of saved tensors.

    A trace of derivatives contains both; kept, autograd's own would block second derivatives by the weights.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return torch.detach_copy(result) if func in (Tensor.detach, torch.detach) else result


def _mend_cuts(graph: fx.Graph) -> None:
    """Remove autograd's own `detach` calls, and restore the user's."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is torch.ops.aten.detach_copy.default:
            node.target = torch.ops.aten.detach.default
