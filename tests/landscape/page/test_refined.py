"""A refined landscape on the page: all its levels as one grid, also while one of them is computed."""

from __future__ import annotations

import csv
import io
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_landscape import driven
from opened_page import opened
from page_client import Client, array
from small_models import Quadratic, make_job, observe_quadratic, quadratic_samples

from landscape import Job, Problem, open_run, refine, run
from landscape.core.errors import Interrupted
from landscape.core.folders import open_folder
from landscape.page import content
from landscape.page.runs import LandscapeReader
from landscape.store.results import Run
from landscape.store.status import FoundRun, read_row, stamp_of

BOX = [(0.2, 1.0), (0.2, 1.0)]
KINDS = ("topographic", "contour", "surface")


def problem() -> Problem:
    return Problem(Quadratic(), quadratic_samples(20), observe_quadratic)


def one_task(job: Job) -> Run:
    """Compute one task of a job, and stop."""
    done: list[Any] = []
    return run(job, done.append, lambda: bool(done))


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose landscape gets finer in a corner, and was interrupted; not to be changed."""
    place = tmp_path_factory.mktemp("half")
    landscapes = [{"name": "a", "size": [17, 9]}, {"name": "b", "size": [33, 17]}]
    run(make_job(place / "net", problem, landscapes, num_samples=20, batch_size=20, engine="eager"))
    with pytest.raises(Interrupted):
        refine(place / "net", "a", box=BOX, problem=problem, compute=one_task)
    return place


@pytest.fixture(scope="module")
def whole(half: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, finished."""
    place = shutil.copytree(half, tmp_path_factory.mktemp("whole") / "runs")
    refine(place / "net", "a", box=BOX, problem=problem)
    return place


@pytest.fixture(scope="module")
def page(whole: Path) -> Iterator[tuple[Client, str]]:
    with opened(whole, search_seconds=0.1) as (client, ids):
        yield client, ids["net"]


@pytest.fixture(scope="module")
def client(page: tuple[Client, str]) -> Client:
    return page[0]


@pytest.fixture(scope="module")
def net(page: tuple[Client, str]) -> str:
    return page[1]


def test_a_reader_holds_what_the_merged_surface_is(whole):
    surface = open_run(whole / "net")["a"].merged()
    view = LandscapeReader(str(whole / "net"), "a").view(("loss",))
    for name in ("loss", "loss_stderr", "loss_rise_stderr"):
        assert np.array_equal(view.surface[name], surface[name], equal_nan=True)
    assert np.array_equal(view.surface.interpolated, surface.interpolated)
    assert np.array_equal(view.surface.status, surface.status)
    assert view.sizes == (33, 17)
    known = surface.interpolated == 0
    assert view.counts == (0, known.sum(), 0, 0)
    assert view.lowest["loss"] == surface.loss[known].min()


@pytest.mark.parametrize("kind", KINDS)
def test_figures_show_all_levels(client, net, kind):
    answer = client.json(f"/api/figure?run={net}&landscape=a&kind={kind}")
    field = [one for one in answer["figure"]["data"] if (one.get("meta") or {}).get("role") == "field"][-1]
    assert array(field["z"]).shape == (17, 33)
    assert sum(note == ", interpolated" for row in field["text"] for note in row) > 0
    assert "points evaluated, the others bilinear between them" in " ".join(answer["caption"])
    assert answer["states"] is None


def test_the_table_the_thumbnail_and_the_facts_are_of_all_levels(client, net, whole):
    merged = open_run(whole / "net")["a"].merged()
    rows = list(csv.DictReader(io.StringIO(client.get(f"/api/csv?run={net}&landscape=a").body.decode())))
    assert [int(row["interpolated"]) for row in rows] == merged.interpolated.ravel().tolist()
    thumbnail = client.json(f"/api/thumbnail?run={net}&landscape=a")
    assert (thumbnail["width"], thumbnail["height"]) == (33, 17)
    landscape = client.json(f"/api/run?run={net}")["landscapes"][0]
    facts = dict(landscape["rows"]["landscape"])
    assert facts["resolution"] == "33 × 17 points"
    assert facts["evaluated"].endswith(" of 561 points")
    assert (landscape["state"], landscape["done"]) == ("complete", (merged.interpolated == 0).sum())
    row = client.json("/api/runs")["runs"][0]["landscapes"][0]
    assert row["done"] == landscape["done"]
    assert row["lowest"] == merged.loss.min()


def test_comparisons_are_of_all_levels(client, net):
    both = f"item={net}|a&item={net}|b"
    answer = client.json(f"/api/compare?mode=difference&{both}")
    (figure,) = answer["figures"]
    field = next(one for one in figure["figure"]["data"] if (one.get("meta") or {}).get("role") == "field")
    assert array(field["z"]).shape == (17, 33)
    assert "of which both were evaluated" in figure["caption"]
    differences = client.json(f"/api/differences?{both}")
    numbers = {row["name"]: row["values"] for row in differences["sections"][0]["rows"]}
    assert numbers["done"] == ["100.0\u00a0%"] * 2


def test_a_box_offers_the_commands_that_refine_it(client, net, whole, tmp_path):
    question = f"/api/job?run={net}&landscape=a&box="
    answer = client.json(f"{question}-3,-0.123456789,-0.9,0.1")
    half_steps, quarter_steps = answer["finer"]
    words = shlex.split(half_steps["command"])
    place = whole / "net"
    ends = "--box=-1.0,-0.123457,-0.9,0.1"  # the box that was drawn, cut off at the end of the landscape
    assert words == ["landscape", "refine", str(place), "a", ends, "--factor", "2"]
    assert half_steps["covers"] == [[-1.0, 0.0], [-1.0, 1.0]]
    assert 0 < half_steps["seconds"] < quarter_steps["seconds"]
    copy = shutil.copytree(place, tmp_path / "net")
    before = (open_run(copy)["a"].merged().interpolated == 0).sum()
    ends = [float(end) for end in words[4].removeprefix("--box=").split(",")]
    surface = refine(copy, "a", box=[(ends[0], ends[1]), (ends[2], ends[3])], problem=problem)["a"]
    assert (surface.merged().interpolated == 0).sum() - before == half_steps["points"]
    fine, finer = client.json(f"{question}0.2,1,0.2,1")["finer"]
    assert fine["reason"].startswith("landscape 'a' is finer by 2 in this box already: nothing is left to do")
    assert "command" not in fine
    assert finer["command"].endswith("--box=0.2,1.0,0.2,1.0 --factor 4")
    assert "must have a width" in client.json(f"{question}2,3,0,1")["finer"][0]["reason"]
    with driven(place):
        assert "a job writes this run now" in client.json(f"{question}-1,0,-1,0")["finer"][0]["reason"]
    # A box may reach beyond the grid: what is refined ends with it, the points of its edges with it.
    edge = client.json(f"{question}0.9,9,-9,-0.9")["finer"][0]
    surface = refine(copy, "a", factor=4, box=[(0.9, 1.0), (-1.0, -0.9)], problem=problem)["a"].merged()
    assert edge["covers"] == [[0.5, 1.0], [-1.0, 0.0]]
    assert (surface.interpolated[np.ix_(surface.beta <= -0.9, surface.alpha >= 0.9)] == 0).all()


def test_fewer_points_are_those_of_a_coarser_level(whole):
    reader = LandscapeReader(str(whole / "net"), "a")
    few = reader.view(("loss",), most=20)
    assert np.array_equal(few.surface.loss, open_run(whole / "net")["a"].loss)
    assert not few.surface.interpolated.any()


def test_a_level_with_too_many_points_is_counted_and_not_drawn(half, monkeypatch):
    monkeypatch.setitem(content.DRAWN, 2, 300)
    view = LandscapeReader(str(half / "net"), "a").view(("loss",))
    assert view.surface.loss.shape == (9, 17)
    assert view.hidden_levels == 1
    assert view.counts[0] > 0


def test_tiles_of_a_level_show_as_they_are_committed(half, tmp_path):
    place = shutil.copytree(half, tmp_path / "runs") / "net"
    reader = LandscapeReader(str(place), "a")
    before = reader.view(("loss",))
    assert before.surface.interpolated is not None
    missing = before.counts[0]
    assert missing == before.surface.unfinished > 0
    assert (before.record.progress.state, reader.view(("loss",), alive=True).record.progress.state) == (
        "interrupted",
        "waiting",  # the state of the whole run says whose turn it is
    )
    reader.look()
    assert not reader.look()
    with pytest.raises(Interrupted):
        refine(place, "a", box=BOX, problem=problem, compute=one_task)
    change = reader.look()
    assert change.otherwise
    assert not change.tiles
    after = reader.view(("loss",))
    assert after.generation != before.generation
    assert 0 < after.counts[0] < missing
    refine(place, "a", box=BOX, problem=problem)
    assert reader.view(("loss",)).counts[0] == 0
    refine(place, "a", box=BOX, factor=4, problem=problem)
    assert reader.view(("loss",)).surface.loss.shape == (33, 65)
    shutil.rmtree(place / "landscapes.zarr" / "a" / "levels")
    assert reader.view(("loss",)).surface.loss.shape == (9, 17)


def test_the_state_of_a_level_comes_as_an_event_while_it_is_computed(half, tmp_path):
    runs = shutil.copytree(half, tmp_path / "runs")
    with opened(runs, search_seconds=0.1) as (client, ids):
        net = ids["net"]
        with client.stream(f"/api/events?run={net}&landscape=a") as stream:
            first = stream.next("state")["landscapes"][0]
            assert first["state"] == "interrupted"
            with driven(runs / "net"):
                while (now := stream.next("state")["landscapes"][0])["state"] != "running":
                    pass
                assert now["missing"] == first["missing"]
            refine(runs / "net", "a", box=BOX, problem=problem)
            while (now := stream.next("state")["landscapes"][0])["missing"]:
                assert now["points"] == first["points"]
            assert now["generation"] != first["generation"]


def test_the_row_of_a_run_is_read_again_when_a_level_goes_on(half, tmp_path):
    runs = shutil.copytree(half, tmp_path / "runs")
    found = FoundRun("a", "net", str(runs / "net"))
    before, stamp = read_row(found), stamp_of(open_folder(found.path), ("a",))
    assert before["state"] == "interrupted"
    refine(runs / "net", "a", box=BOX, problem=problem)
    after = read_row(found)
    assert stamp_of(open_folder(found.path), ("a",)) != stamp
    assert after["state"] == "complete"
    assert after["points"] == before["points"]
    assert after["landscapes"][0]["generation"] != before["landscapes"][0]["generation"]
