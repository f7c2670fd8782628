"""What the notebook about clusters calls: jobs on a Ray of this machine, whose workers and drivers it kills."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.runtime.status import run_status, status_text
from landscape.core.errors import ClusterUnreachableError
from studies.on_cluster import surface

STARTS_WITHIN = 120.0  # seconds


@dataclass(frozen=True)
class Head:
    """A Ray on this machine that takes jobs from those who know its token.

    Attributes:
        address: of its dashboard.
        environment: of commands that talk to it.
    """

    address: str
    environment: Mapping[str, str]

    def command(self, *words: object) -> str:
        """Give a `landscape` command; what it prints on stdout."""
        return _command(*words, environment=self.environment)


def command(*words: object) -> str:
    """Give a `landscape` command that needs no cluster; what it prints on stdout."""
    return _command(*words, environment=None)


def _command(*words: object, environment: Mapping[str, str] | None) -> str:
    command = [sys.executable, "-m", "cluster", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def status(job: Path) -> str:
    """What `landscape status` says of the landscape of a job, without where its run lies and who computes it."""
    found = run_status(str(job.parent / "run"))
    return next(line for line in status_text(found).splitlines() if line.startswith(found["landscapes"][0]["name"]))


def kill_a_worker(job: Path) -> bool:
    """Kill, by SIGKILL, a worker that has computed some of a job; False where none of them is there any more."""
    for worker in surface(job).record.progress.by_worker:
        try:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        return True
    return False


@contextmanager
def head() -> Iterator[Head]:
    """A Ray with a dashboard, on loopback, behind a token of its own and in a folder of its own.

    Raises:
        ClusterUnreachableError: it does not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="ll"))
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    here = Path(sys.executable).parent
    environment |= {
        "PATH": f"{here}:{os.environ['PATH']}", "PYTHONWARNINGS": "ignore", "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }  # fmt: skip
    words = [
        str(here / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1",
        f"--port={_free_port()}", f"--ray-client-server-port={_free_port()}", "--dashboard-host=127.0.0.1",
        f"--dashboard-port={port}", "--dashboard-agent-listen-port=0", f"--temp-dir={folder}", "--num-cpus=2",
        "--num-gpus=0", "--object-store-memory=100000000", "--disable-usage-stats",
    ]  # fmt: skip
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address, process)
        yield Head(address, environment)
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTS_WITHIN
    while process.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=2)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                return
        except OSError:
            time.sleep(0.3)
        else:
            return
    raise ClusterUnreachableError("ray start: no dashboard answers; `landscape doctor` says what is wrong")
