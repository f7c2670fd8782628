"""Which of some lines a process carries out, for `mutants.py trace`: a plugin of pytest, and of child processes."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

_enter: Callable[[FrameType, str, Any], Any] | None = None


def install() -> None:
    """Note from now on each of the lines of MUTATED_LINES, with the test of this moment, in REACHED_LINES.

    Python ends the tracing of a thread in which recursion has no end, so `pytest_runtest_setup` begins it anew.
    """
    global _enter
    if sys.gettrace() is not None or "MUTATED_LINES" not in os.environ:
        return
    with open(os.environ["MUTATED_LINES"]) as file:
        wanted: dict[str, set[int]] = {}
        for path, line in json.load(file):
            wanted.setdefault(path, set()).add(line)
    holds: dict[CodeType, bool] = {}
    noted: set[tuple[str, int, str]] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        hit = holds.get(code)
        if hit is None:
            lines = wanted.get(code.co_filename, set())
            hit = code.co_name != "<module>" and any(line in lines for *_, line in code.co_lines())
            holds[code] = hit
        return follow if hit else None

    def follow(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lineno in wanted[frame.f_code.co_filename]:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
            place = (frame.f_code.co_filename, frame.f_lineno, test)
            if place not in noted:
                noted.add(place)
                write({"file": place[0], "line": place[1], "test": test})
        return follow

    _enter = enter
    threading.settrace(enter)
    sys.settrace(enter)


def write(entry: dict[str, Any]) -> None:
    descriptor = os.open(os.environ["REACHED_LINES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(entry) + "\n").encode())
    finally:
        os.close(descriptor)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if _enter is not None and sys.gettrace() is None:
        sys.settrace(_enter)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that shares out the tests, once per test."""
    if report.when == "call" and "PYTEST_XDIST_WORKER" not in os.environ:
        write({"test": report.nodeid, "seconds": report.duration})
