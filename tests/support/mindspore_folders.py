"""Summary folders as MindSpore writes them, made by protobuf from its message types, for the readers of the project."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SHARED = Path(__file__).parents[3] / "shared" / "data"
VERSION = "MindSpore.Event:1"

# Field numbers and types as in MindSpore's summary.proto, lineage.proto and checkpoint.proto. A star is a list.
MESSAGES: Mapping[str, str] = {
    "TensorProto": "1 dims int64* 2 data_type int32 3 float_data float*",
    "Point": "1 x TensorProto 2 y TensorProto 3 z TensorProto",
    "LossPath": "1 intervals int32* 2 points Point",
    "Metadata": "1 decomposition string 2 unit string 3 step_per_epoch int32",
    "LossLandscape": "1 landscape Point 2 loss_path LossPath 3 metadata Metadata 4 convergence_point Point",
    "Image": "1 height int32 2 width int32 3 colorspace int32 4 encoded_image bytes",
    "Value": "1 tag string 3 scalar_value float 4 image Image 10 loss_landscape LossLandscape",
    "Summary": "1 value Value*",
    "Event": "1 wall_time double 2 step int64 3 version string 5 summary Summary",
    "HyperParameters": (
        "1 optimizer string 2 learning_rate float 3 loss_function string 4 epoch int32 8 batch_size int32"
    ),
    "Algorithm": "1 network string 2 loss float",
    "TrainLineage": "1 hyper_parameters HyperParameters 3 algorithm Algorithm",
    "EvaluationLineage": "2 metric string",
    "LineageEvent": "1 wall_time double 6 train_lineage TrainLineage 7 evaluation_lineage EvaluationLineage",
    "CheckpointTensor": "1 dims int64* 2 tensor_type string 3 tensor_content bytes",
    "CheckpointValue": "1 tag string 2 tensor CheckpointTensor",
    "Checkpoint": "1 value CheckpointValue*",
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="mindspore_test.proto", package="ms", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        words = fields.split()
        for number, field, kind in zip(words[::3], words[1::3], words[2::3], strict=True):
            plain = kind.removesuffix("*")
            added = message.field.add(name=field, number=int(number))
            added.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            if plain in MESSAGES:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".ms.{plain}"
            else:
                added.type = getattr(kinds, f"TYPE_{plain.upper()}")
            if name == "TensorProto" and field == "float_data":
                added.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ms.{name}")) for name in MESSAGES}


PROTO = _classes()


def masked(data: bytes) -> int:
    value = google_crc32c.value(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + struct.pack("<I", masked(length)) + message + struct.pack("<I", masked(message))


def version_event(version: str = VERSION) -> bytes:
    return PROTO["Event"](wall_time=1.0, version=version).SerializeToString()


def scalar_event(step: int, value: float, tag: str = "loss/auto", wall_time: float = 1e9) -> bytes:
    event = PROTO["Event"](wall_time=wall_time, step=step)
    event.summary.value.add(tag=tag, scalar_value=value)
    event.summary.value.add(tag="input_data/auto").image.encoded_image = b"\x89PNG" + bytes(50)
    return event.SerializeToString()


def fill(tensor: Any, values: Any) -> None:
    array = np.asarray(values, np.float32)
    tensor.dims.extend(array.shape)
    tensor.data_type = 12
    tensor.float_data.extend(array.ravel().tolist())


def landscape_event(
    x: Any, y: Any, z: Any, *, intervals: Sequence[int] = (), path: Any = None, convergence: Any = None,
    decomposition: str = "PCA", unit: str = "epoch", tag: str | None = None, wall_time: float = 1e9,
) -> bytes:  # fmt: skip
    event = PROTO["Event"](wall_time=wall_time)
    value = event.summary.value.add(tag=tag or f"landscape_[{intervals[0]}, {intervals[-1]}]")
    message = value.loss_landscape
    for name, values in (("x", x), ("y", y), ("z", z)):
        fill(getattr(message.landscape, name), values)
    if path is not None:
        message.loss_path.intervals.extend(intervals)
        for name, values in zip("xyz", path, strict=True):
            fill(getattr(message.loss_path.points, name), values)
    if convergence is not None:
        for name, number in zip("xyz", convergence, strict=True):
            fill(getattr(message.convergence_point, name), [number])
    message.metadata.decomposition, message.metadata.unit, message.metadata.step_per_epoch = decomposition, unit, 4
    return event.SerializeToString()


def lineage_events(metrics: str | None = '{"Accuracy": 0.5}') -> list[bytes]:
    training = PROTO["LineageEvent"](wall_time=1.0)
    chosen = training.train_lineage.hyper_parameters
    chosen.optimizer, chosen.learning_rate, chosen.loss_function, chosen.epoch = "Momentum", 0.01, "CrossEntropy", 3
    chosen.batch_size = 32
    training.train_lineage.algorithm.network = "Net"
    evaluation = PROTO["LineageEvent"](wall_time=2.0)
    evaluation.evaluation_lineage.metric = metrics or ""
    return [training.SerializeToString(), evaluation.SerializeToString()]


def write_events(folder: Path, events: Sequence[bytes], time: int = 1700000000, end: str = "_MS") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.events.summary.{time}.0.host{end}"
    first = [] if end == "_lineage" else [version_event()]
    file.write_bytes(b"".join(map(frame, [*first, *events])))
    return file


def checkpoint_bytes(tensors: Mapping[str, np.ndarray], pieces: int = 1, checksum: bool = False) -> bytes:
    """A checkpoint as `save_checkpoint` writes it: a message for each tensor, or for each piece of one."""
    names = {"float32": "Float32", "float16": "Float16", "int32": "Int32", "int64": "Int64", "float64": "Float64"}
    content = b""
    for name, array in tensors.items():
        for piece in np.array_split(array.ravel(), pieces):
            message = PROTO["Checkpoint"]()
            value = message.value.add(tag=name)
            value.tensor.dims.extend(array.shape or (0,))
            value.tensor.tensor_type = names[array.dtype.name]
            value.tensor.tensor_content = piece.tobytes()
            content += message.SerializeToString()
    return content + (b"crc_num" + zlib.crc32(content).to_bytes(10, "big") if checksum else b"")


def write_metadata(folder: Path, intervals: Sequence[Sequence[int]], unit: str = "epoch", size: int = 5) -> None:
    numbers = sorted({number for interval in intervals for number in interval})
    metadata = {
        "epoch_group": {str(k): list(interval) for k, interval in enumerate(intervals)},
        "model_params_file_map": {str(n): f"/home/me/gone/ckpt_dir/Net_{n}_{unit}.ckpt" for n in numbers},
        "step_per_epoch": 4, "unit": unit, "num_samples": 64, "landscape_size": size,
        "create_landscape": {"train": True, "result": True},
    }  # fmt: skip
    (folder / "ckpt_dir").mkdir(parents=True, exist_ok=True)
    (folder / "ckpt_dir" / "train_metadata.json").write_text(json.dumps(metadata))
