"""Reads what MindSpore writes, without MindSpore: event files with landscapes, scalars and lineage, and checkpoints.

An event file is a sequence of frames: u64 length, u32 masked CRC-32C of the length, the message, u32 masked CRC-32C of
the message. Messages are those of protobuf; only the fields that are needed are read:

    Event         1 wall_time (double), 2 step, 3 version, 5 Summary
    Summary       1 value*: 1 tag, 3 scalar (float), 10 LossLandscape
    LossLandscape 1 Point, 2 path: 1 interval*, 2 Point; 3 metadata: 1 decomposition, 2 unit, 3 step_per_epoch; 4 Point
    Point         1 x, 2 y, 3 z, each a tensor: 1 dims*, 3 values* (float32)
    LineageEvent  6 training: 1 hyper-parameters: 1 optimiser, 2 rate, 3 loss, 4 epochs, 8 batch; 3 algorithm: 1 network
                  7 evaluation: 2 metrics as JSON
    Checkpoint    1 value*: 1 tag, 2 tensor: 1 dims*, 2 type, 3 content

No length in a file is believed before it is compared with the bytes that are there.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import message_of, quoted

if TYPE_CHECKING:
    from torch import Tensor

Message = memoryview  # the bytes of a protobuf message
Field = tuple[int, "int | Message"]  # its number, and a whole number or bytes
SOFTWARE = "MindSpore"
VERSION = "MindSpore.Event:1"
EVENT_FILE = re.compile(r".*\.out\.events\.summary\.(\d+)\.(\d+)\..*")  # time and number of the device
CHECKPOINTS, METADATA = "ckpt_dir", "train_metadata.json"  # in a summary folder
LONGEST_TAG = 1000  # bytes
MOST_SCALARS = 1 << 21
MOST_LANDSCAPES = 1000


class MindSporeFileError(ValueError):
    """A file is not what MindSpore writes; the message is the reason, without the file's name."""


def _fields(message: Message) -> Iterator[Field]:
    """The fields of a protobuf message in their order; four and eight bytes of fixed width are given as bytes."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        width = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            width, at = _varint(message, at)
        if width is None or not key >> 3 or at + width > end:
            raise MindSporeFileError("a message in it is damaged")
        yield key >> 3, message[at : at + width]
        at += width


def _varint(message: Message, at: int) -> tuple[int, int]:
    """A whole number of 1 to 10 bytes at a place, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        value |= (message[at] & 127) << shift
        at += 1
        if message[at - 1] < 128:
            return value, at
    raise MindSporeFileError("a message in it is damaged")


def _parts(message: Message) -> dict[int, list[Any]]:
    """The values of a message by their numbers."""
    parts: dict[int, list[Any]] = {}
    for number, value in _fields(message):
        parts.setdefault(number, []).append(value)
    return parts


def _message(parts: Mapping[int, list[Any]], number: int) -> Message:
    """The last message under a number; an empty one if there is none."""
    value = parts[number][-1] if number in parts else memoryview(b"")
    if not isinstance(value, memoryview):
        raise MindSporeFileError("a message in it is damaged")
    return value


def _text(parts: Mapping[int, list[Any]], number: int, longest: int = LONGEST_TAG) -> str:
    return bytes(_message(parts, number)[:longest]).decode("utf-8", "replace")


def _whole(parts: Mapping[int, list[Any]], number: int) -> int:
    value = parts.get(number, [0])[-1]
    return int(value) if isinstance(value, int) and value < 1 << 63 else 0


def _float(data: Any, kind: str) -> float:
    if not isinstance(data, memoryview) or len(data) != struct.calcsize(kind):
        raise MindSporeFileError("a number in it is damaged")
    return float(struct.unpack(kind, data)[0])


def _wholes(values: list[Any]) -> list[int]:
    """Whole numbers, packed or not."""
    numbers: list[int] = []
    for value in values:
        if isinstance(value, int):
            numbers.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            numbers.append(number)
    return numbers


# ----------------------------------------------------------------------------------------------------
# Event files.


def is_summary_folder(folder: Path) -> bool:
    """Whether a folder holds event files of MindSpore, or the checkpoints of its SummaryCollector."""
    try:
        return (folder / CHECKPOINTS / METADATA).is_file() or any(map(is_event_file, folder.iterdir()))
    except OSError:
        return False


def is_event_file(file: Path) -> bool:
    """Whether this is a file that is named as MindSpore names its event files."""
    return EVENT_FILE.fullmatch(file.name) is not None and file.is_file()


@dataclass(frozen=True)
class Points:
    """Coordinates x, y and losses z, float32; of a plane x [columns], y [rows], z [rows, columns]."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    z: NDArray[np.float32]


@dataclass(frozen=True)
class MindSporeLandscape:
    """A landscape of MindSpore's SummaryLandscape.

    Attributes:
        tag: such as `landscape_[7, 10]`.
        decomposition: `PCA` for the plane of a trajectory, `Random` for one around the end of training.
        unit, steps_per_epoch: what `intervals` count; 0 steps if unknown.
        plane: the values on the grid.
        intervals: the epochs or steps of the path; empty without one.
        path: the path's places, and the losses there, which are points of the plane and not the snapshots.
        convergence: the point that MindInsight marks as the end of training, with the loss that it shows.
        wall_time: seconds since 1970 when it was written.
        message: the bytes of the landscape in the file, which identify it.
    """

    tag: str
    decomposition: str
    unit: str
    steps_per_epoch: int
    plane: Points
    intervals: tuple[int, ...]
    path: Points | None
    convergence: Points | None
    wall_time: float
    message: bytes = field(repr=False)


@dataclass(frozen=True)
class Scalar:
    """A recorded number of a training."""

    tag: str
    step: int
    wall_time: float
    value: float


@dataclass
class Lineage:
    """What MindSpore recorded of a training; None where it did not. `metrics` is the JSON text of an evaluation."""

    network: str | None = None
    optimiser: str | None = None
    learning_rate: float | None = None
    loss_function: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    metrics: str | None = None


@dataclass
class Events:
    """The content of an event file.

    Attributes:
        records: how many whole frames it has.
        problem: why the rest of the file is left out; empty if all of it was read.
    """

    landscapes: list[MindSporeLandscape] = field(default_factory=list)
    scalars: list[Scalar] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)
    records: int = 0
    problem: str = ""


def read_events(file: Path) -> Events:
    """The landscapes, scalars and lineage of an event file.

    A file that is cut off, as that of a training that was killed or goes on, gives its whole frames; `problem` says
    where it ends.

    Raises:
        MindSporeFileError: it is no event file, or of another version.
        OSError: it cannot be read.
    """
    events, is_lineage = Events(), file.name.endswith("_lineage")
    try:
        for message in _frames(file):
            parts = _parts(memoryview(message))
            if is_lineage:
                _read_lineage(parts, events.lineage)
            elif events.records == 0 and (version := _text(parts, 3)) != VERSION:
                raise MindSporeFileError(
                    f"is of version {quoted(version)}, and {VERSION} is read"
                    if version
                    else f"does not begin with the version of its events, {VERSION}"
                )
            else:
                _read_summary(parts, events)
            events.records += 1
    except MindSporeFileError as error:
        if events.records == 0:
            raise
        events.problem = f"{error} after {events.records} records; the rest is left out"
    return events


def _frames(file: Path) -> Iterator[bytes]:
    """The message of each frame; their checksums hold."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        while opened.tell() < size:
            head = opened.read(12)
            if len(head) < 12:
                raise MindSporeFileError("is cut off")
            length, checksum = struct.unpack("<QI", head)
            if checksum != _masked(head[:8]):
                raise MindSporeFileError("is no event file of MindSpore, or is damaged")
            if length + 4 > size - opened.tell():
                raise MindSporeFileError("is cut off")
            message, checksum = opened.read(length), opened.read(4)
            if int.from_bytes(checksum, "little") != _masked(message):
                raise MindSporeFileError("is damaged (a checksum does not hold)")
            yield message


def _masked(data: bytes) -> int:
    """The masked CRC-32C of TFRecord files."""
    value = int(google_crc32c.value(data))
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _read_summary(event: Mapping[int, list[Any]], events: Events) -> None:
    if 5 not in event:
        return
    wall_time = _float(event[1][-1], "<d") if 1 in event else 0.0
    for number, value in _fields(_message(event, 5)):
        if number != 1 or not isinstance(value, memoryview):
            continue
        parts = _parts(value)
        if 10 in parts:
            if len(events.landscapes) == MOST_LANDSCAPES:
                raise MindSporeFileError(f"holds more than {MOST_LANDSCAPES} landscapes")
            events.landscapes.append(_landscape(_text(parts, 1), _message(parts, 10), wall_time))
        elif 3 in parts:
            if len(events.scalars) == MOST_SCALARS:
                raise MindSporeFileError(f"holds more than {MOST_SCALARS} scalars")
            events.scalars.append(Scalar(_text(parts, 1), _whole(event, 2), wall_time, _float(parts[3][-1], "<f")))


def _landscape(tag: str, message: Message, wall_time: float) -> MindSporeLandscape:
    parts = _parts(message)
    metadata, path = _parts(_message(parts, 3)), _parts(_message(parts, 2))
    return MindSporeLandscape(
        tag=tag,
        decomposition=_text(metadata, 1),
        unit=_text(metadata, 2),
        steps_per_epoch=_whole(metadata, 3),
        plane=_points(_message(parts, 1)),
        intervals=tuple(_wholes(path.get(1, []))),
        path=_points(_message(path, 2)) if 2 in path else None,
        convergence=_points(_message(parts, 4)) if 4 in parts else None,
        wall_time=wall_time,
        message=bytes(message),
    )


def _points(message: Message) -> Points:
    parts = _parts(message)
    return Points(*(_tensor(_parts(_message(parts, number))) for number in (1, 2, 3)))


def _tensor(parts: Mapping[int, list[Any]]) -> NDArray[np.float32]:
    dims = _wholes(parts.get(1, []))
    data = b"".join(bytes(value) for value in parts.get(3, []) if isinstance(value, memoryview))
    if len(data) != 4 * math.prod(dims):
        raise MindSporeFileError(f"a tensor in it has {len(data)} bytes, its shape {quoted(dims)} another number")
    try:
        return np.frombuffer(data, "<f4").reshape(dims)
    except (ValueError, OverflowError):
        raise MindSporeFileError(f"a tensor in it has the shape {quoted(dims)}, which none can have") from None


def _read_lineage(event: Mapping[int, list[Any]], lineage: Lineage) -> None:
    if 6 in event:
        training = _parts(_message(event, 6))
        chosen, algorithm = _parts(_message(training, 1)), _parts(_message(training, 3))
        lineage.network = _text(algorithm, 1) or None
        lineage.optimiser = _text(chosen, 1) or None
        lineage.learning_rate = _float(chosen[2][-1], "<f") if 2 in chosen else None
        lineage.loss_function = _text(chosen, 3) or None
        lineage.epochs = _whole(chosen, 4) or None
        lineage.batch_size = _whole(chosen, 8) or None
    if 7 in event:
        lineage.metrics = _text(_parts(_message(event, 7)), 2, longest=1 << 16) or None


# ----------------------------------------------------------------------------------------------------
# Checkpoints.

# The types of tensors, as numpy reads them. BFloat16 is read by its bits.
TYPES = {
    "Int8": "<i1", "UInt8": "<u1", "Int16": "<i2", "UInt16": "<u2", "Int32": "<i4", "UInt32": "<u4", "Int64": "<i8",
    "UInt64": "<u8", "Float16": "<f2", "Float32": "<f4", "Float64": "<f8", "Bool": "?", "BFloat16": "<i2",
}  # fmt: skip
ENCRYPTED = (b"\xd8\x5e\x3a\x7f", b"\xd9\x5e\x3a\x7f")  # the first bytes of a file by AES-GCM and by AES-CBC
CRC_MARK, CRC_LENGTH = b"crc_num", 10  # before the checksum at the end of a file, and that checksum's bytes
# What optimisers and loops keep beside the weights, in tensors of one number.
COUNTERS = (
    "learning_rate", "momentum", "weight_decay", "beta1_power", "beta2_power", "global_step", "epoch_num", "step_num",
    "scale_sense", "loss_scale", "current_iterator_step", "last_overflow_iterator_step",
)  # fmt: skip
# MindSpore's optimisers name their state by one of these, a dot, and the weight's own name.
STATES = frozenset((
    "accum", "accum_update", "accu_grads", "adam_m", "adam_v", "ax_", "exp_avg", "exp_avg_sq", "exp_inf", "lamb_m",
    "lamb_v", "linear", "max_exp_avg_sq", "mean_grad", "mean_square", "moment", "moment1", "moment2", "moments",
    "prev", "stat", "step_size", "vhat",
))  # fmt: skip
# The last part of a weight's name in torch: those that MindSpore has for it.
RENAMED = {
    "weight": ("gamma", "embedding_table", "w"), "bias": ("beta",), "running_mean": ("moving_mean",),
    "running_var": ("moving_variance",),
}  # fmt: skip


def is_checkpoint(file: Path) -> bool:
    """Whether a file begins as a checkpoint of MindSpore: with a value, its tag, and a tensor of a known type."""
    try:
        with file.open("rb") as opened:
            head = memoryview(opened.read(2 * LONGEST_TAG))
        key, at = _varint(head, 0)
        length, at = _varint(head, at)
        tag, at = _varint(head, at)
        size, at = _varint(head, at)
        after = bytes(head[at + size : at + size + 200])
    except (OSError, MindSporeFileError):
        return False
    is_begun = (key, tag) == (10, 10) and size < min(length, LONGEST_TAG) and after[:1] == b"\x12"
    return is_begun and any(b"\x12" + bytes([len(name)]) + name.encode() in after for name in TYPES)


def read_checkpoint(file: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The weights of a checkpoint, .ckpt or .safetensors, by MindSpore's names, on the CPU, and the names left out.

    Left out are the optimiser's state (names such as `moments.fc.weight` beside `fc.weight`), counters such as
    `learning_rate`, and entries that are no tensor.

    Raises:
        MindSporeFileError: it is no whole checkpoint, or is encrypted.
        OSError: it cannot be read.
    """
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state, others = load_file(file), list[str]()
        except SafetensorError as error:
            raise MindSporeFileError(f"is not a whole safetensors file: {message_of(error)}") from None
    else:
        state, others = _read_values(file)
    weights = {name: tensor for name, tensor in state.items() if not _is_of_optimiser(name, tensor, state)}
    if not weights:
        raise MindSporeFileError("holds no weights")
    return weights, (*(name for name in state if name not in weights), *others)


def _read_values(file: Path) -> tuple[dict[str, Tensor], list[str]]:
    """All tensors of a checkpoint in MindSpore's own format, and the names of what is no tensor."""
    import torch

    state: dict[str, Tensor] = {}
    others: list[str] = []
    with file.open("rb") as opened:
        if not file.stat().st_size:
            raise MindSporeFileError("is empty")
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            for name, (dims, kind, pieces) in _values(_without_checksum(memoryview(mapped))).items():
                if kind not in TYPES:
                    others.append(name)
                    continue
                data = bytearray(b"".join(pieces))
                values = np.frombuffer(data, TYPES[kind]) if data else np.zeros(0, TYPES[kind])
                if values.size != math.prod(dims):
                    raise MindSporeFileError(
                        f"{quoted(name)} holds {values.size} numbers, its shape {quoted(dims)} another number"
                    )
                tensor = torch.from_numpy(values.reshape(dims))
                state[name] = tensor.view(torch.bfloat16) if kind == "BFloat16" else tensor
        except (TypeError, ValueError, MemoryError) as error:
            raise error if isinstance(error, MindSporeFileError) else MindSporeFileError(message_of(error)) from None
    return state, others


def _without_checksum(content: Message) -> Message:
    """The content before the checksum that `save_checkpoint(crc_check=True)` appends."""
    start = len(content) - CRC_LENGTH - len(CRC_MARK)
    if start < 0 or content[start : start + len(CRC_MARK)] != CRC_MARK:
        return content
    if int.from_bytes(content[-CRC_LENGTH:], "big") != zlib.crc32(content[:start]):
        raise MindSporeFileError("is damaged (its checksum does not hold)")
    return content[:start]


def _values(content: Message) -> dict[str, tuple[list[int], str, list[Message]]]:
    """Shape, type and pieces of each value; a large tensor is stored in several pieces under one name."""
    values: dict[str, tuple[list[int], str, list[Message]]] = {}
    if bytes(content[:4]) in ENCRYPTED:
        raise MindSporeFileError("is encrypted; save it again without enc_key")
    try:
        for number, value in _fields(content):
            if number != 1 or not isinstance(value, memoryview):
                raise MindSporeFileError("a message in it is damaged")
            parts = _parts(value)
            name, tensor = _text(parts, 1), _parts(_message(parts, 2))
            dims = _wholes(tensor.get(1, []))
            dims = [] if dims == [0] else dims  # so are single numbers written
            known = values.setdefault(name, (dims, _text(tensor, 2), []))
            if known[0] != dims:
                raise MindSporeFileError(f"{quoted(name)} stands twice")
            known[2].append(_message(tensor, 3))
    except MindSporeFileError as error:
        if not values:
            raise MindSporeFileError("is no checkpoint of MindSpore") from None
        raise MindSporeFileError(f"is cut off or damaged behind {quoted(list(values)[-1])} ({error})") from None
    return values


def _is_of_optimiser(name: str, tensor: Tensor, state: Mapping[str, Tensor]) -> bool:
    if name in COUNTERS or ("." not in name and tensor.numel() <= 1):
        return True
    prefix, _, weight = name.partition(".")
    return prefix in STATES and weight in state


def torch_names(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under the names of a model's own tensors, as far as a name fits one of MindSpore's and the shape.

    `gamma`, `embedding_table` and PReLU's `w` are weights, `beta` is a bias, `moving_mean` and `moving_variance` are
    the statistics of batch norm; a Conv1d is one of [out, in, 1, k] in MindSpore. Others keep their names.

    Example:
        >>> import torch
        >>> weights = {"bn.gamma": torch.ones(2), "fc.weight": torch.ones(1, 2)}
        >>> list(torch_names(weights, {"bn.weight": torch.zeros(2), "fc.weight": torch.zeros(1, 2)}))
        ['bn.weight', 'fc.weight']
    """
    renamed = {}
    for name, tensor in own.items():
        stem, dot, last = name.rpartition(".")
        for other in (f"{stem}{dot}{word}" for word in (last, *RENAMED.get(last, ()))):
            shape = list(weights[other].shape) if other in weights else None
            if shape in (list(tensor.shape), [*tensor.shape[:2], 1, *tensor.shape[2:]]):
                renamed[other] = name
                break
    fitting = {}
    for other, tensor in weights.items():
        name = renamed.get(other, other)
        fitting[name] = tensor.reshape(own[name].shape) if other in renamed else tensor
    return fitting
