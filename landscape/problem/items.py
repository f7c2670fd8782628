"""Items of any kind as bytes, so that they can be kept on disk or sent to other processes, one item at a time."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from landscape.core.errors import JobError, flat, one_line
from landscape.problem.structure import exchanged, is_strided
from landscape.problem.tensor_files import TensorFiles

PROTOCOL = 5


def _tensor(array: np.ndarray, dtype: str, shape: tuple[int, ...]) -> Tensor:
    # A copy, which lies in memory as torch aligns it: kernels may choose their instructions by that.
    return torch.from_numpy(array).view(getattr(torch, dtype)).reshape(shape).clone()


def in_own_memory(item: Any) -> Any:
    """A copy of an item whose tensors and arrays lie row after row, as those do that were pickled.

    Kernels add in the order of the memory, so that a transposed view would give other bits in the process that read the
    data than in one that was sent the item.
    """
    return exchanged(_row_by_row, _with_plain_arrays(item))


def _row_by_row(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format) if is_strided(tensor) else tensor


def _with_plain_arrays(value: Any) -> Any:
    if type(value) is dict:
        return {key: _with_plain_arrays(member) for key, member in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_plain_arrays(member) for member in value)
    return np.array(value, order="C") if type(value) is np.ndarray and not value.dtype.hasobject else value


def reduced(value: Any) -> Any:
    """How a plain tensor is pickled: as an array, which takes a tenth of the time that torch's own way takes."""
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
            array = reduced(value)
            return own(value) if array is NotImplemented and own is not None else array

    return TensorsAsArrays


def pickled(item: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> bytes:
    """The item as bytes, to be read by `pickle.loads`.

    Args:
        pickler: the class whose objects pickle what is no tensor.

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
    """Items that lie one after the other in one tensor of bytes; each is read anew whenever it is asked for.

    Args:
        data: uint8 [bytes], in memory or a mapped file.
        ends: int64 [items, 2], where each item begins and ends.
    """

    def __init__(self, data: Tensor, ends: np.ndarray) -> None:
        self.data, self.ends = data, ends

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return PickledItems(self.data, self.ends[index])
        start, stop = self.ends[index]
        return pickle.loads(self.data[start:stop].numpy().data)  # what was pickled here or by the driver


def as_pickled(items: Iterable[Any], pickler: type[pickle.Pickler] = pickle.Pickler) -> PickledItems:
    """Items as bytes in memory."""
    parts = [pickled(item, pickler) for item in items]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    data = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    return PickledItems(data, np.stack([ends[:-1], ends[1:]], 1))


class KeptItems:
    """Items that are kept while they are read: in memory up to `limit` bytes, from then on in a file without a name."""

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
        item, number, self._next = in_own_memory(item), self._next, self._next + 1
        if self._file is None:
            self._items[number], self._sizes[number] = item, size
            self._bytes += size
            if self._bytes > self._limit:
                self._to_disk()
        else:
            self._write(number, item)
        return number

    def drop(self, number: int) -> None:
        """Keep an item no longer."""
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
        data = pickled(item)
        start = self._file.rows
        self._file.append([torch.frombuffer(bytearray(data), dtype=torch.uint8)])
        self._ends[number] = (start, start + len(data))

    def items(self, numbers: Sequence[int]) -> Sequence[Any]:
        """These items, in this order; nothing can be added afterwards."""
        if self._file is None:
            return [self._items[number] for number in numbers]
        (data,) = self._file.mapped()
        return PickledItems(data, np.array([self._ends[number] for number in numbers], np.int64).reshape(-1, 2))
