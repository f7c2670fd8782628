"""The runs below a folder, and what each takes."""

from __future__ import annotations

import math
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from object_stores import Raw
from small_models import make_job, quadratic_problem

from cluster.commands.runs import age_text, list_text, size_text
from landscape import JobError, NotFoundError, list_runs, run
from landscape.core.lock import run_lock
from landscape.store import status
from landscape.store.landscape import LandscapeStore
from landscape.store.status import FoundRun, RunPlace


def compute(place: str, *names: str) -> None:
    run(make_job(place, quadratic_problem, [{"name": name, "size": 3} for name in names], tile=3))


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one landscape, to be copied."""
    compute(str(place := tmp_path_factory.mktemp("computed") / "run"), "a")
    return place


def test_every_run_below_is_listed_with_its_state_size_and_age(place, endpoint):
    for name in ("one", "deep/two"):
        compute(f"{place}/{name}", "a", "b")
    Raw(f"{place}/three", endpoint).write("run.json", b'{"created": "2020-02-03T04:05:06+00:00"}')
    rows = list_runs(place)
    assert [(row["name"], row["state"], row["done"], row["points"]) for row in rows] == [
        ("deep/two", "complete", 18, 18),
        ("one", "complete", 18, 18),
        ("three", "empty", 0, 0),
    ]
    for row in rows:
        raw = Raw(row["run"], endpoint)
        assert row["bytes"] == sum(len(raw.read(key)) for key in raw.keys())  # noqa: SIM118
        assert row["problem"] == ""
    assert [each["name"] for each in rows[1]["landscapes"]] == ["a", "b"]
    written = datetime.fromisoformat(LandscapeStore.open(f"{place}/one", "b").record.progress.updated)
    assert abs(datetime.fromisoformat(rows[1]["changed"]) - written) <= timedelta(seconds=1)
    assert rows[2]["changed"] == "2020-02-03T04:05:06+00:00"
    age = (datetime.now(UTC) - datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)).total_seconds()
    assert 0 <= age - rows[2]["age_seconds"] < 600
    assert [row["name"] for row in list_runs(f"{place}/one")] == ["one"], "the folder itself may be a run"


def test_a_run_that_is_written_and_one_that_cannot_be_read_say_so(computed, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(computed, tmp_path / name)
    (tmp_path / "two" / "landscapes.zarr" / "zarr.json").unlink()
    (tmp_path / "two" / "landscapes.zarr" / "a" / "zarr.json").write_bytes(b"{")
    (tmp_path / "three" / "landscapes.zarr").mkdir(parents=True)
    with run_lock(f"{tmp_path}/three"):
        rows = list_runs(tmp_path)
    assert [row["state"] for row in rows] == ["complete", "running", "unreadable"]
    assert "landscape 'a' cannot be read" in rows[2]["problem"]
    lines = list_text(rows).splitlines()
    assert len(lines) == 5
    assert lines[1].split()[:3] == ["one", "complete", "9/9"]
    assert lines[4].startswith("  landscape 'a' cannot be read")


REMOVED = {
    "at once": [["run.json", "landscapes.zarr"]],
    "bit by bit": [
        ["landscapes.zarr/zarr.json", "landscapes.zarr/a/zarr.json"],
        ["landscapes.zarr/a/status"],
        ["landscapes.zarr/a"],
        ["landscapes.zarr", "run.json"],
    ],
    "its landscape alone": [["landscapes.zarr/zarr.json", "landscapes.zarr/a/zarr.json"], ["landscapes.zarr/a"]],
}


@pytest.mark.parametrize("how", REMOVED)
def test_what_other_processes_remove_meanwhile_is_left_out(computed, tmp_path, monkeypatch, how):
    for name in ("one", "two"):
        (shutil.copytree(computed, tmp_path / name) / "run.json").write_text("{}")
    steps = iter(REMOVED[how])

    def read(run: FoundRun) -> dict[str, Any]:
        for path in next(steps, []) if run.name == "two" else []:
            place = tmp_path / "two" / path
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        return read_row(run)

    read_row = status.read_row
    monkeypatch.setattr(status, "read_row", read)
    monkeypatch.setattr(status, "PAUSE_SECONDS", 0.0)
    rows = list_runs(tmp_path)
    left = [("one", "complete"), *([("two", "empty")] if how == "its landscape alone" else [])]
    assert [(row["name"], row["state"]) for row in rows] == left
    assert not any(row["problem"] for row in rows)


def test_a_folder_that_is_removed_while_it_is_searched_is_none(tmp_path, monkeypatch):
    (tmp_path / "studies").mkdir()

    def search(place: RunPlace) -> RunPlace:
        shutil.rmtree(place.path)
        return searched(place)

    searched = status.search
    monkeypatch.setattr(status, "search", search)
    with pytest.raises(NotFoundError, match="does not exist"):
        list_runs(tmp_path / "studies")


def test_a_folder_that_is_not_there_is_no_empty_one(tmp_path):
    assert list_runs(tmp_path) == []
    with pytest.raises(NotFoundError, match="does not exist"):
        list_runs(tmp_path / "absent")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB"), (None, "unknown")]
)
def test_sizes_are_told_in_the_largest_unit(count, text):
    assert size_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "7 s"), (7200.0, "2 h 00 min"), (172800.0, "2 days"), (86400.0 * 30, "30 days")]
)
def test_ages_are_told_in_days_from_two_days_on(seconds, text):
    assert age_text(seconds) == text


@pytest.mark.parametrize("older_than", ["30d", math.nan, -1, True])
def test_an_age_that_is_no_number_of_seconds_is_refused(older_than, tmp_path):
    with pytest.raises(JobError, match="older_than: must be a number of seconds from 0, not"):
        list_runs(tmp_path, older_than)
