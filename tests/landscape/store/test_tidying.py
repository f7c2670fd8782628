"""Landscapes removed and renamed by users: what is refused, and what jobs and readers find afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_models import LOOK, Counter, make_job, quadratic_problem

from landscape import (
    JobError,
    LandscapeError,
    NotFoundError,
    Problem,
    extend,
    open_run,
    remove_landscape,
    rename_landscape,
    run,
)
from landscape.core.errors import Interrupted
from landscape.core.lock import run_lock
from landscape.page.runs import LandscapeReader, RunReader
from landscape.store.results import remove_landscapes
from landscape.store.status import FoundRun, GoneError


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two landscapes, to be copied."""
    place = tmp_path_factory.mktemp("computed") / "run"
    run(job_of(place))
    return place


@pytest.fixture
def place(computed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(computed, tmp_path / "run")


def job_of(place: Path, names=("a", "b"), problem=None):
    problem = problem or quadratic_problem()
    return make_job(place, lambda: problem, [{"name": name, "size": 3} for name in names], tile=3)


def files(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in place.rglob("*") if path.is_file() and "driver" not in path.name}


def test_a_job_goes_on_with_a_landscape_under_its_new_name_and_computes_nothing(place):
    expected = open_run(place)["a"].loss.tobytes()
    rename_landscape(place, "a", "z")
    problem = quadratic_problem()
    counter = Counter(problem.observe)
    found = run(job_of(place, ("z", "b"), Problem(problem.model, problem.data, counter)))
    assert counter.calls == LOOK
    assert list(found) == ["z", "b"]
    assert found["z"].loss.tobytes() == expected


def test_a_landscape_that_was_removed_is_computed_anew_with_the_same_bytes(place):
    expected = open_run(place)["a"].loss.tobytes()
    remove_landscape(place, "a")
    assert list(open_run(place)) == ["b"]
    assert run(job_of(place))["a"].loss.tobytes() == expected


def test_what_a_driver_writes_to_is_refused_by_its_name(place):
    before = files(place)
    with run_lock(str(place)):
        for change in (
            lambda: remove_landscape(place, "a"),
            lambda: rename_landscape(place, "a", "z"),
            lambda: remove_landscapes(place, ["a"], lambda run, names: pytest.fail("asked in vain")),
        ):
            with pytest.raises(LandscapeError, match=r"run: .* is being written by process \d+ on .*; wait for it or"):
                change()
    assert files(place) == before


def test_of_several_landscapes_none_is_removed_where_one_cannot_be(place):
    before = files(place)
    with pytest.raises(NotFoundError, match=r"landscape 'c' is not in run '.*'; .*known: a, b"):
        remove_landscapes(place, ["a", "c"])
    assert not remove_landscapes(place, ["a", "b"], lambda run, names: False)
    assert files(place) == before
    assert remove_landscapes(place, ["a", "b", "a"]) == ["a", "b"]
    assert list(open_run(place)) == []


def test_an_extension_that_is_begun_goes_with_its_landscape_and_keeps_its_name(place):
    asked: list[list[str]] = []

    def extend_half() -> None:
        calls = iter(range(100))
        with pytest.raises(Interrupted):
            extend(
                place, "a", ranges=[(-2, 2)], problem=quadratic_problem,
                compute=lambda job: run(job, stop=lambda: next(calls) > 8),
            )  # fmt: skip
        assert "a.extending" in open_run(place)

    extend_half()
    with pytest.raises(LandscapeError, match=r"'a' is being extended; .* first, or remove 'a.extending'"):
        rename_landscape(place, "a", "z")
    remove_landscape(place, "a.extending")
    assert list(open_run(place)) == ["a", "b"]
    extend_half()
    assert remove_landscapes(place, ["a"], lambda run, names: not asked.append(names)) == ["a", "a.extending"]
    assert asked == [["a", "a.extending"]]
    assert list(open_run(place)) == ["b"]


def test_a_run_that_is_not_there_is_not_made(tmp_path):
    for change in (
        lambda: remove_landscape(tmp_path / "x", "a"),
        lambda: rename_landscape(tmp_path / "x", "a", "b"),
    ):
        with pytest.raises(NotFoundError, match="does not exist"):
            change()
    assert not (tmp_path / "x").exists()
    with pytest.raises(JobError, match="run: must name a folder"):
        remove_landscape("", "a")


def test_a_page_that_looks_on_is_told(place):
    reader = RunReader(FoundRun("1", "run", str(place)))
    assert reader.view("a", ("loss",)).surface.loss.size == 9
    reader.look()
    rename_landscape(place, "a", "z")
    change = reader.look()
    assert (change.new, change.gone) == (("z",), ("a",))
    with pytest.raises(GoneError, match="'a' was removed meanwhile"):
        reader.view("a", ("loss",))
    assert reader.view("z", ("loss",)).surface.name == "z"
    remove_landscape(place, "z")
    assert reader.look().gone == ("z",)
    assert reader.names() == ("b",)


def test_a_reader_follows_a_landscape_whose_renaming_was_broken_off(place):
    reader = LandscapeReader(str(place), "z")
    journal = {"source": "a", "target": "z", "position": None}
    (place / "landscapes.zarr" / ".moving").write_text(json.dumps(journal))
    view = reader.view(("loss",))
    assert (view.surface.name, view.surface.loss.size) == ("z", 9)
    assert list(open_run(place)) == ["z", "b"]
    with pytest.raises(NotFoundError):
        open_run(place)["a"]
    remove_landscape(place, "b")  # finishes what was broken off
    assert reader.view(("loss",)).surface.loss.size == 9
    assert sorted(path.name for path in (place / "landscapes.zarr").iterdir()) == ["z", "zarr.json"]
