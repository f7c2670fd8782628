"""Which runs are found in a place, and by what they are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from landscape.core.errors import JobError, NotFoundError
from landscape.store.status import Directory, GoneError, open_place, search


def make(root: Path, *runs: str) -> Path:
    for run in runs:
        (root / run).mkdir(parents=True)
        (root / run / "run.json").write_text("{}")
    return root


def names(root: Path) -> list[str]:
    return [run.name for run in search(open_place(str(root))).runs]


def test_runs_are_found_below_folders_and_not_in_one_another(tmp_path):
    make(tmp_path, "a", "deep/er/b", "a/inside", ".hidden/c")
    (tmp_path / "d" / "landscapes.zarr").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    assert names(tmp_path) == ["a", "d", "deep/er/b"]
    assert names(tmp_path / "a") == ["a"], "a place may be a run"


def test_links_to_folders_are_not_followed(tmp_path):
    outside = make(tmp_path / "outside", "x")
    inside = make(tmp_path / "inside", "a")
    (inside / "link").symlink_to(outside)
    (inside / "circle").symlink_to(inside)
    assert names(inside) == ["a"]


def test_a_folder_without_the_right_to_read_is_left_out(tmp_path):
    make(tmp_path, "a", "closed/b")
    (tmp_path / "closed").chmod(0)
    expected = ["a", "closed/b"] if os.geteuid() == 0 else ["a"]  # nothing is closed to root
    assert names(tmp_path) == expected
    (tmp_path / "closed").chmod(0o700)


def test_a_place_must_exist(tmp_path):
    with pytest.raises(NotFoundError, match="does not exist; name a run, a packed run, a folder of runs, or a URL"):
        open_place(str(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(NotFoundError, match="is a file, not a folder"):
        open_place(str(tmp_path / "file"))
    with pytest.raises(JobError, match="unknown kind of URL"):
        open_place("ftp://x/y")


def test_an_identifier_stays_and_two_places_show_a_run_once(tmp_path):
    make(tmp_path, "a/b", "a/c")
    directory = Directory([open_place(str(tmp_path / "a" / "b")), open_place(str(tmp_path))])
    assert directory.search() == frozenset()
    found = {run.name: run.id for run in directory.runs}
    assert set(found) == {"b", "a/c"}
    again = Directory([open_place(str(tmp_path))])
    again.search()
    assert {run.id for run in again.runs} == set(found.values())
    assert directory.find(found["b"]).path == str(tmp_path / "a" / "b")


def test_what_was_there_is_gone_and_what_never_was_is_not_found(tmp_path):
    make(tmp_path, "a", "b")
    directory = Directory([open_place(str(tmp_path))])
    directory.search()
    a = next(run for run in directory.runs if run.name == "a")
    (tmp_path / "a" / "run.json").unlink()
    assert directory.search() == {a.id}
    with pytest.raises(GoneError, match="deleted or moved away"):
        directory.find(a.id)
    with pytest.raises(NotFoundError, match="is not in the places"):
        directory.find(str(tmp_path / "b"))
    make(tmp_path / "a")
    (tmp_path / "a" / "run.json").write_text("{}")
    directory.search()
    assert directory.find(a.id) == a


def test_a_place_that_goes_is_a_problem_and_its_runs_stay_known(tmp_path):
    root = make(tmp_path / "runs", "a")
    directory = Directory([open_place(str(root))])
    directory.search()
    root.rename(tmp_path / "other")
    assert directory.search() == frozenset()
    assert "No such file" in directory.places[0].problem
    assert [run.name for run in directory.runs] == ["a"]
