"""Samples in pieces: gathered once per node, shared by its processes, gone with the last of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch

import cluster
from cluster.workers.crew import share_samples
from cluster.workers.sample_pieces import SamplePieces, gather, pieces_of
from landscape import Job, Problem, open_run, run
from landscape.memory import HOST_BYTES
from landscape.problem.batches import batch_bytes, batch_length, samples_digest

ROOT = Path(__file__).resolve().parents[3]


def samples(count: int = 103):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (count, 4, 3), dtype=torch.uint8, generator=generator)
    return {"x": images, "rest": (torch.arange(count), [torch.randn(count, 2, generator=generator).bfloat16()])}


@pytest.mark.parametrize("size", [1, 100, 1 << 20])
def test_pieces_are_all_samples_in_their_order(size, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pieces = list(pieces_of(samples(), size))
    assert batch_length(pieces[0]) == 0
    assert all(batch_bytes(piece) <= max(size, 24) for piece in pieces)
    found = gather(SamplePieces("key", range(len(pieces))), pieces.__getitem__)
    assert samples_digest(found) == samples_digest(samples())
    assert list(found) == ["x", "rest"]


PROCESS = """
    import sys, torch
    sys.path.insert(0, "tests/cluster/workers")
    from test_sample_pieces import samples
    from cluster.workers.sample_pieces import SamplePieces, gather, pieces_of
    from landscape.problem.batches import samples_digest

    pieces, fetched = list(pieces_of(samples(), 100)), []
    def fetch(number):
        fetched.append(number)
        return pieces[number]
    found = gather(SamplePieces(sys.argv[1], range(len(pieces))), fetch)
    print(len(fetched), len(pieces), samples_digest(found), flush=True)
    sys.stdin.read()
"""


class Node:
    """Processes that gather the same pieces, with a folder for temporary files of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, []

    def start(self, key: str = "key") -> subprocess.Popen[str]:
        self.processes.append(
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(PROCESS), key],
                cwd=ROOT,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"TMPDIR": str(self.folder), "PYTHONPATH": str(ROOT)},
            )
        )
        return self.processes[-1]

    @staticmethod
    def answer(process: subprocess.Popen[str]) -> tuple[bool, str]:
        """Whether it fetched all pieces rather than the first alone, and the digest of what it has."""
        fetched, pieces, digest = process.stdout.readline().split()
        assert int(fetched) in (1, int(pieces))
        return int(fetched) > 1, digest

    def end(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()


@pytest.fixture
def node(tmp_path):
    found = Node(tmp_path)
    yield found
    for process in found.processes:
        found.end(process)


@pytest.mark.long
def test_one_process_of_a_node_fetches_and_the_others_share(node):
    expected = samples_digest(samples())
    answers = [node.answer(each) for each in [node.start(), node.start(), node.start()]]
    assert sorted(answers) == [(False, expected), (False, expected), (True, expected)]
    assert node.answer(node.start("another job")) == (True, expected)


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
    one, pieces = share_samples(samples(), 1 << 20), share_samples(samples(), 400)
    assert isinstance(one, list)
    assert isinstance(pieces, SamplePieces)
    assert len(pieces.references) > 10


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("host_bytes", ["100", pytest.param(None, marks=pytest.mark.slow)])
def test_workers_give_the_bytes_of_the_serial_run_from_pieces_too(tmp_path, monkeypatch, host_bytes):
    """Once because the limit says so, and once because the 100 MB of the object store could not hold all samples."""
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
        landscapes = [{"name": "plane", "size": [5, 4]}]
        return Job(run=str(tmp_path / name), problem=problem, num_samples=count, tile=[2, 2], landscapes=landscapes)

    run(job("serial"))
    if host_bytes:
        monkeypatch.setenv(HOST_BYTES, host_bytes)
    cluster.run(job("workers"), workers=2)
    one, other = (open_run(str(tmp_path / name))["plane"] for name in ("serial", "workers"))
    assert one.loss.tobytes() == other.loss.tobytes()
    assert one.attributes["identity"] == other.attributes["identity"]
    assert other["last"].mean() == pytest.approx((count - 1) / 2)
