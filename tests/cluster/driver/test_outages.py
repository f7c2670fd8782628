"""Outages around a job: the network, the driver's machine, the disk, the clock, the memory. The bytes stay the same."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import WITNESS
from faults import assert_undisturbed, disturbed, undisturbed
from network import can_make_namespaces, kill, plug_cable, pull_cable, two_machines, wait_for

import cluster
from cluster.scheduling.policy import Policy
from cluster.status import run_status
from landscape.results import open_run
from landscape.spec.job import Job
from landscape.surface import NOT_COMPUTED, OK, QUARANTINED

CLI = (sys.executable, "-W", "ignore", "-m", "cluster")


def committed(run: str) -> int:
    try:
        return int((open_run(run)["plane"].status == OK).sum())
    except LookupError:
        return 0


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


needs_namespaces = pytest.mark.skipif(not can_make_namespaces(), reason="needs root, `ip`, `unshare` and `nsenter`")


@needs_namespaces
def test_a_node_is_cut_off_and_comes_back(make_job, tmp_path):
    job, hurry = slow_until_hurried(make_job, tmp_path)
    run, log = job.run_path, tmp_path.parent / f"{tmp_path.name}.ray"
    with two_machines() as (near, far):
        near.join(near, log)
        wait_for(lambda: "Ray runtime started" in log.read_text(), "the head")
        node = far.join(near, log)
        wait_for(lambda: log.read_text().count("Ray runtime started") > 1, "the second node")
        out = tmp_path.parent / f"{tmp_path.name}.out"
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
    run, log = job.run_path, tmp_path.parent / f"{tmp_path.name}.ray"
    with two_machines() as (near, far):
        near.join(near, log)
        wait_for(lambda: "Ray runtime started" in log.read_text(), "the head")
        far.join(near, log)
        wait_for(lambda: log.read_text().count("Ray runtime started") > 1, "the second node")
        out = tmp_path.parent / f"{tmp_path.name}.out"
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
def run_on_small_disk(make_job, tmp_path) -> Iterator[tuple[Job, Path]]:
    """A job whose store lies on a disk of its own; the lock, which is held open, does not."""
    job = make_job(
        """
        def trouble(x, y):
            held(40, "hurry")
        """,
        tile=[1],
    )
    place = Path(job.run_path) / "landscapes.zarr"
    place.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield job, place
    subprocess.run(["umount", "-l", str(place)], check=True)


def compute(job: Job, ray_folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "RAY_TMPDIR": str(ray_folder)}
    command = [*CLI, "run", str(job.folder / "job.yaml"), "--workers=2"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fill(place: Path) -> Path:
    filler = place / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


@pytest.mark.parametrize("trouble, words", [("full", "No space left"), ("read-only", "Read-only file system")])
def test_the_disk_fills_up_or_is_closed_in_mid_run(run_on_small_disk, ray_folder, trouble, words):
    job, place = run_on_small_disk
    driver = compute(job, ray_folder)
    wait_for(lambda: committed(job.run_path) > 5 or driver.poll() is not None, "some tiles")
    if trouble == "full":
        filler = fill(place)
    else:  # refused while a file is being written
        remount = ["mount", "-o", "remount,ro", str(place)]
        wait_for(lambda: subprocess.run(remount, capture_output=True).returncode == 0, "the disk to close")
    (job.folder / "hurry").touch()
    _, errors = driver.communicate(timeout=120)
    assert driver.returncode == 1, errors
    assert "Traceback" not in errors
    assert [line for line in errors.splitlines() if words in line] == errors.splitlines()[-1:], errors
    assert "the same command again" in errors
    surface = open_run(job.run_path)["plane"]
    done, expected = surface.status == OK, undisturbed(job)
    assert 5 < done.sum() < done.size
    np.testing.assert_array_equal(surface.loss[done], expected.loss[done])
    if trouble == "full":
        filler.unlink()
    else:
        subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
    before = chunk_files(job.run_path)
    again = compute(job, ray_folder)
    _, errors = again.communicate(timeout=200)
    assert again.returncode == 0, errors
    assert {file: each for file, each in chunk_files(job.run_path).items() if file in before} == before
    found = open_run(job.run_path)["plane"]
    assert (found.status == OK).all()
    for name in ("loss", "loss_stderr"):
        assert found[name].tobytes() == expected[name].tobytes(), name


# -- the clock ------------------------------------------------------------------------------------------------------

JUMPS = """
import itertools, threading, time
_real = {name: getattr(time, name) for name in ("time", "monotonic")}
_jumps, _now, leaps = itertools.cycle([7200.0, 0.0, -7200.0, 86400.0, -90000.0]), [0.0], []


def _leap():
    # gRPC works out its deadlines with this clock and watches them by another, which no leap of a real clock parts.
    while not ray.is_initialized():
        time.sleep(0.01)
    while True:
        time.sleep(0.3)
        _now[0] = next(_jumps)
        leaps.append(_now[0])
        if len(leaps) > 5 and committed() > 10:
            (HERE / "leapt").touch()


for _name, _clock in _real.items():
    setattr(time, _name, lambda clock=_clock: clock() + _now[0])
threading.Thread(target=_leap, daemon=True).start()
"""


def test_the_clock_jumps_by_hours_under_the_driver(make_job, ray_folder):
    job = make_job(
        """
        def trouble(x, y):
            time.sleep(0.02)
            held(40, "leapt")
        """,
        tile=[1],
    )
    progress = disturbed(
        job,
        """
        cluster.run(job, workers=2, address=nodes.address)
        assert len(leaps) > 5
        """,
        ray_folder,
        prelude=JUMPS,
    )
    assert_undisturbed(job)
    assert progress["retries"] == 0
    assert "no progress" not in str(progress["stderr"]), "nobody was taken for hung"


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


# -- what kills ------------------------------------------------------------------------------------------------------


def test_a_tile_that_kills_ends_with_4_and_the_next_run_retries_it_alone(make_job, ray_folder):
    job = make_job(
        """
        def trouble(x, y):
            if x == 1.0 and y == 3.0 and not (HERE / "healed").exists():
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        tile=[1],
    )
    driver = compute(job, ray_folder)
    _, errors = driver.communicate(timeout=200)
    assert driver.returncode == 4, errors
    surface = open_run(job.run_path)["plane"]
    assert (surface.status == QUARANTINED).sum() == 1
    assert not (surface.status == NOT_COMPUTED).any()
    (failure,) = run_status(job.run_path)["landscapes"][0]["failures"]
    assert failure["attempts"] == 3
    assert "worker died" in failure["cause"]
    (job.folder / "healed").touch()
    before, points = chunk_files(job.run_path), (job.folder / "points.log").read_text().splitlines()
    again = compute(job, ray_folder)
    _, errors = again.communicate(timeout=200)
    assert again.returncode == 0, errors
    after = chunk_files(job.run_path)
    assert {file.name for file, each in before.items() if after[file] != each} == {"8"}
    assert len((job.folder / "points.log").read_text().splitlines()) - len(points) == 1 + WITNESS
    assert_undisturbed(job)
