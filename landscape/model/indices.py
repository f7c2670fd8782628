"""Indices that a packed graph computes or brings along, compared with their dimension before an operation uses them.

Some kernels of torch trust what they are given: on a CPU `nll_loss_backward` writes where its target points to, on a
GPU an index outside of a dimension ends the process's whole use of the device. Where the values can be read, one that
lies outside is refused. Where reading them would stop a GPU, or is impossible, as under `vmap`, they are moved to the
nearest end of the dimension, which changes nothing of those that lie inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

from landscape.core.errors import JobError

Given = Mapping[str, Any]
# Arguments by which each operation is given indices, or whole numbers that its kernel trusts, and the bounds of each:
# from … to before …, and one more value.
REFUSED = "model: a packed graph is refused:"
Bounds = Callable[[Given], dict[str, tuple[int, int, int | None]]]


def inside(index: Tensor, low: int, high: int, also: int | None, what: str) -> Tensor:
    """The indices, all of them from `low` to before `high`, or equal to `also`.

    Raises:
        JobError: some are not, where they can be read.
    """
    if index.dtype == torch.bool or not index.numel() or not _has_values(index):
        return index
    if index.dtype.is_floating_point or index.dtype.is_complex:
        raise JobError(f"{REFUSED} {what}: indices must be whole numbers, not {index.dtype}")
    if high <= low:
        raise JobError(f"{REFUSED} {what}: an index into a dimension of size 0")
    if not _can_be_read(index):
        moved = index.clamp(low, high - 1)
        return moved if also is None else torch.where(index == also, index, moved)
    least, most = (int(each) for each in torch.aminmax(index))
    if least < low or most >= high:
        outside = (index < low) | (index >= high)
        if also is not None:
            outside &= index != also
        if outside.any():
            kind = "number" if what == "div" else "index"
            wrong = int(index[outside][0])
            raise JobError(f"{REFUSED} {what}: the {kind} {wrong} is not from {low} to {high - 1}")
    return index


def guarded(found: Any) -> Callable[..., Any]:
    """The operation behind a look at its indices; where it is traced it stays one call."""
    arguments = found._schema.arguments
    names = [argument.name for argument in arguments]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    packet = found._schema.name.removeprefix("aten::")
    bounds = INDICES[packet]

    def computed(*args: Any, **kwargs: Any) -> Any:
        proxy = proxy_in((args, *kwargs.values()))
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", computed, args, kwargs)
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        changed = _looked_at(packet, given, bounds)
        args = tuple(changed.get(name, value) for name, value in zip(names, args, strict=False))
        return found(*args, **{name: changed.get(name, value) for name, value in kwargs.items()})

    computed.__name__ = f"{packet}_{found._overloadname}"
    computed._schema = found._schema  # type: ignore[attr-defined]  # where graphs look up names of arguments
    computed._checked = found  # type: ignore[attr-defined]  # what is called, for bounds of memory and work
    return computed


def _looked_at(packet: str, given: Given, bounds: Bounds) -> dict[str, Any]:
    """The arguments that hold indices, each within its bounds."""
    changed: dict[str, Any] = {}
    if packet in BY_DIMENSION:
        indices = given["indices"]
        place, found = 0, list[Any]()
        for index in indices:
            if index is None or not isinstance(index, Tensor):
                found.append(index)
                place += 1
                continue
            if index.dtype in (torch.bool, torch.uint8):
                found.append(index)
                place += index.dim()
                continue
            size = given["self"].shape[place] if place < given["self"].dim() else 0
            found.append(inside(index, -size, size, None, packet))
            place += 1
        return {"indices": found}
    for name, (low, high, also) in bounds(given).items():
        if isinstance(given.get(name), Tensor):
            changed[name] = inside(given[name], low, high, also, packet)
    if packet == "embedding_bag" and changed.get("offsets") is not None:
        changed["offsets"] = _ascending(changed["offsets"])
    return changed


def _ascending(offsets: Tensor) -> Tensor:
    """Where bags begin, none before the one that precedes it."""
    if not _has_values(offsets) or offsets.numel() < 2:
        return offsets
    if not _can_be_read(offsets):
        return offsets.cummax(0).values
    if (offsets.diff() < 0).any():
        raise JobError(f"{REFUSED} embedding_bag: the offsets of its bags descend")
    return offsets


def _has_values(tensor: Tensor) -> bool:
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def _can_be_read(tensor: Tensor) -> bool:
    """Whether its values are plain memory of the host."""
    if tensor.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def proxy_in(values: Any) -> Any:
    """A value that stands for another while a graph is traced; None where there is none."""
    for value in values:
        if isinstance(value, fx.Proxy):
            return value
        if isinstance(value, (list, tuple)) and (found := proxy_in(value)) is not None:
            return found
    return None


def _size(tensor: Tensor, dim: int) -> int:
    """Of a dimension, 1 where a tensor of one number has none."""
    if not tensor.dim():
        return 1
    if not -tensor.dim() <= dim < tensor.dim():
        raise ValueError(f"a dimension {dim} of a tensor of {tensor.dim()} dimensions")
    return tensor.shape[dim]


def _along(low_too: bool = False) -> Bounds:
    """Indices along the dimension `dim`, counted from its end too where `low_too`."""

    def bounds(given: Given) -> dict[str, tuple[int, int, int | None]]:
        size = _size(given["self"], given["dim"])
        return {"index": (-size if low_too else 0, size, None)}

    return bounds


def _taken(given: Given) -> dict[str, tuple[int, int, int | None]]:
    own, dim = given["self"], given.get("dim")
    return {"indices": (0, own.numel() if dim is None else _size(own, dim), None)}


def _rows(given: Given) -> dict[str, tuple[int, int, int | None]]:
    bounds: dict[str, tuple[int, int, int | None]] = {"indices": (0, _size(given["weight"], 0), None)}
    if isinstance(given.get("offsets"), Tensor):
        bounds["offsets"] = (0, given["indices"].numel() + 1, None)
    return bounds


def _classes(given: Given) -> dict[str, tuple[int, int, int | None]]:
    own, target = given["self"], given["target"]
    if target.dtype.is_floating_point:
        return {}  # probabilities
    classes = 0 if not own.dim() else own.shape[0 if own.dim() == 1 else 1]
    return {"target": (0, classes, given["ignore_index"])}


def _of_margins(given: Given) -> dict[str, tuple[int, int, int | None]]:
    own = given["self"]
    return {"target": (0, own.shape[-1] if own.dim() else 1, None)}


def _of_several_margins(given: Given) -> dict[str, tuple[int, int, int | None]]:
    own = given["self"]
    return {"target": (-1, own.shape[-1] if own.dim() else 1, None)}


def _of_one_hot(given: Given) -> dict[str, tuple[int, int, int | None]]:
    return {"self": (0, given["num_classes"], None)}


def _of_pooled(given: Given) -> dict[str, tuple[int, int, int | None]]:
    return {"indices": (0, math.prod(given["output_size"]), None)}


def _dividend(given: Given) -> dict[str, tuple[int, int, int | None]]:
    """The smallest whole number divided by -1 is none of its type, which ends the process."""
    own, whole = given["self"], (torch.int8, torch.int16, torch.int32, torch.int64)
    if given.get("rounding_mode") is None or own.dtype not in whole:
        return {}
    least = torch.iinfo(own.dtype).min
    return {"self": (least + 1, -least, None)}


BY_DIMENSION = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put")  # a list of indices, one each
INDICES: dict[str, Bounds] = {
    **dict.fromkeys(BY_DIMENSION, lambda given: {}),
    **dict.fromkeys(
        ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_",
         "index_select",
         "index_add", "index_add_", "index_copy", "index_copy_"),
        _along(),
    ),
    **dict.fromkeys(("index_fill", "index_fill_"), _along(low_too=True)),
    "take_along_dim": _taken, "embedding": _rows, "embedding_bag": _rows, "one_hot": _of_one_hot,
    **dict.fromkeys(
        ("cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward",
         "nll_loss_backward", "nll_loss2d_backward"),
        _classes,
    ),
    "multi_margin_loss": _of_margins, "multilabel_margin_loss": _of_several_margins,
    "div": _dividend, "max_unpool2d": _of_pooled, "max_unpool3d": _of_pooled,
}  # fmt: skip
