"""What stands beside the figures: thumbnails, tables, the history, jobs for a box, comparisons."""

from __future__ import annotations

import base64
import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from opened_page import opened

from landscape import Job, open_run
from landscape.page.api import free_name
from landscape.page.figures import thumbnail
from landscape.page.queries import AddressQuery
from landscape.surface.surface import Axis, Surface


def pixels(answer: dict) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(answer["levels"]), np.uint8)
    return flat.reshape(answer["height"], answer["width"])


def test_a_thumbnail_spans_the_scale(client, net, finished):
    answer = client.json(f"/api/thumbnail?run={net}&landscape=minimum")
    loss = open_run(finished / "net")["minimum"].loss
    drawn = pixels(answer)
    assert drawn.shape == loss.shape
    assert np.unravel_index(drawn.argmin(), drawn.shape) == np.unravel_index(loss.argmin(), loss.shape)
    assert (drawn.min(), drawn.max()) == (0, 250)
    assert (answer["low"], answer["high"]) == (loss.min(), loss.max())
    assert pixels(client.json(f"/api/thumbnail?run={net}&landscape=line")).shape == (1, 6)
    assert pixels(client.json(f"/api/thumbnail?run={net}&landscape=cube&observable=accuracy")).shape == (3, 3)


def test_a_thumbnail_tells_missing_points_from_low_ones():
    values = np.array([[1.0, 2.0, np.nan, np.nan, np.inf]])
    axes = (Axis("alpha", np.arange(5.0)), Axis("beta", np.arange(1.0)))
    surface = Surface("a", axes, {"loss": values}, np.array([[1, 1, 0, 3, 2]], np.uint8))
    assert pixels(thumbnail(surface, "loss")).tolist() == [[0, 250, 255, 253, 254]]
    nothing = Surface("a", axes, {"loss": np.full((1, 5), np.nan)}, np.zeros((1, 5), np.uint8))
    answer = thumbnail(nothing, "loss")
    assert (pixels(answer) == 255).all()
    assert (answer["low"], answer["high"]) == (None, None)


def test_the_table_has_exactly_the_points_that_are_drawn(client, net, finished):
    reply = client.get(f"/api/csv?run={net}&landscape=minimum&max=3&observable=accuracy")
    assert reply.headers["content-type"].startswith("text/csv")
    assert reply.headers["content-disposition"] == "attachment; filename*=UTF-8''minimum-topographic-accuracy.csv"
    rows = list(csv.DictReader(io.StringIO(reply.body.decode())))
    assert list(rows[0]) == ["alpha", "beta", "accuracy", "accuracy_stderr", "status"]
    surface = open_run(finished / "net")["minimum"]
    assert [float(row["alpha"]) for row in rows[:3]] == [-1.0, 0.0, 1.0]
    expected = surface["accuracy"][np.ix_([0, 2, 3], [0, 2, 4])]
    assert [float(row["accuracy"]) for row in rows] == expected.ravel().tolist()
    loss = list(csv.DictReader(io.StringIO(client.get(f"/api/csv?run={net}&landscape=line").body.decode())))
    assert float(loss[0]["loss"]) - float(loss[0]["loss_rise"]) == pytest.approx(
        open_run(finished / "net")["line"].origin_loss
    )


def test_fewer_points_are_drawn_where_fewer_are_asked_for(client, net):
    answer = client.json(f"/api/figure?run={net}&landscape=minimum&max=3")
    assert answer["index"] == [[0, 2, 4], [0, 2, 3]]
    assert answer["caption"][-1] == "Drawn from 3 × 3 points of them"
    assert "5 × 4 points" in answer["caption"]


def test_the_history_of_several_runs(runs):
    shutil.copytree(runs / "net", runs / "other")
    with opened(runs) as (client, ids):
        question = f"/api/history?run={ids['net']}&run={ids['other']}&log=1&landscape=path"
        answer = client.json(question)
        names = {trace.get("legendgroup") for trace in answer["figure"]["data"]}
        assert len(names & {"run 0", "run 1"}) == 2
        assert {shape["name"] for shape in answer["figure"]["layout"]["shapes"]} == {"path"}
        assert client.json(question) == answer
        history = runs / "other" / "history.jsonl"
        line = json.loads(history.read_text().splitlines()[-1])
        with history.open("a") as file:
            file.write(json.dumps(line | {"step": line["step"] + 1, "loss": 7.5}) + "\n")
        assert client.json(question) != answer
        history.unlink()
        reply = client.get(f"/api/history?run={ids['other']}")
        assert (reply.status, reply.error) == (404, "no history was recorded in training")


@pytest.mark.parametrize("name, box", [("minimum", "-0.5,0.25,0.1,-0.1"), ("path", "0,1,0,1"), ("line", "0.1,0.2")])
def test_the_job_for_a_box_has_the_same_directions(client, net, finished, name, box):
    answer = client.json(f"/api/job?run={net}&landscape={name}&box={box}&size=7")
    document = yaml.safe_load(answer["yaml"])
    job = Job(**document)
    (landscape,) = job.landscapes
    recorded = open_run(finished / "net")[name].record.job
    (old,) = Job(**{**recorded.whole, "problem": "a:b", "run": "x"}).landscapes
    assert landscape.directions == old.directions
    assert (landscape.name, landscape.origin) == (f"{name}-box", 3)
    pairs = [sorted(map(float, box.split(",")[k : k + 2])) for k in range(0, box.count(",") + 1, 2)]
    assert [list(pair) for pair in landscape.range] == pairs
    assert answer["points"] == 7 ** len(pairs)
    assert answer["seconds"] > 0
    assert answer["command"] == f"landscape run {name}-box.yaml"
    assert "module:function" in answer["note"], "the callback of this run was a function of a test"
    assert document["run"] == str(finished / "net")
    for step, factor in zip(answer["finer"], (2, 4), strict=True):
        assert step["command"].startswith(f"landscape refine {finished / 'net'} {name} --box=")
        assert step["command"].endswith(f"--factor {factor} --problem my_problem:problem")


@pytest.mark.parametrize(
    "question, sentence",
    [
        ("box=1,2", ""),
        ("box=1,2,3", "box: must have two numbers for each axis, not 3"),
        ("box=1,1", "different ends"),
        ("box=0,nan", "box: must be a finite number"),
        ("box=1,2,3,4,5,6,7,8", "two numbers"),
        ("box=0,1,0,1,0,1", "has 2 axes"),
        ("box=0,1&size=2", "size: must be whole numbers from 3"),
        ("box=0,1&size=3,3,3", "has 2 axes"),
        ("", "box: must name"),
    ],
)
def test_a_box_is_checked(client, net, question, sentence):
    reply = client.get(f"/api/job?run={net}&landscape=minimum&{question}")
    assert reply.status == (400 if sentence else 200)
    assert sentence in (reply.error if sentence else "")


def test_a_job_has_a_name_that_is_free():
    assert free_name("a", ["a"]) == "a-box"
    assert free_name("a", ["A-Box", "a-box-2"]) == "a-box-3"
    assert len(free_name("x" * 100, [])) <= 100


def test_comparisons_are_answered(client, net):
    items = f"item={net}|minimum&item={net}|path"
    answer = client.json(f"/api/compare?{items}&mode=overlay&kind=contour")
    assert len(answer["figures"]) == 1
    assert len(client.json(f"/api/compare?{items}")["figures"]) == 2
    table = client.json(f"/api/differences?{items}")
    assert [column["landscape"] for column in table["columns"]] == ["minimum", "path"]
    assert client.get("/api/compare").status == 400
    assert client.get(f"/api/compare?item={net}|nothing").status == 404
    gone = client.json(f"/api/compare?{items}&item=x|y")
    assert "Left out" in gone["notes"][0]


def test_measures_are_told_where_a_run_has_them(runs):
    (runs / "net" / "measures.json").write_text(json.dumps({"trace": 3.5}))
    with opened(runs) as (client, ids):
        assert client.json(f"/api/run?run={ids['net']}")["measures"] == {"trace": 3.5}


def test_parameters_that_repeat_are_bounded():
    with pytest.raises(ValueError, match="run: must be given at most 64 times, not 65"):
        AddressQuery([("run", "x")] * 65).all("run")


def test_the_folder_of_a_run_stays_as_it_was(client, finished):
    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in finished.rglob("*")}

    before = stamps()
    (row,) = client.json("/api/runs")["runs"]
    run = client.json(f"/api/run?run={row['id']}")
    for landscape in run["landscapes"]:
        client.json(f"/api/figure?run={row['id']}&landscape={landscape['name']}&uncertainty=1&levels=7&exact=1")
    assert stamps() == before
