"""Samples of different shapes: items of any kind, and the collate function that makes a batch of them.

A batch is the result of the user's collate function for the items of this batch; it may depend on which items are
together, as with padding to the longest. Batches that an iterable yields itself are taken whole.
"""

from __future__ import annotations

import copy
import hashlib
import io
import itertools
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape.core.errors import JobError, NotRetried, flat, one_line, quoted
from landscape.core.random_state import fixed_seeds
from landscape.model.parameters import on_meta
from landscape.problem.batches import (
    ATOMS,
    Batch,
    Samples,
    are_one_kind,
    dense_parts,
    dense_tensors_in,
    exchange_tensors,
    fields_of,
    is_strided,
    kind_in_words,
)
from landscape.problem.disk_buffer import TensorFiles
from landscape.problem.sources import seed_of
from landscape.problem.supervised import Observe
from landscape.problem.user_code import calling

# ----------------------------------------------------------------------------------------------------
# Digest, size and NaN of samples of any kind, from their values alone, independent of their memory layout.

Part = str | np.ndarray
Parents = tuple[Any, ...]  # the objects that hold a value, from the outermost on


def values_to_hash(value: Any, parents: Parents = ()) -> Iterator[Part]:
    """The values in a structure, in a fixed order, each after words that describe its type.

    An object that is no known container is taken apart by the rules of `pickle`. Sets are sorted by the digests of
    their members, since their order differs between processes.

    Raises:
        JobError: an object cannot be pickled.
    """
    if type(value) in ATOMS:
        yield f"{type(value).__name__} {value!r};"
        return
    if isinstance(value, Tensor):
        yield from _of_tensor(value)
        return
    if isinstance(value, np.ndarray):
        yield from _of_array(value, parents)
        return
    if isinstance(value, type) or (hasattr(value, "__qualname__") and hasattr(value, "__module__")):
        yield f"named {value.__module__}.{value.__qualname__};"
        return
    depth = next((depth for depth, parent in enumerate(parents) if parent is value), None)
    if depth is not None:
        yield f"again {depth};"
        return
    inner = (*parents, value)
    if isinstance(value, (set, frozenset)):
        yield f"{type(value).__name__} {' '.join(sorted(digest_values([member]) for member in value))};"
    elif type(value) is dict:
        yield from _of_members("dict", (part for pair in value.items() for part in pair), 2 * len(value), inner)
    elif type(value) in (list, tuple):
        yield from _of_members(type(value).__name__, value, len(value), inner)
    else:
        yield from _of_object(value, inner)


def _of_members(name: str, members: Iterable[Any], count: int, parents: Parents) -> Iterator[Part]:
    yield f"{name} {count};"
    for member in members:
        yield from values_to_hash(member, parents)


def _of_tensor(tensor: Tensor) -> Iterator[Part]:
    yield f"tensor {tensor.dtype} {len(dense_parts(tensor))};"
    for part in dense_parts(tensor):
        plain = part.detach().cpu().contiguous()
        yield f"{plain.dtype} {tuple(plain.shape)};"
        yield plain.reshape(-1).view(torch.uint8).numpy()


def _of_array(array: np.ndarray, parents: Parents) -> Iterator[Part]:
    yield f"array {array.dtype} {array.shape};"
    if array.dtype.hasobject:
        for member in array.reshape(-1).tolist():
            yield from values_to_hash(member, (*parents, array))
    else:
        yield np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _of_object(value: Any, parents: Parents) -> Iterator[Part]:
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        raise JobError(
            f"data: a sample holds {flat(type(value).__name__, 60)}, which cannot be pickled ({one_line(error)}); "
            "return tensors, arrays, numbers or plain objects"
        ) from None
    if isinstance(reduced, str):
        yield f"named {reduced};"
        return
    function, arguments, state, members, pairs = (*reduced, None, None, None)[:5]
    yield "object;"
    for part in (function, arguments, state):
        yield from values_to_hash(part, parents)
    yield from _of_members("members", (listed := list(members or ())), len(listed), parents)
    yield from _of_members("pairs", (paired := list(pairs or ())), len(paired), parents)


def digest_values(values: Iterable[Any]) -> str:
    """SHA-256 of all values in their order, in hexadecimal: equal in every process, whatever its hash seed."""
    hashed = hashlib.sha256()
    for value in values:
        for part in values_to_hash(value):
            hashed.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part.data)
    return hashed.hexdigest()


def digest_in_order(values: Sequence[Any], numbers: NDArray[np.int64]) -> str:
    """SHA-256 of the numbers, ascending, and of the values in their order."""
    order = np.argsort(numbers, kind="stable")
    return digest_values(itertools.chain([np.asarray(numbers)[order]], (values[int(k)] for k in order)))


def approximate_bytes(value: Any) -> int:
    """The approximate bytes of a sample: of its tensors and arrays, and of its words and numbers."""
    return sum(part.nbytes if isinstance(part, np.ndarray) else len(part) for part in values_to_hash(value))


def holds_not_finite(value: Any) -> bool:
    """Whether a tensor, array or number of a structure is NaN or infinite."""
    return any(not bool(torch.isfinite(numbers).all()) for numbers in _numbers_in(value))


def _numbers_in(value: Any) -> Iterator[Tensor]:
    """The floating-point numbers of a structure, as tensors."""
    if isinstance(value, float):
        yield torch.tensor(value)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "fc":
            yield torch.from_numpy(np.ascontiguousarray(value).astype(np.complex128))
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from _numbers_in(member)
    elif type(value) is dict:
        yield from _numbers_in(list(value.values()))
    else:
        yield from (tensor for tensor in dense_tensors_in(value) if tensor.is_floating_point() or tensor.is_complex())


Length = Callable[[Any], int]


class NoBatch(NotRetried):
    """The collate function failed on some samples; it would fail on every other worker too."""


@dataclass(frozen=True, eq=False)
class Collated(Samples):
    """Items as the data set returns them, and the loader's collate function.

    Attributes:
        collate: makes a batch of a list of items.
        seed: the job's; each batch draws from a seed of its own, which follows from it and from the batch's first item.
        name: of the data set in messages.
        length_of: `Problem.length`; None if the problem has none.
    """

    items: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    seed: int
    name: str
    length_of: Length | None = None
    _kinds: list[str] = field(default_factory=list, repr=False)

    @property
    def length(self) -> int:
        """How many items there are."""
        return len(self.items)

    @property
    def rows(self) -> None:
        """None: items may differ in shape."""

    @property
    def nbytes(self) -> int:
        """Of the items."""
        return sum(map(approximate_bytes, self.items))

    def batch(self, start: int, stop: int) -> Batch:
        """The collate function's batch of the items from `start` to before `stop`, on the CPU.

        Raises:
            NoBatch: the collate function raises, or returns nothing, or another kind of batch than before.
        """
        # Copies, since a collate function may change its items, and they are collated again in other batches.
        items = [exchange_tensors(_itself, self.items[k]) for k in range(start, min(stop, self.length))]
        try:
            with fixed_seeds(seed_of(self.seed, "batch", start)):
                with calling(f"data: the collate function, given {len(items)} samples of {self.name},"):
                    batch = self.collate(items)
                return self._checked(batch, len(items))
        except JobError as error:
            raise NoBatch(str(error)) from error.__cause__

    def _checked(self, batch: Batch, count: int) -> Batch:
        if batch is None or (hasattr(batch, "__len__") and _is_empty(batch)):
            result = "None" if batch is None else f"an empty {type(batch).__name__}"
            raise JobError(
                f"data: the collate function must return a batch, not {result}, which it made of {count} samples of "
                f"{self.name}"
            )
        kind = kind_in_words(batch, count)
        if not self._kinds:
            self._kinds.append(kind)
        if not are_one_kind(kind, self._kinds[0]):
            raise JobError(
                f"data: the collate function must return one kind of batch, not {self._kinds[0]} for some samples of "
                f"{self.name} and {kind} for others"
            )
        return exchange_tensors(lambda tensor: tensor.detach().cpu(), batch)

    def count(self, start: int, stop: int, batch: Batch) -> int | None:
        """The problem's `length` of the batch; None if the problem has none."""
        return None if self.length_of is None else length_by(self.length_of, batch)

    def few(self, count: int) -> Collated:
        """The first `count` items."""
        return Collated(self.items[:count], self.collate, self.seed, self.name, self.length_of, self._kinds)

    def digest(self) -> str:
        """SHA-256 of all items as returned by the data set."""
        return digest_values(self.items)

    def set_digest(self, numbers: NDArray[np.int64]) -> str:
        """SHA-256 of the numbers, ascending, and of the items in their order."""
        return digest_in_order(self.items, numbers)

    def not_finite(self) -> dict[str, int]:
        """How many items hold NaN or infinity, for each field of the items with such values."""
        return _not_finite_by_field((item, 1) for item in self.items)


@dataclass(frozen=True, eq=False)
class WholeBatches(Samples):
    """Batches of an iterable that cannot be cut into samples.

    Attributes:
        lengths: int64, how many samples each batch holds.
        strict: whether the lengths come from the problem's `length`, so that `observe` must return as many values.
    """

    batches: Sequence[Any]
    lengths: np.ndarray
    strict: bool = False

    @property
    def length(self) -> int:
        """How many samples all batches hold together."""
        return int(self.lengths.sum())

    @property
    def rows(self) -> None:
        """None: the batches are not cut."""

    @property
    def nbytes(self) -> int:
        """Of the batches."""
        return sum(map(approximate_bytes, self.batches))

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """The ends of the batches, in samples."""
        ends = np.cumsum([0, *self.lengths]).tolist()
        return list(itertools.pairwise(ends))

    def batch(self, start: int, stop: int) -> Batch:
        """The batch that begins at sample `start`."""
        return self.batches[int(np.searchsorted(np.cumsum([0, *self.lengths]), start))]

    def count(self, start: int, stop: int, batch: Batch) -> int | None:
        """How many samples the batch holds, if the problem has a `length`; else None."""
        return stop - start if self.strict else None

    def few(self, count: int) -> WholeBatches:
        """The first batches that hold at least `count` samples together."""
        enough = int(np.searchsorted(np.cumsum(self.lengths), count)) + 1
        return WholeBatches(self.batches[:enough], self.lengths[:enough], self.strict)

    def digest(self) -> str:
        """SHA-256 of all batches."""
        return digest_values(self.batches)

    def set_digest(self, numbers: NDArray[np.int64]) -> str:
        """SHA-256 of the batches' numbers, ascending, and of the batches in their order."""
        return digest_in_order(self.batches, numbers)

    def not_finite(self) -> dict[str, int]:
        """How many samples are in batches with NaN or infinity, for each field of the batches with such values."""
        return _not_finite_by_field(zip(self.batches, self.lengths.tolist(), strict=True))


def _not_finite_by_field(parts: Iterable[tuple[Any, int]]) -> dict[str, int]:
    """How many samples are in parts with NaN or infinity, for each field with such values.

    Args:
        parts: each with its number of samples.
    """
    counts = Counter[str]()
    for part, samples in parts:
        counts.update({name: samples * holds_not_finite(member) for name, member in fields_of(part).items()})
    return {name: count for name, count in counts.items() if count}


def length_by(length_of: Length, batch: Batch) -> int:
    """How many samples a batch holds, from the problem's `length`.

    Raises:
        JobError: `length` raises, or returns no whole number above zero.
    """
    with calling(f"length: given a batch, {type(batch).__name__},"):
        count = length_of(batch)
    try:
        whole = int(count)
    except (TypeError, ValueError):
        whole = 0
    if whole < 1 or whole != count:
        raise JobError(f"length: must return the number of samples of a batch, at least 1, not {quoted(count)}")
    return whole


def length_by_observing(model: nn.Module, observe: Observe) -> Length:
    """A function that counts the samples of a batch by the number of losses that `observe` returns, on the CPU."""
    private: list[nn.Module] = []

    def length(batch: Batch) -> int:
        with (
            calling("observe: given a whole batch, to count its samples,", "give Problem(length=...)"),
            torch.no_grad(),
        ):
            if on_meta(model):
                raise JobError("its model is without its weights, which are in a file")
            private[:] = private or [copy.deepcopy(model).cpu().eval()]
            losses = observe(private[0], exchange_tensors(_itself, batch))["loss"]
        return length_by(lambda _: losses.shape[0], batch)

    return length


def _is_empty(batch: Any) -> bool:
    try:
        return len(batch) == 0
    except TypeError:  # such as a tensor without dimensions
        return False


def _itself(tensor: Any) -> Any:
    return tensor


# ----------------------------------------------------------------------------------------------------
# Items as bytes, to be written to disk or sent to other processes one at a time.

PROTOCOL = 5


def _tensor(array: np.ndarray, dtype: str, shape: tuple[int, ...]) -> Tensor:
    # A copy with torch's own alignment, by which kernels may choose their instructions.
    return torch.from_numpy(array).view(getattr(torch, dtype)).reshape(shape).clone()


def copy_row_by_row(item: Any) -> Any:
    """A copy of an item whose tensors and arrays are contiguous by rows, as after pickling.

    Kernels add in the order of the memory: a transposed view would give other bits in the process that read the data
    than in a process that received the item.
    """
    return exchange_tensors(_row_by_row, _with_plain_arrays(item))


def _row_by_row(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format) if is_strided(tensor) else tensor


def _with_plain_arrays(value: Any) -> Any:
    if type(value) is dict:
        return {key: _with_plain_arrays(member) for key, member in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_plain_arrays(member) for member in value)
    return np.array(value, order="C") if type(value) is np.ndarray and not value.dtype.hasobject else value


def reduce_tensor(value: Any) -> Any:
    """The reduction by which pickle writes a plain tensor as an array, in a tenth of the time of torch's own way."""
    if type(value) is not Tensor or value.layout is not torch.strided or value.is_nested or value.is_quantized:
        return NotImplemented
    if value.requires_grad or not value.numel() or value.is_conj() or value.is_neg():
        return NotImplemented
    plain = value.cpu().contiguous()
    array = plain.reshape(-1).view(torch.uint8).numpy()
    return _tensor, (array, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))


@cache
def _tensors_as_arrays(pickler: type[pickle.Pickler]) -> type[pickle.Pickler]:
    class TensorsAsArrays(pickler):  # type: ignore[misc, valid-type]
        def reducer_override(self, value: Any) -> Any:
            own = getattr(super(), "reducer_override", None)
            array = reduce_tensor(value)
            return own(value) if array is NotImplemented and own is not None else array

    return TensorsAsArrays


def pickle_item(item: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> bytes:
    """The item as bytes, to be read by `pickle.loads`.

    Args:
        pickler: the class that pickles all but tensors.

    Raises:
        JobError: the item cannot be pickled.
    """
    file = io.BytesIO()
    try:
        _tensors_as_arrays(pickler)(file, PROTOCOL).dump(item)  # type: ignore[arg-type]
    except Exception as error:
        raise JobError(
            f"data: a sample, {flat(type(item).__name__, 60)}, cannot be pickled ({one_line(error)}); return tensors, "
            "arrays, numbers, or objects of a class that a module defines"
        ) from None
    return file.getvalue()


class PickledItems(Sequence[Any]):
    """Items one after the other in one tensor of bytes; an item is unpickled at each access.

    Args:
        data: uint8 [bytes], in memory or a mapped file.
        ends: int64 [items, 2], the first byte of each item and the byte after its last.
    """

    def __init__(self, data: Tensor, ends: np.ndarray) -> None:
        self.data, self.ends = data, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return PickledItems(self.data, self.ends[index])
        start, stop = self.ends[index]
        return pickle.loads(self.data[start:stop].numpy().data)  # trusted: pickled here or by the driver


def pickle_items(items: Iterable[Any], pickler: type[pickle.Pickler] = pickle.Pickler) -> PickledItems:
    """Items as bytes in memory."""
    parts = [pickle_item(item, pickler) for item in items]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    data = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    return PickledItems(data, np.stack([ends[:-1], ends[1:]], 1))


class KeptItems:
    """Items collected while data are read: in memory up to `limit` bytes, above that in a file without a name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: dict[int, Any] = {}  # in memory, by their numbers
        self._sizes: dict[int, int] = {}
        self._bytes = 0  # of the items in memory
        self._file: TensorFiles | None = None
        self._ends: dict[int, tuple[int, int]] = {}
        self._next = 0

    def add(self, item: Any, size: int) -> int:
        """Keep one more item of about `size` bytes; returns its number."""
        item, number, self._next = copy_row_by_row(item), self._next, self._next + 1
        if self._file is None:
            self._items[number], self._sizes[number] = item, size
            self._bytes += size
            if self._bytes > self._limit:
                self._to_disk()
        else:
            self._write(number, item)
        return number

    def drop(self, number: int) -> None:
        """Drop an item."""
        self._bytes -= self._sizes.pop(number, 0)
        self._items.pop(number, None)
        self._ends.pop(number, None)

    def _to_disk(self) -> None:
        self._file = TensorFiles([torch.empty(0, dtype=torch.uint8)])
        for number, item in self._items.items():
            self._write(number, item)
        self._items, self._sizes = {}, {}

    def _write(self, number: int, item: Any) -> None:
        assert self._file is not None
        data = pickle_item(item)
        start = self._file.rows
        self._file.append([torch.frombuffer(bytearray(data), dtype=torch.uint8)])
        self._ends[number] = (start, start + len(data))

    def items(self, numbers: Sequence[int]) -> Sequence[Any]:
        """These items, in this order; nothing can be added afterwards."""
        if self._file is None:
            return [self._items[number] for number in numbers]
        (data,) = self._file.mapped()
        return PickledItems(data, np.array([self._ends[number] for number in numbers], np.int64).reshape(-1, 2))
