"""Samples of any shape on workers: the same digest after the journey, and the bytes of a serial run."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import pytest
import torch
from ragged import COLLATES, Reader, Sequences, as_items, observe_sequences, packed, padded, sequences, sequences_of
from torch.utils.data import DataLoader

import cluster
from cluster.driver.pool import share_samples
from cluster.driver.transfer import (
    SamplePieces,
    SharedPoints,
    gather,
    item_pieces,
    pack_samples,
    samples_of,
    unpack,
    unpack_samples,
)
from cluster.driver.worker import receive_samples
from landscape import Job, JobError, Problem, open_run, run
from landscape.core.devices import HOST_BYTES
from landscape.problem.collated import PickledItems, digest_values
from landscape.problem.samples import TensorSamples
from landscape.problem.selection import select_samples


def length_of(batch) -> int:
    return len(sequences_of(batch)[1])


def whole() -> list:
    return [packed(sequences()[k : k + 4]) for k in range(0, 20, 4)]


DATA = {
    "items": lambda: DataLoader(Sequences(), batch_size=4, collate_fn=padded),
    "whole batches": whole,
    "jagged": lambda: [COLLATES["jagged"](sequences()[k : k + 4]) for k in range(0, 20, 4)],
}


def problem_of(kind: str) -> Problem:
    return Problem(Reader(), DATA[kind](), observe_sequences, length=length_of)


@pytest.mark.parametrize("limit", [1 << 30, 1])
@pytest.mark.parametrize("kind", DATA)
def test_packed_samples_are_the_same_samples(kind, limit):
    problem = problem_of(kind)
    samples = select_samples(problem.data, 12, 3, length=length_of, limit=limit).samples
    found = unpack_samples(pack_samples(samples), problem)
    assert found.digest() == samples.digest()
    assert (found.length, found.cuts) == (samples.length, samples.cuts)
    for edge in samples.edges(5):
        assert digest_values([found.batch(*edge)]) == digest_values([samples.batch(*edge)])


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
@pytest.mark.parametrize("kind", DATA)
def test_in_pieces_they_are_gathered_into_one_file(kind, size, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    problem = problem_of(kind)
    samples = select_samples(problem.data, 12, 3, length=length_of).samples
    *pieces, ends = item_pieces(samples, size)
    pieces.insert(0, ends)
    data = gather(SamplePieces("key", range(len(pieces))), lambda number: TensorSamples(unpack(pieces[number].data)))
    found = samples_of(PickledItems(data.tensors, ends.ends), ends, problem)
    assert found.digest() == samples.digest()


@pytest.mark.parametrize("room", [1 << 20, 500, 100])
def test_points_of_terms_are_shared_set_by_set_where_one_object_would_be_too_large(room, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("cluster.driver.pool.ray.put", lambda value: value)
    interior, edge = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)), (torch.ones(5, 1), torch.zeros(5))
    terms = {"interior": (interior, lambda model, x: x[:, 0]), "edge": (edge, lambda model, pair: pair[1])}
    problem = Problem.terms(Reader(), terms)
    samples = select_samples(problem.data, 60, 3).samples
    shared = share_samples(samples, room)
    kinds = {name: type(each) for name, each in shared.sets.items()} if isinstance(shared, SharedPoints) else {}
    assert kinds == ({} if room > 520 else {"interior": SamplePieces if room < 480 else list, "edge": list})
    received = receive_samples(shared, problem, lambda each: each[0] if isinstance(each, list) else each)
    assert received.digest() == samples.digest()


@pytest.mark.long
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("kind, host_bytes", [("items", None), ("items", "100"), ("local", None), ("whole", "100")])
def test_workers_give_the_serial_bytes(kind, host_bytes, tmp_path, monkeypatch):
    @dataclass
    class Pair:
        """A class that no worker can import."""

        items: tuple

    def problem() -> Problem:
        def observe(model, batch):
            return observe_sequences(model, batch)

        def collate(items):
            noise = torch.rand(1)
            return padded([item.items for item in items]) | {"noise": noise}

        data = DATA["whole batches"]() if kind == "whole" else DATA["items"]()
        if kind == "local":
            data = DataLoader([Pair(item) for item in sequences()], collate_fn=collate)
        return Problem(Reader(), data, observe, length=length_of)

    def job(name: str) -> Job:
        landscapes = [{"name": "plane", "size": 3, "directions": [{"kind": "random"}, {"kind": "random"}]}]
        return Job(
            run=str(tmp_path / name), problem=problem, num_samples=12, tile=[2, 2], landscapes=landscapes,
            engine="eager", batch_size=5,
        )  # fmt: skip

    run(job("serial"))
    if host_bytes:
        monkeypatch.setenv(HOST_BYTES, host_bytes)
    cluster.run(job("workers"), workers=1)
    one, other = (open_run(str(tmp_path / name))["plane"] for name in ("serial", "workers"))
    assert one.loss.tobytes() == other.loss.tobytes()
    assert one.attributes["identity"] == other.attributes["identity"]


@pytest.mark.long
@pytest.mark.usefixtures("local_ray")
def test_a_collate_function_that_raises_on_a_worker_ends_the_job(tmp_path):
    def problem() -> Problem:
        def collate(items):
            if any(len(tokens) == 7 for tokens, _ in items):
                raise ValueError("too long")
            return padded(items)

        return Problem(Reader(), DataLoader(Sequences(), collate_fn=collate), lambda m, b: observe_sequences(m, b))

    landscapes = [{"name": "plane", "size": 3, "directions": [{"kind": "random"}]}]
    options = {"engine": "eager", "batch_size": 4, "tile": [1]}
    job = Job(run=str(tmp_path), problem=problem, num_samples=23, landscapes=landscapes, **options)
    with pytest.raises(JobError, match=r"data: the collate function, given 4 samples of .*: too long"):
        cluster.run(job, workers=1)


def test_items_of_a_local_class_are_named_where_plain_pickle_must_do():
    @dataclass
    class Local:
        items: tuple

    samples = select_samples(DataLoader([Local(item) for item in sequences()], collate_fn=as_items), 3, 0).samples
    with pytest.raises(Exception, match=r"data: a sample, Local, cannot be pickled .* a class that a module defines"):
        pack_samples(samples)
