"""What MindSpore writes, read without it: against protobuf's own reader, in pieces, cut off, and of other kinds."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore_folders import (
    PROTO,
    SHARED,
    checkpoint_bytes,
    frame,
    landscape_event,
    lineage_events,
    masked,
    scalar_event,
    version_event,
    write_events,
)
from safetensors.torch import save_file

from landscape.model.mindspore_files import (
    MindSporeFileError,
    is_checkpoint,
    read_checkpoint,
    read_events,
    torch_names,
)

NUMBERS = np.random.default_rng(0)
X, Y = np.linspace(-1, 1, 4), np.linspace(-2, 1, 3)
Z = NUMBERS.random((3, 4))
PATH = ([0.5, 0.25, 0.0], [-0.5, 0.125, 0.0], [3.0, 2.0, 1.0])
EVENTS = [
    scalar_event(1, 2.5),
    landscape_event(X, Y, Z, intervals=(1, 2, 3), path=PATH, convergence=(0, 0, 1)),
    scalar_event(10, 0.1, "accuracy"),
    landscape_event(X, Y, -Z, decomposition="Random", tag="landscape_[3]", convergence=(0.1, 0.2, 7)),
]


def test_an_event_file_reads_as_protobuf_reads_it(tmp_path):
    events = read_events(write_events(tmp_path, EVENTS))
    assert (events.records, events.problem) == (5, "")
    assert [(one.tag, one.step, one.value) for one in events.scalars] == [
        ("loss/auto", 1, 2.5), ("accuracy", 10, float(np.float32(0.1))),
    ]  # fmt: skip
    first, second = events.landscapes
    message = PROTO["Event"].FromString(EVENTS[1]).summary.value[0].loss_landscape
    assert (first.tag, first.decomposition, first.unit, first.steps_per_epoch) == (
        "landscape_[1, 3]",
        "PCA",
        "epoch",
        4,
    )
    assert first.intervals == tuple(message.loss_path.intervals) == (1, 2, 3)
    assert first.message == message.SerializeToString()
    for own, theirs in (
        (first.plane, message.landscape), (first.path, message.loss_path.points),
        (first.convergence, message.convergence_point),
    ):  # fmt: skip
        for name in "xyz":
            tensor = getattr(theirs, name)
            assert getattr(own, name).ravel().tolist() == list(tensor.float_data)
            assert list(getattr(own, name).shape) == list(tensor.dims)
    assert (second.tag, second.intervals, second.path, float(second.convergence.z[0])) == ("landscape_[3]", (), None, 7)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data beside the repository")
def test_the_files_of_a_real_mindspore_read_as_protobuf_reads_them():
    landscapes = scalars = 0
    for file in (SHARED / "mindspore-lenet").rglob("*.summary.*"):
        events, data, at, messages = read_events(file), file.read_bytes(), 0, []
        while at < len(data):
            (length,) = struct.unpack("<Q", data[at : at + 8])
            messages.append(PROTO["Event"].FromString(data[at + 12 : at + 12 + length]))
            at += length + 16
        assert (events.records, events.problem) == (len(messages), "")
        values = [(event.step, value) for event in messages for value in event.summary.value]
        assert [(one.tag, one.step, one.value) for one in events.scalars] == [
            (value.tag, step, value.scalar_value) for step, value in values if value.HasField("scalar_value")
        ]
        theirs = [value.loss_landscape for _, value in values if value.HasField("loss_landscape")]
        for own, other in zip(events.landscapes, theirs, strict=True):
            assert own.plane.z.ravel().tolist() == list(other.landscape.z.float_data)
            assert own.plane.x.tolist() == list(other.landscape.x.float_data)
            assert own.intervals == tuple(other.loss_path.intervals)
        landscapes, scalars = landscapes + len(theirs), scalars + len(events.scalars)
    assert (landscapes, scalars) == (4, 10)


def test_the_lineage_names_what_was_trained(tmp_path):
    lineage = read_events(write_events(tmp_path, lineage_events(), end="_lineage")).lineage
    assert (lineage.network, lineage.optimiser, lineage.loss_function) == ("Net", "Momentum", "CrossEntropy")
    assert (lineage.epochs, lineage.batch_size, lineage.metrics) == (3, 32, '{"Accuracy": 0.5}')
    assert lineage.learning_rate == float(np.float32(0.01))


def test_a_file_cut_off_anywhere_gives_its_whole_frames(tmp_path):
    file = write_events(tmp_path, EVENTS[:2])
    data, ends, at = file.read_bytes(), [0], 0
    while at < len(data):
        at += struct.unpack("<Q", data[at : at + 8])[0] + 16
        ends.append(at)
    for size in range(len(data)):
        file.write_bytes(data[:size])
        whole = sum(end <= size for end in ends) - 1
        if whole == 0 and size:
            with pytest.raises(MindSporeFileError, match="is cut off"):
                read_events(file)
            continue
        events = read_events(file)
        assert events.records == whole
        assert events.problem == ("" if size in ends else f"is cut off after {whole} records; the rest is left out")


@pytest.mark.parametrize(("content", "reason"), [
    (b"PK\x03\x04" + bytes(40), "is no event file of MindSpore"),
    (frame(version_event("brain.Event:2")), "is of version 'brain.Event:2', and MindSpore.Event:1 is read"),
    (frame(version_event("MindSpore.Event:7")), "is of version 'MindSpore.Event:7'"),
    (frame(EVENTS[0]), "does not begin with the version of its events"),
    (frame(b"\x0b" * 9), "a message in it is damaged"),
    (frame(b"\xff" * 11), "a message in it is damaged"),
    (frame(b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), "a message in it is damaged"),
    (frame(version_event())[:-1] + b"\0", r"is damaged \(a checksum"),
])  # fmt: skip
def test_another_file_is_refused_with_the_reason(tmp_path, content, reason):
    file = tmp_path / "events.out.events.summary.1.0.host_MS"
    file.write_bytes(content)
    with pytest.raises(MindSporeFileError, match=reason):
        read_events(file)


def test_a_length_beyond_the_file_is_not_believed(tmp_path):
    file = tmp_path / "events.out.events.summary.1.0.host_MS"
    length = struct.pack("<Q", 1 << 62)
    file.write_bytes(frame(version_event()) + length + struct.pack("<I", masked(length)) + b"rest")
    assert read_events(file).problem == "is cut off after 1 records; the rest is left out"


def test_shapes_that_do_not_fit_their_numbers_end_the_reading(tmp_path):
    event = PROTO["Event"].FromString(EVENTS[3])
    event.summary.value[0].loss_landscape.landscape.z.dims[0] = 1 << 40
    events = read_events(write_events(tmp_path, [EVENTS[0], event.SerializeToString(), EVENTS[2]]))
    assert (events.records, len(events.landscapes)) == (2, 0)
    assert events.problem.startswith("a tensor in it has 48 bytes, its shape [1099511627776, 4] another number after 2")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_raise_nothing_else(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "changed"
    if data.draw(st.booleans()):
        content = bytearray(PROTO["Event"].FromString(EVENTS[data.draw(st.integers(0, 3))]).SerializeToString())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        read_events(
            write_events(folder, [bytes(content)])
        )  # what is damaged is told, not raised, after the first frame
        return
    content = bytearray(checkpoint_bytes({"fc.weight": np.ones((2, 3), np.float32), "step": np.zeros((), np.int32)}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    folder.mkdir(exist_ok=True)
    (folder / "x.ckpt").write_bytes(content)
    is_checkpoint(folder / "x.ckpt")
    with contextlib.suppress(MindSporeFileError):
        read_checkpoint(folder / "x.ckpt")


WEIGHTS = {
    "conv1.weight": NUMBERS.random((2, 1, 3, 3), np.float32), "layer.0.conv1.weight": np.ones((1, 1), np.float32),
    "bn.gamma": np.ones(2, np.float32), "bn.beta": np.zeros(2, np.float32), "bn.moving_mean": np.full(2, 3, np.float32),
    "bn.moving_variance": np.full(2, 4, np.float32), "embed.embedding_table": np.ones((5, 2), np.float16),
}  # fmt: skip
STATE = {
    "learning_rate": np.full((), 0.1, np.float32), "global_step": np.full((1,), 7, np.int32),
    "moments.conv1.weight": np.zeros((2, 1, 3, 3), np.float32), "moment1.bn.gamma": np.zeros(2, np.float32),
    "beta1_power": np.full((), 0.9, np.float32),
}  # fmt: skip


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("checksum", [False, True])
def test_a_checkpoint_gives_its_weights_and_names_the_rest(tmp_path, pieces, checksum):
    file = tmp_path / "net.ckpt"
    file.write_bytes(checkpoint_bytes(WEIGHTS | STATE, pieces, checksum))
    assert is_checkpoint(file)
    weights, others = read_checkpoint(file)
    assert list(weights) == list(WEIGHTS)
    for name, tensor in weights.items():
        assert tensor.dtype == torch.from_numpy(WEIGHTS[name]).dtype
        assert np.array_equal(tensor.numpy(), WEIGHTS[name])
    assert set(others) == set(STATE)


def test_a_checkpoint_in_safetensors(tmp_path):
    save_file(
        {name: torch.from_numpy(array) for name, array in (WEIGHTS | STATE).items()}, tmp_path / "n-1_2.safetensors"
    )
    weights, others = read_checkpoint(tmp_path / "n-1_2.safetensors")
    assert (set(weights), set(others)) == (set(WEIGHTS), set(STATE))
    (tmp_path / "n-1_2.safetensors").write_bytes(b"{}")
    with pytest.raises(MindSporeFileError, match="is not a whole safetensors file"):
        read_checkpoint(tmp_path / "n-1_2.safetensors")


def test_bfloat16_and_texts_of_a_checkpoint(tmp_path):
    message = PROTO["Checkpoint"]()
    half = message.value.add(tag="fc.weight").tensor
    half.dims.extend([2]), setattr(half, "tensor_type", "BFloat16")
    half.tensor_content = torch.tensor([1.5, -2.0], dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
    text = message.value.add(tag="note").tensor
    text.tensor_type, text.tensor_content = "str", "a".encode("utf-32-le")
    (tmp_path / "net.ckpt").write_bytes(message.SerializeToString())
    weights, others = read_checkpoint(tmp_path / "net.ckpt")
    assert (weights["fc.weight"].dtype, weights["fc.weight"].tolist(), others) == (torch.bfloat16, [1.5, -2], ("note",))


@pytest.mark.parametrize(("change", "reason"), [
    (lambda data: b"", "is empty"),
    (lambda data: b"AES" + data, "is no checkpoint of MindSpore"),
    (lambda data: b"\xd8\x5e\x3a\x7f" + data, "is encrypted; save it again without enc_key"),
    (lambda data: data[:-3], r"is cut off or damaged behind 'b\.weight'"),
    (lambda data: data.replace(b"b.weight", b"a.weight"), "'a.weight' holds 4 numbers"),
    (lambda data: checkpoint_bytes({"a": np.ones(3)}, checksum=True)[:-1] + b"\1", "its checksum does not hold"),
    (lambda data: checkpoint_bytes({"learning_rate": np.ones((), np.float32)}), "holds no weights"),
    (lambda data: data.replace(b"\x08\x02", b"\x08\x03", 1), r"'a\.weight' holds 2 numbers, its shape \[3\]"),
])  # fmt: skip
def test_what_is_no_whole_checkpoint_is_refused_with_the_reason(tmp_path, change, reason):
    data = checkpoint_bytes({name: np.ones(2, np.float32) for name in ("a.weight", "b.weight", "c.weight")})
    (tmp_path / "net.ckpt").write_bytes(change(data))
    with pytest.raises(MindSporeFileError, match=reason):
        read_checkpoint(tmp_path / "net.ckpt")


def test_other_files_are_not_taken_for_checkpoints(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    (tmp_path / "text").write_text("\n\n\n")
    assert not any(map(is_checkpoint, [tmp_path / "a.pt", tmp_path / "text", tmp_path / "absent", tmp_path]))


def test_names_of_weights_become_those_of_torch_where_the_shape_fits():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn = torch.nn.Conv2d(1, 2, 3, bias=False), torch.nn.BatchNorm2d(2)
            self.embed, self.act, self.line = torch.nn.Embedding(5, 2), torch.nn.PReLU(2), torch.nn.Conv1d(2, 3, 4)

    weights = {name: torch.from_numpy(array) for name, array in WEIGHTS.items()}
    weights |= {"gamma": torch.ones(1), "act.w": torch.ones(2), "line.weight": torch.arange(24.0).reshape(3, 2, 1, 4)}
    named = torch_names(weights, Net().state_dict())
    assert list(named) == [
        "conv1.weight", "layer.0.conv1.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var",
        "embed.weight", "gamma", "act.weight", "line.weight",
    ]  # fmt: skip
    assert torch.equal(named["line.weight"], torch.arange(24.0).reshape(3, 2, 4))
