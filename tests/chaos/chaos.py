"""A job on three nodes while a seeded killer takes a worker, a raylet or the driver every few seconds.

`python tests/chaos/chaos.py --faults 20` prints what was survived, what was computed twice and what it cost, and
ends with 1 if the result differs from the undisturbed serial one in a single bit. A line per fault goes to stderr.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
import yaml
from safetensors.torch import save_file

# Ray notices a dead node after 15 s by default; here after about 1 s. One that only is slow to answer has 10 s.
FAST = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 2,
}

WAIT_FOR_VICTIM = 30.0

PROBLEM = """
import os, time
from pathlib import Path

import torch
from torch import nn

from landscape import Problem

LOG = Path(__file__).parent / "points.log"


class Plane(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1, 1))
        self.y = nn.Parameter(torch.zeros(1, 1))


def observe(model, batch):
    if len(batch) > 2:
        with open(LOG, "a") as file:
            file.write("x\\n")
        time.sleep(float(os.environ.get("CHAOS_POINT_SECONDS", "0")))
    return {"loss": (batch - model.x[0]) ** 2 + torch.sin(3 * model.y[0]) * batch}


def problem():
    return Problem(Plane(), torch.linspace(-1, 1, 64), observe)
"""


@dataclass
class Chaos:
    """One cluster, one job at a time, one killer."""

    size: int
    nodes: int
    seed: int
    pause: tuple[float, float]
    point_seconds: float
    limit: float
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="chaos")))
    ray_folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ll")))
    faults: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    def prepare(self) -> None:
        # Found by PYTHONPATH, not shipped: nodes that share a machine share what Ray unpacks, and one that goes away
        # takes it from under the others.
        library = self.folder / "library"
        library.mkdir()
        (library / "my_problem.py").write_text(PROBLEM)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(library), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        one, zero = torch.ones(1, 1), torch.zeros(1, 1)
        save_file({"x": one, "y": zero}, self.folder / "d1.safetensors")
        save_file({"x": zero, "y": one.clone()}, self.folder / "d2.safetensors")
        landscape = {
            "name": "plane",
            "directions": [{"kind": "file", "path": "d1.safetensors"}, {"kind": "file", "path": "d2.safetensors"}],
            "size": self.size,
        }
        # The engine is named: points that sleep would have one chosen by measuring, calm ones not.
        job = {"run": "run", "problem": "my_problem:problem", "num_samples": 64, "engine": "eager", "tile": [4],
               "landscapes": [landscape]}  # fmt: skip
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))

    def start_cluster(self) -> None:
        # An open cluster on this machine's own address would be refused.
        os.environ.update(RAY_TMPDIR=str(self.ray_folder), RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": FAST})
        self.members = [self.cluster.add_node(num_cpus=2) for _ in range(self.nodes)]
        self.cluster.wait_for_nodes()

    def command(self, run: str, *options: str) -> list[str]:
        return [sys.executable, "-W", "ignore", "-m", "cluster", "run", str(self.folder / "job.yaml"),
                "--run", str(self.folder / run), *options]  # fmt: skip

    def start_driver(self, run: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{run}.log").open("ab")
        environment = {**os.environ, "CHAOS_POINT_SECONDS": str(self.point_seconds)}
        with log:
            return subprocess.Popen(
                self.command(run, "--address", self.cluster.address), env=environment, stdout=log, stderr=log
            )

    def undisturbed(self) -> None:
        subprocess.run(self.command("calm", "--serial"), check=True, capture_output=True)

    def points(self) -> int:
        log = self.folder / "library" / "points.log"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    # -- the killer -------------------------------------------------------------------------------------------

    def kill_worker(self, chance: random.Random, driver: subprocess.Popen[bytes]) -> bool:
        """Wait for one where the faults before have left none: else only nodes and drivers would be hit in a row."""
        end = time.monotonic() + WAIT_FOR_VICTIM
        while not (victims := self.workers()) and driver.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        if not victims:
            return False
        try:
            os.kill(chance.choice(victims), signal.SIGKILL)
        except ProcessLookupError:  # it has ended meanwhile
            return False
        return True

    def workers(self) -> list[int]:
        mine = {process.pid for member in self.members for process in tree(raylet_pid(member))}
        return [pid for pid in sorted(mine) if name_of(pid).startswith("ray::Worker")]

    def kill_raylet(self, chance: random.Random, driver: subprocess.Popen[bytes]) -> bool:
        """Take a node away as a reclaimed machine goes, and let another one come."""
        victim = chance.choice(self.members)
        self.members.remove(victim)
        self.cluster.remove_node(victim, allow_graceful=False)
        self.members.append(self.cluster.add_node(num_cpus=2))
        return True

    def kill_driver(self, chance: random.Random, driver: subprocess.Popen[bytes]) -> bool:
        driver.kill()
        driver.wait()
        return True

    def disturb(self, run: str, faults: int) -> None:
        """Run one job to its end, killing until `faults` have happened in all."""
        chance = random.Random(f"{self.seed} {run}")
        kinds: list[Callable[..., bool]] = [self.kill_worker] * 6 + [self.kill_raylet] * 2 + [self.kill_driver] * 2
        driver = self.start_driver(run)
        while driver.poll() is None or driver.returncode < 0:
            if driver.poll() is not None:
                driver = self.start_driver(run)
            end = time.monotonic() + chance.uniform(*self.pause)
            while time.monotonic() < end and driver.poll() is None:
                time.sleep(0.1)
            if driver.poll() is None and self.faults.total() < faults and not self.late:
                kind = chance.choice(kinds)
                if kind(chance, driver):
                    self.note(run, kind.__name__.removeprefix("kill_"))
        if driver.returncode:
            told = [line for line in (self.folder / f"{run}.log").read_text().splitlines() if "raylet)" not in line]
            raise SystemExit(f"the job ended with {driver.returncode}:\n" + "\n".join(told[-40:]))

    @property
    def late(self) -> bool:
        return time.monotonic() - self.began > self.limit

    def note(self, run: str, kind: str) -> None:
        self.faults[kind] += 1
        seconds = time.monotonic() - self.began
        print(f"{seconds:7.1f} s  fault {self.faults.total():3d}: {kind} in {run}", file=sys.stderr, flush=True)

    def same(self, run: str) -> bool:
        from landscape.store.results import open_run

        found, expected = open_run(self.folder / run)["plane"], open_run(self.folder / "calm")["plane"]
        names = ("loss", "loss_stderr")
        return all(found[name].tobytes() == expected[name].tobytes() for name in names)

    def close(self) -> None:
        self.cluster.shutdown()
        for folder in (self.folder, self.ray_folder):
            shutil.rmtree(folder, ignore_errors=True)


def raylet_pid(member: object) -> int:
    processes = member.all_processes  # type: ignore[attr-defined]
    return int(processes["raylet"][0].process.pid)


def tree(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def name_of(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, nargs=2, default=(2.0, 5.0), help="seconds between two faults")
    parser.add_argument("--point-seconds", type=float, default=0.02)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop killing after so long")
    given = parser.parse_args()
    chaos = Chaos(given.size, given.nodes, given.seed, tuple(given.pause), given.point_seconds, given.seconds)
    chaos.prepare()
    chaos.undisturbed()
    chaos.start_cluster()
    try:
        start = time.monotonic()
        chaos.disturb("warm", 0)
        plain, grid = time.monotonic() - start, given.size**2
        jobs, seconds, waste, wrong = 0, 0.0, 0, 0
        while chaos.faults.total() < given.faults and not chaos.late:
            before, start = chaos.points(), time.monotonic()
            chaos.disturb(f"run-{jobs}", given.faults)
            seconds += time.monotonic() - start
            waste += chaos.points() - before - grid
            wrong += not chaos.same(f"run-{jobs}")
            jobs += 1
            at = time.monotonic() - chaos.began
            print(f"{at:7.1f} s  run-{jobs - 1} is done: {wrong} wrong so far", file=sys.stderr, flush=True)
    finally:
        chaos.close()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(chaos.faults.items()))
    print(f"faults survived: {chaos.faults.total()} ({kinds}) in {jobs} jobs of {given.size} x {given.size} points")
    print(f"results that differ from the undisturbed one: {wrong}")
    print(f"points computed twice: {waste} of {jobs * grid} ({waste / (jobs * grid):.1%})")
    print(f"seconds: {seconds:.0f} in all, {seconds / jobs:.1f} a job, {plain:.1f} undisturbed on the same cluster")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
