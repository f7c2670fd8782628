"""The rows of the list: read again whenever their files have changed."""

from __future__ import annotations

import json

import pytest

from landscape.page import summaries
from landscape.page.places import FoundRun
from landscape.page.summaries import Summaries


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
