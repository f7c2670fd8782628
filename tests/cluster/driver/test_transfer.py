"""What travels to the workers: directions as tensors or seeds, and samples of any kind, in one object or in pieces."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
import torch
from ragged import COLLATES, Reader, Sequences, as_items, observe_sequences, packed, padded, sequences, sequences_of
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader

import cluster
from cluster.driver.pool import share_samples
from cluster.driver.transfer import (
    SamplePieces,
    SharedPoints,
    Unpacker,
    gather,
    item_pieces,
    pack_direction,
    pack_origin,
    pack_samples,
    pieces_of,
    samples_of,
    unpack,
    unpack_samples,
)
from cluster.driver.worker import receive_samples
from landscape import Problem, open_run, run
from landscape.compute.landscape_context import FileState, OwnState
from landscape.core.devices import HOST_BYTES
from landscape.core.errors import JobError
from landscape.job.directions.base import Normalise
from landscape.job.directions.plane import towards_direction
from landscape.job.directions.random import DrawnTensors, random_direction
from landscape.job.job import Job
from landscape.model.parameters import describe_parameters, state_of
from landscape.model.weight_files import load_weights
from landscape.problem.batches import TensorSamples, samples_digest
from landscape.problem.collated import PickledItems, digest_values
from landscape.problem.selection import select_samples


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 3), nn.Linear(3, 3))


@pytest.mark.parametrize("normalise", get_args(Normalise))
@pytest.mark.parametrize("ignore", [(), ("bias", "norm")])
def test_a_seed_gives_the_bits_of_the_tensors(normalise, ignore):
    drawn = random_direction(state_of(model()), describe_parameters(model()), 7, normalise, ignore)
    unpacker = Unpacker(model(), lambda: pytest.fail("asked for its own weights"))
    sent = unpacker.direction(pickle.loads(pickle.dumps(pack_direction(dict(drawn)))))
    made = unpacker.direction(pickle.loads(pickle.dumps(pack_direction(drawn))))
    assert isinstance(made, DrawnTensors)
    assert sent.keys() == made.keys()
    assert all(sent[name].numpy().tobytes() == made[name].numpy().tobytes() for name in sent)


def test_a_direction_that_is_drawn_when_needed_travels_as_its_scales():
    large = nn.Linear(500, 20, bias=False)
    drawn = random_direction(state_of(large), describe_parameters(large), 7)
    assert len(pickle.dumps(pack_direction(drawn))) < 2000 < len(pickle.dumps(pack_direction(dict(drawn))))


def test_a_direction_between_files_travels_as_their_names(tmp_path):
    large, other = nn.Linear(500, 20, bias=False), nn.Linear(500, 20, bias=False)
    save_file(state_of(other), tmp_path / "other.safetensors")
    origin = OwnState(state_of(large), None)
    target = FileState(load_weights(tmp_path / "other.safetensors"), tmp_path / "other.safetensors")
    direction = towards_direction(origin, target)
    packed = pickle.dumps(pack_direction(direction))
    assert len(packed) < 2000
    unpacker = Unpacker(large, lambda: OwnState(state_of(large), None))
    made = unpacker.direction(pickle.loads(packed))
    assert made["weight"].numpy().tobytes() == (other.weight - large.weight).detach().numpy().tobytes()
    assert unpacker.weights(pack_origin(target))["weight"].equal(other.weight)
    save_file(state_of(large), tmp_path / "other.safetensors")
    with pytest.raises(JobError, match=r"weights '.*other.safetensors' on a worker are not those on the driver"):
        Unpacker(large, lambda: origin).direction(pickle.loads(packed))


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
@pytest.mark.parametrize(
    "kind, host_bytes",
    [
        pytest.param("items", None, marks=pytest.mark.faults),
        ("items", "100"),
        ("local", None),
        pytest.param("whole", "100", marks=pytest.mark.faults),
    ],
)
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


@pytest.mark.faults
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


ROOT = Path(__file__).resolve().parents[3]


def samples(count: int = 103):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (count, 4, 3), dtype=torch.uint8, generator=generator)
    return {"x": images, "rest": (torch.arange(count), [torch.randn(count, 2, generator=generator).bfloat16()])}


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_pieces_are_all_samples_in_their_order(size, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pieces = list(pieces_of(TensorSamples(samples()), size))
    assert pieces[0].length == 0
    assert all(piece.nbytes <= max(size, 24) for piece in pieces)
    found = gather(SamplePieces("key", range(len(pieces))), pieces.__getitem__)
    assert found.digest() == samples_digest(samples())
    assert list(found.rows) == ["x", "rest"]


PROCESSES = """
    import os, signal, sys, torch
    from cluster.driver.transfer import SamplePieces, gather, pieces_of
    from landscape.problem.batches import TensorSamples

    def work(number, key):
        pieces, fetched = list(pieces_of(TensorSamples(samples()), 100)), []
        def fetch(number):
            fetched.append(number)
            return pieces[number]
        found = gather(SamplePieces(key, range(len(pieces))), fetch)
        os.write(1, f"{number} {len(fetched)} {len(pieces)} {found.digest()}\\n".encode())
        signal.pause()
"""


COMMANDS = inspect.getsource(samples) + textwrap.dedent("""
    torch.set_num_threads(1)
    processes = {}
    for line in sys.stdin:
        word, number, *key = line.split()
        if word == "start":
            processes[number] = os.fork()
            if processes[number] == 0:
                work(number, *key)
        else:
            os.kill(processes[number], signal.SIGKILL)
            os.waitpid(processes.pop(number), 0)
            os.write(1, f"{number} ended\\n".encode())
    for process in processes.values():
        os.kill(process, signal.SIGKILL)
    os._exit(0)
""")


class Node:
    """Processes that gather the same pieces, with a folder for temporary files of their own.

    They are forked from one that has torch imported, and has no threads.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._started, self._said = folder, 0, {}
        self._parent = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROCESSES) + COMMANDS],
            cwd=ROOT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TMPDIR": str(self.folder), "PYTHONPATH": str(ROOT)},
        )

    def start(self, key: str = "key") -> int:
        """Its number."""
        self._started += 1
        self._order("start", self._started, key)
        return self._started

    def answer(self, number: int) -> tuple[bool, str]:
        """Whether it fetched all pieces rather than the first alone, and the digest of what it has."""
        fetched, pieces, digest = self._read(number)
        assert int(fetched) in (1, int(pieces))
        return int(fetched) > 1, digest

    def end(self, number: int) -> None:
        self._order("end", number)
        assert self._read(number) == ["ended"]

    def close(self) -> None:
        self._parent.communicate()

    def _order(self, *words: object) -> None:
        self._parent.stdin.write(" ".join(map(str, words)) + "\n")
        self._parent.stdin.flush()

    def _read(self, number: int) -> list[str]:
        while number not in self._said:
            other, *said = self._parent.stdout.readline().split()
            self._said[int(other)] = said
        return self._said.pop(number)


@pytest.fixture
def node(tmp_path):
    found = Node(tmp_path)
    yield found
    found.close()


@pytest.mark.long
def test_one_process_of_a_node_fetches_and_the_others_share(node):
    expected = samples_digest(samples())
    answers = [node.answer(each) for each in [node.start(), node.start(), node.start()]]
    assert sorted(answers) == [(False, expected), (False, expected), (True, expected)]
    assert node.answer(node.start("another-job")) == (True, expected)


@pytest.mark.faults
def test_files_outlive_the_process_that_wrote_them_while_another_uses_them_and_no_longer(node):
    expected = samples_digest(samples())
    first = node.start()
    assert node.answer(first) == (True, expected)
    second = node.start()
    assert node.answer(second) == (False, expected)
    node.end(first)
    third = node.start()
    assert node.answer(third) == (False, expected)
    for process in (second, third):
        node.end(process)
    left = {each.name: each.stat().st_size for each in node.folder.rglob("*") if each.is_file()}
    assert set(left) <= {"samples.json", "samples.json.lock"}
    assert sum(left.values()) < 1000
    assert node.answer(node.start()) == (True, expected)


@pytest.mark.usefixtures("local_ray")
def test_below_the_limit_there_is_one_object():
    one, pieces = share_samples(TensorSamples(samples()), 1 << 20), share_samples(TensorSamples(samples()), 400)
    assert isinstance(one, list)
    assert isinstance(pieces, SamplePieces)
    assert len(pieces.references) > 10


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("host_bytes", ["100", pytest.param(None, marks=pytest.mark.slow)])
def test_a_worker_gives_the_serial_bytes_from_pieces_and_seeds_of_what_is_defined_here(
    tmp_path, monkeypatch, host_bytes
):
    """Once because the limit says so, and once because the 100 MB of the object store could not hold all samples.

    The worker draws the directions itself. The problem is a callable of this process, which no worker can import.
    """
    count = 40 if host_bytes else 150

    def problem() -> Problem:
        size = 10 if host_bytes else 1_000_000
        data = torch.arange(count, dtype=torch.uint8)[:, None].expand(count, size).contiguous()

        def observe(model, batch):
            return {"loss": (batch[:, :10].float() @ model.weight.T)[:, 0] ** 2, "last": batch[:, -1].float()}

        with torch.random.fork_rng():
            torch.manual_seed(3)
            return Problem(torch.nn.Linear(10, 1, bias=False), data, observe)

    def job(name: str) -> Job:
        directions = [{"kind": "random"}, {"kind": "random", "normalise": "layer"}]
        landscapes = [{"name": "plane", "size": [5, 4], "directions": directions}]
        return Job(run=str(tmp_path / name), problem=problem, num_samples=count, tile=[2, 2], landscapes=landscapes)

    run(job("serial"))
    if host_bytes:
        monkeypatch.setenv(HOST_BYTES, host_bytes)
    monkeypatch.setattr("landscape.job.directions.computed.HELD_BYTES", 0)
    cluster.run(job("workers"), workers=1)
    one, other = (open_run(str(tmp_path / name))["plane"] for name in ("serial", "workers"))
    assert one.loss.tobytes() == other.loss.tobytes()
    assert one.stderr().tobytes() == other.stderr().tobytes()
    assert one.attributes["identity"] == other.attributes["identity"]
    assert other["last"].mean() == pytest.approx((count - 1) / 2)
