"""Runs that are damaged, half deleted, newer, or strange: each is a sentence, and everything else works."""

from __future__ import annotations

import base64
import json
import random
import shutil
import warnings
from pathlib import Path

import pytest
from damages import damaged_copy, damages_of, kinds_of
from opened_page import opened
from page_client import Client

FINE = (200, 404, 410, 503)


def questions(run: str) -> list[str]:
    figures = [f"figure?run={run}&landscape={name}" for name in ("minimum", "path", "line", "cube")]
    return [
        *figures,
        f"figure?run={run}&landscape=minimum&kind=surface&log=1&uncertainty=1",
        f"thumbnail?run={run}&landscape=cube",
        f"csv?run={run}&landscape=path",
        f"job?run={run}&landscape=path&box=0,1",
        f"history?run={run}",
        f"differences?item={run}|minimum&item={run}|path",
        f"compare?item={run}|minimum&item={run}|path",
    ]


def each_damage(run: Path) -> list[tuple[str, str, int]]:
    return [(path, damage.name, k) for path in kinds_of(run).values() for k, damage in enumerate(damages_of(path))]


@pytest.mark.long
def test_a_damaged_file_is_told_in_a_sentence(finished, tmp_path):
    """Three damages; `make test-slow` tries every way on every kind of file."""
    try_damages(finished, tmp_path, random.Random(3).sample(each_damage(finished / "net"), 3))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(24))
def test_every_damage_is_told_in_a_sentence(finished, tmp_path, part):
    try_damages(finished, tmp_path, each_damage(finished / "net")[part::24])


def try_damages(finished: Path, folder: Path, cases: list[tuple[str, str, int]]) -> None:
    """Ask for everything of a run for each of these damages."""
    for k, (path, _, damage) in enumerate(cases):
        damaged_copy(finished / "net", folder / "runs" / str(k), path, damages_of(path)[damage], seed=k)
    shutil.copytree(finished / "net", folder / "runs" / "sound")
    with opened(folder / "runs") as (client, ids), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged chunk is logged
        for k, case in enumerate(cases):
            if str(k) in ids:  # without run.json and landscapes it is no run any more
                ask_everything(client, ids[str(k)], case)
        assert len(client.json(f"/api/run?run={ids['sound']}")["landscapes"]) == 4
        assert all("state" in row or row.get("pending") for row in client.json("/api/runs")["runs"])


def ask_everything(client: Client, run: str, case: object) -> None:
    answer = client.json(f"/api/run?run={run}")
    told = {each["name"] for each in answer["landscapes"]} | set(answer["unreadable"])
    strange = {"zarr.json"}  # a folder of that name is told as a landscape that cannot be read
    assert told <= {"minimum", "path", "line", "cube"} | strange, case
    assert not {each["name"] for each in answer["landscapes"]} & strange, case
    for question in questions(run):
        reply = client.get(f"/api/{question}")
        assert reply.status in FINE, (case, question, reply.body)
        if reply.status != 200:
            assert 0 < len(reply.error) < 1500, (case, question)
            assert "Traceback" not in reply.error


def change(run: Path, landscape: str, **attributes: object) -> None:
    file = run / "landscapes.zarr" / landscape / "zarr.json"
    document = json.loads(file.read_text())
    document["attributes"] |= attributes
    file.write_text(json.dumps(document))


def test_a_newer_landscape_is_told_and_the_others_are_shown(runs):
    change(runs / "net", "minimum", schema_version=99)
    with opened(runs) as (client, ids):
        answer = client.json(f"/api/run?run={ids['net']}")
        assert "schema version 99" in answer["unreadable"]["minimum"]
        assert [each["name"] for each in answer["landscapes"]] == ["path", "line", "cube"]
        reply = client.get(f"/api/figure?run={ids['net']}&landscape=minimum")
        assert reply.status == 404
        assert "update it" in reply.error
        picture = client.json(f"/api/thumbnail?run={ids['net']}&landscape=minimum")
        assert (picture["width"], picture["levels"]) == (1, base64.b64encode(b"\xff").decode())
        assert "update it" in picture["problem"]
        assert client.get(f"/api/thumbnail?run={ids['net']}&landscape=none").status == 404


def test_a_history_that_cannot_be_read_is_told_each_time(runs):
    history = runs / "net" / "history.jsonl"
    history.unlink()
    history.mkdir()
    with opened(runs) as (client, ids):
        for _ in range(2):
            answer = client.json(f"/api/run?run={ids['net']}")
            assert answer["history"] is None
            assert any("history.jsonl" in problem for problem in answer["problems"])


def test_a_half_deleted_run_is_still_a_page(runs):
    shutil.rmtree(runs / "net" / "landscapes.zarr")
    with opened(runs) as (client, ids):
        answer = client.json(f"/api/run?run={ids['net']}")
        assert (answer["landscapes"], answer["info"][0]) == ([], ["network", "Linear"])
        (row,) = client.json("/api/runs")["runs"]
        assert row.get("pending") or row["state"] == "empty"


def test_a_landscape_of_which_one_row_is_computed(runs):
    for chunk in ("1/0", "1/1", "1/2", "0/1", "0/2"):
        (runs / "net" / "landscapes.zarr" / "minimum" / "status" / "c" / chunk).unlink()
    with opened(runs) as (client, ids):
        for kind in ("contour", "topographic", "surface"):
            answer = client.json(f"/api/figure?run={ids['net']}&landscape=minimum&kind={kind}")
            assert "Interrupted: 4 of 20 points" in answer["caption"]


@pytest.mark.parametrize("file", ["loss/c/0/1", "status/c/0/1"])
def test_points_that_cannot_be_read_are_told_and_no_job_was_interrupted(runs, file):
    (runs / "net" / "landscapes.zarr" / "minimum" / file).write_bytes(b"nothing")
    with opened(runs) as (client, ids):
        asked = f"/api/run?run={ids['net']}"
        (minimum,) = [each for each in client.json(asked)["landscapes"] if each["name"] == "minimum"]
        lost = minimum["points"] - minimum["done"]
        assert (minimum["state"], minimum["unreadable"]) == ("damaged", lost)
        assert lost > 0
        caption = client.json(f"/api/figure?run={ids['net']}&landscape=minimum")["caption"]
        assert f"Damaged: {20 - lost} of 20 points" in caption


def test_a_place_without_runs_is_searched_again(tmp_path):
    with opened(tmp_path) as (client, ids):
        assert ids == {}
        assert client.json("/api/runs")["places"][0]["problem"] == ""
        assert client.get("/api/run?run=x").status == 404


def test_names_that_mean_something_elsewhere_are_only_names(runs):
    strange = runs / "<b>&amp;'\"%2e\u202e"
    shutil.move(runs / "net", strange)
    with opened(runs) as (client, ids):
        (name,) = ids
        assert name == strange.name
        assert client.json(f"/api/run?run={ids[name]}")["name"] == name
