"""What is shown of the search for an engine: beside the stage on a terminal, as an event for machines, else nothing."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console
from waiting import wait_for

from cluster.runtime.console import ProgressDisplay
from cluster.runtime.logs import configure
from landscape.core.plan import Engine
from landscape.core.progress import CHOOSING, Progress, stage
from landscape.evaluation.tuning.choices import Candidate
from landscape.evaluation.tuning.search import report_candidate

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def tell_a_candidate() -> None:
    stage(CHOOSING)
    report_candidate(Candidate(Engine.parse("eager+maxima"), 64), 1, 7, 12.0)


def test_a_terminal_shows_the_candidate_beside_the_stage():
    written = io.StringIO()
    with ProgressDisplay(Console(file=written, force_terminal=True, width=200, color_system=None)):
        tell_a_candidate()
        line = f"{CHOOSING}.* engine 1 of about 7: eager\\+maxima, batches of 64; 12 s left"
        wait_for(lambda: re.search(line, written.getvalue()), "the bar, which is drawn ten times a second")


def test_machines_get_an_event_and_a_log_file_no_line_for_each_candidate(capsys):
    configure("json", debug=False)
    with ProgressDisplay():
        tell_a_candidate()
    _, event = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert event["event"] == "search"
    told = (event["candidate"], event["candidates"], event["seconds_left"], event["engine"], event["batch_size"])
    assert told == (1, 7, 12.0, "eager+maxima", 64)
    configure("text", debug=False)
    with ProgressDisplay():
        tell_a_candidate()
    assert capsys.readouterr().err.splitlines() == [CHOOSING]


def test_lines_count_the_points_that_are_given_up_and_the_last_one_has_all_of_them(capsys):
    configure("text", debug=False)
    with ProgressDisplay() as display:
        for given_up in range(0, 122, 11):
            display(Progress("a", 0, 11, 0, 121, 1.0, 0.0, failures=given_up // 11, given_up=given_up))
        display(Progress("b", 2, 3, 50, 100, 1.0, 25.0, failures=1, given_up=25))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "a: 0/121 points (0%), 121 given up"
    assert lines[-1] == "b: 50/100 points (50%), 25 points/s, ETA 1 s, 25 given up"
