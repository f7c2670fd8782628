"""Batches of any structure: the tensors in them, copies with other tensors, and moving them to a device.

Tuples, lists and dicts are taken apart here. Everything else (a dataclass, a batch of graphs, an encoding) is copied as
`copy.deepcopy` copies it, except that its tensors are exchanged for what a function returns. So no class must be known.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from landscape.core.devices import is_out_of_memory
from landscape.core.errors import JobError, flat
from landscape.problem.user_code import in_words

Exchange = Callable[[Tensor], Tensor]

ATOMS = (type(None), bool, int, float, complex, str, bytes)


class _Exchanging(TorchFunctionMode):
    """While it is active, a tensor that is deep-copied becomes what `function` returns for it."""

    def __init__(self, function: Exchange) -> None:
        super().__init__()
        self._function = function
        self._known: dict[int, tuple[Tensor, Tensor]] = {}  # with the tensor, as its number would be used again

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor = args[0]
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self._function(tensor)
        return self._known[id(tensor)][1]


def exchanged(function: Exchange, value: Any) -> Any:
    """A copy of a structure with what `function` returns in the place of each tensor.

    An object that cannot be copied stays itself, its tensors with it.

    Example:
        >>> exchanged(lambda tensor: tensor + 1, {"x": [torch.zeros(2), "name"]})
        {'x': [tensor([1., 1.]), 'name']}
    """
    return _with_leaves(lambda leaf: _exchanged_in(function, leaf), value)


def _with_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The structure with every leaf exchanged: what is no plain tuple, list or dict, nor a number or word."""
    kind = type(value)
    if kind is dict:
        return {key: _with_leaves(function, member) for key, member in value.items()}
    if kind is list or kind is tuple:
        return kind(_with_leaves(function, member) for member in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_with_leaves(function, member) for member in value))
    return value if kind in ATOMS else function(value)


def _exchanged_in(function: Exchange, leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return function(leaf)
    if _is_record(leaf):
        made = object.__new__(type(leaf))
        members = vars(leaf).items()
        vars(made).update((key, function(each) if isinstance(each, Tensor) else each) for key, each in members)
        return made
    with _Exchanging(function):
        try:
            return copy.deepcopy(leaf)
        except (TypeError, AttributeError, NotImplementedError):  # such as a lock, or an open file
            return leaf


def _is_record(value: Any) -> bool:
    """Whether it is a dataclass of different tensors, numbers and words, copied as Python does it by default.

    It could be left to `copy.deepcopy`, which takes several times as long; a small batch takes not much longer itself.
    """
    if not _copies_by_default(type(value)):  # type: ignore[arg-type]
        return False
    members = [each for each in vars(value).values() if type(each) not in ATOMS]
    return all(type(each) is Tensor for each in members) and len({*map(id, members)}) == len(members)


@cache
def _copies_by_default(kind: type) -> bool:
    """Whether it is a dataclass with a dictionary of members, and no way of its own to be copied."""
    own = [hasattr(kind, name) for name in ("__slots__", "__deepcopy__", "__setstate__")]
    defaults = [getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__getstate__")]
    return hasattr(kind, "__dataclass_fields__") and kind.__base__ is object and all(defaults) and not any(own)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of a structure, those inside objects included; one that an object holds twice counts once."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    exchanged(collect, value)
    return tensors


def dense_parts(tensor: Tensor) -> list[Tensor]:
    """The strided tensors that a tensor consists of: itself, or values and offsets, values and indices."""
    if tensor.is_nested:
        if tensor.layout is torch.jagged:
            return [tensor.values(), tensor.offsets()]  # type: ignore[attr-defined]
        return list(tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return [whole.indices(), whole.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.int_repr()] if tensor.is_quantized else [tensor]


def is_strided(tensor: Tensor) -> bool:
    """Whether a tensor is plain memory with strides: neither nested nor sparse nor quantised."""
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def dense_tensors_in(value: Any) -> list[Tensor]:
    """The strided tensors of which all tensors of a structure consist."""
    return [part for tensor in tensors_in(value) for part in dense_parts(tensor)]


def tensor_bytes(value: Any) -> int:
    """How many bytes the tensors of a structure take."""
    return sum(tensor.nbytes for tensor in dense_tensors_in(value))


def moved(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A copy of a structure on a device; what is there already in its type is shared.

    An object that has a method `to` is moved by it first, as it may hold more than tensors.

    Args:
        dtype: of floating-point tensors; others keep their types.
    """

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    def move_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) and callable(getattr(leaf, "to", None)):
            leaf = _exchanged_in(lambda tensor: tensor, leaf)  # a copy, as `to` may move in place, and return nothing
            there = _moving_itself(leaf, device)
            leaf = leaf if there is None else there
        return _exchanged_in(move, leaf)

    return _with_leaves(move_leaf, value)


def _moving_itself(leaf: Any, device: torch.device) -> Any:
    """What the method `to` of an object returns.

    Raises:
        JobError: it raises, for another reason than too little memory.
    """
    try:
        return leaf.to(device)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise JobError(f"data: {flat(type(leaf).__name__, 60)}.to({str(device)!r}) {in_words(error)}") from error


def first_dimension(value: Any) -> int | None:
    """The first dimension that all tensors of plain tuples, lists and dicts share; None where it is no such structure.

    Example:
        >>> first_dimension((torch.zeros(4, 2), torch.zeros(4))), first_dimension([torch.zeros(4), torch.zeros(3)])
        (4, None)
    """
    leaves: list[Any] = []
    plain = _only_plain(value, leaves)
    lengths = {leaf.shape[0] if leaf.dim() and not leaf.is_nested else None for leaf in leaves}
    return lengths.pop() if plain and len(lengths) == 1 else None


def first_of(batch: Any, count: int) -> Any:
    """The first samples of a batch of rows; a copy of any other batch, whole, with the same tensors.

    Example:
        >>> first_of((torch.zeros(4), torch.ones(4)), 2)
        (tensor([0., 0.]), tensor([1., 1.]))
    """
    rows = first_dimension(batch) is not None
    return exchanged(lambda tensor: tensor[:count] if rows else tensor, batch)


def _only_plain(value: Any, leaves: list[Any]) -> bool:
    """Collect the tensors; whether there is nothing else in the structure."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return True
    if isinstance(value, Mapping):
        return all(_only_plain(member, leaves) for member in value.values())
    return isinstance(value, (tuple, list)) and all(_only_plain(member, leaves) for member in value)


def kind_in_words(value: Any, count: int) -> str:
    """What a batch is at its top level, for comparison with others: its type, and the keys or fields that it has.

    Args:
        count: how many items it was made of; a tuple of as many may be one of the items.

    Example:
        >>> kind_in_words({"x": 1, "y": 2}, 3), kind_in_words((1, 2), 3), kind_in_words([4, 5, 6], 3)
        ('dict of x, y', 'tuple of 2', 'list')
    """
    name = type(value).__name__
    if isinstance(value, Mapping):
        return f"{name} of {', '.join(sorted(map(str, value)))}"
    if type(value) is tuple and len(value) != count:
        return f"{name} of {len(value)}"
    return name


def are_one_kind(one: str, other: str) -> bool:
    """Whether two batches may be of one kind, by their `kind_in_words`: a tuple may be one of items, or of fields.

    Example:
        >>> are_one_kind("tuple", "tuple of 2"), are_one_kind("tuple of 3", "tuple of 2")
        (True, False)
    """
    return one == other or sorted((one, other))[0] == "tuple" == one[:5] == other[:5]
