"""Weights, directions and samples as plain values that travel to the workers of a job."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from landscape.core.errors import NotRetried
from landscape.job.directions.base import DirectionTensors, SeededDirection
from landscape.job.directions.kinds import seeded
from landscape.model.parameters import ParameterInfo, State, direction_digest, in_first_version
from landscape.problem.collated import Collated, PickledItems, WholeBatches, as_pickled
from landscape.problem.samples import Rows, Samples
from landscape.problem.sources import collate_of
from landscape.problem.terms import PointSets, Problem

SEEDED_BYTES = 1 << 30  # a random direction above it travels as its seed, as it is kept in the store


@dataclass(frozen=True)
class Packed:
    """A tensor as a numpy array, which Ray shares between the processes of a node without copying it."""

    array: np.ndarray
    dtype: str


def pack(tensor: torch.Tensor) -> Packed:
    """The bytes of a tensor, of any shape, type and device, as Ray can share them."""
    plain = tensor.detach().cpu().contiguous()
    # numpy has no bfloat16: the bytes travel, the type beside them.
    bytes_ = plain.reshape(-1).view(torch.uint8).numpy().reshape(*plain.shape, plain.element_size())
    return Packed(bytes_, str(plain.dtype).removeprefix("torch."))


def unpack(packed: Packed) -> torch.Tensor:
    """The packed tensor, to the bit, on the CPU; it shares the memory of `packed` and must not be written."""
    dtype = getattr(torch, packed.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the shared memory is read-only, and is only read
        flat = torch.from_numpy(packed.array.reshape(-1))
    return flat.view(dtype).reshape(packed.array.shape[:-1])


def pack_state(state: State) -> dict[str, Packed]:
    """Named tensors, each one packed."""
    return {name: pack(tensor) for name, tensor in state.items()}


def unpack_state(state: Mapping[str, Packed]) -> dict[str, torch.Tensor]:
    """The named tensors that `pack_state` packed."""
    return {name: unpack(packed) for name, packed in state.items()}


@dataclass(frozen=True)
class SeededTensors:
    """A random direction as what it is drawn from, and the digest of what must come out.

    A norm is a sum, and how many threads share it decides how it rounds: they are as many as the driver's.
    """

    spec: SeededDirection
    digest: str
    threads: int


class OtherDirection(NotRetried):
    """This machine draws another direction from the same seed."""


def pack_directions(
    directions: Sequence[DirectionTensors], at_most: int | None = None
) -> list[Mapping[str, Packed] | SeededTensors]:
    """The directions as tensors; random ones of more than `at_most` bytes as their seeds."""
    at_most = SEEDED_BYTES if at_most is None else at_most
    return [_pack_direction(each, at_most) for each in directions]


def _pack_direction(direction: DirectionTensors, at_most: int) -> Mapping[str, Packed] | SeededTensors:
    spec = seeded(direction.attributes) if _size(direction.tensors) > at_most else None
    if spec is None:
        return pack_state(direction.tensors)
    return SeededTensors(spec, direction.record.digest, torch.get_num_threads())


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _size(state: State) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def unpack_direction(
    packed: Mapping[str, Packed] | SeededTensors, origin: State, parameters: Sequence[ParameterInfo]
) -> State:
    """The direction's tensors, drawn anew where it travelled as its seed.

    Raises:
        OtherDirection: what is drawn here is not what the driver has.
    """
    if not isinstance(packed, SeededTensors):
        return unpack_state(packed)
    spec = packed.spec
    # A landscape of version 0.1.0 keeps the scaling that it was begun with; the digest tells which it is.
    for infos in dict.fromkeys((tuple(parameters), in_first_version(parameters))):
        with _threads(packed.threads):
            found = spec.draw(origin, infos)
        if direction_digest(found) == packed.digest:
            return found
    raise OtherDirection(
        f"directions: seed {spec.seed} gives another direction on a worker than on the driver (torch "
        f"{torch.__version__} here); give both the same versions, or supply the direction as a file"
    )


@dataclass(frozen=True)
class PackedItems:
    """Items that a collate function makes batches of, or whole batches, pickled one after the other.

    Attributes:
        data: the bytes, uint8.
        ends: int64 [items, 2], where each begins and ends.
        lengths: how many samples each whole batch has; None for items.
        name: what messages call the data set.
    """

    data: Packed
    ends: np.ndarray
    lengths: np.ndarray | None
    seed: int = 0
    name: str = ""


@dataclass(frozen=True)
class PackedPoints:
    """Sets of points by the name of their term, each tensor packed."""

    sets: Mapping[str, Any]


def pack_samples(samples: Samples, pickler: type[pickle.Pickler] = pickle.Pickler) -> Any:
    """The samples with every tensor packed, in the same structure; samples of any shape as one array of bytes.

    Args:
        pickler: the class of picklers for samples of any shape.

    Raises:
        JobError: a sample cannot be pickled.
    """
    if isinstance(samples, PointSets):
        return PackedPoints(_map(dict(samples.sets), torch.Tensor, pack))
    if isinstance(samples, Collated):
        items = as_pickled(samples.items, pickler)
        return PackedItems(pack(items.data), items.ends, None, samples.seed, samples.name)
    if isinstance(samples, WholeBatches):
        items = as_pickled(samples.batches, pickler)
        return PackedItems(pack(items.data), items.ends, samples.lengths)
    return _map(samples.rows, torch.Tensor, pack)


def item_pieces(
    samples: Collated | WholeBatches, size: int, pickler: type[pickle.Pickler] = pickle.Pickler
) -> Iterator[PackedItems]:
    """The items in pieces of about `size` bytes; the last piece has no bytes, and says where all items end.

    Raises:
        JobError: a sample cannot be pickled.
    """
    items = samples.items if isinstance(samples, Collated) else samples.batches
    at_once = max(1, size * len(items) // max(1, samples.nbytes))
    ends: list[np.ndarray] = []
    before = 0
    for start in range(0, len(items), at_once):
        piece = as_pickled((items[k] for k in range(start, min(start + at_once, len(items)))), pickler)
        ends.append(piece.ends + before)
        before += len(piece.data)
        yield PackedItems(pack(piece.data), piece.ends, None)
    none = pack(torch.empty(0, dtype=torch.uint8))
    whole = np.concatenate(ends)
    if isinstance(samples, Collated):
        yield PackedItems(none, whole, None, samples.seed, samples.name)
    else:
        yield PackedItems(none, whole, samples.lengths)


def unpack_samples(samples: Any, problem: Problem) -> Samples:
    """The samples that `pack_samples` packed; the collate function is that of the problem here."""
    if isinstance(samples, PackedPoints):
        return PointSets(_map(samples.sets, Packed, unpack))
    if isinstance(samples, PackedItems):
        return samples_of(PickledItems(unpack(samples.data), samples.ends), samples, problem)
    return Rows(_map(samples, Packed, unpack))


def samples_of(items: PickledItems, packed: PackedItems, problem: Problem) -> Samples:
    """Items or whole batches as samples; `packed` says which, its bytes aside."""
    if packed.lengths is not None:
        return WholeBatches(items, packed.lengths, problem.length is not None)
    return Collated(items, collate_of(problem.data), packed.seed, packed.name, problem.length)


def _map(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map(each, kind, function) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(each, kind, function) for each in value))
    return type(value)(_map(each, kind, function) for each in value)
