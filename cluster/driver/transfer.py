"""Weights, directions and samples as plain values that travel to the workers of a job."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor, nn

from landscape.compute.landscape_context import FileState, OwnState, ReadState
from landscape.core.errors import JobError, NotFoundError, NotRetried, quoted
from landscape.job.directions.base import DirectionTensors
from landscape.job.directions.computed import ComputedTensors
from landscape.job.directions.random import DrawnTensors
from landscape.model.parameters import State, match_state
from landscape.model.weight_files import load_weights
from landscape.problem.batches import Batch, Samples, TensorSamples, empty_like, fill_structure, tensors_of
from landscape.problem.collated import Collated, PickledItems, WholeBatches, pickle_items
from landscape.problem.disk_buffer import TensorFiles, map_rows
from landscape.problem.mesh import RankGroup
from landscape.problem.sources import collate_of
from landscape.problem.terms import PointSets, Problem


@dataclass(frozen=True)
class SharedTensor:
    """A tensor as a numpy array, which Ray shares between the processes of a node without copying it."""

    array: np.ndarray
    dtype: str


def pack(tensor: torch.Tensor) -> SharedTensor:
    """The bytes of a tensor, of any shape, type and device, as Ray can share them."""
    contiguous = tensor.detach().cpu().contiguous()
    # numpy has no bfloat16, so the bytes travel, and the type beside them.
    array = contiguous.reshape(-1).view(torch.uint8).numpy().reshape(*contiguous.shape, contiguous.element_size())
    return SharedTensor(array, str(contiguous.dtype).removeprefix("torch."))


def unpack(packed: SharedTensor) -> torch.Tensor:
    """The packed tensor, to the bit, on the CPU; it shares the memory of `packed` and must not be written."""
    dtype = getattr(torch, packed.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the shared memory is read-only, and is only read
        flat = torch.from_numpy(packed.array.reshape(-1))
    return flat.view(dtype).reshape(packed.array.shape[:-1])


def pack_state(state: State) -> dict[str, SharedTensor]:
    """Named tensors, each one packed."""
    return {name: pack(tensor) for name, tensor in state.items()}


def unpack_state(state: Mapping[str, SharedTensor]) -> dict[str, torch.Tensor]:
    """The named tensors that `pack_state` packed."""
    return {name: unpack(packed) for name, packed in state.items()}


@dataclass(frozen=True)
class OwnWeights:
    """The weights that a worker's own problem has, by their digest."""

    digest: str


@dataclass(frozen=True)
class FileWeights:
    """The weights of a file that a worker reads itself, see `FileState`."""

    path: str
    is_matched: bool
    digest: str


PackedWeights = Mapping[str, SharedTensor] | OwnWeights | FileWeights


@dataclass(frozen=True)
class PackedFormula:
    """A direction that is computed from weights, see `ComputedTensors`."""

    sources: tuple[PackedWeights, ...]
    of_sources: ComputedTensors


PackedDirection = Mapping[str, SharedTensor] | DrawnTensors | PackedFormula


def pack_origin(origin: State, *, by_name: bool = False) -> PackedWeights:
    """Whole weights; large ones that every worker has are not sent.

    Args:
        by_name: whether large weights of a file travel as its name, so that every machine needs the file.
    """
    if isinstance(origin, OwnState):
        return OwnWeights(origin.digest)
    if by_name and isinstance(origin, FileState):
        return FileWeights(origin.path, origin.is_matched, origin.digest)
    return pack_state(origin)


def pack_direction(direction: State) -> PackedDirection:
    """A direction as packed tensors; one that is drawn or computed when it is needed travels as what it is made of."""
    if isinstance(direction, DrawnTensors):
        return direction
    if isinstance(direction, ComputedTensors):
        sources = tuple(pack_origin(source, by_name=True) for source in direction.sources)
        return PackedFormula(sources, replace(direction, sources=()))
    return pack_state(direction)


def pack_axes(origin: State, directions: Iterable[DirectionTensors]) -> tuple[PackedWeights, list[PackedDirection]]:
    """The weights at the origin and the axes through it; the origin travels by name where an axis needs its file."""
    packed = [pack_direction(axis.tensors) for axis in directions]
    return pack_origin(origin, by_name=any(isinstance(axis, PackedFormula) for axis in packed)), packed


class WeightsDiffer(NotRetried):
    """A worker reads other weights than the driver: every value of it would be of another network."""


class Unpacker:
    """Gets weights and directions that were packed elsewhere, with what this process can read.

    Args:
        model: which weights of files are matched to.
        own: the weights of the problem here.
        group: of which this process is a rank; one rank of a node reads all weights, for their digest.
    """

    def __init__(self, model: nn.Module, own: Callable[[], State], group: RankGroup | None = None) -> None:
        self._model, self._own, self._group = model, own, group
        self._read: dict[tuple[str, bool], State] = {}

    def weights(self, packed: PackedWeights) -> State:
        """What `pack_origin` packed.

        Raises:
            WeightsDiffer: the problem or the file here has other weights than the driver's.
            JobError: the file is not here.
        """
        if isinstance(packed, OwnWeights):
            return self._agreeing(self._own(), packed.digest, "problem: its weights on a worker")
        if isinstance(packed, FileWeights):
            key = packed.path, packed.is_matched
            if key not in self._read:
                self._read[key] = self._of_file(*key)
            return self._agreeing(self._read[key], packed.digest, f"weights {quoted(packed.path)} on a worker")
        return unpack_state(packed)

    def direction(self, packed: PackedDirection) -> State:
        """What `pack_direction` packed."""
        if isinstance(packed, DrawnTensors):
            return packed
        if isinstance(packed, PackedFormula):
            return replace(packed.of_sources, sources=tuple(map(self.weights, packed.sources)))
        return unpack_state(packed)

    def _of_file(self, path: str, is_matched: bool) -> State:
        try:
            tensors = load_weights(path, again=True)
        except NotFoundError:
            raise JobError(
                f"weights {quoted(path)} are not on the machine of a worker; put large weights where every machine "
                "reads them, at the same place"
            ) from None
        matched = match_state(self._model, tensors, f"file {quoted(path)}") if is_matched else tensors
        return FileState(matched, path, is_matched=is_matched)

    def _agreeing(self, state: State, digest: str, what: str) -> State:
        def is_same() -> bool:
            return isinstance(state, ReadState) and state.digest == digest

        if not (is_same() if self._group is None else self._group.agree(is_same)):
            raise WeightsDiffer(
                f"{what} are not those on the driver; let every machine read the same file, write to none while a job "
                "runs, and seed what is drawn"
            )
        return state


@dataclass(frozen=True)
class PackedItems:
    """Items that a collate function makes batches of, or whole batches, pickled one after the other.

    Attributes:
        data: the bytes, uint8.
        ends: int64 [items, 2], where each item begins and ends in the data.
        lengths: how many samples each whole batch has; None for items.
        name: what messages call the data set.
    """

    data: SharedTensor
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
        items = pickle_items(samples.items, pickler)
        return PackedItems(pack(items.data), items.ends, None, samples.seed, samples.name)
    if isinstance(samples, WholeBatches):
        items = pickle_items(samples.batches, pickler)
        return PackedItems(pack(items.data), items.ends, samples.lengths)
    return _map(samples.rows, torch.Tensor, pack)


def item_pieces(
    samples: Collated | WholeBatches, size: int, pickler: type[pickle.Pickler] = pickle.Pickler
) -> Iterator[PackedItems]:
    """The items in pieces of about `size` bytes; the last piece holds no items, and says where all of them end.

    Raises:
        JobError: a sample cannot be pickled.
    """
    items = samples.items if isinstance(samples, Collated) else samples.batches
    at_once = max(1, size * len(items) // max(1, samples.nbytes))
    ends: list[np.ndarray] = []
    offset = 0
    for start in range(0, len(items), at_once):
        piece = pickle_items((items[k] for k in range(start, min(start + at_once, len(items)))), pickler)
        ends.append(piece.ends + offset)
        offset += len(piece.data)
        yield PackedItems(pack(piece.data), piece.ends, None)
    no_bytes = pack(torch.empty(0, dtype=torch.uint8))
    all_ends = np.concatenate(ends)
    if isinstance(samples, Collated):
        yield PackedItems(no_bytes, all_ends, None, samples.seed, samples.name)
    else:
        yield PackedItems(no_bytes, all_ends, samples.lengths)


def unpack_samples(samples: Any, problem: Problem) -> Samples:
    """The samples that `pack_samples` packed; the collate function is that of the problem here."""
    if isinstance(samples, PackedPoints):
        return PointSets(_map(samples.sets, SharedTensor, unpack))
    if isinstance(samples, PackedItems):
        return samples_of(PickledItems(unpack(samples.data), samples.ends), samples, problem)
    return TensorSamples(_map(samples, SharedTensor, unpack))


def samples_of(items: PickledItems, packed: PackedItems, problem: Problem) -> Samples:
    """Items or whole batches as samples; `packed` says which of the two, and its bytes are not read."""
    if packed.lengths is not None:
        return WholeBatches(items, packed.lengths, problem.length is not None)
    return Collated(items, collate_of(problem.data), packed.seed, packed.name, problem.length)


def _map(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _map(item, kind, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(item, kind, function) for item in value))
    return type(value)(_map(item, kind, function) for item in value)


# ----------------------------------------------------------------------------------------------------
# Samples that are too large for one shared object: sent in pieces, and gathered in files that a node's workers share.
#
# The first worker of a node writes the files, which have no names. The others open them through that process, or
# through another worker that has them open. So no file is left behind, however the workers end.

PIECE_BYTES = 256 << 20


@dataclass(frozen=True)
class SamplePieces:
    """The samples as references to pieces.

    Attributes:
        key: names the samples on every node.
        references: the first piece holds no samples, and shows their structure.
    """

    key: str
    references: Sequence[Any]


@dataclass(frozen=True)
class SharedPoints:
    """Sets of points that are shared one by one: each as a list of one reference, or in pieces."""

    sets: Mapping[str, Any]


def pieces_of(samples: Samples, size: int = PIECE_BYTES) -> Iterable[TensorSamples]:
    """First a piece without samples that shows their structure, then all samples in pieces of about `size` bytes."""
    yield TensorSamples(empty_like(samples.rows))
    step = max(1, size * samples.length // max(1, samples.nbytes))
    for start in range(0, samples.length, step):
        yield TensorSamples(samples.batch(start, start + step))


def gather(pieces: SamplePieces, fetch: Callable[[Any], Samples]) -> TensorSamples:
    """The samples, in files that all processes of this node share; one of the processes fetches the pieces.

    Args:
        fetch: gets a piece by its reference.

    Raises:
        JobError: the folder for temporary files belongs to another user.
    """
    like = fetch(pieces.references[0]).rows
    registry = _folder() / "samples.json"
    with FileLock(f"{registry}.lock"):
        holders = _read(registry)
        for holder in holders:
            if holder["key"] == pieces.key and (files := _opened(holder, like)) is not None:
                break
        else:
            files = _collected(like, pieces.references[1:], fetch)
        rows, descriptors, tensors = files
        entry = {"key": pieces.key, "pid": os.getpid(), "rows": rows, "files": [[d, *_name(d)] for d in descriptors]}
        temporary = registry.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps([*holders, entry]))
        temporary.replace(registry)
    return TensorSamples(fill_structure(like, tensors))


Held = tuple[int, list[int], list[Tensor]]  # rows; descriptors, open as long as this process lives; mapped tensors


def _collected(like: Batch, references: Sequence[Any], fetch: Callable[[Any], Samples]) -> Held:
    columns = TensorFiles(tensors_of(like))
    for reference in references:
        columns.append(tensors_of(fetch(reference).rows))
    descriptors = [os.dup(descriptor) for descriptor in columns.descriptors()]
    return columns.rows, descriptors, columns.mapped()


def _opened(holder: dict[str, Any], like: Batch) -> Held | None:
    """The files that another process holds; None where it has ended, even if its number is in use again."""
    descriptors: list[int] = []
    try:
        for number, *name in holder["files"]:
            descriptors.append(os.open(f"/proc/{holder['pid']}/fd/{number}", os.O_RDWR))
            if _name(descriptors[-1]) != name:
                raise FileNotFoundError(name)
        kinds = [(tensor.dtype, tensor.shape[1:]) for tensor in tensors_of(like)]
        tensors = [map_rows(d, holder["rows"], *kind) for d, kind in zip(descriptors, kinds, strict=True)]
    except (OSError, ValueError):
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    return holder["rows"], descriptors, tensors


def _name(descriptor: int) -> list[int]:
    """What distinguishes a file from every other one that exists at the same time."""
    status = os.fstat(descriptor)
    return [status.st_dev, status.st_ino, status.st_size]


def _folder() -> Path:
    """The folder of the registry. As the registry says which files are opened, this user alone may write there."""
    folder = Path(tempfile.gettempdir()) / f"landscape-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise JobError(f"TMPDIR: {folder} belongs to another user; point TMPDIR at a folder of your own")
    return folder


def _read(registry: Path) -> list[dict[str, Any]]:
    """The entries of the registry whose processes still live."""
    entries: list[dict[str, Any]] = []
    with suppress(OSError, ValueError):
        entries = [entry for entry in json.loads(registry.read_text()) if Path(f"/proc/{entry['pid']}").exists()]
    return entries
