"""A Ray session of the tests' own, and jobs whose callback lies beside the job file."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from safetensors.torch import save_file
from warm_workers import warm_workers

from cluster.commands.app import command
from landscape.job.job import Job
from landscape.job.reading import read_job

# A model of two weights whose coordinates on the plane are the weights themselves, so that a test can say what
# happens at which point. Every evaluated point leaves a line in points.log, and its GPU one in devices.log. What a
# test waits for happens before the work ends, on a busy machine too: `held` and `company` see to it.
PROBLEM = """
import os, signal, sys, time
from pathlib import Path

import torch
from torch import nn

from landscape import Problem

HERE = Path(__file__).parent


class Plane(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, 1))
        self.y = nn.Parameter(torch.zeros(1, 1))


def note(name, text):
    with open(HERE / name, "a") as file:
        file.write(text + "\\n")


def once(name):
    try:
        os.close(os.open(HERE / name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def held(after, name, seconds=150.0):
    # From the AFTER-th point on, wait until NAME is there, so that work is left however slow the test is.
    end = time.monotonic() + seconds
    while points_seen() > after and time.monotonic() < end:
        if (HERE / name).exists():
            break
        time.sleep(0.02)


def points_seen():
    log = HERE / "points.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def company(count, after=0, seconds=150.0):
    # From the AFTER-th point on, wait until COUNT workers have come here; what else evaluates points does not wait.
    if points_seen() <= after or not sys.argv[0].endswith("default_worker.py"):
        return
    (HERE / f"worker-{{os.getpid()}}").touch()
    end = time.monotonic() + seconds
    while len(list(HERE.glob("worker-*"))) < count and time.monotonic() < end:
        time.sleep(0.02)


def trouble(x, y):
    pass


{trouble}


def observe(model, batch):
    x, y = float(model.x), float(model.y)
    if len(batch) > 2:  # not the first look at two samples
        note("points.log", f"{{x:.6f}} {{y:.6f}}")
        note("devices.log", os.environ.get("CUDA_VISIBLE_DEVICES") or "none")
        trouble(x, y)
    loss = (batch - model.x[0]) ** 2 + torch.sin(3 * model.y[0]) * batch
    return {{"loss": loss, "distance": (batch - model.x[0]).abs()}}


def problem():
    data = torch.linspace(-1, 1, 24)
    return Problem(Plane(), data, observe)
"""

MakeJob = Callable[..., Job]


@pytest.fixture
def write_job(write_job_to: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """The same, in a folder of the test's own where none is named."""
    return lambda trouble="", folder=tmp_path, **fields: write_job_to(folder, trouble, **fields)


@pytest.fixture(scope="session")
def write_job_to() -> Callable[..., Path]:
    """Write my_problem.py (with some `trouble(x, y)`), directions and job.yaml into a folder; return the job file."""

    def write(folder: Path, trouble: str = "", **fields: object) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / "my_problem.py").write_text(PROBLEM.format(trouble=textwrap.dedent(trouble)))
        one, zero = torch.ones(1, 1), torch.zeros(1, 1)
        save_file({"x": one, "y": zero}, folder / "d1.safetensors")
        save_file({"x": zero, "y": one.clone()}, folder / "d2.safetensors")
        landscape = {
            "name": "plane",
            "directions": [{"kind": "file", "path": "d1.safetensors"}, {"kind": "file", "path": "d2.safetensors"}],
            "size": [9, 7],
            "range": [[-1, 1], [0, 3]],
        }
        job = {
            "run": "run",
            "problem": "my_problem:problem",
            "num_samples": 20,
            "engine": "eager",  # chosen by measuring it might be another one where points are slow, and other bits
            "tile": [2, 3],
            "landscapes": [landscape],
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(job | fields))
        return folder / "job.yaml"

    return write


@pytest.fixture
def make_job(write_job: Callable[..., Path]) -> MakeJob:
    """The same, read."""
    return lambda trouble="", **fields: read_job(write_job(trouble, **fields))


@pytest.fixture(autouse=True)
def _own_modules() -> Iterator[None]:
    """Every test has a my_problem of its own, looked up beside its own job."""
    path = list(sys.path)
    yield
    sys.modules.pop("my_problem", None)
    sys.path[:] = path


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """A folder for one Ray session; short, since the paths of its sockets may have 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="ll"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class SharedRay:
    """One private Ray of this process, with room for several workers."""

    def __init__(self) -> None:
        self.folder = ""

    def start(self) -> None:
        import ray

        from cluster.runtime.session import without_services

        if self.folder:
            return
        folder = tempfile.mkdtemp(prefix="ll")
        with pytest.MonkeyPatch.context() as environment, warm_workers(), without_services():
            # Ray gives each worker the threads of its place, unless its own processes inherit another number.
            environment.delenv("OMP_NUM_THREADS", raising=False)
            ray.init(
                address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error",
                _temp_dir=folder, object_store_memory=100_000_000,
            )  # fmt: skip
        self.folder = folder

    def stop(self) -> None:
        if self.folder:
            import ray

            ray.shutdown()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = ""


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[SharedRay]:
    shared = SharedRay()
    yield shared
    shared.stop()


@pytest.fixture(autouse=True)
def _ray_for_whom_asks(request: pytest.FixtureRequest, shared_ray: SharedRay) -> None:
    """Start it before a test's own fixtures change the environment, and end it before a test that did not ask.

    Its threads would go along where that one forks. Those that ask come first: `tests/conftest.py`.
    """
    if "local_ray" in request.fixturenames:
        shared_ray.start()
    else:
        shared_ray.stop()


@pytest.fixture
def local_ray() -> None:
    """The Ray of this process, which the tests that ask for it share."""


class Ended(NamedTuple):
    """How a command ended: its exit code, and what it said on stdout and stderr."""

    code: int
    out: str
    err: str


Call = Callable[..., Ended]


@pytest.fixture
def call(capsys, monkeypatch, logging_as_it_was) -> Call:
    """Give a command in this process, where torch is imported already."""

    def give(*words: object, cwd: Path | None = None) -> Ended:
        monkeypatch.setattr(sys, "argv", ["landscape", *map(str, words)])
        sys.modules.pop("my_problem", None)
        sys.path[:] = [each for each in sys.path if "pytest-" not in each]
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        capsys.readouterr()
        try:
            with contextlib.chdir(cwd or Path.cwd()):
                code = command()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return Ended(code, *capsys.readouterr())

    return give
