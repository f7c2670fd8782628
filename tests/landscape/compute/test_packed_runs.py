"""Packed runs: a run with its values in one file, read and asked where neither the run nor its code is."""

from __future__ import annotations

import json
import shutil
import stat
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from packed_scene import PLANE, members_of, small_file, small_problem, with_json, written

from landscape import Job, extend, import_surface, open_run, run
from landscape.analysis.inspection import inspect
from landscape.compute.pack_run import pack_run
from landscape.compute.recorded_job import recorded_job
from landscape.core.errors import JobError, LandscapeError, NotFoundError
from landscape.core.files import UNPACKED
from landscape.core.http import ServedRun, Service
from landscape.core.lock import run_lock
from landscape.job.reading import read_job
from landscape.model.snapshots import write_snapshot
from landscape.store.landscape import LandscapeStore
from landscape.store.status import open_place, search

CALLBACK = """
from packed_scene import small_problem


def problem():
    return small_problem()
"""
HOSTILE = """
from pathlib import Path

Path("executed").touch()
"""
LINE = {"name": "line", "size": 5, "directions": [{"kind": "towards", "target": "first"}]}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A run with snapshots, two landscapes that a job computed, an imported one, and its file beside it."""
    folder = tmp_path_factory.mktemp("source")
    (folder / "travelling_problem.py").write_text(CALLBACK)
    for epoch in range(2):
        model = small_problem().model
        for parameter in model.parameters():
            parameter.data += 0.1 * (1 - epoch)
        write_snapshot(folder / "run", "epoch", epoch, model.state_dict())
    landscapes = [PLANE, LINE]
    job = Job(run=str(folder / "run"), problem="travelling_problem:problem", num_samples=8, landscapes=landscapes)
    run(job.in_folder(folder))
    (folder / "table.csv").write_text("alpha,loss\n" + "".join(f"{place / 4},{place**2}\n" for place in range(-4, 5)))
    import_surface(folder / "table.csv", run=folder / "run", name="theirs")
    (folder / "run" / "checkpoints").mkdir()
    (folder / "run" / "checkpoints" / "step-00000001.pt").write_bytes(b"of the training")
    before = files_of(folder / "run")
    packed = pack_run(folder / "run", folder / "mine.landscape")
    assert packed.landscapes == ("plane", "line", "theirs")
    assert list(packed.left_out) == ["theirs"]
    assert files_of(folder / "run") == before
    return folder


@pytest.fixture
def moved(source, tmp_path, monkeypatch) -> Path:
    """The file alone in a folder that its code has left, and whose module of this name would do harm."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "travelling_problem", raising=False)
    (tmp_path / "travelling_problem.py").write_text(HOSTILE)
    return Path(shutil.copy(source / "mine.landscape", tmp_path / "mine.landscape"))


def test_a_packed_run_is_read_as_the_run_itself(source, moved):
    there, here = open_run(source / "run"), open_run(moved)
    assert list(here) == list(there) == ["plane", "line", "theirs"]
    assert here.info == there.info
    assert here.trajectory.numbers == there.trajectory.numbers == (0, 1)
    for name, surface in there.items():
        assert all(here[name][one].tobytes() == surface[one].tobytes() for one in surface.observables)
    assert not [name for name in members_of(moved) if "checkpoints" in name]
    assert open_run(moved).path == here.path  # one copy in a process
    assert [found.name for found in search(open_place(str(moved))).runs] == ["mine"]


def test_exact_points_of_a_packed_run_have_the_bits_of_its_grid_and_call_no_callback(moved):
    here = open_run(moved)
    for name in ("plane", "line"):
        surface = here[name]
        coordinates = [axis.coordinates[1] for axis in surface.axes]
        assert inspect(moved, name, at=coordinates).loss == surface.loss[(1,) * len(coordinates)]
    with pytest.raises(LandscapeError, match="theirs"):
        inspect(moved, "theirs")
    assert not Path("executed").exists()


def test_a_packed_run_is_only_read(moved):
    for command in (lambda: extend(moved, "plane", num_samples=16), lambda: run_lock(open_run(moved).path).__enter__()):
        with pytest.raises(JobError, match=r"run: must be a folder or URL to be written, not the packed run 'mine'"):
            command()
    with pytest.raises(JobError, match=r"is a packed run, not a job; `landscape view .*mine.landscape` shows it"):
        read_job(moved)


def test_a_packed_run_is_packed_again_with_the_same_problem(moved):
    again = pack_run(moved, "again.landscape")
    assert again.landscapes == ("plane", "line", "theirs")
    copies = [{name for name in members_of(file) if name.startswith("packed/")} for file in (moved, again.path)]
    assert copies[0] == copies[1]
    assert len(copies[0]) == 1


def test_a_page_finds_the_service_of_a_packed_run_that_another_process_unpacked(moved, tmp_path):
    mine = Path(open_run(moved).path)
    theirs = tmp_path / "theirs" / "mine"
    shutil.copytree(mine, theirs)
    service = Service("http://host:1", "", "", 1, (ServedRun("mine", 1, str(theirs), ("plane",)),))
    assert service.versions(mine)
    (theirs / UNPACKED).write_text("of another file")
    assert not service.versions(mine)


def test_what_is_no_run_to_pack_is_refused(tmp_path, source, monkeypatch):
    with pytest.raises(JobError, match=r"out: must end in .landscape, not 'a.zip'; write -o a.landscape"):
        pack_run(source / "run", tmp_path / "a.zip")
    with pytest.raises(NotFoundError, match="does not exist"):
        pack_run(tmp_path / "none", tmp_path / "a.landscape")
    write_snapshot(tmp_path / "empty", "epoch", 0, small_problem().model.state_dict())
    with pytest.raises(NotFoundError, match="holds no landscape"):
        pack_run(tmp_path / "empty", tmp_path / "a.landscape")
    monkeypatch.setattr("landscape.compute.pack_run.driver_alive", lambda _: True)
    with pytest.raises(JobError, match="and a driver writes"):
        pack_run(source / "run", tmp_path / "a.landscape")
    assert not (tmp_path / "a.landscape").exists()


def test_a_run_whose_callback_is_gone_is_packed_with_its_values_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving_problem.py").write_text(CALLBACK)
    run(Job(run="run", problem="leaving_problem:problem", num_samples=8, landscapes=[PLANE]).in_folder(tmp_path))
    (tmp_path / "leaving_problem.py").unlink()
    monkeypatch.delitem(sys.modules, "leaving_problem")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    packed = pack_run("run", "run.landscape")
    assert "is not on this machine" in packed.left_out["plane"]
    here = open_run(packed.path)
    assert np.array_equal(here["plane"].loss, open_run("run")["plane"].loss)
    with pytest.raises(JobError, match="the packed run holds none for landscape 'plane', so only its stored values"):
        recorded_job(here.path, LandscapeStore.open(here.path, "plane"))


# ----------------------------------------------------------------------------------------------------
# Files of strangers.


def with_member(file: Path, name: str, data: bytes = b"{}") -> dict[str, bytes]:
    return {**members_of(file), name: data}


NAMES = [
    "../outside.json",
    "landscapes.zarr/../../outside/zarr.json",
    "landscapes.zarr/../zarr.json",
    "landscapes.zarr/plane/../c/0",
    "landscapes.zarr/plane/a\n/../zarr.json",
    "/tmp/outside",
    "landscapes.zarr\\plane\\zarr.json",
    "landscapes.zarr/plane/.making-1",
    ".unpacked",
    "packed/problem.py",
    "checkpoints/step-00000001.pt",
    "driver.lock",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_member_that_no_packed_run_has_is_refused_before_any_is_written(moved, tmp_path, monkeypatch, name):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    file = written(tmp_path / "hostile.landscape", with_member(moved, name))
    with pytest.raises(JobError, match="is no whole packed run: a member is called"):
        open_run(file)
    assert files_of(tmp_path / "temporary") == {}


def test_a_file_that_is_a_folder_too_is_refused(moved, tmp_path):
    name = "landscapes.zarr/plane/loss/c"
    with pytest.raises(JobError, match="is a file and a folder at once"):
        open_run(written(tmp_path / "hostile.landscape", with_member(moved, name)))


def test_a_link_is_written_as_the_file_that_holds_its_text(moved, tmp_path):
    file, members = tmp_path / "hostile.landscape", with_member(moved, "history.jsonl", b"/etc/passwd")
    written(file, members)
    with zipfile.ZipFile(file) as archive:
        contents = {info.filename: (info, archive.read(info)) for info in archive.infolist()}
    contents["history.jsonl"][0].external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(file, "w") as archive:
        for info, data in contents.values():
            archive.writestr(info, data)
    opened = open_run(file)
    assert (Path(opened.path) / "history.jsonl").read_bytes() == b"/etc/passwd"
    assert not (Path(opened.path) / "history.jsonl").is_symlink()


def test_a_file_that_was_compressed_or_changed_or_cut_is_refused(moved, tmp_path):
    whole = moved.read_bytes()
    with pytest.raises(JobError, match="is compressed or encrypted"):
        open_run(compressed_but_for_the_manifest(moved, tmp_path / "compressed.landscape"))
    changed = tmp_path / "changed.landscape"
    place = whole.index(b'"shape"')
    changed.write_bytes(whole[:place] + b"X" + whole[place + 1 :])
    with pytest.raises(JobError, match="is not what was packed, by its digest; copy the file again"):
        open_run(changed)
    (tmp_path / "cut.landscape").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LandscapeError):
        open_run(tmp_path / "cut.landscape")
    newer = with_json(moved, "manifest.json", lambda manifest: manifest.update(version=2))
    with pytest.raises(JobError, match="has version 2 of the format, and this landscape reads 1; install a newer one"):
        open_run(written(tmp_path / "newer.landscape", newer, sealed=False))


def compressed_but_for_the_manifest(source: Path, place: Path) -> Path:
    with zipfile.ZipFile(place, "w") as archive:
        for name, data in members_of(source).items():
            kind = zipfile.ZIP_STORED if name == "manifest.json" else zipfile.ZIP_DEFLATED
            archive.writestr(name, data, compress_type=kind)
    return place


@pytest.mark.parametrize("problem", ["os:abort", "travelling_problem:problem", "/etc/passwd"])
def test_a_callback_that_the_sender_names_is_not_called(moved, tmp_path, problem):
    def name_it(document: dict) -> None:
        document["attributes"]["job"]["problem"] = problem

    def forget_ours(manifest: dict) -> None:
        manifest["problems"] = {"plane": {"file": "../../../etc/passwd", "digest": "0"}}

    members = with_json(moved, "landscapes.zarr/plane/zarr.json", name_it)
    manifest = json.loads(members["manifest.json"])
    forget_ours(manifest)
    file = written(tmp_path / "hostile.landscape", {**members, "manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(JobError, match="problem: that of landscape 'plane' is not in the packed run"):
        inspect(file, "plane")
    assert not Path("executed").exists()


def test_weights_of_this_machine_that_the_sender_names_are_not_read(moved, tmp_path):
    def name_it(document: dict) -> None:
        document["attributes"]["job"]["landscapes"][0]["directions"][0] |= {"target": "/etc/weights.safetensors"}
        document["attributes"]["snapshots"] = {}

    file = written(tmp_path / "hostile.landscape", with_json(moved, "landscapes.zarr/line/zarr.json", name_it))
    with pytest.raises(LandscapeError, match=r"its job names '/etc/weights.safetensors', which it does not hold"):
        inspect(file, "line")


def test_a_packed_job_is_no_packed_run():
    with pytest.raises(NotFoundError, match="must be a folder or URL, not the file"):
        open_run(small_file())
