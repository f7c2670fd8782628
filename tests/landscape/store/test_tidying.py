"""Landscapes removed and renamed by users: what is refused, and what jobs and readers find afterwards."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from object_stores import Raw, new_url, use
from small_models import LOOK, Counter, make_job, quadratic_problem

from landscape import (
    JobError,
    LandscapeError,
    NotFoundError,
    Problem,
    extend,
    open_run,
    remove_landscape,
    remove_run,
    rename_landscape,
    run,
)
from landscape.core import http
from landscape.core.errors import Interrupted
from landscape.core.files import LocalFolder
from landscape.core.lock import measuring_lock, run_lock, training_lock
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


# -- whole runs ------------------------------------------------------------------------------------------------------

TRAINED = {
    "run.json": b"{}",
    "history.jsonl": b"",
    "launch.json": b"{}",
    "trajectory/epoch-00001.safetensors": b"weights",
    "checkpoints/step-00000400.pt": b"state",
    "checkpoints/begun": b"",
    "logs/rank-0.log": b"",
    "measures.json": b"{}",
    "measures/0f1e.npz": b"",
    "curvature/a/0f1e/loss": b"",
    "curvature/a/0f1e/step-00007": b"",
    "served/a-0f1e.points": b"",
}


@pytest.fixture
def trained(place: Path) -> Path:
    """The run with all that a training, measures and a service leave there."""
    for name, data in TRAINED.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def test_a_whole_run_is_removed_with_its_folder(trained):
    removed = remove_run(trained)
    assert removed is not None
    assert removed.landscapes == ("a", "b")
    assert sorted(path for files in removed.files.values() for path in files if "landscapes.zarr" not in path)[:2] == [
        "checkpoints/begun", "checkpoints/step-00000400.pt",
    ]  # fmt: skip
    assert removed.foreign == ()
    assert not trained.exists()
    with pytest.raises(NotFoundError, match="does not exist"):
        remove_run(trained)


def test_of_a_run_the_trajectory_or_the_checkpoints_alone_are_removed(trained):
    surface = open_run(trained)["a"].loss.tobytes()
    assert remove_run(trained, ["checkpoints"], lambda run, contents: False) is None
    remove_run(trained, ["checkpoints"])
    left = {name for name in TRAINED if not name.startswith("checkpoints")}
    assert {name for name in TRAINED if (trained / name).exists()} == left
    remove_run(trained, ["trajectory"])
    assert not (trained / "trajectory" / "epoch-00001.safetensors").exists()
    assert (trained / "history.jsonl").exists()
    assert open_run(trained)["a"].loss.tobytes() == surface
    with pytest.raises(JobError, match="parts: must be trajectory or checkpoints, not 'logs'"):
        remove_run(trained, ["logs"])


def test_what_is_not_ours_stays_and_no_link_is_followed(trained, tmp_path):
    outside = tmp_path / "outside"
    (outside / "trajectory").mkdir(parents=True)
    (outside / "trajectory" / "epoch-00001.safetensors").write_bytes(b"another run's")
    shutil.rmtree(trained / "trajectory")
    (trained / "trajectory").symlink_to(outside / "trajectory")
    (trained / "checkpoints" / "best.pt").write_bytes(b"mine")
    (trained / "logs" / "up").symlink_to(outside)
    (trained / "landscapes.zarr" / "c").symlink_to(outside)
    (trained / "notes.txt").write_text("mine")
    (trained / "curvature" / "notes.txt").write_text("mine")
    (outside / "history.jsonl").write_text("another run's")
    (trained / "history.jsonl").unlink()
    (trained / "history.jsonl").symlink_to(outside / "history.jsonl")
    removed = remove_run(trained)
    assert removed is not None
    kept = {"checkpoints/best.pt", "notes.txt", "curvature/notes.txt", "history.jsonl"}
    assert set(removed.foreign) == kept | {"trajectory/", "landscapes.zarr/c/"}
    assert (outside / "trajectory" / "epoch-00001.safetensors").read_bytes() == b"another run's"
    left = {str(path.relative_to(trained)) for path in trained.rglob("*") if not path.is_dir() or path.is_symlink()}
    assert left == kept | {"logs/up", "trajectory", "landscapes.zarr/c"}
    assert (outside / "trajectory").is_dir()


def test_a_run_that_is_written_or_served_or_holds_strange_data_is_refused_whole(trained, tmp_path, monkeypatch):
    before = files(trained)
    for lock in (run_lock, training_lock, measuring_lock):
        with lock(str(trained)), pytest.raises(LandscapeError, match=r"is being (written|measured) by process \d+"):
            remove_run(trained, confirmed=lambda run, contents: pytest.fail("asked in vain"))
    for name in ("mine.txt", "loss/mine.txt", "loss/c/0/mine.txt"):
        (trained / "landscapes.zarr" / "a" / name).write_text("")
        for change in (lambda: remove_run(trained), lambda: remove_landscape(trained, "a")):
            with pytest.raises(LandscapeError, match=rf"a/{name}' was not written by this software"):
                change()
        (trained / "landscapes.zarr" / "a" / name).unlink()
    (trained / "landscapes.zarr" / "b" / "zarr.json").write_bytes(b"{")
    (trained / "landscapes.zarr" / "zarr.json").write_bytes(b"{")
    with pytest.raises(LandscapeError, match="cannot be read"):
        remove_run(trained)
    for name in ("b/zarr.json", "zarr.json"):
        (trained / "landscapes.zarr" / name).write_bytes(before[str(trained / "landscapes.zarr" / name)])
    monkeypatch.setattr(http, "services_of", lambda run: [SimpleNamespace(pid=7, host="here")])
    with pytest.raises(LandscapeError, match="is served by process 7 on here; stop it first"):
        remove_run(trained)
    assert {name: data for name, data in files(trained).items() if not re.search("training|measuring", name)} == before
    plain = tmp_path / "project"
    (plain / "checkpoints").mkdir(parents=True)
    with pytest.raises(NotFoundError, match=r"is no run: it has neither run\.json nor landscapes"):
        remove_run(plain)
    assert list(plain.iterdir()) == [plain / "checkpoints"]


def test_what_comes_while_the_user_is_asked_is_not_removed(trained):
    late = trained / "trajectory" / "epoch-00002.safetensors"

    def answer(run: str, contents: object) -> bool:
        late.write_bytes(b"weights")
        return True

    before = set(trained.rglob("*"))
    with pytest.raises(LandscapeError, match=r"has 'trajectory/epoch-00002\.safetensors' only now"):
        remove_run(trained, confirmed=answer)
    assert set(trained.rglob("*")) >= before | {late}
    remove_run(trained)
    assert not trained.exists()


class Killed(BaseException):
    """Ends a removal in the middle, as a signal does."""


@pytest.mark.parametrize("after", [0, 3, 8, 11, 13, 15])
def test_a_removal_that_is_killed_goes_on_with_the_same_call(trained, monkeypatch, after):
    count = iter(range(after))
    delete = LocalFolder.delete

    def kill(self: LocalFolder, path: str) -> None:
        if next(count, None) is None:
            raise Killed
        delete(self, path)

    monkeypatch.setattr(LocalFolder, "delete", kill)
    with pytest.raises(Killed):
        remove_run(trained)
    monkeypatch.setattr(LocalFolder, "delete", delete)
    assert {surface.loss.size for surface in open_run(trained).values()} <= {9}  # whole, or not at all
    remove_run(trained)
    assert not trained.exists()


def test_a_removal_that_the_disk_refuses_in_the_middle_says_so(trained, monkeypatch):
    def refuse(self: LocalFolder, path: str) -> None:
        if path.endswith(".pt"):
            raise PermissionError(errno.EACCES, "Permission denied", self.place(path))
        delete(self, path)

    delete = LocalFolder.delete
    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "delete", refuse)
        with pytest.raises(LandscapeError, match=r"is removed in part: Permission denied: '.*400\.pt'; mend that"):
            remove_run(trained)
    remove_run(trained)
    assert not trained.exists()


def test_a_run_in_an_object_store_is_removed(endpoint, monkeypatch):
    use(monkeypatch, endpoint, LANDSCAPE_STORE_LEASE="1.5")
    above = new_url()
    run(make_job(f"{above}/old", quadratic_problem, [{"name": "a", "size": 3}], tile=3))
    run(make_job(f"{above}/older", quadratic_problem, [{"name": "a", "size": 3}], tile=3))
    raw = Raw(f"{above}/old", endpoint)
    raw.write("checkpoints/step-00000400.pt", b"state")
    raw.write("notes.txt", b"mine")
    removed = remove_run(f"{above}/old")
    assert removed is not None
    assert removed.foreign == ("notes.txt",)
    assert list(raw.keys()) == ["notes.txt"]
    assert list(open_run(f"{above}/older")) == ["a"]
