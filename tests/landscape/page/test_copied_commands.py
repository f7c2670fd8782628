"""The commands that the page offers to copy ask, as the shell and `landscape` read them, for what is shown."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.commands.app import app
from landscape.page.figures import compare_answer, figure_answer, find_readable
from landscape.page.queries import AddressQuery, CompareQuery, FigureQuery, parse_query
from landscape.page.runs import RunReader
from landscape.store.status import FoundRun
from landscape.views.figure_spec import ComparisonSpec, FigureSpec

PLANE = [
    {},
    {"kind": "surface", "log": "1", "levels": "7", "exact": "1", "scale": "magma"},
    {"kind": "contour", "log": "0", "zmin": "-0.25", "zmax": "1e-3", "uncertainty": "1", "extrema": "1"},
    {"kind": "topographic", "clip": "90", "proportions": "fill", "observable": "loss_rise"},
]
PAIR = [
    {"mode": "tiled"},
    {"mode": "overlay", "kind": "contour", "rise": "0", "zmin": "0.5", "zmax": "2", "levels": "5"},
    {"mode": "difference", "kind": "surface", "log": "1", "scale": "turbo", "proportions": "fill"},
    {"mode": "tiled", "kind": "topographic", "lock": "0", "rise": "1", "exact": "1", "observable": "loss"},
]


def reader(folder: Path) -> RunReader:
    return RunReader(FoundRun(id="net", name="net", path=str(folder)))


def words_of(answer: Any) -> tuple[str, ...]:
    program, *words = shlex.split(json.loads(answer.body)["command"])
    assert program == "landscape"
    return tuple(words)


def arguments(words: tuple[str, ...]) -> dict[str, Any]:
    _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    return dict(bound.arguments)


def as_exported(spec: FigureSpec) -> FigureSpec:
    """What the page draws has no title and no caption, which stand beside it, and a path to play."""
    return replace(spec, title=None, caption=None, animate=None)


@pytest.mark.parametrize("options", PLANE)
def test_the_command_of_a_landscape_has_all_options_of_its_picture(
    finished: Path, tmp_path: Path, options: dict[str, str]
):
    run = tmp_path / "it's here"
    run.symlink_to(finished / "net")
    pairs = [("run", "net"), ("landscape", "minimum"), *options.items()]
    query = parse_query(AddressQuery(pairs), FigureQuery)
    given = arguments(words_of(figure_answer(reader(run), query)))
    assert (given["run"], given["name"], given["to"]) == (str(run), "minimum", "png")
    look = given["look"].as_arguments() if "look" in given else {}
    asked = FigureSpec(kind=given["kind"], observable=given.get("observable", "loss"), **look)
    assert asked == as_exported(replace(query.spec, kind=query.spec.kind or "topographic"))


@pytest.mark.parametrize("options", PAIR)
def test_the_command_of_a_comparison_has_all_options_of_its_pictures(finished: Path, options: dict[str, str]):
    pairs = [("item", "net|minimum"), ("item", "net|path"), *options.items()]
    query = parse_query(AddressQuery(pairs), CompareQuery)
    run = finished / "net"
    there = find_readable(query.items, {"net": reader(run)})
    given = arguments(words_of(compare_answer(there, query)))
    assert [given["run"], given["name"], *given.get("more", ())] == [f"{run}:minimum", f"{run}:path"]
    how, look = given["how"], given["look"].as_arguments() if "look" in given else {}
    observable = given.get("observable", "loss")
    asked = ComparisonSpec(kind=given.get("kind"), observable=observable, **look, **how.as_arguments())
    assert (how.mode, asked) == (options["mode"], as_exported(query.comparison))
