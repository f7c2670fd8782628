"""Machines that are network namespaces with a cable between them, which can be pulled; for root on Linux only."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from waiting import wait_for

RAY = str(Path(sys.executable).parent / "ray")
PORT = 6399
# A dead node is noticed after about 2 s, one that is cut off after 10 s: so long may one be slow to answer.
HEALTH = (
    '{"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 3000,'
    ' "health_check_failure_threshold": 3}'
)

# The first process of a machine: with it ends all that runs there.
FIRST = 'mount --bind "$0" "$1" && exec sleep infinity'


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Machine:
    """Namespaces with an address, processes and a disk for Ray of their own.

    Ray's files lie at `ray_folder` on every machine, and none sees another's. A driver looks among the processes and
    the files for the node that it is on: with those of the other machine it would take itself to be there.
    """

    name: str
    address: str
    ray_folder: Path
    disk: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def boot(self) -> None:
        namespaces = ["ip", "netns", "exec", self.name, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.started.append(subprocess.Popen([*namespaces, "sh", "-c", FIRST, self.disk, self.ray_folder]))
        wait_for(lambda: self.first is not None and self.first.name() == "sleep", "the machine to be up")

    @property
    def first(self) -> psutil.Process | None:
        return next(iter(psutil.Process(self.started[0].pid).children()), None)

    def start(self, *command: str, log: Path) -> subprocess.Popen[bytes]:
        assert self.first is not None
        inside = ["nsenter", f"--target={self.first.pid}", "--net", "--pid", "--mount", "--"]
        environment = {**os.environ, "RAY_TMPDIR": str(self.ray_folder)}
        with log.open("ab") as out:
            process = subprocess.Popen([*inside, *command], env=environment, stdout=out, stderr=out)
        self.started.append(process)
        return process

    def join(self, head: Machine, log: Path, cpus: int = 1) -> subprocess.Popen[bytes]:
        """`ray start`: as the head where `head` is this machine itself."""
        where = (
            ["--head", f"--port={PORT}", "--include-dashboard=false", f"--system-config={HEALTH}"]
            if head is self
            else [f"--address={head.address}:{PORT}"]
        )
        return self.start(
            RAY, "start", "--block", *where, f"--node-ip-address={self.address}", f"--num-cpus={cpus}",
            f"--temp-dir={self.ray_folder}", "--object-store-memory=100000000", "--disable-usage-stats", log=log,
        )  # fmt: skip

    def end(self) -> None:
        if self.started and self.first is not None:
            self.first.kill()
        for process in self.started:
            process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what was started on a machine; the process here is that of `nsenter`, which waits for it."""
    for each in psutil.Process(process.pid).children():
        each.kill()
    process.wait()


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two namespaces joined by a pair of virtual devices, named after the machines."""
    tag = secrets.token_hex(3)
    subnet = f"10.{100 + secrets.randbelow(100)}.{secrets.randbelow(250)}"
    ray_folder = Path(tempfile.mkdtemp(prefix="ll"))
    machines = [
        Machine(f"ll{tag}{side}", f"{subnet}.{k + 1}", ray_folder, Path(tempfile.mkdtemp(prefix="ll")))
        for k, side in enumerate("ab")
    ]
    try:
        for each in machines:
            ip("netns", "add", each.name)
        first, second = machines
        ip(
            "-n",
            first.name,
            "link",
            "add",
            first.name,
            "type",
            "veth",
            "peer",
            "name",
            second.name,
            "netns",
            second.name,
        )
        for each, other in ((first, second), (second, first)):
            ip("-n", each.name, "addr", "add", f"{each.address}/24", "dev", each.name)
            ip("-n", each.name, "link", "set", "lo", "up")
            ip("-n", each.name, "link", "set", each.name, "up")
            # Ray learns its own address by asking for a way to the world.
            ip("-n", each.name, "route", "add", "default", "via", other.address)
            each.boot()
        yield first, second
    finally:
        for each in machines:
            each.end()
            subprocess.run(["ip", "netns", "del", each.name], check=False, capture_output=True)
            shutil.rmtree(each.disk, ignore_errors=True)
        shutil.rmtree(ray_folder, ignore_errors=True)


def pull_cable(machine: Machine) -> None:
    ip("-n", machine.name, "link", "set", machine.name, "down")


def plug_cable(machine: Machine, other: Machine) -> None:
    ip("-n", machine.name, "link", "set", machine.name, "up")
    ip("-n", machine.name, "route", "replace", "default", "via", other.address)


def can_make_namespaces() -> bool:
    if os.name != "posix" or os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    name = f"ll{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    return made and subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False).returncode == 0
