"""Samples that stream to the device, from memory or from disk: the bits of samples that stay there."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from small_models import ConvNet, image_samples, make_job, raw_chunk
from torch import nn

from landscape import JobError, run
from landscape.core.devices import DEVICE_BYTES, HOST_BYTES, device_limit, host_limit
from landscape.core.grid import Grid
from landscape.core.plan import Engine, Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import ALIGNMENT, Resident, Streamed, make_feed
from landscape.evaluation.tuning.choices import Limits, TuningScope
from landscape.evaluation.tuning.local_search import tune
from landscape.model.parameters import state_of
from landscape.problem.batches import TensorSamples, batch_bytes, batch_edges, tensors_of
from landscape.problem.selection import select_samples
from landscape.problem.terms import Problem

CPU = torch.device("cpu")
POINTS = np.array([[0.0, 0.0], [0.5, -1.0], [1.0, 0.25], [-0.3, 0.7], [0.5, 0.5]])


def observe(model, batch):
    """Of any structure: the first tensor is the images, the last the targets."""
    images, targets = tensors_of(batch)[0], tensors_of(batch)[-1]
    images = images.to(model.linear.weight.dtype) / (255 if images.dtype == torch.uint8 else 1)
    outputs = model(images)
    return {
        "loss": nn.functional.cross_entropy(outputs, targets.long(), reduction="none"),
        "accuracy": (outputs.argmax(1) == targets).double(),
        "target": targets.double(),
    }


KINDS = ["doubles", "halves", "bytes and double targets", "dict"]


def samples_of(kind: str, count: int):
    """On the CPU a sample is converted where its type is not the plan's: the floating-point ones here are."""
    images, targets = image_samples(count)
    whole = images.mul(40).add(120).clamp(0, 255).to(torch.uint8)
    return {
        "doubles": lambda: (images.double(), targets),
        "halves": lambda: [images.half(), targets],
        "bytes and double targets": lambda: (whole, targets.double()),
        "dict": lambda: {"x": images.double(), "rest": (whole, {"y": targets.int()})},
    }[kind]()


def evaluator(samples, limit=None, device=CPU, **fields) -> Evaluator:
    plan = Plan.from_record({"batch_size": 8, "threads": 1, "device": device.type} | fields)
    model = ConvNet()
    generator = torch.Generator().manual_seed(1)
    directions = [
        {name: 0.3 * torch.randn(each.shape, generator=generator) for name, each in model.named_parameters()}
        for _ in range(2)
    ]
    return Evaluator(model, samples, observe, plan, device, state_of(model), directions, limit=limit)


def bits(evaluator: Evaluator) -> dict[str, bytes]:
    points = evaluator.evaluate(POINTS).arrays()
    states = evaluator.evaluate_states([state_of(ConvNet(5)), state_of(ConvNet(6))]).arrays()
    return {key: points[key].tobytes() + states[key].tobytes() for key in points}


# -- the same bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, count, batch_size",
    [*((kind, 29, 8) for kind in KINDS), ("doubles", 7, 7), ("bytes and double targets", 9, 1), ("dict", 1, 8)],
)
def test_streamed_samples_give_the_bits_of_resident_ones(kind, count, batch_size):
    samples = samples_of(kind, count)
    resident, streamed = (evaluator(samples, limit, batch_size=batch_size) for limit in (1 << 20, 0))
    assert (resident.resident, streamed.resident) == (True, False)
    assert resident.batches == streamed.batches
    assert bits(streamed) == bits(resident)


@pytest.mark.parametrize("fields", [
    {"batch_norm": "batch"}, {"batch_norm": "recalibrate"}, {"engine": "vmap:4"}, {"engine": "eager+folded"},
    {"engine": "eager+channels_last+maxima"}, {"precision": "bfloat16"},
], ids=str)  # fmt: skip
def test_in_every_mode_and_engine(fields):
    samples = samples_of("doubles", 29)
    resident, streamed = (evaluator(samples, limit, **fields) for limit in (1 << 20, 0))
    assert not streamed.resident
    assert bits(streamed) == bits(resident)


@pytest.mark.parametrize("fields", [{}, {"batch_norm": "recalibrate"}, {"precision": "float64"}, {"engine": "vmap:4"}])
@pytest.mark.parametrize("limit", [None, 0])
def test_samples_on_disk_give_the_bits_of_those_in_memory(fields, limit):
    data = samples_of("bytes and double targets", 29)
    on_disk = select_samples(data, 23, 4, limit=1).samples
    assert bits(evaluator(on_disk, limit, **fields)) == bits(evaluator(select_samples(data, 23, 4).samples, **fields))


def test_a_whole_run_with_low_limits_has_the_bytes_of_one_without(tmp_path, monkeypatch):
    images, targets = image_samples(29)
    problem = Problem(ConvNet(), (images.double(), targets), observe)
    spec = {"name": "a", "size": 4}
    run(make_job(tmp_path / "free", lambda: problem, [spec], num_samples=23))
    monkeypatch.setenv(HOST_BYTES, "100")
    monkeypatch.setenv(DEVICE_BYTES, "100")
    run(make_job(tmp_path / "low", lambda: problem, [spec], num_samples=23))
    for name in ("loss", "loss_stderr", "accuracy", "target"):
        one, other = (raw_chunk(tmp_path / folder, "a", name, (0, 0)) for folder in ("free", "low"))
        assert one.read_bytes() == other.read_bytes()
    monkeypatch.delenv(HOST_BYTES)
    assert run(make_job(tmp_path / "low", lambda: problem, [spec], num_samples=23))["a"].loss.shape == (4, 4)


# -- what is streamed, and how -------------------------------------------------------------------------------


def test_batches_keep_their_types_and_their_places_in_a_line_of_memory():
    samples = samples_of("dict", 29)
    resident, streamed = (
        Resident(TensorSamples(samples), CPU, torch.float32),
        Streamed(TensorSamples(samples), CPU, torch.float32),
    )
    for feed in (resident, streamed):
        feed.split(batch_edges(29, 4))
    assert len(resident) == len(streamed) == 8
    for (index, one), (number, other) in zip(resident.batches(), streamed.batches(), strict=True):
        assert index == number
        assert [each.dtype for each in tensors_of(other)] == [torch.float32, torch.uint8, torch.int32]
        for left, right in zip(tensors_of(one), tensors_of(other), strict=True):
            assert torch.equal(left, right)
            assert left.stride() == right.stride()
            assert left.data_ptr() % 64 == right.data_ptr() % 64  # as far as the CPU's allocations are aligned
    assert [index for index, _ in streamed.batches(3)] == [0, 1, 2]
    assert ALIGNMENT % 64 == 0


def test_the_samples_stream_only_where_a_copy_of_them_exceeds_the_limit():
    whole, doubles = torch.zeros(10, 3, dtype=torch.uint8), torch.zeros(10, 3, dtype=torch.float64)
    assert make_feed(whole, CPU, torch.float32, limit=0).resident
    assert make_feed(whole, CPU, torch.float32, limit=0).samples.rows is whole, "no copy where none is needed"
    assert make_feed((whole, doubles), CPU, torch.float64, limit=0).resident
    assert make_feed((whole, doubles), CPU, torch.float32, limit=120).resident
    assert not make_feed((whole, doubles), CPU, torch.float32, limit=119).resident


def test_a_streamed_batch_is_let_go_of_before_the_next_but_one():
    feed = Streamed(TensorSamples(torch.zeros(40, 3, dtype=torch.float64)), CPU, torch.float32)
    feed.split(batch_edges(40, 4))
    seen: list[weakref.ref[torch.Tensor]] = []
    for _, batch in feed.batches():
        seen.append(weakref.ref(batch))
        del batch
        assert sum(each() is not None for each in seen) <= 2
    assert len(seen) == 10


@pytest.mark.long
def test_nothing_is_remembered_of_streamed_batches():
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.alive: list[weakref.ref[torch.Tensor]] = []

        def __call__(self, model, batch):
            self.alive.append(weakref.ref(batch[0]))
            return observe(model, batch)

    model, counts = ConvNet(), {}
    linear = {"linear.weight": torch.ones_like(model.linear.weight)}  # the convolution below it stays the same
    for limit in (0, 1 << 20):
        seen = Seen()
        found = Evaluator(
            model, samples_of("doubles", 32), seen, Plan(4, 1, "cpu"), CPU, state_of(model), [linear], limit=limit
        )
        found.evaluate(np.array([[0.1], [0.2]]))
        gc.collect()
        counts[limit] = sum(each() is not None for each in seen.alive)
    assert counts == {0: 0, 1 << 20: 16}


def test_a_batch_changed_in_place_is_refused_when_streamed_too():
    def careless(model, batch):
        batch[0].add_(1)
        return observe(model, batch)

    found = Evaluator(
        ConvNet(), samples_of("doubles", 9), careless, Plan(4, 1, "cpu"), CPU, state_of(ConvNet()), [], limit=0
    )
    with pytest.raises(JobError, match="must not change its batch in place"):
        found.evaluate(np.zeros((1, 0)))


def test_cuda_graphs_need_resident_samples():
    found = evaluator(samples_of("doubles", 29), limit=0)
    with pytest.raises(JobError, match=rf"engine: cudagraph .*do not fit the device.*{DEVICE_BYTES}"):
        found.use(Engine.parse("cudagraph"))
    found.use(Engine.parse("eager"))
    assert bits(found) == bits(evaluator(samples_of("doubles", 29)))


def test_the_engine_is_chosen_for_streamed_samples_too():
    found = evaluator(samples_of("doubles", 64), limit=0)
    axis = np.linspace(-1, 1, 9)
    tuned = tune(
        found,
        Grid(("alpha", "beta"), (axis, axis)),
        TuningScope(points=10_000_000),
        limits=Limits(longest=1.0),
        load_processes=0,
    )
    assert tuned.trials
    assert not any(each.engine.base == "cudagraph" for each in tuned.trials)
    assert not found.resident
    assert found.twin(Plan(8, 1, "cpu")).resident is False
    forced = tune(found, Grid(("alpha", "beta"), (axis, axis)), TuningScope(Engine("cudagraph")))
    assert "cudagraph is not used" in forced.warning


# -- limits --------------------------------------------------------------------------------------------------


def test_limits_are_shares_of_what_is_free_or_as_the_environment_says(monkeypatch):
    monkeypatch.delenv(HOST_BYTES, raising=False)
    monkeypatch.delenv(DEVICE_BYTES, raising=False)
    assert 1 << 20 < host_limit() < 1 << 50
    assert device_limit(CPU) == pytest.approx(host_limit(), rel=0.2)
    monkeypatch.setenv(HOST_BYTES, "12345")
    assert (host_limit(), device_limit(CPU)) == (12345, 12345)
    monkeypatch.setenv(DEVICE_BYTES, "77")
    assert (host_limit(), device_limit(CPU)) == (12345, 77)
    for wrong in ("2GB", "0", "-5"):
        monkeypatch.setenv(HOST_BYTES, wrong)
        with pytest.raises(JobError, match=rf"{HOST_BYTES}: must be a whole number of bytes above zero, not '{wrong}'"):
            host_limit()


# -- on a GPU ------------------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fields", [{}, {"batch_norm": "recalibrate"}, {"engine": "vmap:4"}], ids=str)
def test_on_a_gpu_streamed_samples_give_the_bits_of_resident_ones(kind, fields):
    samples, gpu = samples_of(kind, 1003), torch.device("cuda:0")
    resident, streamed = (evaluator(samples, limit, gpu, batch_size=64, **fields) for limit in (1 << 30, 0))
    assert (resident.resident, streamed.resident) == (True, False)
    assert bits(streamed) == bits(resident)


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_two_or_three_batches_are_there_at_a_time():
    """How far they travel while another one computes: `tests/measure/overlap.py`."""
    gpu = torch.device("cuda:0")
    samples = torch.randint(0, 255, (512, 1 << 20), dtype=torch.uint8)  # 512 MiB in 32 batches of 16
    feed = make_feed(samples, gpu, torch.float32, limit=1 << 20)
    feed.split(batch_edges(512, 16))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(gpu)
    before, sums = torch.cuda.memory_allocated(gpu), []
    for _, batch in feed.batches():
        assert batch.dtype == torch.uint8
        sums.append(batch.sum(dtype=torch.int64))
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated(gpu) - before < 5 * (16 << 20) < batch_bytes(samples)
    assert torch.stack(sums).sum().item() == samples.sum(dtype=torch.int64).item()
