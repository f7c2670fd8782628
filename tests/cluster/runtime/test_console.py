"""The progress that a command shows: lines, or events for machines."""

from __future__ import annotations

import json

import pytest

from cluster.runtime.console import command_progress
from cluster.runtime.logs import configure
from landscape.core.plan import Engine
from landscape.core.progress import CHOOSING, Progress, stage
from landscape.evaluation.tuning.choices import Candidate
from landscape.evaluation.tuning.search import report_candidate

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def tell_a_candidate() -> None:
    stage(CHOOSING)
    report_candidate(Candidate(Engine.parse("eager+maxima"), 64), 1, 7, 12.0)


def test_machines_get_an_event_and_a_log_file_no_line_for_each_candidate(capsys):
    configure("json", debug=False)
    with command_progress():
        tell_a_candidate()
    _, event = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert event["event"] == "search"
    told = (event["candidate"], event["candidates"], event["seconds_left"], event["engine"], event["batch_size"])
    assert told == (1, 7, 12.0, "eager+maxima", 64)
    configure("text", debug=False)
    with command_progress():
        tell_a_candidate()
    assert capsys.readouterr().err.splitlines() == [CHOOSING]


def test_lines_count_the_points_that_are_given_up_and_the_last_one_has_all_of_them(capsys):
    configure("text", debug=False)
    with command_progress() as display:
        for given_up in range(0, 122, 11):
            display(Progress("a", 0, 11, 0, 121, 1.0, 0.0, failures=given_up // 11, given_up=given_up))
        display(Progress("b", 2, 3, 50, 100, 1.0, 25.0, failures=1, given_up=25))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "a: 0/121 points (0%), 121 given up"
    assert lines[-1] == "b: 50/100 points (50%), 25 points/s, ETA 1 s, 25 given up"
