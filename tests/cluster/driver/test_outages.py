"""Outages around a job: the network, the driver's machine, the disk, the clock, the memory. The bytes stay the same."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import assert_undisturbed, undisturbed
from network import Machine, can_make_namespaces, kill, plug_cable, pull_cable, two_machines
from real_commands import CLI, committed
from waiting import wait_for

import cluster
import landscape
from cluster.driver.driver import Driver
from cluster.driver.pool import RayWorkerPool
from cluster.driver.schedule import Policy
from cluster.runtime.status import run_status
from landscape.compute.progress_tracker import Tally
from landscape.core.errors import LandscapeError
from landscape.core.progress import Progress
from landscape.job.job import Job
from landscape.store.results import open_run
from landscape.surface.surface import OK

pytestmark = pytest.mark.faults


def chunk_files(run: str) -> dict[Path, tuple[int, int]]:
    """Every chunk of a committed tile, and which file that is: a chunk written anew is another one."""
    store = Path(run) / "landscapes.zarr" / "plane"
    done = {path.relative_to(store / "status") for path in (store / "status" / "c").glob("*/*") if path.name.isdigit()}
    files = [store / array / path for path in done for array in ("loss", "loss_stderr", "status")]
    return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def workers_of(run: str) -> list[dict[str, Any]]:
    """Those that have computed, as recorded every other second."""
    found = run_status(run)["landscapes"][0]["by_worker"] if committed(run) else []
    return [each for each in found if each["tasks"]]


def tasks_by_node(run: str) -> dict[str, int]:
    return {each["node"]: each["tasks"] for each in workers_of(run)}


def workers_by_pid(run: str) -> set[tuple[str, int]]:
    return {(each["node"], each["pid"]) for each in workers_of(run)}


def slow_until_hurried(make_job: Callable[..., Job], tmp_path: Path) -> tuple[Job, Path]:
    """A job with minutes of work left until a file is there, whatever is waited for before."""
    job = make_job(
        """
        def trouble(x, y):
            time.sleep(0.02)
            held(0, "hurry", 0.7 if points_seen() < 20 else 6.0)
        """,
        tile=[1],
    )
    return job, job.folder / "hurry"


def joined(near: Machine, far: Machine, log: Path) -> subprocess.Popen[bytes]:
    """Start a Ray of both machines, the head on the near one; the process of the node on the far one."""
    near.join(near, log)
    wait_for(lambda: "Ray runtime started" in log.read_text(), "the head")
    node = far.join(near, log)
    wait_for(lambda: log.read_text().count("Ray runtime started") > 1, "the second node")
    return node


needs_namespaces = pytest.mark.skipif(not can_make_namespaces(), reason="needs root, `ip`, `unshare` and `nsenter`")


@pytest.mark.slow  # more than a minute: two machines start, and the second one twice
@needs_namespaces
def test_a_node_is_cut_off_and_comes_back(make_job, tmp_path):
    job, hurry = slow_until_hurried(make_job, tmp_path)
    run = job.run_path
    log, out = (tmp_path.parent / f"{tmp_path.name}.{ending}" for ending in ("ray", "out"))
    with two_machines() as (near, far):
        node = joined(near, far, log)
        driver = near.start(*CLI, "run", str(job.folder / "job.yaml"), "--address", f"{near.address}:6399", log=out)

        wait_for(lambda: len(tasks_by_node(run)) == 2 or driver.poll() is not None, "both nodes to compute")
        known = set(tasks_by_node(run))
        before = chunk_files(run)
        pull_cable(far)
        wait_for(lambda: "is lost" in out.read_text(), "the cut to be noticed")
        here = committed(run)
        wait_for(lambda: committed(run) > here, "the other node to go on")
        assert driver.poll() is None
        plug_cable(far, near)
        wait_for(lambda: node.poll() is not None, "the raylet to learn that it was given up")
        far.join(near, log)
        wait_for(
            lambda: set(tasks_by_node(run)) - known or driver.poll() is not None, "the node that came back to compute"
        )
        assert set(tasks_by_node(run)) - known, "it was not used"
        hurry.touch()
        assert driver.wait(120) == 0, out.read_text()[-2000:]
    assert {file: each for file, each in chunk_files(run).items() if file in before} == before, "committed once"
    assert_undisturbed(job)


@pytest.mark.slow  # a minute beside another test: two machines start, and two drivers with two workers each
@needs_namespaces
def test_the_driver_is_killed_and_started_on_another_machine(make_job, tmp_path):
    job, hurry = slow_until_hurried(make_job, tmp_path)
    run = job.run_path
    log, out = (tmp_path.parent / f"{tmp_path.name}.{ending}" for ending in ("ray", "out"))
    with two_machines() as (near, far):
        joined(near, far, log)
        # With two workers asked for, the second driver needs what the first one's held.
        command = (*CLI, "run", str(job.folder / "job.yaml"), "--workers=2", "--address", f"{near.address}:6399")
        driver = near.start(*command, log=out)
        wait_for(lambda: len(tasks_by_node(run)) == 2 or driver.poll() is not None, "both nodes to compute")
        kill(driver)
        before, first = chunk_files(run), workers_by_pid(run)
        again = far.start(*command, log=out)
        wait_for(
            lambda: len(workers_by_pid(run) - first) == 2 or again.poll() is not None,
            "workers in the place of the dead driver's",
        )
        hurry.touch()
        assert again.wait(120) == 0, out.read_text()[-2000:]
        assert {node for node, _ in workers_by_pid(run) - first} == {node for node, _ in first}
    assert {file: each for file, each in chunk_files(run).items() if file in before} == before
    assert_undisturbed(job)


# -- the disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_on_small_disk(make_job) -> Iterator[tuple[Job, Path]]:
    """A job whose store lies on a disk of its own; the lock, which is held open, does not."""
    job = make_job(tile=[1])
    place = Path(job.run_path) / "landscapes.zarr"
    place.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield job, place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    with open(place / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def remount(place: Path, option: str) -> None:
    """The disk stays open while a file is being written."""
    command = ["mount", "-o", f"remount,{option}", str(place)]
    wait_for(lambda: subprocess.run(command, capture_output=True).returncode == 0, f"the disk to be {option}")


TROUBLES = {
    "No space left": (fill, lambda place: (place / "filler").unlink()),
    "Read-only file system": (lambda place: remount(place, "ro"), lambda place: remount(place, "rw")),
}


@pytest.mark.parametrize("words", ["No space left", pytest.param("Read-only file system", marks=pytest.mark.slow)])
def test_the_disk_fills_up_or_is_closed_in_mid_run(run_on_small_disk, local_ray, words):
    """Between two receipts of the driver, which writes what the workers compute."""
    (job, place), (begin, end), done = run_on_small_disk, TROUBLES[words], []

    def watch(progress: Progress) -> None:
        if progress.points_done > 5 and not done:
            done.append(progress.points_done)
            begin(place)

    with pytest.raises(LandscapeError, match=words) as failed:
        cluster.run(job, workers=1, observer=watch)
    assert len(str(failed.value).splitlines()) == 1
    assert "the same command again" in str(failed.value)
    surface = open_run(job.run_path)["plane"]
    known, expected = surface.status == OK, undisturbed(job)
    assert 5 < known.sum() < known.size
    np.testing.assert_array_equal(surface.loss[known], expected.loss[known])
    end(place)
    before = chunk_files(job.run_path)
    found = landscape.run(job)["plane"]
    assert {file: each for file, each in chunk_files(job.run_path).items() if file in before} == before
    assert (found.status == OK).all()
    for name in ("loss", "loss_stderr"):
        assert found[name].tobytes() == expected[name].tobytes(), name


# -- the clock ------------------------------------------------------------------------------------------------------

LEAPS = (7200.0, 0.0, -7200.0, 86400.0, -90000.0)


@pytest.fixture
def leaping_clock(monkeypatch) -> Iterator[list[float]]:
    """The leaps so far of the clocks that Python code of this process reads, from when the first is asked for."""
    leaps, over = [0.0], threading.Event()

    def leap() -> None:
        for each in itertools.cycle(LEAPS):
            if over.wait(0.3):
                return
            leaps.append(each)

    real = {name: getattr(time, name) for name in ("time", "monotonic")}
    for name, clock in real.items():
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + leaps[-1])
    for made in (Driver, RayWorkerPool, Tally):  # their default is the clock that was there when they were imported
        defaults = [time.monotonic if each is real["monotonic"] else each for each in made.__init__.__defaults__]
        assert time.monotonic in defaults
        monkeypatch.setattr(made.__init__, "__defaults__", tuple(defaults))
    leaper = threading.Thread(target=leap, daemon=True)
    leaper.start()
    yield leaps
    over.set()
    leaper.join()


@pytest.mark.slow
def test_the_clock_jumps_by_hours_under_the_driver(make_job, local_ray, leaping_clock, caplog):
    job = make_job(
        """
        def trouble(x, y):
            held(40, "leapt")
        """,
        tile=[1],
    )

    def watch(progress: Progress) -> None:
        if progress.points_done > 10 and len(leaping_clock) > 6:
            (job.folder / "leapt").touch()

    found = cluster.run(job, workers=2, observer=watch)["plane"]
    assert len(leaping_clock) > 6
    assert_undisturbed(job)
    assert found.attributes["progress"]["retries"] == 0
    assert "no progress" not in caplog.text, "nobody was taken for hung"


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_host_without_memory_takes_smaller_batches_then_another_worker(make_job, local_ray):
    """torch's own error, asked for more than any machine has: for large batches anywhere, for all at one worker."""
    job = make_job(tile=[1], batch_size=20)
    file = job.folder / "my_problem.py"
    hungry = textwrap.dedent("""
        if "ray" in __import__("sys").modules:
            if len(batch) > 2:
                note("who", str(os.getpid()))
            while x == -1.0 and y == 3.0 and len(set((HERE / "who").read_text().split())) < 2:
                time.sleep(0.02)  # there is another worker to go to
            if x == 1.0 and y == 3.0 and len(batch) > 10:
                note("large", str(len(batch)))
                torch.empty(2**50)
            if x == -1.0 and y == 3.0 and len(batch) > 2 and once("first"):
                note(f"starved-{os.getpid()}", "")
            if x == -1.0 and y == 3.0 and (HERE / f"starved-{os.getpid()}").exists():
                note("small", str(len(batch)))
                torch.empty(2**50)
    """)
    calm = file.read_text()
    file.write_text(calm.replace("    loss = (", textwrap.indent(hungry, "    ") + "    loss = ("))
    # No backup of the tile that waits: who starves at it is to be the first to try it.
    found = cluster.run(job, workers=2, policy=Policy(straggler_done=10**6))["plane"]
    file.write_text(calm)
    assert (found.status == OK).all()
    assert (job.folder / "large").read_text().split() == ["20"]
    tried = [int(each) for each in (job.folder / "small").read_text().split()]
    assert tried == [20, 10, 5, 2, 1], "the batch was halved where it did not help"
    assert found.attributes["progress"]["retries"] == 1, "and the tile went to the other worker"
    assert sorted(found.attributes["progress"]["reduced_batches"].values()) == [10]
    expected = undisturbed(job)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-6)
