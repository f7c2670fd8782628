"""stdout carries data alone, and neither a closed nor a full stdout or stderr ends a job."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cluster
from cluster.runtime import logs
from landscape.store.results import open_run
from landscape.surface.surface import OK

NOISE = """
import ctypes
print("import: print")
os.write(1, b"import: fd\\n")
subprocess = __import__("subprocess")
subprocess.run(["echo", "import: child"])
"""
NOISY_OBSERVE = """
    def trouble(x, y):
        print("observe: print")
        os.write(1, b"observe: fd\\n")
"""


@pytest.fixture
def shell(tmp_path):
    """A command line of the shell's, `landscape` being this command."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        path = os.environ.get("PYTHONPATH", str(Path(cluster.__file__).parents[1]))
        line = line.replace("landscape ", f"{sys.executable} -W ignore -m cluster ")
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path,
            capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip

    return run


@pytest.fixture
def noisy(make_job):
    job = make_job(NOISY_OBSERVE)
    file = job.folder / "my_problem.py"
    file.write_text(
        file.read_text()
        .replace("HERE =", NOISE.replace("\\\\n", "\\n") + "\nHERE =", 1)
        .replace("def problem():\n", "def problem():\n    print('callback: print')\n")
    )
    return job


def test_what_user_code_prints_is_no_data(shell, noisy):
    done = shell("landscape run job.yaml")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["run", "plane"]
    for where in ("import: print", "import: fd", "import: child", "callback: print", "observe: print", "observe: fd"):
        assert where in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        pytest.param("landscape run job.yaml 2>/dev/full | true", 0, "", marks=pytest.mark.faults),
        pytest.param("landscape run job.yaml 2>/dev/full", 0, "", marks=pytest.mark.slow),
        pytest.param("landscape run job.yaml --serial --log-format json 2>/dev/full", 0, "", marks=pytest.mark.slow),
        pytest.param(
            "landscape run job.yaml --serial --log-format json 2> >(true) >/dev/null", 0, "", marks=pytest.mark.slow
        ),
        pytest.param("landscape run job.yaml >&- 2>&- <&-", 0, "", marks=pytest.mark.faults),
        pytest.param("landscape run job.yaml | true", 0, "63/63", marks=pytest.mark.slow),
        pytest.param("landscape run job.yaml 2> >(true) >/dev/null", 0, "", marks=pytest.mark.slow),
        pytest.param("landscape run job.yaml >/dev/full", 1, "stdout: cannot be written", marks=pytest.mark.faults),
        ("landscape plan job.yaml >/dev/full", 1, "stdout: cannot be written (No space left on device)"),
    ],
)
def test_what_cannot_be_written_to_the_streams_ends_no_job(shell, make_job, line, code, said):
    job = make_job()
    done = shell(line)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if "landscape run" in line:
        assert (open_run(job.run_path)["plane"].status == OK).all()


@pytest.mark.faults  # what user code prints is looked for above, as text
@pytest.mark.parametrize("command", ["plan", pytest.param("run", marks=pytest.mark.slow)])
def test_what_is_printed_past_the_log_comes_as_events_too(shell, noisy, command):
    done = shell(f"landscape {command} job.yaml --log-format json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(each) for each in done.stderr.splitlines()]
    printed = [each["message"] for each in events if each["event"] == "print"]
    assert {"import: print", "import: fd", "import: child", "callback: print", "observe: print"} <= set(printed)
    assert {each.get("run") for each in events} == {str(noisy.run_path)}
    assert "63 points" in done.stdout or "63/63 points" in done.stdout


@pytest.mark.faults
def test_the_last_words_of_a_process_that_dies_are_events_of_its_run_as_well(shell, make_job):
    """Also where Python has no say any more, and to the last line, which no line's end closes."""
    job = make_job("""
        def trouble(x, y):
            os.write(2, b"going down\\n")
            os.write(1, b"now")
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = shell("landscape run job.yaml --serial --log-format json")
    assert done.returncode == 1
    events = [json.loads(each) for each in done.stderr.splitlines()]
    assert [each["message"] for each in events if each["event"] == "print"][-2:] == ["going down", "now"]
    assert (events[-1]["event"], events[-1]["run"], events[-1]["code"]) == ("error", job.run_path, 1)


MANY_LINES = """
import os, threading
from cluster.runtime import logs, console as streams, supervision

logs.begin(["--log-format=json"])
streams.own_descriptors()


def work():
    def print_lines():
        for _ in range(150):
            os.write(2, b"x" * 9000 + b"\\n")

    thread = threading.Thread(target=print_lines)
    thread.start()
    for _ in range(150):
        logs.write_remark("y" * 9000, "own")
    thread.join()
    return 0


os._exit(supervision.supervise(work))
"""


def test_long_events_and_long_printed_lines_stay_apart():
    """Each is more than a pipe or Python's buffer takes at once."""
    done = subprocess.run([sys.executable, "-c", MANY_LINES], capture_output=True, text=True, timeout=100, check=True)
    events = [json.loads(each) for each in done.stderr.splitlines()]
    assert sorted((each["event"], each["message"][0], len(each["message"])) for each in events) == [
        *[("own", "y", 9000)] * 150,
        *[("print", "x", 9000)] * 150,
    ]


def test_a_line_is_written_at_once(monkeypatch):
    class Writes(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return len(text)

    written: list[str] = []
    monkeypatch.setattr(sys, "stderr", Writes())
    logs.write_remark("a line")
    logs.write_remark_lines('{"time": 1, "level": 2, "event": 3, "message": 4}', "log")
    record = logging.LogRecord("landscape", logging.WARNING, __file__, 1, "logged", (), None)
    logs.Stderr().emit(record)
    assert written == ["a line\n", '{"time": 1, "level": 2, "event": 3, "message": 4}\n', "logged\n"]


def test_the_events_of_another_process_stay_as_they_are(capsys):
    event = json.dumps({"time": "now", "level": "info", "event": "progress", "message": "half"})
    logs.write_remark_lines(f"{event}\nplain\n\n", "log")
    assert capsys.readouterr().err.splitlines() == [event, "plain"]
    assert not any(logs.is_event(each) for each in ("", "{", "{}", "[1]", '{"a": ' * 5000, '{"message": "x"}'))
