"""Samples in pieces: gathered once per node, shared by its processes, gone with the last of them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch

import cluster
from cluster.driver import transfer
from cluster.driver.pool import share_samples
from cluster.driver.transfer import SamplePieces, gather, pieces_of
from landscape import Job, Problem, open_run, run
from landscape.core.devices import HOST_BYTES
from landscape.problem.batches import samples_digest
from landscape.problem.samples import TensorSamples

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
    from landscape.problem.samples import TensorSamples

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


@pytest.mark.long
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
    monkeypatch.setattr(transfer, "SEEDED_BYTES", 0)
    cluster.run(job("workers"), workers=1)
    one, other = (open_run(str(tmp_path / name))["plane"] for name in ("serial", "workers"))
    assert one.loss.tobytes() == other.loss.tobytes()
    assert one.stderr().tobytes() == other.stderr().tobytes()
    assert one.attributes["identity"] == other.attributes["identity"]
    assert other["last"].mean() == pytest.approx((count - 1) / 2)
