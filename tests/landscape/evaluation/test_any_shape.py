"""Batches of any structure: the means of a plain loop, however samples are padded, packed, kept and batched."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from ragged import (
    COLLATES,
    COUNT,
    Joined,
    Moving,
    Reader,
    Sequences,
    observe_sequences,
    padded,
    sequences,
    sequences_of,
)
from small_models import make_job
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from landscape import JobError, Problem, extend, run
from landscape.core.devices import DEVICE_BYTES, HOST_BYTES
from landscape.core.plan import Plan
from landscape.evaluation.dry_run import first_look
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import SamplesChanged
from landscape.model.parameters import state_of
from landscape.problem.selection import select_samples

CPU = torch.device("cpu")
POINTS = np.array([[0.0, 0.0], [0.5, -1.0], [1.0, 0.25], [-0.3, 0.7], [0.5, 0.5]])
PLANE = {"name": "plane", "size": 3}


def axes(model: nn.Module) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {name: 0.3 * torch.randn(each.shape, generator=generator) for name, each in model.named_parameters()}
        for _ in range(2)
    ]


def evaluator(samples, observe=observe_sequences, limit=None, model=None, **fields) -> Evaluator:
    model = Reader() if model is None else model
    plan = Plan.from_record({"batch_size": 5, "threads": 1, "device": "cpu", "reduction": "blocks"} | fields)
    return Evaluator(model, samples, observe, plan, CPU, state_of(model), axes(model), limit=limit)


def chosen(collate=padded, count: int = COUNT, **options):
    return select_samples(DataLoader(Sequences(), collate_fn=collate), count, 3, **options)


def plain_loop(indices, point) -> np.ndarray:
    """The loss of every sequence, one by one, in float64."""
    model = Reader().double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += sum(c * axis[name].double() for c, axis in zip(point, axes(Reader()), strict=True))
        outputs = [model(sequences()[k][0].double()) for k in indices]
        labels = [sequences()[k][1] for k in indices]
        pairs = zip(outputs, labels, strict=True)
        return np.array([float(nn.functional.cross_entropy(output, label)) for output, label in pairs])


# -- the same means ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "collate, batch_size", [*((collate, 5) for collate in COLLATES), ("padded", 1), ("jagged", 1), ("packed", 64)]
)
def test_however_samples_are_collated_and_batched_means_are_those_of_a_plain_loop(collate, batch_size):
    given = chosen(COLLATES[collate])
    found = evaluator(given.samples, batch_size=batch_size).evaluate(POINTS, rise=True)
    losses = [plain_loop(given.indices, point) for point in POINTS]
    assert found.mean["loss"] == pytest.approx([each.mean() for each in losses], rel=1e-6)
    errors = [each.std(ddof=1) / np.sqrt(COUNT) for each in losses]
    assert found.stderr["loss"] == pytest.approx(errors, rel=1e-5)
    rises = [(each - losses[0]).std(ddof=1) / np.sqrt(COUNT) for each in losses]
    assert found.rise_stderr == pytest.approx(rises, rel=1e-4, abs=1e-9)


def test_sorted_by_length_the_means_are_those_of_any_order():
    items = sorted(sequences(), key=lambda item: len(item[0]))
    sorted_ = select_samples(DataLoader(items, collate_fn=padded), COUNT, 3).samples
    means = [evaluator(each).evaluate(POINTS).mean["loss"] for each in (chosen().samples, sorted_)]
    assert means[0] == pytest.approx(means[1], rel=1e-6)


@pytest.mark.parametrize("collate", ["joined", "as_items", "padded"])
def test_whole_batches_have_the_means_of_their_samples(collate):
    batches = [COLLATES[collate](sequences()[k : k + 4]) for k in range(0, COUNT, 4)]
    given = select_samples(batches, COUNT, 3, length=lambda batch: len(sequences_of(batch)[1]))
    found = evaluator(given.samples).evaluate(POINTS)
    expected = [plain_loop(range(COUNT), point).mean() for point in POINTS]
    assert found.mean["loss"] == pytest.approx(expected, rel=1e-6)


def bits(made: Evaluator) -> dict[str, bytes]:
    return {name: values.tobytes() for name, values in made.evaluate(POINTS, rise=True).arrays().items()}


@pytest.mark.parametrize(
    "collate, fields",
    [
        *((collate, {"engine": "eager+superposed"}) for collate in COLLATES),
        *(("padded", fields) for fields in ({}, {"precision": "float64"}, {"batch_size": 1})),
        ("jagged", {"batch_size": 1}),
    ],
)
def test_batches_made_anew_at_every_point_have_the_bits_of_those_that_stay(collate, fields):
    kept = evaluator(chosen(COLLATES[collate]).samples, **fields)
    on_disk = evaluator(chosen(COLLATES[collate], limit=1).samples, limit=0, **fields)
    assert (kept.resident, on_disk.resident) == (True, False)
    assert bits(kept) == bits(on_disk)


def test_evaluators_that_cut_the_same_samples_alike_share_the_batches_and_let_go_of_them():
    collated, seen = [], weakref.WeakValueDictionary()

    def counting(items):
        collated.append(len(items))
        return padded(items)

    def observe(model, batch):
        seen[id(batch["tokens"])] = batch["tokens"]
        return observe_sequences(model, batch)

    samples = chosen(counting).samples
    one = evaluator(samples, observe)
    twin = one.twin(one.plan)
    assert collated == [5, 5, 5, 5, 3]
    assert bits(one) == bits(twin)
    assert len(seen) == 5
    twin.use(twin.plan.engine, 8)
    assert collated[5:] == [8, 8, 7]
    assert bits(one) == bits(evaluator(samples))
    del one, twin
    gc.collect()
    assert len(seen) == 0


def test_batches_cut_for_the_memory_have_the_means_up_to_rounding():
    made = evaluator(chosen().samples, batch_size=8)
    whole = made.evaluate(POINTS).mean["loss"]
    tried = []

    def compute():
        tried.append(made.batch_size)
        if made.batch_size > 2:
            raise MemoryError
        return made.evaluate(POINTS).mean["loss"]

    assert made.within_memory(compute) == pytest.approx(whole, rel=1e-6)
    assert tried == [8, 4, 2]


def test_batches_that_the_data_cuts_are_not_halved_where_the_memory_does_not_suffice():
    batches = [COLLATES["joined"](sequences()[k : k + 4]) for k in range(0, COUNT, 4)]
    samples = select_samples(batches, COUNT, 3, length=lambda batch: len(batch.classes)).samples
    made, tried = evaluator(samples, batch_size=8), []

    def compute():
        tried.append(made.batch_size)
        raise MemoryError

    with pytest.raises(MemoryError):
        made.within_memory(compute)
    assert tried == [8]


def test_images_of_different_sizes():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.head = nn.Conv2d(1, 3, 3), nn.Linear(3, 2)

        def forward(self, images):
            return self.head(torch.stack([self.conv(image).relu().mean((1, 2)) for image in images]))

    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(1, 3 + k % 4, 4 + k % 3, generator=generator) for k in range(12)]
    data = DataLoader(
        list(zip(images, range(12), strict=True)), collate_fn=lambda items: tuple(zip(*items, strict=True))
    )

    def observe(model, batch):
        images, labels = batch
        return {"loss": nn.functional.cross_entropy(model(images), torch.tensor(labels) % 2, reduction="none")}

    model = Network()
    given = select_samples(data, 12, 0)
    found = evaluator(given.samples, observe, model=model).origin().mean["loss"][0]
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(images), torch.arange(12) % 2)
    assert found == pytest.approx(float(expected), rel=1e-6)


# -- how many samples a batch has --------------------------------------------------------------------------------


def observe_tokens(model, batch):
    """A value per token of the batch."""
    tokens, _ = sequences_of(batch)
    return {"loss": model.outer(torch.tanh(model.inner(torch.cat(tokens))))[:, 0]}


def test_the_mean_is_over_what_observe_returns_and_the_first_look_says_so():
    given = chosen(COLLATES["joined"])
    total = sum(len(sequences()[k][0]) for k in given.indices)
    with torch.no_grad():
        expected = observe_tokens(Reader(), given.samples.batch(0, COUNT))["loss"]
    found = evaluator(given.samples, observe_tokens).origin()
    assert len(expected) == total
    assert found.mean["loss"][0] == pytest.approx(float(expected.double().mean()), rel=1e-6)
    look = first_look(Reader(), observe_tokens, given.samples, "float32", CPU)
    assert len(look.warnings) == 1
    assert "values for the first 2 samples, so that means are over what it returns" in look.warnings[0]
    assert first_look(Reader(), observe_sequences, given.samples, "float32", CPU).warnings == ()


def test_a_first_look_takes_a_whole_batch_of_two_samples():
    seen = []

    def observe(model, batch):
        seen.append(len(batch.classes))
        return observe_sequences(model, batch)

    first_look(Reader(), observe, chosen(COLLATES["joined"]).samples, "float32", CPU)
    assert set(seen) == {2}


def test_lengths_that_do_not_add_up_are_refused():
    samples = chosen(COLLATES["joined"], length=lambda batch: len(batch.classes) + 1).samples
    with pytest.raises(JobError, match=r"^length: gives 6 samples for a batch of which observe returns 5 losses"):
        evaluator(samples).origin()


def test_another_number_of_values_at_another_point_is_refused():
    def observe(model, batch):
        values = observe_sequences(model, batch)
        few = 3 if float(model.outer.bias.detach()[0]) != float(Reader().outer.bias.detach()[0]) else None
        return {name: value[:few] for name, value in values.items()}

    with pytest.raises(JobError, match=r"as many values for a batch at every point, not \d losses and then \d$"):
        evaluator(chosen().samples, observe).evaluate(POINTS)


@pytest.mark.parametrize("values, words", [
    (lambda losses: {"loss": losses[:0]}, "must return a value for each sample of a batch, not none"),
    (lambda losses: {"loss": losses.mean()}, "'loss' must have shape"),
    (lambda losses: {"loss": losses[:, None]}, "'loss' must have shape"),
    (lambda losses: {"loss": losses, "other": losses[:2]}, r"'other' must have shape \(5,\)"),
    (lambda losses: losses, "must return a dict"),
])  # fmt: skip
def test_what_is_no_value_for_each_sample_is_refused(values, words):
    def observe(model, batch):
        return values(observe_sequences(model, batch)["loss"])

    with pytest.raises(JobError, match=f"^observe: {words}"):
        evaluator(chosen().samples, observe).origin()


# -- what user code does to a batch ------------------------------------------------------------------------------


def test_what_observe_takes_out_of_a_batch_is_there_again():
    def taking(model, batch):
        values = observe_sequences(model, batch)
        batch.parts.clear()
        batch.classes = None
        return values

    samples = chosen(COLLATES["moving"]).samples
    assert bits(evaluator(samples, taking)) == bits(evaluator(samples))


@pytest.mark.parametrize(
    ("collate", "limit"),
    # One of jagged tensors that is made anew at every point may be written to: nothing is changed for the next one.
    [(collate, limit) for collate in COLLATES for limit in (None, 0) if (collate, limit) != ("jagged", 0)],
)
def test_a_batch_that_observe_writes_to_ends_the_job(collate, limit):
    def writing(model, batch):
        values = observe_sequences(model, batch)
        tokens = batch.parts["tokens"] if isinstance(batch, Moving) else None
        if isinstance(batch, Joined):
            tokens = batch.tokens
        elif isinstance(batch, dict):
            tokens = batch["tokens"]
        elif tokens is None:
            tokens = batch[0][0] if isinstance(batch, list) else batch[0]
        (tokens.values() if tokens.is_nested else tokens).mul_(0.5)
        return values

    with pytest.raises(SamplesChanged):
        evaluator(chosen(COLLATES[collate]).samples, writing, limit=limit).evaluate(POINTS)


def test_inputs_of_which_derivatives_are_taken_are_put_back():
    def observe(model, batch):
        batch.tokens.requires_grad_()
        with torch.enable_grad():
            values = observe_sequences(model, batch)
            values["loss"].sum().backward()
        return {"loss": batch.tokens.grad.square().sum().expand(len(batch.classes)) + values["loss"].detach()}

    samples = chosen(COLLATES["joined"]).samples
    made = evaluator(samples, observe)
    assert bits(made) == bits(evaluator(samples, observe))
    assert not made.held_samples.batch(0, 5).tokens.requires_grad


# -- engines -----------------------------------------------------------------------------------------------------


def observe_padded(model, batch):
    """All sequences of a padded batch at once."""
    hidden = torch.tanh(model.inner(batch["tokens"])) * batch["mask"][..., None]
    outputs = model.outer(hidden.sum(1) / batch["mask"].sum(1, keepdim=True))
    return {"loss": nn.functional.cross_entropy(outputs, batch["classes"], reduction="none")}


@pytest.mark.parametrize("engine", ["eager+channels_last", "eager+superposed", "vmap:3"])
def test_engines_give_the_values_of_the_plain_one(engine):
    samples = chosen().samples
    plain = evaluator(samples, observe_padded).evaluate(POINTS).mean["loss"]
    made = evaluator(samples, observe_padded, engine=engine)
    assert made.evaluate(POINTS).mean["loss"] == pytest.approx(plain, rel=1e-6)


def test_superposition_looks_at_a_whole_batch_of_what_cannot_be_cut():
    made = evaluator(chosen(COLLATES["packed"]).samples, engine="eager+superposed")
    plain = evaluator(chosen(COLLATES["packed"]).samples).evaluate(POINTS).mean["loss"]
    assert made.evaluate(POINTS).mean["loss"] == pytest.approx(plain, rel=1e-5)


def test_compile_steps_aside_where_batches_have_shapes_of_their_own():
    with pytest.raises(
        ValueError, match="compile prepares code for each shape, and the batches have shapes of their own"
    ):
        evaluator(chosen().samples, observe_padded, engine="compile", batch_size=2)


# -- whole jobs --------------------------------------------------------------------------------------------------


def problem(collate=padded, data=None, **options) -> Problem:
    data = DataLoader(Sequences(), batch_size=4, collate_fn=collate) if data is None else data
    return Problem(Reader(), data, observe_sequences, **options)


def test_a_job_on_ragged_data_reaches_the_loss_of_a_plain_loop(tmp_path):
    surface = run(make_job(tmp_path, problem, [PLANE], num_samples=15))["plane"]
    indices = select_samples(problem().data, 15, 0).indices
    assert surface.origin_loss == pytest.approx(plain_loop(indices, (0, 0)).mean(), rel=1e-6)
    assert surface.record.num_samples == 15
    assert np.isfinite(surface.loss).all()


@pytest.mark.parametrize("collate", ["joined", "as_items"])
def test_low_limits_keep_the_bytes(collate, tmp_path, monkeypatch):
    def job(name):
        return make_job(tmp_path / name, lambda: problem(COLLATES[collate]), [PLANE], num_samples=15, engine="eager")

    expected = run(job("free"))["plane"].loss
    monkeypatch.setenv(HOST_BYTES, "100")
    monkeypatch.setenv(DEVICE_BYTES, "100")
    assert run(job("low"))["plane"].loss.tobytes() == expected.tobytes()


def test_a_job_on_whole_batches_counts_them_by_observe(tmp_path, caplog):
    caplog.set_level(logging.INFO, "landscape")
    batches = [COLLATES["joined"](sequences()[k : k + 4]) for k in range(0, 20, 4)]
    surface = run(make_job(tmp_path, lambda: problem(data=batches), [PLANE], num_samples=10))["plane"]
    assert surface.record.num_samples == 12
    assert "the batches of list are taken whole" in caplog.text


def test_other_data_are_refused_when_a_job_goes_on(tmp_path):
    run(make_job(tmp_path, problem, [PLANE], num_samples=15))
    other = [(tokens + 1, label) for tokens, label in sequences()]
    with pytest.raises(JobError, match=r"samples \(other data\)"):
        run(make_job(tmp_path, lambda: problem(data=DataLoader(other, collate_fn=padded)), [PLANE], num_samples=15))


def test_a_collate_function_that_raises_in_the_first_look_is_told_in_one_line(tmp_path):
    def raising(items):
        raise ValueError("no such shape")

    with pytest.raises(
        JobError, match=r"^data: the collate function, given 2 samples of Sequences, raised ValueError: no"
    ):
        run(make_job(tmp_path, lambda: problem(raising), [PLANE], num_samples=15))
    assert not list(tmp_path.iterdir())


def test_nan_in_a_field_is_warned_of(tmp_path, caplog):
    items = copy.deepcopy(sequences())
    items[4][0][0, 0] = float("nan")
    run(make_job(tmp_path, lambda: problem(data=DataLoader(items, collate_fn=padded)), [PLANE], num_samples=COUNT))
    assert f"inputs (field 0) hold NaN or infinity in 1 of the {COUNT} samples" in caplog.text


class Stream(IterableDataset):
    def __iter__(self):
        return iter(sequences())


def test_an_iterable_data_set_of_ragged_items(tmp_path):
    data = DataLoader(Stream(), batch_size=4, collate_fn=padded)
    surface = run(make_job(tmp_path, lambda: problem(data=data), [PLANE], num_samples=COUNT))["plane"]
    assert surface.origin_loss == pytest.approx(plain_loop(range(COUNT), (0, 0)).mean(), rel=1e-6)


def every_chunk(folder: Path) -> dict[str, bytes]:
    place = folder / "landscapes.zarr" / "plane"
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("c/**/*")) if path.is_file()}


@pytest.mark.parametrize(
    "kind, observe",
    [
        ("items", observe_sequences),
        ("whole batches", observe_tokens),
        pytest.param("whole batches", observe_sequences, marks=pytest.mark.faults),
        pytest.param("iterable of items", observe_tokens, marks=pytest.mark.faults),
    ],
)
def test_more_samples_of_any_shape_give_the_bytes_of_all_at_once(kind, observe, tmp_path):
    batches = [COLLATES["joined"](sequences()[k : k + 3]) for k in range(0, COUNT, 3)]
    data = {
        "items": lambda: DataLoader(Sequences(), batch_size=4, collate_fn=padded),
        "whole batches": lambda: batches,
        "iterable of items": lambda: DataLoader(Stream(), batch_size=4, collate_fn=COLLATES["packed"]),
    }[kind]

    def problem():
        count = (lambda batch: len(batch.classes)) if kind == "whole batches" and observe is observe_sequences else None
        return Problem(Reader(), data(), observe, length=count)

    def job(name, count):
        return make_job(tmp_path / name, problem, [PLANE], num_samples=count, batch_size=4, engine="eager")

    run(job("once", 18))
    run(job("extended", 7))
    surface = extend(tmp_path / "extended", "plane", num_samples=18, problem=problem)["plane"]
    assert every_chunk(tmp_path / "extended") == every_chunk(tmp_path / "once")
    assert surface.record.num_samples >= 18
