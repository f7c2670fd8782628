"""Names and texts that are no UTF-8, and files of a run that go beyond all bounds: the page shows what it can."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from page_client import Client, asking

from landscape.page.app import make_app
from landscape.page.places import open_place
from landscape.page.security import Guard
from landscape.page.viewers import event

GUARD = Guard("t")


@contextmanager
def opened(place: Path) -> Iterator[tuple[Client, dict[str, str]]]:
    """The page over a place, and the identifiers of its runs by their names."""
    with asking(make_app([open_place(str(place))], GUARD), f"{GUARD.cookie}=t") as client:
        while (answer := client.json("/api/runs"))["scanning"]:
            pass
        yield client, {row["name"]: row["id"] for row in answer["runs"]}


def trained(run: Path, info: object = None, history: str = '{"step": 1, "loss": 2.5}\n') -> Path:
    """A run that holds what training leaves, and no landscape."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps({} if info is None else info))
    (run / "history.jsonl").write_text(history)
    return run


def test_a_run_whose_name_is_not_utf8_is_listed_beside_the_others(tmp_path):
    trained(tmp_path / "fine")
    trained(Path(os.fsdecode(os.fsencode(str(tmp_path)) + b"/bad\xffname")))
    with opened(tmp_path) as (client, runs):
        assert set(runs) == {"fine", "bad?name"}
        assert client.json(f"/api/run?run={runs['bad?name']}")["name"] == "bad?name"
        assert client.get(f"/api/history?run={runs['bad?name']}").status == 200


def test_half_a_character_in_a_document_or_a_name_of_a_log_is_shown_as_a_question_mark(tmp_path):
    run = trained(tmp_path / "run", {"model": "A\ud800B"}, '{"step": 1, "lo\\ud800ss": 2.5}\n')
    (run / "logs").mkdir()
    (Path(os.fsdecode(os.fsencode(str(run / "logs")) + b"/\xff.log"))).write_text("a line\n")
    with opened(tmp_path) as (client, runs):
        answer = client.json(f"/api/run?run={runs['run']}")
        assert answer["history"]["columns"] == ["lo?ss"]
        assert answer["logs"] == [{"name": "?.log", "lines": ["a line"]}]
        assert client.get(f"/api/history?run={runs['run']}").status == 200


def test_an_event_carries_half_a_character():
    assert event("log", {"name": "\udcff"}) == b'event: log\r\ndata: {"name":"?"}\r\n\r\n'
