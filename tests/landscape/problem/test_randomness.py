"""Random data are told, field by field, with what to do; what no seed of ours reaches is told apart."""

# ruff: noqa: NPY002 - users draw from numpy's global generator

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from small_models import ConvNet, image_samples, make_job
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from landscape import JobError, Problem, open_run, run
from landscape.compute.planning import plan_job, plan_text
from landscape.compute.prepare import prepare
from landscape.core.errors import Interrupted
from landscape.problem.randomness import look_for_randomness, randomness_warnings
from landscape.store.landscape import LandscapeStore
from landscape.surface.record_parts import RandomData

IMAGES, CLASSES = image_samples(24)


def random_data(fields=(), unseeded=(), checked=0, unchecked="") -> RandomData:
    return RandomData(fields=fields, unseeded=unseeded, checked=checked, unchecked=unchecked)


class Images(Dataset):
    """Images that a transform changes, with the draws that it is given."""

    def __init__(self, draw=lambda: 0.0, label=lambda: 0) -> None:
        self.draw, self.label, self.reads = draw, label, 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int):
        self.reads += 1
        return IMAGES[index] + self.draw(), int(CLASSES[index]) + self.label()


class Stream(IterableDataset):
    def __iter__(self):
        return iter([Images(random.random)[k] for k in range(24)])


OWN = np.random.default_rng()
TORCH = torch.Generator()
INPUTS = ("inputs (field 0)",)
FOUND = {
    "nothing": (Images(), random_data(checked=16)),
    "torch": (Images(lambda: torch.rand(())), random_data(INPUTS, checked=16)),
    "numpy": (Images(np.random.rand), random_data(INPUTS, checked=16)),
    "random": (Images(random.random), random_data(INPUTS, checked=16)),
    "own": (Images(OWN.random), random_data((), INPUTS, 16)),
    "torch's own": (Images(lambda: torch.rand((), generator=TORCH)), random_data((), INPUTS, 16)),
    "both": (Images(OWN.random, lambda: random.randrange(9**9)), random_data(("targets (field 1)",), INPUTS, 16)),
    "tensors": ((IMAGES, CLASSES), random_data(checked=20)),
    "tensor data set": (TensorDataset(IMAGES), random_data(checked=16)),
    "list": ([{"x": IMAGES[k], "y": k} for k in range(24)], random_data(checked=16)),
    "collate": (
        DataLoader(Images(), collate_fn=lambda items: {"x": torch.rand(len(items)), "y": torch.ones(len(items))}),
        random_data(("x",), checked=16),
    ),
    "lengths": (
        DataLoader(Images(), collate_fn=lambda items: torch.ones(len(items), random.randrange(1, 999))),
        random_data(("samples",), checked=16),
    ),
    "three fields": (
        DataLoader(Images(), collate_fn=lambda items: (*torch.ones(2, len(items)), torch.rand(len(items)))),
        random_data(("field 2",), checked=16),
    ),
    "stream": (DataLoader(Stream(), batch_size=5), random_data(INPUTS, checked=5)),
    "batches": ([(IMAGES, CLASSES)], random_data(checked=24)),
}


@pytest.mark.parametrize(("data", "expected"), FOUND.values(), ids=FOUND)
def test_which_fields_are_random_is_seen(data, expected):
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert look_for_randomness(data, 20, 7) == expected
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())


@pytest.mark.parametrize(("draw", "reads"), [(lambda: 0.0, 32), (random.random, 48)], ids=["as they are", "random"])
def test_sixteen_samples_are_read_again_and_a_third_time_only_where_they_differ(draw, reads):
    data = Images(draw)
    look_for_randomness(data, 24, 0)
    assert data.reads == reads


@pytest.mark.parametrize("period", [2, 3])
def test_data_that_alternate_from_reading_to_reading_are_no_draws_of_a_seed(period):
    numbers = itertools.count()
    data = Images(lambda: float(next(numbers) // 16 % period))
    assert look_for_randomness(data, 24, 0) == random_data((), INPUTS, 16)


def test_of_a_stream_only_the_first_batch_is_read():
    asked = []

    class Batches:
        def __iter__(self):
            for k in range(4):
                asked.append(k)
                yield IMAGES[k : k + 1]

    look_for_randomness(Batches(), 4, 0)
    assert asked == [0, 0]


@pytest.mark.long
@pytest.mark.parametrize("damage", [None, {}, {"fields": 3}, "recorded"])
def test_a_run_that_has_recorded_it_is_not_read_again(tmp_path, damage):
    data = Images(random.random)
    run(job_of(tmp_path, data))
    store = LandscapeStore.open(str(tmp_path), "plane", write=True)
    if damage != "recorded":
        store.update_attributes(random_data=damage)
    data.reads = 0
    found = prepare(job_of(tmp_path, data))
    assert data.reads == (20 if damage == "recorded" else 20 + 48)
    assert found.warnings[0].startswith("data: inputs (field 0) are random")
    with pytest.raises(JobError, match=r"changed: samples \(other data\)"):
        prepare(job_of(tmp_path, Images(lambda: 2 * random.random())))


class Once(Images):
    def __getitem__(self, index):
        if self.reads > 3:
            raise OSError("the tape is at its end")
        return super().__getitem__(index)


def test_what_cannot_be_looked_at_is_told():
    found = look_for_randomness((each for each in [(IMAGES, CLASSES)]), 20, 0)
    assert randomness_warnings(found) == [
        "data: it was not checked whether the samples are random: generator can be read once only; return a list, a "
        "DataLoader or a class with __iter__"
    ]
    (warning,) = randomness_warnings(look_for_randomness(Once(), 20, 0))
    assert "cannot be read a second time: sample" in warning
    assert "OSError: the tape is at its end" in warning


def test_many_fields_are_counted():
    fields = tuple(f"f{k}" for k in range(40))
    assert "data: f0, f1, f2, f3, f4 and 35 more fields are random" in randomness_warnings(random_data(fields))[0]


def job_of(folder, data, **fields):
    def problem():
        return Problem.supervised(ConvNet(), data)

    return make_job(folder, problem, [{"name": "plane", "size": 3}], num_samples=20, tile=1, engine="eager", **fields)


@pytest.mark.long
def test_a_job_of_random_data_tells_so_and_goes_on_after_a_stop_with_the_same_bits(tmp_path, caplog):
    data = Images(lambda: torch.rand(()) + np.random.rand() + random.random())
    plan = plan_job(job_of(tmp_path / "a", data))
    assert plan_text(plan).splitlines()[-1].startswith("warning: data: inputs (field 0) are random")
    asked = itertools.count()
    with pytest.raises(Interrupted):
        run(job_of(tmp_path / "a", data), stop=lambda: next(asked) > 6)
    torch.rand(5), np.random.rand(5), random.random()
    resumed = run(job_of(tmp_path / "a", data))["plane"]
    whole = run(job_of(tmp_path / "b", data))["plane"]
    assert resumed.loss.tobytes() == whole.loss.tobytes()
    assert np.isfinite(resumed.loss).all()
    assert any(each.startswith("data: inputs (field 0) are random") for each in caplog.messages)
    recorded = open_run(tmp_path / "a")["plane"].attributes
    assert recorded["random_data"] == {
        "fields": ["inputs (field 0)"], "unseeded": [], "checked": 16, "unchecked": "",
    }  # fmt: skip
    assert "random_data" not in recorded["identity"]


def test_data_that_draw_from_their_own_generator_are_told_louder(tmp_path):
    (warning,) = prepare(job_of(tmp_path, Images(OWN.random))).warnings
    assert warning.startswith("data: inputs (field 0) differ each time they are read, under one seed too")
    assert "evaluation transform" in warning
