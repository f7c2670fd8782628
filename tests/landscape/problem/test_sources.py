"""Reading under the job's own seeds, whatever was drawn before; data that do not end, or lie about their length."""

# ruff: noqa: NPY002 - users draw from numpy's global generator

from __future__ import annotations

import itertools
import random
import sys

import numpy as np
import pytest
import torch
from chosen import chosen_rows
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from landscape import JobError
from landscape.problem import sources
from landscape.problem.batches import samples_digest
from landscape.problem.selection import select_samples


class Augmented(Dataset):
    """Samples with noise of torch, numpy and `random`, as transforms of several libraries draw it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int):
        return index + torch.rand(3) + np.random.rand() + random.random(), index


class Stream(IterableDataset):
    def __iter__(self):
        return (Augmented()[k] for k in range(24))


class Batches:
    def __iter__(self):
        return ((torch.rand(4) + np.random.rand(), torch.arange(4)) for _ in range(6))


def noisy(items):
    return torch.stack([x for x, _ in items]) + torch.rand(1) + random.random()


SOURCES = {
    "data set": Augmented,
    "collate function": lambda: DataLoader(Augmented(), collate_fn=noisy),
    "batches of a data set": lambda: DataLoader(Augmented(), batch_size=None, collate_fn=lambda item: item[0]),
    "stream": lambda: DataLoader(Stream(), batch_size=5),
    "stream of workers": lambda: DataLoader(Stream(), batch_size=5, num_workers=1),
    "stream with a generator": lambda: DataLoader(Stream(), batch_size=5, generator=torch.Generator()),
    "iterable": Batches,
    "generator": lambda: iter(Batches()),
}


def digest_of_chosen(data, seed: int) -> str:
    return select_samples(data, 9, seed).samples.digest()


def disturb() -> None:
    torch.rand(7), np.random.rand(7), random.random()


@pytest.mark.parametrize("source", SOURCES)
def test_random_data_give_the_same_samples_whatever_was_drawn_before(source):
    data = SOURCES[source]()
    first = digest_of_chosen(data, 3)
    disturb()
    assert digest_of_chosen(data if source != "generator" else iter(Batches()), 3) == first
    assert digest_of_chosen(SOURCES[source](), 4) != first


@pytest.mark.parametrize("source", SOURCES)
def test_the_generators_of_the_process_are_left_as_they_were(source):
    def draws():
        return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = draws()
    torch.set_rng_state(states[0]), np.random.set_state(states[1]), random.setstate(states[2])
    digest_of_chosen(SOURCES[source](), 3)
    assert draws() == expected


def test_a_sample_does_not_depend_on_how_many_others_are_drawn():
    few, all_of_them = (chosen_rows(Augmented(), count, 3) for count in (5, 24))
    for x, index in zip(*few, strict=True):
        assert torch.equal(x, all_of_them[0][int(index)])


@pytest.mark.long
def test_workers_that_live_on_begin_anew():
    loader = DataLoader(Stream(), batch_size=5, num_workers=1, persistent_workers=True)
    expected = samples_digest(chosen_rows(loader, 9, 3))
    next(iter(loader))
    assert samples_digest(chosen_rows(loader, 9, 3)) == expected


# -- data that do not end, or lie --------------------------------------------------------------------------------


@pytest.fixture
def low_bound(monkeypatch):
    monkeypatch.setattr(sources, "MOST_BATCHES", 50)
    monkeypatch.setattr(sources, "WARN_AFTER", 20)


ENDLESS = {
    "generator": lambda: (torch.rand(4) for _ in itertools.count()),
    "empty batches": lambda: (torch.rand(0) for _ in itertools.count()),
    "iterable": lambda: type("Endless", (), {"__iter__": lambda self: itertools.repeat(torch.ones(2))})(),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_data_without_an_end_are_refused_at_a_bound(kind, low_bound, caplog):
    with pytest.raises(
        JobError, match=r"^data: .* must end within 50 batches .* after 51 batches .*; give it a __len__"
    ):
        chosen_rows(ENDLESS[kind](), 3, 0)
    assert ["has given 20 batches so far" in each for each in caplog.messages] == [True]


def test_the_bound_is_that_of_samples_where_batches_are_large(monkeypatch):
    monkeypatch.setattr(sources, "MOST_SAMPLES", 1000)
    with pytest.raises(JobError, match=r"after 11 batches \(1100 samples\)"):
        chosen_rows((torch.ones(100) for _ in itertools.count()), 3, 0)


@pytest.mark.long
def test_data_that_tell_a_length_are_read_beyond_the_bound(low_bound, caplog):
    class Long:
        def __len__(self):
            return 90

        def __iter__(self):
            return (torch.ones(2) for _ in range(90))

    assert len(chosen_rows(Long(), 180, 0)) == 180
    assert caplog.messages == []


class Lying(Dataset):
    def __init__(self, length) -> None:
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= 10:
            raise IndexError("list index out of range")
        return float(index)


LENGTHS = {
    "a little too long": (20, r"data: sample 1\d of Lying \(length 20\) raised IndexError"),
    "far too long": (10**12, r"data: sample \d{9,12} of Lying \(length 1000000000000\) raised IndexError"),
    "the longest": (sys.maxsize, r"data: sample \d{15,19} of Lying \(length 9223372036854775807\) raised IndexError"),
    "endless": (sys.maxsize + 1, r"data: len\(\) of Lying raised OverflowError"),
    "infinite": (float("inf"), r"data: len\(\) of Lying raised TypeError"),
    "negative": (-1, r"data: len\(\) of Lying raised ValueError"),
    "none": (0, "data: holds no samples"),
}


@pytest.mark.parametrize(("length", "words"), LENGTHS.values(), ids=LENGTHS)
def test_a_length_that_is_not_true_is_told(length, words):
    with pytest.raises(JobError, match=words):
        chosen_rows(Lying(length), 8, 0, at_most=True)


def test_of_more_samples_than_are_shuffled_different_ones_are_chosen_evenly(monkeypatch):
    monkeypatch.setattr("landscape.problem.selection.LARGEST_SHUFFLED", 5)
    data = TensorDataset(torch.arange(12))
    counts = np.zeros(12)
    for seed in range(200):
        (chosen,) = chosen_rows(data, 6, seed)
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        counts[chosen.numpy()] += 1
    expected = 200 * 6 / 12
    assert ((counts - expected) ** 2 / expected).sum() < 31.3  # chi-squared of 11 degrees, 0.1 %
    assert len(chosen_rows(data, 12, 0)[0]) == 12


def test_what_a_loaders_worker_raises_is_told_without_its_traceback():
    class Failing(IterableDataset):
        def __iter__(self):
            yield torch.ones(2)
            raise OSError("the disk is gone")

    with pytest.raises(JobError) as found:
        chosen_rows(DataLoader(Failing(), batch_size=1, num_workers=1, multiprocessing_context="fork"), 2, 0)
    line = str(found.value)
    assert line.startswith("data: batch 1 of Failing raised OSError: the disk is gone (")
    assert "test_sources.py:" in line
    assert "Traceback" not in line


@pytest.mark.long
def test_a_stream_whose_length_ends_the_process_is_read_nevertheless():
    class Leaving(Batches):
        def __len__(self):
            sys.exit(0)

    assert len(chosen_rows(Leaving(), 9, 3)[0]) == 9


def test_arrays_of_words_are_refused_in_words():
    with pytest.raises(JobError, match="data: arrays must hold numbers, not <U1"):
        chosen_rows({"x": np.array(["a", "b"])}, 2, 0)
