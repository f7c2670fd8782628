"""Samples larger than the memory allowed: the same choice and the same bytes, in files that nobody must clear away."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import textwrap
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from chosen import chosen_rows
from hypothesis import given
from hypothesis import strategies as st
from test_problem import INPUTS, SOURCES, TARGETS, Rows, batches
from torch.utils.data import DataLoader

from landscape import JobError
from landscape.problem import disk_buffer, selection
from landscape.problem.batches import samples_digest, tensors_of
from landscape.problem.selection import select_samples
from landscape.problem.terms import PointData

ROOT = Path(__file__).resolve().parents[3]
Pair = namedtuple("Pair", "x y")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch, tmp_path):
    monkeypatch.setattr(disk_buffer, "PIECE_BYTES", 48)  # three or four samples
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def drawn_rows(*arguments, **options):
    """One batch of the chosen samples in the order drawn, which may lie on disk."""
    return select_samples(*arguments, **options).samples.rows


def nameless_files() -> set[str]:
    """What this process holds of a test's files that have no name any more, opened or mapped."""
    folder = os.path.realpath(tempfile.gettempdir())
    links = [os.path.join("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.lexists(link)]
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return {each.split()[-2] for each in [*opened, *mapped] if folder in each and each.endswith("(deleted)")}


def assert_same(found, expected):
    assert samples_digest(found) == samples_digest(expected)
    for one, other in zip(tensors_of(found), tensors_of(expected), strict=True):
        assert one.dtype == other.dtype
        assert one.is_contiguous()
        assert torch.equal(one, other)


@pytest.mark.parametrize("count", [1, 8, 20])
@pytest.mark.parametrize("source", SOURCES)
def test_what_is_kept_on_disk_is_what_would_be_in_memory(source, count):
    found = drawn_rows(SOURCES[source](), count, 3, limit=1)
    assert nameless_files()
    assert_same(found, drawn_rows(SOURCES[source](), count, 3, limit=1 << 20))


def test_below_the_limit_nothing_is_written():
    for source in SOURCES.values():
        drawn_rows(source(), 8, 3, limit=8 * 20)
    drawn_rows(batches(6), 8, 3, limit=8 * 20)
    assert nameless_files() == set()


@pytest.mark.long
@given(size=st.integers(1, 25), count=st.integers(1, 20), seed=st.integers(0, 9), limit=st.integers(0, 400))
def test_the_choice_from_batches_does_not_depend_on_where_they_are_kept(size, count, seed, limit):
    found = drawn_rows(batches(size), count, seed, limit=limit)
    assert_same(found, drawn_rows(batches(size), count, seed, limit=1 << 20))


def test_only_the_chosen_samples_are_read_and_once():
    rows = Rows()
    found = drawn_rows(rows, 9, 0, limit=1)
    assert rows.read == found[1].tolist()


def test_structures_types_and_the_order_of_keys_are_kept():
    generator = torch.Generator().manual_seed(0)
    data = {
        "bytes": torch.randint(0, 255, (20, 2, 3), dtype=torch.uint8, generator=generator),
        "rest": Pair(torch.randn(20, generator=generator).bfloat16(), [torch.randn(20, 0), INPUTS > 30]),
    }
    assert_same(drawn_rows(data, 7, 1, limit=1), drawn_rows(data, 7, 1))
    mixed = [{"x": TARGETS[:9], "y": -TARGETS[:9]}, {"y": -TARGETS[9:], "x": TARGETS[9:]}]
    found = chosen_rows(iter(mixed), 20, 0, limit=1)
    assert list(found) == ["x", "y"]
    assert torch.equal(found["x"], TARGETS)
    assert torch.equal(found["y"], -TARGETS)


class Growing(Rows):
    """Whose items have another shape after as many as a piece holds."""

    def __getitem__(self, index: int):
        self.read.append(index)
        return torch.ones(3 if len(self.read) <= 4 else 4)


def test_shapes_that_differ_between_pieces_are_refused_in_words():
    with pytest.raises(JobError, match=r"data: samples that are kept on disk must have one .*shape.*pad them"):
        drawn_rows(Growing(), 20, 0, limit=1)


class Broken(Rows):
    def __getitem__(self, index):
        if len(self.read) == 12:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


@pytest.mark.long
def test_the_files_go_with_the_samples_and_with_an_exception():
    rows = Rows()
    found = drawn_rows(rows, 20, 3, limit=1)
    part = found[0][3:5]
    del found
    gc.collect()
    assert len(nameless_files()) == 1  # still mapped by the part; the targets' is gone
    assert torch.equal(part, INPUTS[rows.read[3:5]])
    del part
    with pytest.raises(JobError, match=r"sample .* of Broken .*the disk is gone"):
        drawn_rows(Broken(), 20, 3, limit=1)
    with pytest.raises(JobError, match="one type and shape"):
        drawn_rows(iter([INPUTS[:9], INPUTS[9:].double()]), 20, 0, limit=1)
    gc.collect()
    assert nameless_files() == set()


def in_a_process(code: str, folder: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
        env=os.environ
        | {"TMPDIR": str(folder), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"}
        | variables,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.faults
def test_a_full_disk_is_told_in_words_and_nothing_is_left_of_it_or_of_a_process_that_is_killed(tmp_path):
    code = """
        import os, resource, signal, torch
        from landscape.core.errors import JobError
        from landscape.problem.selection import select_samples

        allowed = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, allowed[1]))
        try:
            select_samples(torch.ones(1000, 100), 1000, 0, limit=1)
        except JobError as full:
            print(full)
        resource.setrlimit(resource.RLIMIT_FSIZE, allowed)
        assert os.listdir(os.environ["TMPDIR"]) == []

        found = select_samples(torch.ones(1000, 100), 1000, 0, limit=1).samples.rows
        with open("/proc/self/maps") as maps:
            assert os.environ["TMPDIR"] in maps.read()
        print(float(found.sum()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = in_a_process(code, tmp_path)
    assert done.returncode == -9, done.stderr
    *told, total = done.stdout.splitlines()
    assert told[0].startswith(f"data: the samples do not fit the folder {tmp_path}")
    assert "TMPDIR" in told[-1]
    assert total == "100000.0"
    assert list(tmp_path.iterdir()) == []


MEASURE = """
    import os, sys, threading, time
    from pathlib import Path

    import torch
    from torch.utils.data import Dataset
    from landscape.problem import disk_buffer as kept_rows
    from landscape.problem.batches import batch_bytes, samples_digest
    from landscape.problem.selection import select_samples

    count, kinds, limits = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3].split(",")
    kept_rows.PIECE_BYTES = int(sys.argv[4]) << 20

    class Images(Dataset):
        def __len__(self):
            return count

        def __getitem__(self, index):
            if index >= count:
                raise IndexError
            return torch.full((1 << 20,), index % 251, dtype=torch.uint8), index

    def private():
        # Not RssShmem: pages of files in /dev/shm, where tests keep theirs, count there when they are read.
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10

    def watch():
        while True:
            peaks.append(private())
            time.sleep(0.002)

    def measure(kind, limit):
        if kind == "batches":
            images = Images()
            data = ((x[None].expand(4, -1), torch.full((4,), y)) for x, y in (images[k] for k in range(0, count, 4)))
        else:
            data = Images()
        threading.Thread(target=watch, daemon=True).start()
        samples = select_samples(data, count, 0, limit=int(limit) << 20).samples.rows
        peaks.append(private())
        print(batch_bytes(samples) >> 20, max(peaks) - before, samples_digest(samples), flush=True)

    torch.set_num_threads(1)
    select_samples(torch.ones(9), 5, 0)
    before, peaks = private(), []
    for kind in kinds:
        for limit in limits:
            if os.fork() == 0:
                measure(kind, limit)
                os._exit(0)
            assert os.wait()[1] == 0
    os._exit(0)
"""


def peaks(folder: Path, megabytes: int, kinds: list[str], limits: list[int], piece: int) -> list[tuple[int, str]]:
    """For each kind and limit the memory of its own that a process needs at most, and the digest of what it selects.

    All in MiB; the processes are forked from one.
    """
    # With a threshold of its own, glibc gives a freed tensor back at once; else it keeps up to 64 MiB for the next.
    arguments = (megabytes, ",".join(kinds), ",".join(map(str, limits)), piece)
    done = in_a_process(MEASURE, folder, *arguments, MALLOC_MMAP_THRESHOLD_="1000000")
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines()]
    assert [int(size) for size, _, _ in found] == [megabytes] * (len(kinds) * len(limits))
    return [(int(used), digest) for _, used, digest in found]


@pytest.mark.long
@pytest.mark.faults
def test_the_memory_needed_is_bounded_by_the_limit(tmp_path):
    found = peaks(tmp_path, 200, ["data set", "batches"], [25, 10_000], piece=16)
    for (used, digest), (free, expected) in (found[:2], found[2:]):
        assert used < 40, "a piece of 16 MiB is collected and collated at a time, no more"
        assert free > 195, "without the limit all of them are in memory"
        assert digest == expected


@pytest.mark.slow
def test_two_gigabytes_are_selected_in_a_fraction_of_that(tmp_path):
    [(used, _)] = peaks(tmp_path, 2048, ["data set"], [200], piece=64)
    assert used < 150


# -- the order drawn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1 << 20, 1])
@pytest.mark.parametrize("source", [*SOURCES, "batches"])
def test_fewer_samples_are_the_first_of_more_and_the_indices_say_which(source, limit):
    make = SOURCES.get(source, lambda: batches(6))
    few, many = (select_samples(make(), count, 3, limit=limit) for count in (5, 17))
    assert few.indices.dtype == np.int64
    assert few.indices.tolist() == many.indices[:5].tolist() != sorted(few.indices)
    for chosen in (few, many):
        inputs, targets = tensors_of(chosen.samples.rows)
        assert targets.tolist() == chosen.indices.tolist()
        assert torch.equal(inputs, INPUTS[chosen.indices])


def test_fewer_of_very_many_are_the_first_of_more(monkeypatch):
    monkeypatch.setattr(selection, "LARGEST_SHUFFLED", 100)
    data = torch.arange(300)
    few, many = (select_samples(data, count, 3).indices.tolist() for count in (40, 250))
    assert few == many[:40]
    assert len(set(many)) == 250


# -- the same set in another order -----------------------------------------------------------------------------


def set_digest(source, count: int, seed: int, **options) -> str:
    chosen = select_samples(source(), count, seed, **options)
    return chosen.samples.set_digest(chosen.indices)


@pytest.mark.parametrize("source", SOURCES)
def test_all_samples_are_the_same_set_under_every_seed_wherever_they_are_kept(source):
    chosen = [select_samples(SOURCES[source](), 20, seed) for seed in (0, 1)]
    assert chosen[0].samples.digest() != chosen[1].samples.digest()
    expected = set_digest(SOURCES[source], 20, 0)
    assert expected == set_digest(SOURCES[source], 20, 1) == set_digest(SOURCES[source], 20, 1, limit=1)
    assert set_digest(SOURCES[source], 19, 0) not in (expected, set_digest(SOURCES[source], 19, 1))


def test_a_set_is_told_from_one_of_other_values_or_other_numbers():
    def changed():
        inputs = INPUTS.clone()
        inputs[3, 0] += 1
        return inputs, TARGETS

    def turned():
        return INPUTS.flip(0), TARGETS.flip(0)  # the same samples, whose numbers in the data are others

    same = set_digest(lambda: (INPUTS, TARGETS), 20, 0)
    assert len({same, set_digest(changed, 20, 0), set_digest(turned, 20, 0)}) == 3


def test_items_and_batches_that_stay_whole_are_a_set_too():
    def items():
        return DataLoader([torch.ones(1 + k % 3) * k for k in range(9)], collate_fn=list)

    class Ragged:
        """Batches of 2 to 6 samples, which are taken whole."""

        def __iter__(self):
            return iter([{"x": torch.full((2 + k, 2 + k), float(k))} for k in range(5)])

    def ragged():
        return Ragged()

    assert set_digest(items, 9, 0) == set_digest(items, 9, 4) != set_digest(items, 8, 4)
    whole = {set_digest(ragged, 20, seed, length=lambda batch: len(batch["x"])) for seed in range(3)}
    assert len(whole) == 1
    assert set_digest(ragged, 5, 0, length=lambda batch: len(batch["x"])) not in whole


def test_points_of_terms_are_the_same_sets_in_every_order():
    def points(seed: int) -> str:
        data = PointData({"interior": torch.arange(12.0).reshape(6, 2), "boundary": (torch.arange(4.0), TARGETS[:4])})
        chosen = select_samples(data, 6, seed)
        return chosen.samples.set_digest(chosen.indices)

    assert points(0) == points(1)
