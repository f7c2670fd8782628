"""The rows of the list: read again whenever their files have changed."""

from __future__ import annotations

import json

import pytest

from landscape.page import summaries
from landscape.page.places import FoundRun
from landscape.page.summaries import Summaries, progress_of
from landscape.state import unreadable_status


def test_what_is_written_while_a_row_is_read_is_read_again(runs, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(summaries, "REST", 0)
    info, found, known = runs / "net" / "run.json", FoundRun("net", "net", str(runs / "net")), Summaries()
    read_row = summaries.read_row

    def meanwhile(run):
        row = read_row(run)
        info.write_text(json.dumps(json.loads(info.read_text()) | {"learning_rate": 0.25}))
        return row

    monkeypatch.setattr(summaries, "read_row", meanwhile)
    known.read(found)
    assert known.row(found)["learning_rate"] is None
    monkeypatch.setattr(summaries, "read_row", read_row)
    assert known.is_due(found)
    known.read(found)
    assert known.row(found)["learning_rate"] == 0.25
    assert not known.is_due(found)


@pytest.mark.parametrize("rates", [(2.0, 0.0), (1.0, 1.0)], ids=["one after another", "at once"])
def test_the_time_left_is_that_of_all_landscapes_together(rates):
    landscapes = [
        unreadable_status(name, "") | {"state": "running", "missing": 100, "rate": rate, "problems": []}
        for name, rate in zip("ab", rates, strict=True)
    ]
    assert progress_of(landscapes, True, [])["eta_seconds"] == 100


def test_a_run_of_unknown_speed_has_no_time_left():
    waiting = unreadable_status("a", "") | {"state": "running", "missing": 100}
    assert progress_of([waiting], True, [])["eta_seconds"] is None
    ended = waiting | {"state": "interrupted", "rate": 2.0}
    assert progress_of([ended], False, [])["eta_seconds"] is None
