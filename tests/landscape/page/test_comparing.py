"""Comparisons as the page asks for them: figures, notes on what is left out, the table of what differs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_models import conv_problem, make_job

from landscape import run
from landscape.core.errors import JobError, LandscapeError, NotFoundError
from landscape.page.description import run_description
from landscape.page.figures import compare_answer, differences_answer, find_readable
from landscape.page.queries import AddressQuery, CompareQuery, FigureQuery, Item, parse_query
from landscape.page.runs import RunReader
from landscape.store.status import FoundRun


def reader(runs: Path, name: str = "net") -> RunReader:
    return RunReader(FoundRun(id=name, name=name, path=str(runs / name)))


def asked(*items: str, **options: str) -> Any:
    pairs = [("item", item) for item in items] + list(options.items())
    return parse_query(AddressQuery(pairs), CompareQuery)


def answer(runs: Path, *items: str, **options: str) -> Any:
    query = asked(*items, **options)
    there = find_readable(query.items, {item.run: reader(runs, item.run) for item in query.items})
    return json.loads(compare_answer(there, query).body)


def test_landscapes_are_tiled_on_one_scale(finished: Path) -> None:
    told = answer(finished, "net|minimum", "net|path", kind="contour")
    assert [one["title"] for one in told["figures"]] == ["minimum", "path"]
    assert [one["items"] for one in told["figures"]] == [["net|minimum"], ["net|path"]]
    fields = [
        next(trace for trace in one["figure"]["data"] if trace.get("meta", {}).get("role") == "field")
        for one in told["figures"]
    ]
    assert fields[0]["contours"] == fields[1]["contours"]
    assert "template" not in told["figures"][0]["figure"]["layout"]
    assert told["notes"] == []


def test_an_overlay_and_a_difference(finished: Path) -> None:
    overlay = answer(finished, "net|minimum", "net|path", mode="overlay")
    (figure,) = overlay["figures"]
    assert figure["items"] == ["net|minimum", "net|path"]
    assert {trace["meta"]["item"] for trace in figure["figure"]["data"] if "item" in trace.get("meta", {})} == {0, 1}
    (figure,) = answer(finished, "net|minimum", "net|path", mode="difference")["figures"]
    assert figure["title"] == "Loss above the origin of path less minimum"
    assert "resampled" in figure["caption"] or "no common range" in figure["caption"]


def test_a_kind_that_does_not_fit_gives_way_to_the_usual_one_with_a_note(finished: Path) -> None:
    told = answer(finished, "net|minimum", "net|path", mode="overlay", kind="topographic")
    assert told["notes"] == ["Drawn as contour lines, as topographic does not fit here"]
    mixed = answer(finished, "net|minimum", "net|line", kind="surface")
    assert mixed["notes"] == ["Drawn as curve and topographic, as 3-D surface does not fit here"]
    assert len(mixed["figures"]) == 2


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        (["net|minimum", "net|line"], {"mode": "overlay"}, "same number of axes"),
        (["net|minimum"], {"mode": "difference"}, "at least two landscapes"),
        (["net|cube", "net|cube"], {"mode": "overlay"}, "at least two landscapes"),
        (["net|minimum", "net|path"], {"observable": "f1"}, "has no 'f1'"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    finished: Path, items: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        answer(finished, *items, **options)


def test_options_are_checked() -> None:
    for options in ({"mode": "x"}, {"kind": "x"}, {"scale": "x"}, {"lock": "2"}, {"levels": "0"}, {"other": "1"}):
        with pytest.raises(JobError):
            asked("a|b", **options)
    with pytest.raises(JobError, match=r"RUN\|LANDSCAPE"):
        asked()


def test_what_is_gone_is_left_out_with_a_note(finished: Path) -> None:
    items = (Item("net", "minimum"), Item("net", "gone"), Item("other", "minimum"), Item("net", "path"))
    runs: dict[str, RunReader | LandscapeError] = {"net": reader(finished), "other": NotFoundError("no such run")}
    there = find_readable(items, runs)
    assert [item.landscape for item in there.items] == ["minimum", "path"]
    told = json.loads(compare_answer(there, asked("net|minimum", "net|path", mode="overlay")).body)
    assert [note.partition(";")[0] for note in told["notes"]] == [
        "Left out: landscape 'gone' is not in run 'net'",
        "Left out: no such run",
    ]
    with pytest.raises(NotFoundError, match="gone"):
        find_readable(items[1:3], runs)


def test_the_table_of_differences_has_a_column_per_landscape(runs: Path) -> None:
    (runs / "net" / "measures.json").write_text(json.dumps({"sharpness": 2.5}))
    there = find_readable((Item("net", "minimum"), Item("net", "path")), {"net": reader(runs)})
    told = json.loads(differences_answer(there).body)
    assert [{name: column[name] for name in ("item", "run", "landscape")} for column in told["columns"]] == [
        {"item": "net|minimum", "run": "net", "landscape": "minimum"},
        {"item": "net|path", "run": "net", "landscape": "path"},
    ]
    rows = {row["name"]: row for section in told["sections"] for row in section["rows"]}
    assert rows["points"]["values"] == ["5 × 4", "5 × 5"]
    assert rows["points"]["differs"]
    assert rows["sharpness"] == {
        "name": "sharpness", "values": ["2.5", "2.5"], "numbers": [2.5, 2.5], "wholes": [], "differs": False,
    }  # fmt: skip
    assert rows["lowest loss"]["numbers"][0] > 0
    assert {section["title"] for section in told["sections"]} >= {"Numbers", "Measures", "Training", "Job"}


def test_what_was_trained_stands_under_each_landscape_in_the_words_of_its_run(runs: Path) -> None:
    told = run_description(reader(runs))
    (runs / "net" / "run.json").write_text(
        json.dumps({"model": "LeNet5", "optimiser": "Adam", "learning_rate": 0.01, "batch_size": 32, "created": "now"})
    )
    there = find_readable((Item("net", "minimum"),), {"net": reader(runs)})
    (column,) = json.loads(differences_answer(there).body)["columns"]
    facts = dict(column["facts"])
    assert {name: facts[name] for name in ("network", "optimiser", "initial learning rate", "batch size")} == {
        "network": "LeNet5", "optimiser": "Adam", "initial learning rate": "0.01", "batch size": "32",
    }  # fmt: skip
    assert "created" not in facts
    assert facts["epochs"] == "3"
    (minimum,) = (one for one in told["landscapes"] if one["name"] == "minimum")
    assert facts["loss at the origin (epoch 3)"] == dict(minimum["rows"]["observables"]["loss"])["at the origin"]
    assert minimum["at_end"]


def test_a_difference_has_the_paired_error_where_the_losses_of_the_samples_are_kept(tmp_path: Path) -> None:
    """Under two seeds, which draw the same samples in another order; beside the two networks' own landscapes."""
    for name, kept in (("kept", True), ("bare", False)):
        for seed in (0, 1):
            job = make_job(
                tmp_path / f"{name}{seed}", partial(conv_problem, seed=seed),
                [{"name": "minimum", "size": 5}], num_samples=29, seed=seed, keep_samples=kept,
            )  # fmt: skip
            run(job)
    captions = {}
    for name in ("kept", "bare"):
        for rise in ("0", "1"):
            told = answer(tmp_path, f"{name}0|minimum", f"{name}1|minimum", mode="difference", rise=rise)
            captions[name, rise] = told["figures"][0]["caption"]
    for rise in ("0", "1"):
        assert "Standard error of the pairs of the same samples" in captions["kept", rise]
    assert "though the samples are the same (keep_samples" in captions["bare", "0"]
    assert "paired over the same samples, an upper bound" in captions["bare", "1"]


def test_a_plane_may_fill_the_room_that_there_is(finished: Path) -> None:
    for options, scaled in (({}, True), ({"proportions": "fill"}, False)):
        (figure,) = answer(finished, "net|minimum", **options)["figures"]
        assert ("scaleanchor" in figure["figure"]["layout"]["yaxis"]) == scaled
        assert ("Axes not to one scale: they span" in figure["caption"]) != scaled
    with pytest.raises(JobError, match="proportions: unknown 'wide'"):
        asked("net|minimum", proportions="wide")


def test_documents_that_cannot_be_read_leave_the_rest(runs: Path) -> None:
    (runs / "net" / "run.json").write_text("{")
    there = find_readable((Item("net", "minimum"),), {"net": reader(runs)})
    told = json.loads(differences_answer(there).body)
    assert any("run.json" in note for note in told["notes"])
    assert any(section["title"] == "Numbers" for section in told["sections"])


def test_a_colour_scale_is_the_readers_only_where_they_name_one() -> None:
    assert asked("net|minimum", "net|path").comparison.colour_scale is None
    assert asked("net|minimum", "net|path", scale="viridis").comparison.colour_scale == "viridis"
    assert parse_query(AddressQuery([("run", "net"), ("landscape", "path")]), FigureQuery).spec.colour_scale is None
    with pytest.raises(JobError, match="scale: unknown 'vir'"):
        asked("net|minimum", "net|path", scale="vir")


def test_the_range_and_the_rise_of_a_comparison_are_asked_for_and_told(finished: Path) -> None:
    items = ("net|minimum", "net|path")
    usual = answer(finished, *items)
    assert usual["rise"]
    assert all("loss above the origin" in figure["caption"] for figure in usual["figures"])
    assert usual["low"] <= 0 < usual["high"]
    losses = answer(finished, *items, rise="0", zmin="0.25", zmax="2")
    assert (losses["rise"], losses["low"], losses["high"]) == (False, 0.25, 2.0)
    assert not answer(finished, *items, log="1")["rise"], "the rise has no logarithm at the origin"
    apart = answer(finished, *items, lock="0")
    assert (apart["rise"], apart["low"], apart["high"]) == (False, None, None)
    difference = answer(finished, *items, mode="difference", zmax="0.5")
    assert (difference["low"], difference["high"]) == (-0.5, 0.5)
    with pytest.raises(JobError, match="rise: must go with the observable loss, not 'accuracy'"):
        answer(finished, *items, rise="1", observable="accuracy")
