"""Batches of samples: their structure, length and digest, and how they are joined and split; and the samples of a job.

A batch is a tensor, or tuples, lists and dicts of tensors; all its tensors share their first dimension, the samples.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from landscape.core.devices import is_out_of_memory
from landscape.core.errors import JobError, flat, one_line
from landscape.problem.user_code import in_words

Batch = Any

CHECKED_AT_ONCE = 1 << 26  # bytes of a tensor that are searched for NaN, or hashed, at a time


def map_tensors(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply `function` to every tensor of a batch and keep its structure.

    Example:
        >>> batch = (torch.zeros(4, 2), {"labels": torch.ones(4)})
        >>> map_tensors(lambda tensor: tensor[:1], batch)
        (tensor([[0., 0.]]), {'labels': tensor([1.])})

    Raises:
        JobError: the batch holds something other than tensors, tuples, lists and dicts.
    """
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(function, value) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(map_tensors(function, value) for value in batch)
    raise JobError(f"data: batches must hold tensors in tuples, lists and dicts, not {type(batch).__name__}")


def tensors_of(batch: Batch) -> list[Tensor]:
    """The tensors of a batch, in the order in which `map_tensors` visits them."""
    tensors: list[Tensor] = []
    map_tensors(lambda tensor: tensors.append(tensor) or tensor, batch)  # type: ignore[func-returns-value]
    return tensors


def batch_length(batch: Batch) -> int:
    """How many samples a batch holds: the first dimension of all its tensors.

    Raises:
        JobError: the first dimensions differ, or the batch holds no tensor.
    """
    lengths = {tensor.shape[0] if tensor.dim() else None for tensor in tensors_of(batch)}
    if len(lengths) != 1 or None in lengths:
        shapes = [tuple(tensor.shape) for tensor in tensors_of(batch)]
        raise JobError(
            f"data: all tensors of a batch must share their first dimension, the samples; got shapes {shapes}"
        )
    return int(lengths.pop() or 0)


def batch_bytes(batch: Batch) -> int:
    """How many bytes the tensors of a batch take."""
    return sum(tensor.nbytes for tensor in tensors_of(batch))


def empty_like(batch: Batch) -> Batch:
    """A batch of no samples with the structure, types and shapes of this one."""
    return map_tensors(lambda tensor: tensor[:0].clone(), batch)


def fill_structure(like: Batch, tensors: Iterable[Tensor]) -> Batch:
    """These tensors, in the order of `tensors_of`, in the structure of the batch `like`."""
    rest = iter(tensors)
    return map_tensors(lambda _: next(rest), like)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The samples of several batches in one batch, one batch after the other.

    Raises:
        JobError: the batches differ in structure, or in the shapes of their samples.
    """
    like = batches[0]
    columns = zip(*(tensors_of(in_order(like, batch)) for batch in batches), strict=True)
    try:
        return fill_structure(like, [torch.cat(column).contiguous() for column in columns])
    except RuntimeError as error:
        raise JobError(f"data: batches must have samples of one shape to be joined: {one_line(error)}") from None


def in_order(like: Batch, batch: Batch) -> Batch:
    """The batch with the keys of its dicts in the order of `like`.

    Raises:
        JobError: the two differ in structure.
    """
    if isinstance(like, Tensor) and isinstance(batch, Tensor):
        return batch
    if isinstance(like, Mapping) and isinstance(batch, Mapping) and set(like) == set(batch):
        return {key: in_order(value, batch[key]) for key, value in like.items()}
    if isinstance(like, (tuple, list)) and type(like) is type(batch) and len(like) == len(batch):
        fields = [in_order(*pair) for pair in zip(like, batch, strict=True)]
        return type(like)(*fields) if hasattr(like, "_fields") else type(like)(fields)
    raise JobError(
        f"data: batches must have one structure to be joined, not {type(like).__name__} and {type(batch).__name__} "
        "with other keys or lengths"
    )


def not_finite(samples: Batch) -> dict[str, int]:
    """How many samples hold NaN or infinity, for each field that has such samples.

    Example:
        >>> not_finite((torch.tensor([1.0, float("nan")]), torch.tensor([0, 1])))
        {'inputs (field 0)': 1}
    """
    counts = {name: sum(map(_rows_not_finite, tensors_of(field))) for name, field in fields_of(samples).items()}
    return {name: count for name, count in counts.items() if count}


def fields_of(value: Any) -> dict[str, Any]:
    """The parts of a sample or batch at its top level, by their names in words; a value without parts is 'samples'."""
    if isinstance(value, Mapping):
        return {flat(str(key), 60): member for key, member in value.items()}
    if isinstance(value, (tuple, list)):
        return dict(zip(field_names(value), value, strict=True))
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"samples": value}


def field_names(batch: Sequence[Any]) -> list[str]:
    """The names of a tuple's fields, in words: 'inputs (field 0)' and 'targets (field 1)' of a pair, else 'field 2'."""
    names = getattr(batch, "_fields", ("inputs", "targets") if len(batch) == 2 else ())
    return [f"{names[k]} (field {k})" if names else f"field {k}" for k in range(len(batch))]


def _rows_not_finite(tensor: Tensor) -> int:
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return 0
    # One part at a time, since the tensor may be a mapped file that is larger than the memory.
    step = max(1, CHECKED_AT_ONCE * len(tensor) // tensor.nbytes)
    parts = (tensor[start : start + step].reshape(-1, tensor[0].numel()) for start in range(0, len(tensor), step))
    return sum(int((~torch.isfinite(part)).any(1).sum()) for part in parts)


def samples_digest(samples: Batch) -> str:
    """SHA-256 over the type, shape and bytes of every tensor, in hexadecimal."""
    hashed = hashlib.sha256()
    for tensor in tensors_of(samples):
        hashed.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        hashed.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


def batch_edges(count: int, batch_size: int) -> list[tuple[int, int]]:
    """The ends of the batches of `count` samples: at most `batch_size` each, with sizes that differ by at most one.

    Example:
        >>> batch_edges(10, 4)
        [(0, 3), (3, 6), (6, 10)]
    """
    parts = -(-count // batch_size)
    return list(itertools.pairwise(count * part // parts for part in range(parts + 1)))


# ----------------------------------------------------------------------------------------------------
# Batches of any structure: the tensors in them, copies with other tensors, and moving them to a device.
#
# Tuples, lists and dicts are taken apart here. Everything else (a dataclass, a batch of graphs, an encoding) is copied
# by `copy.deepcopy`, except that a function replaces its tensors. So no class must be known here.

Exchange = Callable[[Tensor], Tensor]

ATOMS = (type(None), bool, int, float, complex, str, bytes)


class _Exchanging(TorchFunctionMode):
    """While it is active, the deep copy of a tensor is the result of `function` for it."""

    def __init__(self, function: Exchange) -> None:
        super().__init__()
        self._function = function
        self._results: dict[int, tuple[Tensor, Tensor]] = {}  # keeps the tensor, so that its id is not reused

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor = args[0]
        if id(tensor) not in self._results:
            self._results[id(tensor)] = tensor, self._function(tensor)
        return self._results[id(tensor)][1]


def exchange_tensors(function: Exchange, value: Any) -> Any:
    """A copy of a structure with each tensor replaced by the result of `function`.

    An object that cannot be copied is kept as it is, with its tensors.

    Example:
        >>> exchange_tensors(lambda tensor: tensor + 1, {"x": [torch.zeros(2), "name"]})
        {'x': [tensor([1., 1.]), 'name']}
    """
    return _map_leaves(lambda leaf: _exchange_in(function, leaf), value)


def _map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The structure with every leaf replaced; a leaf is no plain tuple, list or dict, nor a number or word."""
    kind = type(value)
    if kind is dict:
        return {key: _map_leaves(function, member) for key, member in value.items()}
    if kind is list or kind is tuple:
        return kind(_map_leaves(function, member) for member in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(_map_leaves(function, member) for member in value))
    return value if kind in ATOMS else function(value)


def _exchange_in(function: Exchange, leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return function(leaf)
    if _is_record(leaf):
        copied = object.__new__(type(leaf))
        members = vars(leaf).items()
        vars(copied).update((key, function(value) if isinstance(value, Tensor) else value) for key, value in members)
        return copied
    with _Exchanging(function):
        try:
            return copy.deepcopy(leaf)
        except (TypeError, AttributeError, NotImplementedError):  # such as a lock, or an open file
            return leaf


def _is_record(value: Any) -> bool:
    """Whether a value is a dataclass of different tensors, numbers and words without a copy method of its own.

    `copy.deepcopy` would copy it too, but takes several times as long, which counts beside the pass of a small batch.
    """
    if not _copies_by_default(type(value)):  # type: ignore[arg-type]
        return False
    members = [member for member in vars(value).values() if type(member) not in ATOMS]
    return all(type(member) is Tensor for member in members) and len({*map(id, members)}) == len(members)


@cache
def _copies_by_default(kind: type) -> bool:
    """Whether a class is a dataclass with a dictionary of members, and without a copy method of its own."""
    own = [hasattr(kind, name) for name in ("__slots__", "__deepcopy__", "__setstate__")]
    defaults = [getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__getstate__")]
    return hasattr(kind, "__dataclass_fields__") and kind.__base__ is object and all(defaults) and not any(own)


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors of a structure, also those inside objects; a tensor that an object holds twice counts once."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    exchange_tensors(collect, value)
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
    """The strided tensors that all tensors of a structure consist of."""
    return [part for tensor in tensors_in(value) for part in dense_parts(tensor)]


def tensor_bytes(value: Any) -> int:
    """How many bytes the tensors of a structure take."""
    return sum(tensor.nbytes for tensor in dense_tensors_in(value))


def moved(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A copy of a structure on a device; tensors that are there already in their type are shared.

    An object with a method `to` is first moved by that, as it may hold more than tensors.

    Args:
        dtype: of floating-point tensors; others keep their types.
    """

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    def move_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) and callable(getattr(leaf, "to", None)):
            leaf = _exchange_in(lambda tensor: tensor, leaf)  # a copy, as `to` may move in place, and return nothing
            result = _call_to(leaf, device)
            leaf = leaf if result is None else result
        return _exchange_in(move, leaf)

    return _map_leaves(move_leaf, value)


def _call_to(leaf: Any, device: torch.device) -> Any:
    try:
        return leaf.to(device)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise JobError(f"data: {flat(type(leaf).__name__, 60)}.to({str(device)!r}) {in_words(error)}") from error


def first_dimension(value: Any) -> int | None:
    """The first dimension of all tensors in plain tuples, lists and dicts; None if they differ, or for other values.

    Example:
        >>> first_dimension((torch.zeros(4, 2), torch.zeros(4))), first_dimension([torch.zeros(4), torch.zeros(3)])
        (4, None)
    """
    leaves: list[Any] = []
    plain = _only_plain(value, leaves)
    lengths = {leaf.shape[0] if leaf.dim() and not leaf.is_nested else None for leaf in leaves}
    return lengths.pop() if plain and len(lengths) == 1 else None


def first_of(batch: Any, count: int) -> Any:
    """The first samples of a batch of rows; any other batch as a whole, copied, with the same tensors.

    Example:
        >>> first_of((torch.zeros(4), torch.ones(4)), 2)
        (tensor([0., 0.]), tensor([1., 1.]))
    """
    rows = first_dimension(batch) is not None
    return exchange_tensors(lambda tensor: tensor[:count] if rows else tensor, batch)


def _only_plain(value: Any, leaves: list[Any]) -> bool:
    """Collect the tensors in `leaves`; returns whether the structure holds nothing else."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return True
    if isinstance(value, Mapping):
        return all(_only_plain(member, leaves) for member in value.values())
    return isinstance(value, (tuple, list)) and all(_only_plain(member, leaves) for member in value)


def kind_in_words(value: Any, count: int) -> str:
    """The kind of a batch at its top level, for comparison with others: its type, and its keys or fields.

    Args:
        count: how many items the batch was made of; a tuple of as many may be a tuple of the items.

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


def are_one_kind(first: str, second: str) -> bool:
    """Whether two batches may be of one kind, by their `kind_in_words`: a tuple may hold items, or fields.

    Example:
        >>> are_one_kind("tuple", "tuple of 2"), are_one_kind("tuple of 3", "tuple of 2")
        (True, False)
    """
    return first == second or sorted((first, second))[0] == "tuple" == first[:5] == second[:5]


# ----------------------------------------------------------------------------------------------------
# The samples of a job: the same ones for every point, in a fixed order, given to `observe` as batches.
#
# Samples are a value that a job chooses once. They say how many there are, make the batch of any consecutive ones, and
# know their digest and size. Where they are rectangular, all fast ways of cutting tensors are open: `rows`.


class Samples(ABC):
    """What was chosen for a job, in the order in which it was drawn."""

    @property
    @abstractmethod
    def length(self) -> int:
        """How many samples there are."""

    @property
    @abstractmethod
    def rows(self) -> Batch | None:
        """All samples as one batch of tensors with one first dimension; None where they are not rectangular."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """How many bytes their tensors take, on the host."""

    @abstractmethod
    def batch(self, start: int, stop: int) -> Batch:
        """The samples from `start` to before `stop` as one batch, as `observe` gets it, where they are kept.

        Raises:
            JobError: the user's collate function cannot make the batch.
        """

    def count(self, start: int, stop: int, batch: Batch) -> int | None:
        """How many values `observe` must return for this batch; None where it is what `observe` returns."""
        return stop - start

    @abstractmethod
    def few(self, count: int) -> Samples:
        """About the first `count` samples: a batch that cannot be cut stays whole."""

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the values of all samples in their order, in hexadecimal; the same in every process."""

    @abstractmethod
    def set_digest(self, numbers: NDArray[np.int64]) -> str:
        """SHA-256 of the samples with their numbers, whatever the order in which they were drawn.

        Args:
            numbers: of each sample in the data, or of each batch that stays whole, in the order drawn.
        """

    @abstractmethod
    def not_finite(self) -> dict[str, int]:
        """How many samples hold NaN or infinity, for each field that has such samples."""

    @property
    def cuts(self) -> list[tuple[int, int]] | None:
        """Where batches begin and end that cannot be cut otherwise; None where any samples make a batch."""
        return None

    def edges(self, batch_size: int) -> list[tuple[int, int]]:
        """Where batches of at most so many samples begin and end; what cannot be cut gives larger ones."""
        return self.cuts or batch_edges(self.length, batch_size)


@dataclass(frozen=True)
class TensorSamples(Samples):
    """Tensors that share their first dimension, the samples; batches are views of them."""

    tensors: Batch

    @cached_property
    def length(self) -> int:
        """The first dimension of the tensors."""
        return batch_length(self.tensors)

    @property
    def rows(self) -> Batch:
        """The tensors themselves."""
        return self.tensors

    @property
    def nbytes(self) -> int:
        """Of the tensors."""
        return batch_bytes(self.tensors)

    def batch(self, start: int, stop: int) -> Batch:
        """Views of the rows from `start` to before `stop`."""
        return map_tensors(lambda tensor: _rows(tensor, start, stop), self.tensors)

    def few(self, count: int) -> TensorSamples:
        """The first `count` rows."""
        return TensorSamples(self.batch(0, count))

    def digest(self) -> str:
        """See `samples_digest`."""
        return samples_digest(self.tensors)

    def set_digest(self, numbers: NDArray[np.int64]) -> str:
        """SHA-256 of the numbers, ascending, and of the rows in their order."""
        order = np.argsort(numbers, kind="stable")
        hashed = hashlib.sha256(np.asarray(numbers)[order].astype("<i8").tobytes())
        for tensor in tensors_of(self.tensors):
            hashed.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
            # One part at a time, since the tensor may be a mapped file that is larger than the memory.
            rows = max(1, CHECKED_AT_ONCE * len(tensor) // max(1, tensor.nbytes))
            for part in torch.from_numpy(order).split(rows):  # type: ignore[no-untyped-call]
                hashed.update(tensor[part].contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return hashed.hexdigest()

    def not_finite(self) -> dict[str, int]:
        """See `not_finite`."""
        return not_finite(self.tensors)


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    return tensor[start:stop]


def as_samples(samples: Samples | Batch) -> Samples:
    """Samples as they are; a batch of tensors that holds all of them as `TensorSamples`."""
    return samples if isinstance(samples, Samples) else TensorSamples(samples)
