"""The layout on disk, commits that survive, damage that is found, and readers that see whole tiles only."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from small_models import (
    LOOK,
    MEASURED,
    OWN_MODEL,
    WITNESS,
    Counter,
    Quadratic,
    conv_problem,
    make_job,
    observe_quadratic,
    quadratic_problem,
    quadratic_samples,
    raw_chunk,
    wandering,
    write_trajectory,
)
from stores import all_tiles, constant, make_store

from landscape import Job, JobError, NotFoundError, Problem, open_run, run
from landscape.core.errors import Interrupted, LandscapeError
from landscape.store import commit
from landscape.store.arrays import status_of
from landscape.store.chunk_io import DurableStore
from landscape.store.landscape import LandscapeStore

# -- layout --------------------------------------------------------------------------------------------------


def described(folder: Path, array: str, name: str = "t") -> dict:
    return json.loads((folder / "landscapes.zarr" / name / array / "zarr.json").read_text())


def test_the_layout_on_disk_is_the_documented_one(tmp_path):
    problem = conv_problem()
    write_trajectory(tmp_path, wandering(problem.model, 4, 0.2))
    run(make_job(tmp_path, lambda: problem, [{"name": "t", "trajectory": "all", "size": [5, 4]}], tile=[3, 2]))
    folder = tmp_path / "landscapes.zarr" / "t"
    grid = {"loss", "loss_stderr", "loss_rise_stderr", "accuracy", "accuracy_stderr", "status"}
    path = {f"path_{name}" for name in ("step", "alpha", "beta", "loss", "projected_loss", "distance", "status")}
    moments, single = {"moments", "path_moments"}, {"alpha", "beta", "directions", "sample_index"}
    assert {each.name for each in folder.iterdir()} == grid | path | moments | single | {"zarr.json"}
    for name in grid:
        meta = described(tmp_path, name)
        assert meta["zarr_format"] == 3
        assert meta["shape"] == [4, 5]
        assert meta["dimension_names"] == ["beta", "alpha"]
        assert meta["chunk_grid"]["configuration"]["chunk_shape"] == [2, 3]
        assert meta["data_type"] == ("uint8" if name == "status" else "float64")
        assert meta["fill_value"] == (0 if name == "status" else "NaN")
    for axis, size in (("alpha", 5), ("beta", 4)):
        meta = described(tmp_path, axis)
        assert (meta["shape"], meta["dimension_names"], meta["data_type"]) == ([size], [axis], "float64")
        assert {"kind", "label", "norm", "explained_variance", "random_walk_variance"} <= set(meta["attributes"])
    directions = described(tmp_path, "directions")
    parameters = sum(p.numel() for p in problem.model.parameters())
    assert (directions["shape"], directions["data_type"]) == ([2, parameters], "float32")
    assert directions["dimension_names"] == ["axis", "parameter"]
    layout_names = [place["name"] for place in directions["attributes"]["layout"]]
    assert layout_names == [name for name, _ in problem.model.named_parameters()]
    for name in path:
        meta = described(tmp_path, name)
        assert (meta["shape"], meta["dimension_names"]) == ([4], ["snapshot"])
    rows = ["loss", "accuracy", "loss-rise"]
    assert json.loads((folder / "zarr.json").read_text())["attributes"]["moment_rows"] == rows
    of_points, of_path = described(tmp_path, "moments"), described(tmp_path, "path_moments")
    assert (of_points["shape"], of_points["dimension_names"]) == ([4, 5, 18], ["beta", "alpha", "moment"])
    assert of_points["chunk_grid"]["configuration"]["chunk_shape"] == [2, 3, 18]
    assert (of_path["shape"], of_path["dimension_names"]) == ([4, 12], ["snapshot", "path_moment"])
    samples = described(tmp_path, "sample_index")
    assert (samples["data_type"], samples["dimension_names"]) == ("int64", ["sample"])
    for name in grid | path | moments | single:
        assert described(tmp_path, name)["codecs"][-1]["name"] == "crc32c", "every chunk ends in its checksum"
    attributes = json.loads((folder / "zarr.json").read_text())["attributes"]
    assert attributes["schema_version"] == 1
    for key in ("job", "identity", "digest", "plan", "provenance", "progress", "failures", "cosine", "num_samples"):
        assert key in attributes
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.long
def test_xarray_opens_a_landscape_as_it_is(tmp_path):
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    problem = conv_problem()  # with an accuracy, so that grid and path have moments of unlike numbers of rows
    write_trajectory(tmp_path, wandering(problem.model, 4, 0.2))
    specs = [
        {"name": "t", "trajectory": "all", "size": [5, 4]},
        {"name": "line", "directions": [{"kind": "random"}], "size": 7},
    ]
    found = run(make_job(tmp_path, lambda: problem, specs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xarray.open_zarr(tmp_path / "landscapes.zarr", group="t") as opened:
            assert opened["loss"].dims == ("beta", "alpha")
            assert opened["path_loss"].dims == ("snapshot",)
            assert set(opened.coords) == {"alpha", "beta"}
            np.testing.assert_array_equal(opened["loss"], found["t"].loss)
            np.testing.assert_array_equal(opened["alpha"], found["t"].alpha)
            point = opened["loss"].sel(alpha=0, beta=0, method="nearest")
            assert np.isfinite(float(point))
            assert opened.attrs["progress"]["state"] == "complete"
        with xarray.open_zarr(tmp_path / "landscapes.zarr", group="line") as opened:
            assert opened["loss"].dims == ("alpha",)
        surface = found["t"].to_xarray()
    assert surface["loss"].dims == ("beta", "alpha")
    assert surface["alpha"].attrs["kind"] == "pca"
    np.testing.assert_array_equal(surface["status"], found["t"].status)


@pytest.mark.parametrize("size, tile", [((6,), (4,)), ((5, 4), (2, 3)), ((3, 4, 5), (2, 3, 2))])
def test_what_is_written_is_what_is_read(tmp_path, size, tile):
    store = make_store(tmp_path, size, tile)
    expected = np.full(store.shape, np.nan)
    for k, each in enumerate(all_tiles(store)):
        values = np.random.default_rng(k).normal(size=each.points)
        expected[each.windows] = values.reshape(each.shape)
        store.write_tiles([(each, {"loss": values, "loss_stderr": -values})])
    surface = LandscapeStore.open(str(tmp_path), "a").read_surface()
    np.testing.assert_array_equal(surface.loss, expected)
    np.testing.assert_array_equal(surface.stderr(), -expected)
    assert (surface.status == 1).all()
    assert [axis.name for axis in surface.axes] == ["alpha", "beta", "gamma"][: len(size)]
    assert LandscapeStore.open(str(tmp_path), "a").examine().complete


def test_a_tile_of_nothing_but_nan_leaves_a_trace(tmp_path):
    make_store(tmp_path)
    store = LandscapeStore.open(str(tmp_path), "a", write=True)  # the setting is not stored with the array
    tile = store.tile((0, 0))
    store.write_tiles([(tile, constant(tile, np.nan))])
    assert raw_chunk(tmp_path, "a", "loss", (0, 0)).is_file()
    examined = LandscapeStore.open(str(tmp_path), "a").examine()
    assert (0, 0) not in examined.missing
    assert examined.damaged == ()
    assert (LandscapeStore.open(str(tmp_path), "a").read_surface().status[:2, :3] == 2).all()


def test_status_tells_finite_from_not():
    assert status_of(np.array([0.0, -1e308, np.nan, np.inf, -np.inf])).tolist() == [1, 1, 2, 2, 2]


def test_directions_come_back_as_they_were(tmp_path):
    make_store(tmp_path)
    found = LandscapeStore.open(str(tmp_path), "a").directions()
    assert [list(each) for each in found] == [["vector"], ["vector"]]
    assert found[1]["vector"].tolist() == [2.0] * 5


def test_large_random_directions_are_kept_as_their_seed_alone(tmp_path, monkeypatch):
    problem = quadratic_problem()
    spec = {"name": "a", "size": 4}
    kept = run(make_job(tmp_path / "kept", lambda: problem, [spec]))["a"]
    monkeypatch.setattr("landscape.job.directions.computed.HELD_BYTES", 10)
    job = make_job(tmp_path / "seed", lambda: problem, [spec], tile=2)
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        run(job, stop=lambda: next(asked) > MEASURED + WITNESS + OWN_MODEL + 5)
    assert not raw_chunk(tmp_path / "seed", "a", "directions", (0, 0)).exists()
    found = run(job)["a"]
    assert found.loss.tobytes() == kept.loss.tobytes()
    assert LandscapeStore.open(str(tmp_path / "seed"), "a").check_constants() == []


# -- names, versions, halves -----------------------------------------------------------------------------------


def test_a_landscape_of_a_newer_schema_is_refused_by_reader_and_writer(tmp_path):
    problem = quadratic_problem()
    job = make_job(tmp_path, lambda: problem, [{"name": "a", "size": 3}])
    run(job)
    LandscapeStore.open(str(tmp_path), "a", write=True).update_attributes(schema_version=2)
    for attempt in (lambda: run(job), lambda: open_run(tmp_path)["a"]):
        with pytest.raises(JobError, match=r"schema version 2, this software reads up to 1; update it"):
            attempt()


def test_wrong_names_list_the_right_ones(tmp_path):
    make_store(tmp_path)
    with pytest.raises(NotFoundError, match=r"'b' is not in run .* known: a"):
        open_run(tmp_path)["b"]
    with pytest.raises(NotFoundError, match="does not exist"):
        open_run(tmp_path / "nowhere")
    assert list(open_run(tmp_path)) == ["a"]
    assert len(open_run(tmp_path)) == 1


# -- damage --------------------------------------------------------------------------------------------------


def flip(data: bytes, where: float) -> bytes:
    place = min(int(where * len(data)), len(data) - 1)
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


# What `test_chunks.py` has of every byte and every length, as a job meets it.
DAMAGE = {
    "a middle bit flipped": lambda data: flip(data, 0.5),
    "empty": lambda data: b"",
    "deleted": lambda data: None,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that tests damage copies of, and its job in another place."""

    def job_of(place: Path, observe: Any = None) -> Job:
        problem = conv_problem()
        if observe is not None:
            problem = Problem(problem.model, problem.data, observe)
        return make_job(place, lambda: problem, [{"name": "a", "size": [4, 3]}], tile=[2, 2])

    place = tmp_path_factory.mktemp("finished") / "run"
    run(job_of(place))
    return place, job_of


@pytest.mark.parametrize(
    ("array", "damage"), [*(("loss", each) for each in DAMAGE), ("accuracy_stderr", "empty"), ("status", "deleted")]
)
def test_a_damaged_chunk_is_found_and_only_its_tile_computed_again(tmp_path, finished, damage, array):
    whole, job_of = finished
    expected = open_run(whole)["a"]
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    counter = Counter(conv_problem().observe)
    job = job_of(tmp_path, counter)
    chunk = raw_chunk(tmp_path, "a", array, (0, 1))
    intact, damaged = chunk.read_bytes(), DAMAGE[damage](chunk.read_bytes())
    if damaged is None:
        chunk.unlink()
    else:
        assert damaged != intact
        chunk.write_bytes(damaged)
    examined = LandscapeStore.open(str(tmp_path), "a").examine()
    assert examined.missing == {(0, 1)}
    if (array, damage) != ("status", "deleted"):  # that is a tile never committed, as far as anyone can tell
        assert (array, (0, 1)) in examined.damaged
        assert {index for _, index in examined.damaged} == {(0, 1)}
    shown = open_run(tmp_path)["a"]
    assert (shown.status[:2, 2:] == 0).all()
    np.testing.assert_array_equal(shown.loss[:, :2], expected.loss[:, :2])
    assert np.isnan(shown.loss[:2, 2:]).all()

    found = run(job)["a"]
    assert counter.calls == LOOK + WITNESS + 4
    assert chunk.read_bytes() == intact
    assert found.loss.tobytes() == expected.loss.tobytes()


@pytest.fixture(scope="module")
def along_a_path(tmp_path_factory):
    """A run around a path, and its job in another place."""
    problem = quadratic_problem()

    def job_of(place: Path) -> Job:
        return make_job(place, lambda: problem, [{"name": "t", "trajectory": "all", "size": 4}], tile=2)

    place = tmp_path_factory.mktemp("path") / "run"
    write_trajectory(place, wandering(problem.model, 4, 0.2))
    run(job_of(place))
    return place, job_of


@pytest.mark.parametrize(
    ("array", "damage"),
    [
        ("alpha", "a middle bit flipped"),
        ("alpha", "deleted"),
        ("path_loss", "empty"),
        ("path_loss", "deleted"),
        ("path_beta", "empty"),
        ("path_step", "a middle bit flipped"),
        ("path_distance", "deleted"),
        ("path_status", "empty"),
    ],
)
def test_damaged_coordinates_and_paths_are_found_and_made_again(tmp_path, along_a_path, array, damage):
    whole, job_of = along_a_path
    expected = open_run(whole)["t"]
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    job = job_of(tmp_path)
    chunk = raw_chunk(tmp_path, "t", array, (0,))
    intact, damaged = chunk.read_bytes(), DAMAGE[damage](chunk.read_bytes())
    chunk.unlink() if damaged is None else chunk.write_bytes(damaged)
    store = LandscapeStore.open(str(tmp_path), "t")
    if array in ("path_loss", "path_status"):
        assert store.examine().path_missing
        assert not store.examine().missing
    else:
        assert store.check_constants() == [array]
    if array == "alpha":
        with pytest.raises(LandscapeError, match="'t': its coordinates are damaged"):
            open_run(tmp_path)["t"]
    else:
        assert open_run(tmp_path)["t"].loss.tobytes() == expected.loss.tobytes()
    found = run(job)["t"]
    assert chunk.read_bytes() == intact
    assert found.loss.tobytes() == expected.loss.tobytes()
    assert found.path.loss.tobytes() == expected.path.loss.tobytes()


def test_sound_landscapes_are_found_sound(along_a_path):
    store = LandscapeStore.open(str(along_a_path[0]), "t")
    assert store.examine().complete
    assert store.examine().damaged == ()
    assert store.check_constants() == []
    assert store.check_directions() == []


def test_the_directions_checked_are_those_whose_digest_was_recorded(tmp_path):
    problem = quadratic_problem()
    run(make_job(tmp_path, lambda: problem, [{"name": "a", "size": 3}]))
    store = LandscapeStore.open(str(tmp_path), "a", write=True)
    assert store.check_directions() == []
    other = np.arange(18, dtype=np.float32)[None]
    commit.write_synced(store.arrays, [("directions", (1, 0), other)])  # well-formed, and wrong
    assert store.check_constants() == []
    assert store.check_directions() == ["directions of beta: another digest than recorded"]


# -- commits -------------------------------------------------------------------------------------------------


def test_every_value_is_synced_before_the_first_status_is_written(tmp_path, monkeypatch):
    """Of one tile and of many that are committed at once; with each chunk the new folders by which it is found."""
    store = make_store(tmp_path, (9, 7), observables=("loss", "accuracy"))
    events: list[tuple[str, str]] = []
    root, real_put, real_sync = tmp_path / "landscapes.zarr", DurableStore.put, os.fsync

    def recording_put(self, key, data, exclusive=False):
        real_put(self, key, data, exclusive)
        events.append(("write", key))

    def recording_sync(descriptor):
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        real_sync(descriptor)
        events.append(("sync", os.path.relpath(place, root)))

    monkeypatch.setattr(DurableStore, "put", recording_put)
    monkeypatch.setattr(os, "fsync", recording_sync)
    arrays = ("loss", "loss_stderr", "accuracy", "accuracy_stderr")
    one, *others = all_tiles(store)
    for tiles in ([one], others):
        events.clear()
        store.write_tiles([(tile, constant(tile, 2.0, arrays)) for tile in tiles])
        first = min(k for k, (what, key) in enumerate(events) if what == "write" and "/status/" in key)
        before, after = events[:first], events[first:]
        for tile in tiles:
            row, column = tile.index
            for array in (f"a/{name}" for name in arrays):
                chunk = f"{array}/c/{row}/{column}"
                synced = before[before.index(("write", chunk)) :]
                new = (f"{array}/c", array) if tile is one else ()
                assert all(("sync", place) in synced for place in (chunk, f"{array}/c/{row}", *new)), chunk
            assert ("sync", f"a/status/c/{row}/{column}") in after
            assert ("sync", f"a/status/c/{row}") in after
        assert not [key for what, key in after if what == "write" and "/status/" not in key]


def test_attributes_are_written_all_at_once(tmp_path, monkeypatch):
    real, written = DurableStore.put, []

    def recording(self, key, data, exclusive=False):
        if key == "a/zarr.json" and not exclusive:  # else it is there already
            written.append(json.loads(data)["attributes"])
        real(self, key, data, exclusive)

    monkeypatch.setattr(DurableStore, "put", recording)
    store = make_store(tmp_path)
    assert [set(each) for each in written] == [set(), {"schema_version", "name", "observables", "identity"}]
    store.update_attributes(progress={"tiles_done": 1}, failures=[])
    assert len(written) == 3
    assert LandscapeStore.open(str(tmp_path), "a").attributes == written[-1]


def test_leftovers_of_a_write_cut_off_are_ignored(tmp_path):
    store = make_store(tmp_path)
    for tile in all_tiles(store):
        store.write_tiles([(tile, constant(tile, 1.0))])
    chunk = raw_chunk(tmp_path, "a", "loss", (0, 0))
    chunk.with_name("0.4f1c.partial").write_bytes(b"half")
    (chunk.parent / "1.partial").write_bytes(b"")
    chunk.unlink()
    examined = LandscapeStore.open(str(tmp_path), "a").examine()
    assert examined.missing == {(0, 0)}


# -- disks that are full or closed -----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=384k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_bsize


def test_a_disk_that_fills_up_gives_one_clear_error_and_the_job_goes_on_when_there_is_room(small_disk):
    problem = Problem(Quadratic(), quadratic_samples(), observe_quadratic)
    job = make_job(small_disk / "run", lambda: problem, [{"name": "a", "size": 6}], tile=2)
    expected = run(make_job(small_disk.parent / "other", lambda: problem, [{"name": "a", "size": 6}], tile=2))["a"]
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        run(job, stop=lambda: next(asked) > MEASURED + WITNESS + OWN_MODEL + 4)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * max(0, free_bytes(small_disk) - 8192))
    with pytest.raises(LandscapeError, match="No space left") as caught:
        run(job)
    message = str(caught.value)
    assert str(small_disk / "run") in message
    assert "make room" in message
    assert message.count("\n") <= 1
    store = LandscapeStore.open(str(small_disk / "run"), "a")
    examined = store.examine()
    assert examined.missing
    surface = store.read_surface()
    done = surface.status == 1
    assert done.any()
    np.testing.assert_array_equal(surface.loss[done], expected.loss[done])
    filler.unlink()
    assert run(job)["a"].loss.tobytes() == expected.loss.tobytes()


def test_a_disk_that_is_full_from_the_start_gives_one_clear_error(small_disk):
    problem = quadratic_problem()
    (small_disk / "filler").write_bytes(b"x" * free_bytes(small_disk))
    with pytest.raises(LandscapeError, match="No space left"):
        run(make_job(small_disk / "run", lambda: problem, [{"name": "a", "size": 3}]))
    (small_disk / "filler").unlink()
    assert (run(make_job(small_disk / "run", lambda: problem, [{"name": "a", "size": 3}]))["a"].status == 1).all()


def test_a_read_only_disk_is_refused_before_anything_is_computed(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    problem = quadratic_problem()
    counter = Counter(problem.observe)
    job = make_job(
        small_disk / "run", lambda: Problem(problem.model, problem.data, counter), [{"name": "a", "size": 3}]
    )
    with pytest.raises(LandscapeError, match=r"run: .* is mounted read-only; mount it for writing or") as caught:
        run(job)
    assert caught.value.exit_code == 2
    assert counter.calls == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    problem = quadratic_problem()
    with pytest.raises(JobError, match="no permission to write"):
        run(make_job(tmp_path / "closed" / "run", lambda: problem, [{"name": "a", "size": 3}]))


def test_a_run_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    problem = quadratic_problem()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(JobError, match="is a file, not a folder"):
            run(make_job(place, lambda: problem, [{"name": "a", "size": 3}]))
    assert (tmp_path / "file").read_text() == "mine"


# -- one driver per run ----------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from landscape.core.lock import run_lock
with run_lock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.long
def test_a_second_driver_is_refused_and_a_killed_ones_lock_is_taken_over(tmp_path):
    problem = quadratic_problem()
    job = make_job(tmp_path, lambda: problem, [{"name": "a", "size": 3}])
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            LandscapeError, match=rf"is being written by process {holder.pid} on .*; wait for it or stop"
        ):
            run(job)
        assert list(open_run(tmp_path)) == [], "reading needs no lock"
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert (tmp_path / "driver.json").is_file(), "the dead one left its card"
    assert (run(job)["a"].status == 1).all()
    assert not (tmp_path / "driver.json").exists()


def test_old_zarr_readers_need_nothing_of_ours(tmp_path):
    store = make_store(tmp_path)
    tile = store.tile((0, 0))
    store.write_tiles([(tile, constant(tile, 4.0))])
    group = zarr.open_group(tmp_path / "landscapes.zarr", path="a", mode="r")
    assert np.nansum(group["loss"][:]) == 4.0 * tile.points
