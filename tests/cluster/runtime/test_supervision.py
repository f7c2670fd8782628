"""The command as processes: what becomes of it when Ray, its child or itself dies, when signals come, and its ports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from faults import assert_undisturbed
from real_commands import CLI, HELD, committed

import landscape
from cluster.runtime import logs, supervision
from cluster.runtime.supervision import (
    RESTARTS,
    Child,
    ChildOutputs,
    ChildReport,
    ChildStop,
    Ended,
    Pipe,
    descendants,
    judge,
    read_signals,
    relay_output,
    watch,
)
from landscape.core.errors import FAILED, INTERRUPTED, UNREACHABLE
from landscape.job.job import Job
from landscape.store.results import open_run

# With work left until a file is there, and some points more from when another one is.
HELD_LATER = """
    def trouble(x, y):
        held(15, "anew")
        held(35, "hurry")
"""
LONGEST = 120.0  # until a test is given up that waits for something to happen


def ended(*, by: int = 0, stopped: bool = False, **report: object) -> Ended:
    return Ended(ChildReport(**report), by, stopped)


@pytest.mark.parametrize(
    ("end", "restarts", "code", "said"),
    [
        (ended(code=4), 0, 4, ""),
        (ended(by=signal.SIGABRT, code=0), 0, 0, ""),  # Python's end has no say
        (ended(ray=True), 0, None, "it took this process along); starting it anew (1 of 3)"),
        (ended(by=signal.SIGABRT, ray=True), 0, None, "starting it anew"),
        (
            ended(ray=True, lost="its raylet has ended", code=5),
            1,
            None,
            "(its raylet has ended); starting it anew",
        ),
        (
            ended(ray=True, lost="gone", code=5),
            RESTARTS,
            UNREACHABLE,
            "the private Ray has failed 4 times (gone)",
        ),
        (ended(stopped=True, by=signal.SIGABRT, ray=True), 0, INTERRUPTED, "interrupted"),
        (ended(stopped=True, ray=True, code=1), 0, INTERRUPTED, "interrupted"),
        (ended(stopped=True, orderly=True, code=130), 0, INTERRUPTED, ""),
        (ended(stopped=True, orderly=True, code=0), 0, 0, ""),
        (ended(by=signal.SIGKILL, ray=True), 0, FAILED, "ended by SIGKILL; is there memory enough?"),
        (ended(attached=True), 0, UNREACHABLE, "lost the cluster; finished tiles are saved"),
        (ended(by=signal.SIGSEGV, here=True), 0, None, "ended by SIGSEGV; going on with Ray's workers"),
        (ended(), 0, FAILED, "ended from inside (os._exit?)"),
        (ended(by=signal.SIGSEGV), 0, FAILED, "ended by SIGSEGV; user code may have crashed it"),
        (
            ended(by=signal.SIGSEGV, packed=True),
            0,
            FAILED,
            "a packed problem, which runs no user code: torch crashed",
        ),
        (ended(by=signal.SIGKILL, packed=True), 0, FAILED, "ended by SIGKILL; is there memory enough?"),
    ],
)
def test_how_a_child_ended_says_what_becomes_of_the_command(end, restarts, code, said):
    found = judge(end, restarts)
    assert found.code == code
    assert said in found.text


def test_reports_that_come_in_pieces_are_heard_whole():
    pipe = Pipe(*os.pipe())
    os.set_blocking(pipe.reader, False)
    child = Child(0, pipe.reader)
    for piece in (b'{"ra', b'y": true, "here": false}\n{"orderly"', b': true}\n{"code": 1', b"30}\n"):
        os.write(pipe.writer, piece)
        child.listen()
    assert child.report == ChildReport(ray=True, orderly=True, code=130)
    assert child.open
    os.close(pipe.writer)
    child.listen()
    assert not child.open
    child.close()


LATE = """
import atexit, os, signal
from cluster.runtime import supervision


def work():
    atexit.register(os.kill, os.getpid(), {signal})
    return 3


os._exit(supervision.supervise(work))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_amid_pythons_own_end_is_not_seen(name):
    script = LATE.replace("{signal}", f"signal.{name}")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONGEST, check=False)
    assert (ended.returncode, ended.stderr) == (3, "")


@pytest.mark.parametrize(
    ("report", "ended_by"), [(ChildReport(), signal.SIGTERM), (ChildReport(orderly=True, code=0), signal.SIGKILL)]
)
def test_a_signal_asks_a_child_and_ends_one_that_has_said_its_last_word(report, ended_by):
    child = subprocess.Popen(["sleep", "600"])
    try:
        stop = ChildStop(child.pid)
        stop.hear(signal.SIGTERM, report)
        assert (stop.killed, stop.deadline is None) == (ended_by == signal.SIGKILL,) * 2
        assert child.wait(LONGEST) == -ended_by
    finally:
        child.kill()
        child.wait()


def test_a_last_word_that_the_reader_of_prints_has_taken_in_is_obeyed(monkeypatch):
    monkeypatch.setattr(supervision, "LEAVE_SECONDS", 0.0)
    (told_of, tells), orders, pipes = os.pipe(), Pipe(*os.pipe()), ChildOutputs(Pipe(*os.pipe()), Pipe(*os.pipe()))
    for each in (told_of, orders.reader):
        os.set_blocking(each, False)
    process = subprocess.Popen(["sleep", "600"])
    child = Child(process.pid, told_of)
    try:
        with read_signals() as wakeup:
            os.write(tells, b'{"code": 3}\n')
            os.write(pipes.printed.writer, b"a line\n")
            for thread in relay_output(child, pipes):
                thread.join()
            assert child.report.code == 3
            ended = watch(child, orders.reader, wakeup)
        assert (ended.report.code, ended.signal) == (3, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        child.close()
        for each in (tells, orders.reader, orders.writer):
            os.close(each)


def test_nothing_is_told_where_nobody_listens():
    assert not logs.is_supervised()
    logs.tell(ray=True)


# -- real commands -----------------------------------------------------------------------------------------------


def command(job: Path, *words: str) -> list[str]:
    return [*CLI, "--log-format", "json", "run", str(job), *words]


class Running:
    """A command, what it has said so far, and every process that was ever seen below it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self.seen: set[int] = set()

    def lines(self) -> list[dict[str, object]]:
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for(self, true: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LONGEST
        while not true():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, f"no {what}: {self.log.read_text()}"
            self.look()
            time.sleep(0.05)
        self.look()

    def look(self) -> None:
        self.seen.update(descendants(self.process.pid))

    def says_event(self, event: str) -> Callable[[], bool]:
        return lambda: any(each["event"] == event for each in self.lines())

    def says(self, stage: str) -> Callable[[], bool]:
        return lambda: any(str(each.get("stage", "")).startswith(stage) for each in self.lines())

    def ends(self) -> int:
        """The exit code, once nothing is left of the command."""
        code = self.process.wait(LONGEST)
        end = time.monotonic() + LONGEST
        while left := {pid for pid in self.seen if lives(pid)}:
            assert time.monotonic() < end, {pid: name_of(pid) for pid in left}
            time.sleep(0.05)
        return code

    def named(self, name: str) -> int:
        return next(pid for pid in descendants(self.process.pid) if name_of(pid) == name)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2]
    except OSError:
        return ""


def words_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def start(tmp_path, ray_folder) -> Iterator[Callable[..., Running]]:
    @contextmanager
    def started() -> Iterator[Callable[..., Running]]:
        begun: list[Running] = []

        def begin(*words: str, log: str = "stderr.log") -> Running:
            place = tmp_path.parent / f"{tmp_path.name}.{log}"
            environment = {**os.environ, "RAY_TMPDIR": str(ray_folder)}
            with place.open("wb") as file:
                process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=file)
            begun.append(Running(process, place))
            return begun[-1]

        try:
            yield begin
        finally:
            for each in begun:
                each.process.kill()
                each.process.wait()

    with started() as begin:
        yield begin


@pytest.mark.slow
def test_a_private_ray_that_dies_is_started_anew_and_the_job_goes_on_to_the_same_bytes(make_job, start):
    job = make_job(HELD, tile=[1])
    running = start(*command(job.folder / "job.yaml", "--workers=2"))
    anew = kill_part_of_ray(running, job, "gcs_server")
    (job.folder / "hurry").touch()
    assert running.ends() == 0, running.log.read_text()
    assert_undisturbed(job)
    assert anew == [each for each in running.lines() if each["event"] == "start-anew"]


def kill_part_of_ray(running: Running, job: Job, victim: str) -> list[dict[str, object]]:
    """After some points; what is said of the new start."""
    running.wait_for(lambda: committed(job.run_path) > 8, "points")
    os.kill(running.named(victim), signal.SIGKILL)
    running.wait_for(running.says_event("start-anew"), "new start")
    (anew,) = found = [each for each in running.lines() if each["event"] == "start-anew"]
    reasons = (f"its {victim} has ended", "it took this process along")  # whether Ray or our look at it was faster
    assert anew["message"] in [f"the private Ray has failed ({each}); starting it anew (1 of 3)" for each in reasons]
    return found


@pytest.mark.slow  # two private Rays take 20 seconds of a core; `judge` is tested above without them
def test_a_private_ray_that_dies_is_started_anew_where_a_signal_ends_in_order_and_the_bytes_stay(make_job, start):
    job = make_job(HELD_LATER, tile=[1])
    running = start(*command(job.folder / "job.yaml", "--workers=1"))
    kill_part_of_ray(running, job, "raylet")
    before = committed(job.run_path)
    (job.folder / "anew").touch()
    running.wait_for(lambda: committed(job.run_path) > before, "points of the new Ray")
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 130, running.log.read_text()
    assert "the same command goes on" in str(running.lines()[-1]["message"])
    assert "Traceback" not in running.log.read_text()
    assert before < committed(job.run_path) < 63
    assert open_run(job.run_path)["plane"].attributes["progress"]["state"] == "interrupted"
    (job.folder / "hurry").touch()
    landscape.run(job)
    assert_undisturbed(job)


@pytest.mark.slow
def test_a_private_ray_that_dies_each_time_ends_with_code_5_and_one_line(make_job, start):
    """Its raylet is killed each time that one of our workers is there: earlier, Ray waits 30 s for it."""
    job = make_job(HELD, tile=[1])
    running = start(*command(job.folder / "job.yaml", "--workers=2"))
    end = time.monotonic() + 4 * LONGEST
    while running.process.poll() is None:
        assert time.monotonic() < end, running.log.read_text()
        running.look()
        names = {pid: name_of(pid) for pid in descendants(running.process.pid)}
        if any(name.startswith("ray::Worker") for name in names.values()):
            for pid in [pid for pid, name in names.items() if name == "raylet"]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    assert running.ends() == UNREACHABLE, running.log.read_text()
    lines = running.lines()
    anew = [str(each["message"]) for each in lines if each["event"] == "start-anew"]
    assert [each.partition("anew ")[2] for each in anew] == ["(1 of 3)", "(2 of 3)", "(3 of 3)"]
    (last,) = [each for each in lines if each["event"] == "error"]
    assert "the private Ray has failed 4 times" in str(last["message"])


def listening(pids: set[int]) -> dict[int, list[str]]:
    """The addresses at which these processes listen for TCP, in /proc's hexadecimal."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets[fields[9]] = fields[1].partition(":")[0]
    found: dict[int, list[str]] = {}
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inode = os.readlink(entry).removeprefix("socket:[").removesuffix("]")
            except OSError:
                continue
            if inode in sockets:
                found.setdefault(pid, []).append(sockets[inode])
    return found


LOOPBACK = {
    socket.inet_aton("127.0.0.1")[::-1].hex().upper(),
    "0000000000000000FFFF00000100007F",  # ::ffff:127.0.0.1
    "00000000000000000000000001000000",  # ::1
}


@pytest.mark.faults  # a private Ray
def test_a_private_ray_is_small_listens_on_loopback_and_a_killed_command_leaves_its_points_alone(make_job, start):
    job = make_job(HELD, tile=[1])
    running = start(*command(job.folder / "job.yaml", "--workers=1"))
    running.wait_for(lambda: committed(job.run_path) > 1, "points")
    found = listening(set(descendants(running.process.pid)))
    assert {"gcs_server", "raylet"} <= {name_of(pid) for pid in found}
    begun = {Path(word).name for pid in descendants(running.process.pid) for word in words_of(pid)}
    assert not begun & {"dashboard.py", "monitor.py", "log_monitor.py"}, "what only a cluster needs"
    open_to_all = {name_of(pid): each for pid, each in found.items() if not set(each) <= LOOPBACK}
    assert not open_to_all
    running.look()
    os.kill(running.process.pid, signal.SIGKILL)
    assert running.ends() == -signal.SIGKILL
    kept = committed(job.run_path)
    assert 1 < kept < 63
    (job.folder / "hurry").touch()
    landscape.run(job)
    assert_undisturbed(job)


# -- signals -----------------------------------------------------------------------------------------------------

BLOCKED = """
    import ctypes
    note("blocked", "x")
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # as a library does that holds Python's lock, and that no signal interrupts
"""


@pytest.mark.faults
def test_a_signal_is_obeyed_while_ray_starts(make_job, start):
    running = start(*command(make_job(HELD).folder / "job.yaml", "--workers=1"))
    running.wait_for(running.says("starting Ray"), "start of Ray")
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 130, running.log.read_text()
    assert "interrupted" in str(running.lines()[-1]["message"])


def blocking_job(make_job) -> tuple[Path, Path]:
    job = make_job()
    file = job.folder / "my_problem.py"
    file.write_text(file.read_text().replace("def problem():\n", "def problem():" + BLOCKED))
    return job.folder / "job.yaml", job.folder / "blocked"


@pytest.mark.faults  # signals that no code blocks are in test_cli
def test_a_signal_is_obeyed_while_user_code_blocks(make_job, start):
    job, blocked = blocking_job(make_job)
    running = start(*command(job, "--serial"))
    running.wait_for(blocked.exists, "blocked callback")
    running.process.send_signal(signal.SIGTERM)
    assert running.ends() == 130, running.log.read_text()
    assert "interrupted; the same command goes on" in running.log.read_text()


@pytest.mark.faults
def test_the_second_signal_ends_at_once(make_job, start):
    job, blocked = blocking_job(make_job)
    running = start(*command(job, "--serial"))
    running.wait_for(blocked.exists, "blocked callback")
    while running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        time.sleep(0.15)
    assert running.ends() == 130, running.log.read_text()


def test_a_signal_before_anything_has_begun_is_obeyed(tmp_path):
    """While Python imports what the command is made of."""
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "cluster.runtime.supervision":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Finder())
sys.argv = ["landscape", "status", {str(tmp_path)!r}]
from cluster.commands.entry import main
main()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 130
    assert "Traceback" not in found.stderr


# -- user code that ends the process -----------------------------------------------------------------------------


@pytest.mark.faults
def test_user_code_that_ends_the_process_is_no_success(make_job, start):
    job = make_job()
    file = job.folder / "my_problem.py"
    file.write_text(file.read_text().replace("def problem():\n", "def problem():\n    os._exit(0)\n"))
    running = start(*command(job.folder / "job.yaml", "--serial"))
    assert running.ends() == 1
    assert "the process was ended from inside (os._exit?)" in str(running.lines()[-1]["message"])
