"""Names and texts that are no UTF-8, and files of a run that go beyond all bounds: the page shows what it can."""

from __future__ import annotations

import json
import os
from pathlib import Path

from opened_page import opened
from waiting import wait_for

from landscape.page.answers import event
from landscape.store.results import Run


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


def test_a_run_that_no_reader_has_foreseen_does_not_end_the_search_for_others(tmp_path, monkeypatch):
    trained(tmp_path / "fine")
    trained(tmp_path / "odd")
    real = Run.info.fget

    def broken(run):
        if run.path.endswith("odd"):
            raise KeyError("nobody thought of this")
        return real(run)

    monkeypatch.setattr(Run, "info", property(broken))
    with opened(tmp_path) as (client, _):
        wait_for(lambda: not any(row.get("pending") for row in client.json("/api/runs")["runs"]), "the rows", 10)
        problems = {row["name"]: row["problem"] for row in client.json("/api/runs")["runs"]}
    assert problems["fine"] == ""
    assert problems["odd"].startswith("this run cannot be read: KeyError('nobody thought of this')")


def test_a_number_beyond_all_bounds_damages_its_line_alone(tmp_path):
    huge = f'{{"step": 2, "loss": {"9" * 400}}}\n'
    trained(tmp_path / "run", history='{"step": 1, "loss": 2.5}\n' + huge + '{"step": 3, "loss": 2.0}\n')
    with opened(tmp_path) as (client, runs):
        assert client.json(f"/api/run?run={runs['run']}")["history"]["columns"] == ["loss"]
        assert client.get(f"/api/history?run={runs['run']}").status == 200


def test_a_document_nested_too_deeply_or_with_a_huge_number_is_refused_in_a_sentence(tmp_path):
    trained(tmp_path / "deep", info={"a": json.loads('{"a":' * 300 + "1" + "}" * 300)})
    (trained(tmp_path / "huge") / "run.json").write_text(f'{{"steps_per_epoch": {"9" * 400}}}')
    with opened(tmp_path) as (client, runs):
        for run in runs.values():
            answer = client.json(f"/api/run?run={run}")
            assert "nested too deeply, or holds a number of more than 308 digits" in answer["problems"][0]
