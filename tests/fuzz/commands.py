"""Commands given in this process, or as a real one; both with a time limit, and told what they leave behind."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from judging import Ended, Verdict

LIMIT = 60.0  # seconds: far more than any case takes, on a busy machine too
SHARED = ("landscape", "cluster")
ENVIRONMENT = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}


class TooLong(BaseException):
    """No Exception, so that nothing which catches those swallows it."""


def give(words: Sequence[str], folder: Path, *, real: bool) -> Ended:
    """`landscape WORDS…` in `folder`."""
    return _as_command(words, folder) if real else _here(words, folder)


def _as_command(words: Sequence[str], folder: Path) -> Ended:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "cluster", *words]
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=4 * LIMIT)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        code = None
    return Ended(code, out.decode(errors="replace"), err.decode(errors="replace"), time.monotonic() - started)


def _here(words: Sequence[str], folder: Path) -> Ended:
    """In this process, where torch is imported already; what it changes of the process is put back."""
    from cluster.commands.entry import main

    out, err = io.StringIO(), io.StringIO()
    started, code = time.monotonic(), None
    with _undisturbed(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv = ["landscape", *words]
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        except TooLong:
            code = None
        except BaseException as error:
            err.write(f"Traceback (most recent call last): {type(error).__name__}: {error}")
            code = 1
    return Ended(code, out.getvalue(), err.getvalue(), time.monotonic() - started)


@contextlib.contextmanager
def _undisturbed(folder: Path) -> Iterator[None]:
    here, path, argv, modules = Path.cwd(), list(sys.path), list(sys.argv), set(sys.modules)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    environment, root = dict(os.environ), logging.getLogger()
    before = list(root.handlers), root.level

    def stop(number: int, frame: object) -> None:
        raise TooLong

    os.chdir(folder)
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT, 1.0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.chdir(here)
        sys.path[:], sys.argv[:] = path, argv
        for name in set(sys.modules) - modules:
            if "fuzzed" in name:
                del sys.modules[name]
        os.environ.clear()
        os.environ.update(environment)
        root.handlers[:], root.level = before[0], before[1]


class Leftovers:
    """What a case leaves behind in this process's own surroundings: processes, threads, temporary files."""

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self._processes = _children()
        self._files = _entries(temporary)

    def verdict(self) -> Verdict:
        faults = []
        deadline = time.monotonic() + LIMIT
        while _children() - self._processes and time.monotonic() < deadline:
            time.sleep(0.05)
        left = _children() - self._processes
        if left:
            faults.append(f"{len(left)} processes are left")
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        files = _entries(self._temporary) - self._files
        files = {name for name in files if not name.startswith(("landscape-", "torchinductor", "pymp-", "ray"))}
        if files:
            faults.append(f"temporary files are left: {sorted(files)[:3]}")
        if threading.active_count() > 60:
            faults.append(f"{threading.active_count()} threads")
        return Verdict(tuple(faults))


def _children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


def _entries(folder: Path) -> set[str]:
    try:
        return {each.name for each in folder.iterdir()}
    except OSError:
        return set()
