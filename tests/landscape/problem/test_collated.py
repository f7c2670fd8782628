"""Samples of any shape: chosen by the seed, collated batch by batch under seeds of the job's own, known by a digest."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from ragged import COLLATES, COUNT, Sequences, as_items, packed, padded, sequences, sequences_of
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from landscape import JobError
from landscape.problem.batches import TensorSamples, tensors_in
from landscape.problem.collated import Collated, WholeBatches, digest_values
from landscape.problem.randomness import look_for_randomness
from landscape.problem.selection import select_samples

ROOT = Path(__file__).resolve().parents[3]
MEMORY = 1 << 30


def loader(collate=padded, **options) -> DataLoader:
    return DataLoader(Sequences(), batch_size=4, collate_fn=collate, **options)


def all_sequences(samples, batch_size: int = 5) -> list[list[float]]:
    """The first numbers of all sequences, batch after batch."""
    batches = [samples.batch(*edge) for edge in samples.edges(batch_size)]
    return [tokens.flatten().tolist() for batch in batches for tokens in sequences_of(batch)[0]]


# -- which samples, and in which batches -----------------------------------------------------------------------


@pytest.mark.parametrize("limit", [MEMORY, 1])
@pytest.mark.parametrize("collate", COLLATES)
def test_the_chosen_items_are_collated_batch_by_batch(collate, limit):
    chosen = select_samples(loader(COLLATES[collate]), 17, 3, limit=limit)
    assert isinstance(chosen.samples, Collated)
    assert (chosen.samples.length, chosen.samples.rows) == (17, None)
    expected = [sequences()[k][0].flatten().tolist() for k in chosen.indices]
    for batch_size in (1, 5, 64):
        assert all_sequences(chosen.samples, batch_size) == expected


def test_fewer_samples_are_the_first_of_more_and_their_batches_those_of_more():
    few, many = (select_samples(loader(), count, 3) for count in (8, 20))
    assert few.indices.tolist() == many.indices[:8].tolist()
    one, other = few.samples.batch(4, 8), many.samples.batch(4, 8)
    assert digest_values([one]) == digest_values([other])


def test_padding_is_to_the_longest_of_the_batch():
    samples = select_samples(loader(), COUNT, 0).samples
    widths = {samples.batch(k, k + 1)["tokens"].shape[1] for k in range(COUNT)}
    assert widths == {len(tokens) for tokens, _ in sequences()}


def test_tensors_and_torchs_own_collate_function_stay_rows():
    pairs = [(torch.ones(3), k) for k in range(9)]
    for data in ((torch.ones(9, 3), torch.ones(9)), pairs, DataLoader(pairs, batch_size=2)):
        assert isinstance(select_samples(data, 5, 0).samples, TensorSamples)


def test_a_data_set_may_have_a_collate_function_of_its_own():
    class Padding(Sequences):
        def collate_fn(self, items):
            return padded(items)

    chosen, by_loader = select_samples(Padding(), 9, 0), select_samples(loader(), 9, 0)
    assert isinstance(chosen.samples, Collated)
    assert all_sequences(chosen.samples) == all_sequences(by_loader.samples)


def test_words_beside_tensors_are_collated_by_torchs_own_function():
    samples = select_samples([{"x": torch.ones(3), "name": str(k)} for k in range(9)], 5, 0).samples
    assert isinstance(samples, Collated)
    assert len(samples.batch(0, 2)["name"]) == 2


def test_items_are_read_once_and_only_those_that_are_chosen():
    data = loader()
    chosen = select_samples(data, 9, 0)
    assert data.dataset.read == chosen.indices.tolist()


def test_a_collate_function_may_take_its_items_apart():
    def taking(items):
        return {"tokens": [item.pop("tokens") for item in items]}

    items = [{"tokens": tokens} for tokens, _ in sequences()]
    samples = select_samples(DataLoader(items, collate_fn=taking), 9, 0).samples
    assert digest_values([samples.batch(0, 4)]) == digest_values([samples.batch(0, 4)])


def noisy(items):
    return padded(items) | {"noise": torch.rand(2) + float(np.random.rand())}  # noqa: NPY002


def test_what_a_collate_function_draws_follows_from_the_seed_and_the_place_of_the_batch():
    samples, again = (select_samples(loader(noisy), 9, 3).samples for _ in range(2))
    before = torch.get_rng_state()
    noise = [samples.batch(k, k + 3)["noise"].tolist() for k in (0, 3, 6)]
    assert noise == [again.batch(k, k + 3)["noise"].tolist() for k in (0, 3, 6)]
    assert len({tuple(each) for each in noise}) == 3
    assert torch.equal(before, torch.get_rng_state())
    assert select_samples(loader(noisy), 9, 4).samples.batch(0, 3)["noise"].tolist() != noise[0]


# -- loaders of every kind -------------------------------------------------------------------------------------


class Longest(BatchSampler):
    """Batches of its own: the even samples only, the longest together."""

    def __init__(self) -> None:
        self.reads = 0

    def __iter__(self):
        self.reads += 1
        order = sorted(range(0, COUNT, 2), key=lambda k: len(sequences()[k][0]))
        return (order[k : k + 3] for k in range(0, len(order), 3))

    def __len__(self) -> int:
        return 4


def test_the_indices_of_a_batch_sampler_say_which_samples_there_are():
    sampler = Longest()
    data = DataLoader(Sequences(), batch_sampler=sampler, collate_fn=padded)
    chosen = select_samples(data, COUNT, 0, at_most=True)
    assert sampler.reads == 1
    assert sorted(chosen.indices) == list(range(0, COUNT, 2))
    expected = [sequences()[k][0].flatten().tolist() for k in chosen.indices]
    assert all_sequences(chosen.samples) == expected
    with pytest.raises(JobError, match="num_samples: must be at most the 12 samples"):
        select_samples(data, 13, 0)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_indices_that_numpy_or_torch_counted_are_the_places_of_the_samples(kind):
    class Odd(Longest):
        def __iter__(self):
            return (kind([k + 1, k + 3, k + 1]) for k in (16, 8, 0))

    data = DataLoader(Sequences(), batch_sampler=Odd(), collate_fn=padded)
    chosen = select_samples(data, 6, 0)
    assert sorted(chosen.indices) == [1, 3, 9, 11, 17, 19]
    assert all_sequences(chosen.samples) == [sequences()[k][0].flatten().tolist() for k in chosen.indices]


def test_a_batch_sampler_that_does_not_end_is_refused(monkeypatch):
    class Endless(BatchSampler):
        def __init__(self) -> None:
            pass

        def __iter__(self):
            while True:
                yield [0, 1]

        def __len__(self) -> int:
            raise TypeError

    monkeypatch.setattr("landscape.problem.sources.MOST_BATCHES", 50)
    with pytest.raises(JobError, match=r"data: Endless must end within"):
        select_samples(DataLoader(Sequences(), batch_sampler=Endless(), collate_fn=padded), 3, 0)


def test_a_plain_batch_sampler_changes_nothing():
    sampler = BatchSampler(SequentialSampler(range(COUNT)), 4, drop_last=True)
    chosen = select_samples(DataLoader(Sequences(), batch_sampler=sampler, collate_fn=padded), COUNT, 0)
    assert chosen.samples.length == COUNT


class Stream(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(sequences()[start::step])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("limit", [MEMORY, 1])
def test_items_of_an_iterable_data_set_are_chosen_and_collated_in_the_jobs_batches(workers, limit):
    data = DataLoader(Stream(), batch_size=4, collate_fn=padded, num_workers=workers)
    few, many, whole = (select_samples(data, count, 3, limit=limit) for count in (6, 15, COUNT))
    assert few.indices.tolist() == many.indices[:6].tolist()
    assert all_sequences(few.samples) == all_sequences(many.samples)[:6]
    expected = sorted(tokens.flatten().tolist() for tokens, _ in sequences())
    assert sorted(all_sequences(whole.samples)) == expected
    again = select_samples(data, 15, 3, limit=limit)
    assert again.samples.digest() == many.samples.digest()
    if not workers:
        assert all_sequences(many.samples) == [sequences()[k][0].flatten().tolist() for k in many.indices]


class Arrays(IterableDataset):
    def __iter__(self):
        return iter([(np.arange(float(2 + k % 3)), k) for k in range(COUNT)])


def from_arrays(items):
    return padded([(torch.from_numpy(values)[:, None], torch.tensor(k)) for values, k in items])


def test_a_collate_function_gets_the_items_of_an_iterable_data_set_as_they_are():
    data = DataLoader(Arrays(), batch_size=4, collate_fn=from_arrays)
    chosen = select_samples(data, 6, 3)
    batch = chosen.samples.batch(0, 6)
    assert batch["classes"].tolist() == chosen.indices.tolist()
    assert [int(length) for length in batch["mask"].sum(1)] == [2 + k % 3 for k in chosen.indices]
    assert look_for_randomness(data, 6, 3).fields == ()


# -- the memory in which items lie -----------------------------------------------------------------------------


def turned() -> list:
    """Images of different sizes as views whose channels lie innermost, and arrays that are views too."""
    draw = torch.Generator().manual_seed(1)
    images = [torch.rand(30 + k % 5, 32, 3, generator=draw).permute(2, 0, 1) for k in range(9)]
    return [{"image": image, "array": image.numpy().T[::2]} for image in images]


@pytest.mark.parametrize("limit", [MEMORY, 1])
@pytest.mark.parametrize("kind", ["items", "whole"])
def test_items_lie_in_memory_alike_wherever_they_are_kept_as_kernels_add_in_its_order(kind, limit):
    items = turned()
    whole = [items[k : k + 3] for k in (0, 3, 6)]
    data, length = {"items": (DataLoader(items, collate_fn=as_items), None), "whole": (whole, len)}[kind]
    samples = select_samples(data, 9, 0, length=length, limit=limit).samples
    for item in samples.batch(*samples.edges(3)[0]):
        assert item["image"].is_contiguous()
        assert item["image"].data_ptr() % 64 == 0
        assert np.asarray(item["array"]).flags.c_contiguous
    assert not items[0]["image"].is_contiguous()


# -- batches that cannot be cut --------------------------------------------------------------------------------


def ready_batches(collate=packed, size: int = 4) -> list:
    return [collate(sequences()[k : k + size]) for k in range(0, COUNT, size)]


def lengths_of(batch) -> int:
    return len(sequences_of(batch)[1])


@pytest.mark.parametrize("limit", [MEMORY, 1])
@pytest.mark.parametrize("kind", ["list", "generator", "loader"])
@pytest.mark.parametrize("collate", ["packed", "joined", "jagged", "as_items"])
def test_whole_batches_are_taken_in_the_order_drawn_until_there_are_enough(collate, kind, limit):
    batches = ready_batches(COLLATES[collate])
    make = {
        "list": lambda: batches, "generator": lambda: iter(batches),
        "loader": lambda: DataLoader(batches, batch_size=None, collate_fn=as_items),
    }[kind]  # fmt: skip
    few, many = (select_samples(make(), count, 3, length=lengths_of, limit=limit) for count in (6, 15))
    assert isinstance(few.samples, WholeBatches)
    assert few.indices.tolist() == many.indices[: len(few.indices)].tolist()
    for count, chosen in ((6, few), (15, many)):
        lengths = [lengths_of(batches[k]) for k in chosen.indices]
        assert sum(lengths[:-1]) < count <= sum(lengths) == chosen.samples.length
        starts = np.cumsum([0, *lengths]).tolist()
        assert chosen.samples.edges(2) == list(itertools.pairwise(starts))
        for edge, number in zip(chosen.samples.edges(9), chosen.indices, strict=True):
            assert digest_values([chosen.samples.batch(*edge)]) == digest_values([batches[number]])


@pytest.mark.long
def test_every_batch_is_as_likely_to_be_the_first():
    batches = ready_batches(size=6)
    firsts = [int(select_samples(batches, 1, seed, length=lengths_of).indices[0]) for seed in range(120)]
    assert min(np.bincount(firsts, minlength=4)) > 15


def test_batches_that_are_padded_to_different_lengths_are_taken_whole(caplog):
    caplog.set_level("INFO", "landscape")
    chosen = select_samples(ready_batches(padded), 8, 3)
    assert isinstance(chosen.samples, WholeBatches)
    assert "the batches of list are taken whole" in caplog.text
    assert sum(chosen.samples.lengths[:-1]) < 8 <= chosen.samples.length


def test_batches_of_a_generator_that_would_have_to_be_read_again_ask_for_something_that_can_be():
    batches = (torch.ones(4, 3 + number) for number in range(5))
    with pytest.raises(JobError, match=r"^data: generator: batch 1 has samples of .* return a list, a DataLoader or a"):
        select_samples(batches, 8, 3)


def test_a_list_of_samples_with_labels_that_are_tensors_holds_no_batches():
    pairs = [(torch.ones(3) * k, torch.tensor(k)) for k in range(9)]
    for data in (pairs, [{"x": x, "y": y} for x, y in pairs], [(x.numpy(), y.numpy()) for x, y in pairs]):
        chosen = select_samples(data, 5, 0)
        assert isinstance(chosen.samples, TensorSamples)
        labels = chosen.samples.rows["y"] if isinstance(chosen.samples.rows, dict) else chosen.samples.rows[1]
        assert labels.tolist() == chosen.indices.tolist()


def test_one_of_several_data_sets_is_to_be_given():
    with pytest.raises(JobError, match="data: must be one data set, not a dict of train, test; return one of them"):
        select_samples({"train": Sequences(), "test": loader()}, 5, 0)


def test_a_length_that_is_not_the_first_dimension_keeps_batches_whole():
    graphs = [{"x": torch.ones(6, 2), "of": torch.tensor([0, 0, 1, 1, 2, 2])}] * 4
    assert select_samples(graphs, 6, 0, length=lambda batch: 3).samples.lengths.tolist() == [3, 3]
    assert isinstance(select_samples(graphs, 6, 0).samples, TensorSamples)


def test_what_observe_returns_tells_the_length_where_nothing_else_does():
    batches = ready_batches(COLLATES["joined"])
    chosen = select_samples(batches, 6, 0, observed=lengths_of)
    assert chosen.samples.lengths.tolist()[0] in (3, 4)
    with pytest.raises(JobError, match=r"^data: how many samples batch 0 of list holds is not known.*Problem\(length"):
        select_samples(batches, 6, 0)


# -- what can be wrong -----------------------------------------------------------------------------------------


def raising(items):
    raise ValueError("no such shape")


def by_count(items):
    return padded(items) if len(items) > 2 else as_items(items)


@pytest.mark.parametrize("collate, words", [
    (raising, r"the collate function, given 2 samples of Sequences, raised ValueError: no such shape \(.*\.py:\d+\)"),
    (lambda items: None, r"the collate function must return a batch, not None, which it made of 2 samples of Seq"),
    (lambda items: [], r"the collate function must return a batch, not an empty list"),
    (lambda items: {}, r"the collate function must return a batch, not an empty dict"),
])  # fmt: skip
def test_a_collate_function_that_makes_no_batch_is_told_in_one_line(collate, words):
    samples = select_samples(loader(collate), 9, 0).samples
    with pytest.raises(JobError, match=f"^data: {words}") as raised:
        samples.batch(0, 2)
    assert "\n" not in str(raised.value)


def test_other_kinds_of_batches_are_refused():
    samples = select_samples(loader(by_count), 9, 0).samples
    samples.batch(0, 5)
    with pytest.raises(JobError, match=r"must return one kind of batch, not dict of .* and list for others$"):
        samples.few(2).batch(0, 2)
    with pytest.raises(JobError, match=r"list must yield one kind of batch, not Packed first and then Joined$"):
        select_samples([*ready_batches()[:2], COLLATES["joined"](sequences())], 9, 0, length=lengths_of)


@pytest.mark.parametrize("count", [0, -1, 2.5, None, "many"])
def test_a_length_must_be_a_count(count):
    with pytest.raises(JobError, match=r"^length: must return the number of samples of a batch, at least 1, not"):
        select_samples(ready_batches(), 5, 0, length=lambda batch: count)


@pytest.mark.parametrize("data", [[], iter([]), DataLoader([], batch_size=None)], ids=["list", "generator", "loader"])
def test_an_iterable_without_batches_is_refused(data):
    with pytest.raises(JobError, match="data: holds no samples"):
        select_samples(data, 5, 0, length=lengths_of)


def test_a_batch_that_is_none_is_refused():
    with pytest.raises(JobError, match="data: batch 1 of list must hold samples, not None"):
        select_samples([ready_batches()[0], None], 9, 0, length=lengths_of)


def test_ragged_samples_without_a_collate_function_ask_for_one():
    with pytest.raises(JobError, match=r"data: the collate function, given .* samples .*; return a DataLoader whose"):
        select_samples(Sequences(), 9, 0)


def test_a_data_module_asks_for_its_loader():
    class Module:
        def val_dataloader(self):
            return loader()

    with pytest.raises(JobError, match="data: must be a loader of Module, such as its val_dataloader"):
        select_samples(Module(), 9, 0)


def test_items_that_cannot_be_pickled_are_named(tmp_path):
    with open(tmp_path / "file", "w") as file:  # noqa: SIM117
        with pytest.raises(JobError, match=r"^data: a sample holds TextIOWrapper, which cannot be pickled"):
            select_samples(DataLoader([file] * 3, collate_fn=as_items), 2, 0)


# -- digests, NaN and randomness -------------------------------------------------------------------------------


class Thing:
    def __init__(self, value):
        self.value, self.words = value, {"b", "a", "longer"}


Point = namedtuple("Point", "x y")


def varied(change: str = "") -> list:
    """Samples of many kinds; `change` names what is another."""
    x = torch.arange(4.0)
    if change == "tensor":
        x = x + 1
    return [
        (x, "name" if change != "word" else "other"),
        {"image": np.arange(6).reshape(2, 3) + (change == "array"), "id": None},
        Point(x.bfloat16(), [True, 2.5, 3j, b"bytes"]),
        Thing(x.to_sparse() if change != "layout" else x),
        torch.nested.nested_tensor([x, x[: 2 if change != "jagged" else 3]], layout=torch.jagged),
    ]


def test_a_digest_tells_every_difference():
    changes = ["", "tensor", "word", "array", "layout", "jagged"]
    assert len({digest_values(varied(change)) for change in changes}) == len(changes)
    assert digest_values(varied()) == digest_values(varied())


@pytest.mark.long
def test_a_digest_is_that_of_another_process_with_another_hash_seed():
    code = "from test_collated import varied, digest_values; print(digest_values(varied()))"
    folders = [ROOT, ROOT / "tests" / "support", Path(__file__).parent]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest_values(varied())


def test_the_digest_is_that_of_the_items_wherever_they_are_kept():
    kept, on_disk = (select_samples(loader(), 9, 3, limit=limit).samples for limit in (MEMORY, 1))
    assert kept.digest() == on_disk.digest() != select_samples(loader(), 9, 4).samples.digest()
    assert kept.nbytes == on_disk.nbytes >= sum(tensor.nbytes for tensor in tensors_in(list(kept.items)))


def test_nan_is_counted_in_every_field():
    items = [{"x": torch.tensor([1.0, float("nan")][: 1 + k % 2]), "y": k} for k in range(8)]
    samples = select_samples(DataLoader(items, collate_fn=as_items), 8, 0).samples
    assert samples.not_finite() == {"x": 4}
    whole = [COLLATES["joined"](sequences()[:3])] * 3
    whole[1].tokens[0, 0] = float("inf")
    assert select_samples(whole, 9, 0, length=lengths_of).samples.not_finite() == {"tokens": 9}


class Augmented(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return sequences()[index][0] + torch.rand(1), index


def test_random_items_and_random_collate_functions_are_noticed():
    assert look_for_randomness(loader(), 9, 0).fields == ()
    assert look_for_randomness(loader(noisy), 9, 0).fields == ("noise",)
    joined_items = COLLATES["joined"]
    data = DataLoader(Augmented(), collate_fn=lambda items: joined_items([(x, torch.tensor(y)) for x, y in items]))
    found = look_for_randomness(data, 9, 0)
    assert (found.fields, found.checked) == (("tokens",), 9)
    assert look_for_randomness(ready_batches(), 9, 0).fields == ()
