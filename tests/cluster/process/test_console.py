"""What is shown of the search for an engine: beside the stage on a terminal, as an event for machines, else nothing."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from cluster.process import console
from cluster.process.logs import configure
from landscape.evaluation.choice.questions import Candidate, Freedom
from landscape.evaluation.choice.search import Search
from landscape.plan import Engine, Plan
from landscape.progress import CHOOSING, stage

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


def tell_a_candidate() -> None:
    search = Search(Plan(batch_size=256, threads=1, device="cpu"), Freedom(points=10**9), clock=lambda: 0.0)
    search._end, search._candidates = 12.0, 7
    stage(CHOOSING)
    search._tell(Candidate(Engine.parse("eager+maxima"), 64))


def test_a_terminal_shows_the_candidate_beside_the_stage(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=200)
    monkeypatch.setattr(console, "_console", lambda: screen)
    monkeypatch.setattr(console, "is_watched", lambda: True)
    with console.ProgressDisplay() as display:
        tell_a_candidate()
        (shown,) = display._bar.tasks
    assert shown.description == CHOOSING
    assert shown.fields["note"] == "engine 1 of about 7: eager+maxima, batches of 64; 12 s left"


def test_machines_get_an_event_and_a_log_file_no_line_for_each_candidate(capsys):
    configure("json", debug=False)
    with console.ProgressDisplay():
        tell_a_candidate()
    _, event = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert event["event"] == "search"
    told = (event["candidate"], event["candidates"], event["seconds_left"], event["engine"], event["batch_size"])
    assert told == (1, 7, 12.0, "eager+maxima", 64)
    configure("text", debug=False)
    with console.ProgressDisplay():
        tell_a_candidate()
    assert capsys.readouterr().err.splitlines() == [CHOOSING]
