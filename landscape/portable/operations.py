"""Which operations a graph may hold: those of `aten` that compute with tensors, and arithmetic of sizes.

An operation of `aten` is taken by its name alone, and only where its schema has none but tensors, numbers and types:
no file names, no generators, no storages. Strings are taken by the few that choose a way to compute by one.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

NAME = re.compile(r"[a-z_][a-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Operators that torch calls by their names in Python; other names of this form are no operations.
OPERATORS = {
    "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "__iand__", "__ior__", "__ixor__",
}  # fmt: skip
# Arithmetic of sizes and numbers, which the graph does outside of tensors. Powers are left out: they grow without end.
PYTHON: dict[str, Callable[..., Any]] = {
    "getitem": operator.getitem, "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "truediv": operator.truediv, "mod": operator.mod, "neg": operator.neg,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "and": operator.and_, "or": operator.or_, "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
    "sym_max": torch.sym_max, "sym_min": torch.sym_min, "sym_int": torch.sym_int, "sym_float": torch.sym_float,
    "sym_not": torch.sym_not, "sym_ite": torch.sym_ite,
}  # fmt: skip
# What rewrites of a graph look for by these names of torch; the kernels are the same.
BY_TORCH_NAME: dict[str, Callable[..., Any]] = {
    "add.Tensor": torch.add, "mul.Tensor": torch.mul, "relu.default": torch.relu, "relu_.default": torch.relu_,
    "max_pool2d.default": torch.max_pool2d,
}  # fmt: skip
# Operations that begin with an underline are torch's own, and check less of what they are given.
PRIVATE = {
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_cdist_forward", "_convolution", "_log_softmax", "_softmax",
    "_shape_as_tensor", "_to_copy", "_unsafe_view", "_weight_norm", "_euclidean_dist", "_conj", "_fft_c2c", "_fft_c2r",
    "_fft_r2c", "_log_softmax_backward_data", "_softmax_backward_data", "_native_batch_norm_legit_no_training",
}  # fmt: skip
# What reads or writes other memory than that of tensors, or changes what a tensor is.
REFUSED = re.compile(r"(^|_)(set|resize|file|save|load|storage|rename|refine|pin|record|quantized|backward_hook)(_|$)")
# What other operations call after they have checked the arguments. By themselves these read, and write, beyond the ends
# of tensors that a file gives them in wrong sizes or with wrong indices.
UNCHECKED = re.compile(
    r"(mkldnn|fbgemm|cudnn|miopen|slow_conv|thnn|nnpack|sparse|hspmm|sspaddmm|to_mkldnn|to_sparse|as_strided|ctc_loss|"
    r"range$|batch_norm_|native_batch_norm|fused_moving|fake_quantize|embedding_\w*backward).*|"
    r"(trace|value_selecting_reduction)_backward|.*(pool|pad|norm)\w*_backward"
)
# By which a string is an argument, all others being refused.
TAKING_TEXT = {
    "gelu", "gelu_backward", "div", "div_", "pad", "einsum", "meshgrid", "searchsorted", "bucketize", "scatter_reduce",
    "scatter_reduce_", "index_reduce", "index_reduce_", "scatter", "scatter_", "linalg_norm", "linalg_matrix_norm",
    "linalg_svd", "linalg_qr", "norm", "conv1d", "conv2d", "conv3d",
}  # fmt: skip
TYPES = re.compile(
    r"(Optional\[|List\[)*(Tensor|number|int|float|bool|complex|Device|Layout|MemoryFormat|ScalarType|SymInt|Scalar|t)\]*"
)


def operation(name: str) -> Callable[..., Any]:
    """The operation of this name of a file: `conv2d.default` of `aten`, or `python.add`.

    Raises:
        ValueError: no graph may hold it.
    """
    if name.startswith("python."):
        if name[7:] not in PYTHON:
            raise ValueError(f"the operation {name[:80]!r} is none that a graph may hold")
        return PYTHON[name[7:]]
    found = overload(name)
    if found is None or (why := why_refused(found)):
        raise ValueError(f"the operation {name[:80]!r} is none that a graph may hold{'' if found is None else why}")
    computed: Callable[..., Any] = BY_TORCH_NAME.get(name) or _checked(found)
    return computed


def refuse_types(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse numbers where an operation takes a type or a format: torch takes them for places in its tables.

    Raises:
        ValueError: there are some.
    """
    arguments = getattr(getattr(function, "_schema", None), "arguments", ())
    by_name = dict(zip((argument.name for argument in arguments), args, strict=False)) | dict(kwargs)
    for argument in arguments:
        kind = re.sub(r"Optional\[|\]", "", str(argument.real_type))
        value = by_name.get(argument.name)
        if kind in ("ScalarType", "Layout", "MemoryFormat") and isinstance(value, (int, float, str)):
            raise ValueError(f"{str(value)[:40]!r} for a {argument.name}")


def _checked(found: Any) -> Callable[..., Any]:
    """The operation; one of those that check less by themselves, behind a look at what it is given."""
    check = CHECKED.get(found._schema.name.removeprefix("aten::"))
    if check is None:
        function: Callable[..., Any] = found
        return function

    def computed(*args: Any, **kwargs: Any) -> Any:
        if not check(*args, **kwargs):
            raise ValueError(f"{found._schema.name}: it is given tensors or axes that do not fit")
        return found(*args, **kwargs)

    computed.__name__ = found.__name__.replace(".", "_")
    computed._schema = found._schema  # type: ignore[attr-defined]  # where graphs look up names of arguments
    return computed


def _axes_fit(tensor: torch.Tensor, axes: Any, *rest: Any, **named: Any) -> bool:
    return len(axes) > 0 and all(-tensor.dim() <= axis < tensor.dim() for axis in axes)


def _sizes_equal(one: torch.Tensor, two: torch.Tensor, *rest: Any, **named: Any) -> bool:
    return one.shape == two.shape and one.numel() > 0


def _norm_fits(weight: torch.Tensor, norm: torch.Tensor, axis: int = 0, **named: Any) -> bool:
    wanted = [size if place == axis else 1 for place, size in enumerate(weight.shape)]
    return weight.numel() > 0 and list(norm.shape) == wanted and weight.dtype == norm.dtype


def _channels_fit(values: torch.Tensor, *rest: Any, **named: Any) -> bool:
    return values.dim() > 1 and all(each is None or each.shape == values.shape[1:2] for each in rest[:4])


def _layers_fit(values: torch.Tensor, state: Any, weights: Any, *rest: Any, **named: Any) -> bool:
    """Of a recurrent network; not of packed sequences."""
    if values.dim() != 3 or not isinstance(weights, (list, tuple)) or len(rest) != 6:
        return False
    biases, layers, _, _, both, _ = rest
    states = [state] if isinstance(state, torch.Tensor) else list(state)
    return (
        len(weights) == layers * (4 if biases else 2) * (2 if both else 1)
        and all(each.dim() == 3 for each in states)
        and all(each.dtype == values.dtype for each in (*states, *weights))
        and all(each.dim() == (1 if biases and place % 4 > 1 else 2) for place, each in enumerate(weights))
        and all(0 not in each.shape for each in (values, *states, *weights))
    )


# Needed, and checked here since torch does not.
CHECKED: dict[str, Callable[..., bool]] = {
    "_fft_c2c": _axes_fit, "_fft_c2r": _axes_fit, "_fft_r2c": _axes_fit, "_log_softmax_backward_data": _sizes_equal,
    "_softmax_backward_data": _sizes_equal, "_weight_norm": _norm_fits,
    "_native_batch_norm_legit_no_training": _channels_fit, "lstm": _layers_fit, "gru": _layers_fit,
    "rnn_tanh": _layers_fit, "rnn_relu": _layers_fit,
}  # fmt: skip


def overload(name: str) -> Any:
    """The operation of `aten` of this name; None where there is none."""
    if not NAME.fullmatch(name):
        return None
    packet, _, which = name.partition(".")
    if packet.startswith("__") and packet not in OPERATORS:
        return None
    found = getattr(getattr(torch.ops.aten, packet, None), which, None)
    return found if isinstance(found, torch._ops.OpOverload) and found.namespace == "aten" else None


def why_refused(found: Any) -> str:
    """Why no graph may hold an operation of `aten`; empty where it may."""
    packet = found._schema.name.removeprefix("aten::")
    if packet.startswith("_") and packet not in PRIVATE | OPERATORS:
        return ": it is a private one of torch"
    if packet not in PRIVATE and REFUSED.search(packet):
        return ": it does more than compute"
    if UNCHECKED.fullmatch(packet) and packet not in CHECKED:
        return ": torch does not check what it is given"
    arguments = found._schema.arguments
    if any(argument.is_out for argument in arguments):
        return ": it writes into a tensor that it is given, as by out=…"
    given = [str(each.type) for each in (*arguments, *found._schema.returns)]
    if found._overloadname.startswith("prim_") or not any("Tensor" in kind for kind in given):
        return ": it computes with no tensor"
    for argument in arguments:
        kind = re.sub(r"\(.*?\)", "", str(argument.type))
        if kind in ("str", "Optional[str]"):
            if packet not in TAKING_TEXT:
                return f": it takes the text {argument.name!r}"
        elif not TYPES.fullmatch(kind) and kind not in ("Optional[Generator]", "Generator"):
            return f": it takes a {kind}"
    return ""
