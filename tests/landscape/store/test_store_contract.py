"""What holds of a run wherever it lies: the same tests on a local folder and on S3 over HTTP."""

from __future__ import annotations

import json
import threading
import warnings

import numpy as np
import pytest
import torch
import zarr
from object_stores import Raw
from small_models import (
    LOOK,
    MEASURED,
    OWN_MODEL,
    WITNESS,
    Counter,
    conv_problem,
    make_job,
    quadratic_problem,
    wandering,
)
from stores import constant, make_store
from torch import nn

from landscape import NotFoundError, Problem, TrajectoryCollector, open_run, run
from landscape.core.errors import Interrupted, JobError, LandscapeError
from landscape.core.folders import open_folder, probe
from landscape.core.lock import driver_alive, run_lock
from landscape.model.checkpoint_import import import_checkpoints
from landscape.model.history import read_history
from landscape.model.run_files import read_info
from landscape.model.snapshots import read_trajectory, write_snapshot
from landscape.store import commit
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names, open_zarr, survey


@pytest.fixture
def raw(place: str, endpoint: str) -> Raw:
    return Raw(place, endpoint)


def walk(place: str, model: nn.Module, count: int = 4) -> None:
    for number, state in wandering(model, count, 0.2).items():
        write_snapshot(place, "epoch", number, {name: tensor.contiguous() for name, tensor in state.items()})


# -- the folder ----------------------------------------------------------------------------------------------


def test_files_are_written_read_listed_and_deleted(place, raw):
    folder = open_folder(place)
    folder.make()
    folder.refuse_unwritable()
    assert folder.read("absent") is None
    assert folder.names("absent") == folder.folders("absent") == []
    folder.write("a.json", b"one")
    with folder.whole("below/b.bin") as file:
        file.write_bytes(b"0123456789")
    folder.write("below/deeper/c", b"c")
    assert raw.keys() == ["a.json", "below/b.bin", "below/deeper/c"]
    assert raw.read("below/b.bin") == b"0123456789"
    assert folder.exists()
    assert folder.names("") == ["a.json"]
    assert (folder.names("below"), folder.folders("below")) == (["b.bin"], ["deeper"])
    assert folder.read("a.json") == b"one"
    assert folder.read_range("below/b.bin", 3, 4) == b"3456"
    with folder.fetched("below/b.bin") as file:
        assert file.read_bytes() == b"0123456789"
    for missing in (lambda: folder.read_range("absent", 0, 1), lambda: folder.fetched("absent").__enter__().stat()):
        with pytest.raises(FileNotFoundError):
            missing()
    folder.write("a.json", b"two")
    assert raw.read("a.json") == b"two"
    folder.delete("a.json")
    folder.delete("absent")
    folder.delete_below("below")
    folder.delete_below("absent")
    assert raw.keys() == []


def test_a_file_whose_writing_fails_is_not_there(place, raw):
    folder = open_folder(place)
    folder.write("a", b"before")

    def fail(path: str) -> None:
        with folder.whole(path) as file:
            file.write_bytes(b"half")
            raise RuntimeError

    for path in ("a", "b"):
        with pytest.raises(RuntimeError):
            fail(path)
    assert raw.keys() == ["a"]
    assert raw.read("a") == b"before"


def test_the_probe_finds_the_place_usable_and_leaves_nothing(place, raw):
    folder = open_folder(place)
    folder.make()
    folder.write("mine", b"")
    steps = [what for what, _ in probe(place)]
    assert steps[:4] == ["look", "write", "read", "list"]
    assert steps[-1] == "delete"
    assert raw.keys() == ["mine"]


# -- landscapes ----------------------------------------------------------------------------------------------


def test_a_run_holds_the_bits_and_the_files_of_a_local_one(place, raw, tmp_path, endpoint):
    problem = conv_problem()
    specs = [{"name": "t", "trajectory": "all", "size": [4, 3]}, {"name": "r", "size": 3}]
    for each in (place, str(tmp_path / "other")):
        walk(each, problem.model, 3)
        run(make_job(each, lambda: problem, specs, tile=[3, 2]))
    other = Raw(str(tmp_path / "other"), endpoint)
    lock = {"driver.lock"}  # a file lock needs a file
    assert set(raw.keys()) - lock == set(other.keys()) - lock
    assert raw.values() == other.values()
    found, expected = open_run(place), open_run(tmp_path / "other")
    assert list(found) == ["t", "r"] == landscape_names(place), "the order of the job"
    for name in found:
        surface, local = found[name], expected[name]  # each look reads all there is
        assert surface.loss.tobytes() == local.loss.tobytes()
        assert (surface.status == 1).all()
        assert surface.attributes["digest"] == local.attributes["digest"]
        assert surface.attributes["progress"]["state"] == "complete"
        if name == "t":
            assert surface.path.loss.tobytes() == local.path.loss.tobytes()
        store = LandscapeStore.open(place, name)
        assert store.examine().complete
        assert store.check_constants() == store.check_directions() == []
    with pytest.raises(NotFoundError, match=r"'x' is not in run .* known: t, r"):
        found["x"]


def test_an_interrupted_run_goes_on_and_computes_the_rest_only(place, tmp_path, raw, endpoint):
    problem = quadratic_problem()
    counter = Counter(problem.observe)
    counted = Problem(problem.model, problem.data, counter)
    job = make_job(place, lambda: counted, [{"name": "a", "size": 6}], tile=[2, 3])
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        run(job, stop=lambda: next(asked) > MEASURED + WITNESS + OWN_MODEL + 2 * 6 + 1)
    stopped = open_run(place)["a"]
    assert (stopped.status == 1).sum() == 12
    assert stopped.attributes["progress"]["state"] == "interrupted"
    counter.calls = 0
    run(job)
    assert counter.calls == LOOK + WITNESS + 24
    counter.calls = 0
    run(job)
    assert counter.calls == LOOK, "nothing is left to do"
    run(make_job(tmp_path / "whole", lambda: problem, [{"name": "a", "size": 6}], tile=[2, 3]))
    assert raw.values() == Raw(str(tmp_path / "whole"), endpoint).values()


@pytest.mark.parametrize("place", ["s3"], indirect=True)  # `test_store.py` damages a local one in every way
def test_a_lost_chunk_is_found_and_only_that_made_again(place, raw):
    problem = conv_problem()
    counter = Counter(problem.observe)
    job = make_job(
        place, lambda: Problem(problem.model, problem.data, counter), [{"name": "a", "size": [4, 3]}], tile=[2, 2]
    )
    expected = run(job)["a"]
    key = "landscapes.zarr/a/status/c/0/1"
    before = raw.read(key)
    raw.delete(key)
    assert LandscapeStore.open(place, "a").examine().missing == {(0, 1)}
    shown = open_run(place)["a"]
    assert (shown.status[:2, 2:] == 0).all()
    assert np.isnan(shown.loss[:2, 2:]).all()
    counter.calls = 0
    found = run(job)["a"]
    assert counter.calls == LOOK + WITNESS + 4
    assert raw.read(key) == before
    assert found.loss.tobytes() == expected.loss.tobytes()


def test_a_tile_that_is_given_up_is_quarantined_and_tried_anew(place):
    problem = quadratic_problem()

    def fault(model: nn.Module) -> None:
        if broken:
            raise RuntimeError("broken")

    broken = False
    counter = Counter(problem.observe, lambda model: fault(model) if counter.calls > 1 else None)
    job = make_job(place, lambda: Problem(problem.model, problem.data, counter), [{"name": "a", "size": 4}], tile=2)
    asked = iter(range(1000))

    def stop() -> bool:
        nonlocal broken
        broken = next(asked) > MEASURED + WITNESS + OWN_MODEL + 4
        return False

    found = run(job, stop=stop)["a"]
    assert (found.status == 3).sum() == 12
    assert {each["cause"] for each in found.attributes["failures"]} == {"RuntimeError: broken"}
    broken = False
    found = run(job)["a"]
    assert (found.status == 1).all()
    assert found.attributes["failures"] == []


def test_a_half_made_landscape_is_not_listed_and_is_replaced(place, raw, monkeypatch):
    problem = quadratic_problem()
    job = make_job(place, lambda: problem, [{"name": "a", "size": 3}])

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("landscape.store.chunk_io.write_chunks", die)
        with pytest.raises(KeyboardInterrupt):
            run(job)
    assert any(key.startswith("landscapes.zarr/a/loss/") for key in raw.keys())  # noqa: SIM118
    raw.write("landscapes.zarr/a/left/over", b"")
    assert landscape_names(place) == []
    with pytest.raises(NotFoundError, match="'a' is not in run"):
        open_run(place)["a"]
    assert (run(job)["a"].status == 1).all()
    assert "landscapes.zarr/a/left/over" not in raw.keys()  # noqa: SIM118


def everything(raw) -> dict[str, str]:
    return {key: each for key, each in raw.digests().items() if not key.startswith("driver.")}


EMPTY_GROUP = b'{"attributes": {}, "zarr_format": 3, "node_type": "group"}'
LOST = {"open": b"{", "empty": b"", "list": b"[1]", "group": EMPTY_GROUP, "gone": None}


@pytest.mark.parametrize(
    ("place", "damaged"),
    [*(pytest.param("local", value, id=f"local-{name}") for name, value in LOST.items()), ("s3", None)],
    indirect=["place"],
)
def test_lost_metadata_are_taken_from_the_roots_copy_and_nothing_is_deleted_without_it(place, raw, damaged):
    files = ("landscapes.zarr/zarr.json", "landscapes.zarr/a/zarr.json", "landscapes.zarr/a/loss/zarr.json")
    lost = files if raw.kind == "local" and damaged in (EMPTY_GROUP, None) else files[1:2]
    problem = quadratic_problem()
    job = make_job(place, lambda: problem, [{"name": name, "size": 3} for name in ("a", "b")])
    expected = run(job)["a"].loss.tobytes()
    before = everything(raw)

    def damage(key: str) -> None:
        raw.delete(key) if damaged is None else raw.write(key, damaged)

    for key in lost:
        damage(key)
        assert landscape_names(place) == ["a", "b"]
        assert open_run(place)["a"].loss.tobytes() == expected
        assert run(job)["a"].loss.tobytes() == expected
        assert everything(raw) == before, key
    damage("landscapes.zarr/a/zarr.json")
    damage("landscapes.zarr/zarr.json")
    left = everything(raw)
    assert list(survey(place).unreadable) == ["a"]
    assert open_run(place)["b"].loss.tobytes()
    for attempt in (lambda: run(job), lambda: open_run(place)["a"]):
        with pytest.raises(
            LandscapeError, match=r"landscape 'a' cannot be read: '.*a/zarr.json': .*; restore that file"
        ):
            attempt()
    assert everything(raw) == left


def test_a_group_of_somebody_elses_is_refused_and_left(place, raw):
    problem = quadratic_problem()
    job = make_job(place, lambda: problem, [{"name": "a", "size": 3}])
    group = zarr.open_group(open_zarr(place, read_only=False), path="a", mode="a", zarr_format=3)
    group.create_array("mine", data=np.arange(5.0))
    before = everything(raw)
    with pytest.raises(LandscapeError, match=r"landscape 'a' cannot be read: .*this is no landscape of this software"):
        run(job)
    assert {key: everything(raw)[key] for key in before} == before


def test_values_that_are_not_committed_are_not_shown(place, monkeypatch):
    store = make_store(place)
    first, second = store.tile((0, 0)), store.tile((1, 0))
    store.write_tiles([(first, constant(first, 1.0))])
    write = commit.write_synced

    def crash(arrays, chunks):
        if chunks[0][0] == "status":
            raise KeyboardInterrupt
        write(arrays, chunks)

    monkeypatch.setattr(commit, "write_synced", crash)
    with pytest.raises(KeyboardInterrupt):
        store.write_tiles([(second, constant(second, 2.0))])
    reader = LandscapeStore.open(place, "a")
    loss = reader.read_surface().loss
    assert np.isnan(loss[second.windows]).all(), "the values are written, and not committed"
    assert (loss[first.windows] == 1).all()
    assert second.index in reader.examine().missing
    assert reader.examine().damaged == ()


def test_a_reader_beside_a_writer_sees_whole_tiles_only(place):
    store = make_store(place, (12, 9), (3, 3))
    tiles = [store.tile((i, j)) for i in range(3) for j in range(4)]
    stop, looked, problems, looks = threading.Event(), threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            surface = LandscapeStore.open(place, "a").read_surface()
            looks.append(int((surface.status == 1).sum()))
            for k, tile in enumerate(tiles):
                status, loss = set(surface.status[tile.windows].flat), surface.loss[tile.windows]
                if not (np.isnan(loss).all() if status == {0} else status == {1} and (loss == k + 1).all()):
                    problems.append((tile.index, status, loss.tolist()))
            looked.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for k, tile in enumerate(tiles):
            store.write_tiles([(tile, constant(tile, k + 1.0))])
            store.update_attributes(progress={"tiles_done": k})
            if k % 4 == 0:
                looked.clear()
                assert looked.wait(100)
    finally:
        stop.set()
        reader.join()
    assert not problems
    assert looks == sorted(looks), "what was committed stays"
    assert len(set(looks)) > 1, "the reader looked while the writer wrote"


def test_xarray_reads_it_as_it_is(place):
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    problem = quadratic_problem()
    found = run(make_job(place, lambda: problem, [{"name": "a", "size": [5, 4]}]))["a"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder = open_folder(f"{place}/landscapes.zarr")
        plain = folder.name if not hasattr(folder, "store") else zarr.storage.ObjectStore(folder.store, read_only=True)
        with xarray.open_zarr(plain, group="a") as opened:
            assert opened["loss"].dims == ("beta", "alpha")
            np.testing.assert_array_equal(opened["loss"], found.loss)
            np.testing.assert_array_equal(opened["alpha"], found.alpha)


def test_zarr_lists_what_is_there(place):
    make_store(place)
    group = zarr.open_group(open_zarr(place, read_only=True), path="a", mode="r", use_consolidated=False)
    assert {name for name, _ in group.members()} == {
        "alpha", "beta", "directions", "loss", "loss_stderr", "loss_rise_stderr", "status",
    }  # fmt: skip


# -- what training leaves ------------------------------------------------------------------------------------


def train(place: str, epochs: int = 3, **options) -> dict[int, dict[str, torch.Tensor]]:
    """Three steps an epoch, the weight set to the step's number; returns the states at the ends of the epochs."""
    model = nn.Linear(2, 1)
    collector = TrajectoryCollector(
        place, model, torch.optim.SGD(model.parameters(), 0.1), unit="epoch", intervals=[[1, 2, 3]], **options
    )
    begun, found = options.get("start_epoch", 0), {}
    for epoch in range(begun + 1, epochs + 1):
        for step in range(3):
            with torch.no_grad():
                model.weight.fill_(3 * (epoch - 1) + step + 1)
            collector.step(loss=1.0 / step if step else float("nan"))
        collector.end_epoch(accuracy=epoch / 10)
        found[epoch] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return found


def test_the_collector_keeps_weights_history_and_settings(place, raw):
    states = train(place)
    trajectory = read_trajectory(place)
    assert (trajectory.unit, trajectory.numbers) == ("epoch", (1, 2, 3))
    assert [each.step for each in trajectory.snapshots] == [3, 6, 9]
    for number, state in states.items():
        loaded = trajectory.snapshot(number).load()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    history = read_history(place)
    assert [each["step"] for each in history] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9]
    assert [each["accuracy"] for each in history if each.get("epoch_end")] == [0.1, 0.2, 0.3]
    assert history[0]["loss"] is None
    assert read_info(place)["steps_per_epoch"] == 3
    names = [f"trajectory/epoch-0000{n}.safetensors" for n in (1, 2, 3)]
    assert raw.keys() == ["history.jsonl", "run.json", *names]
    assert len(raw.read("history.jsonl").splitlines()) == 12
    assert open_run(place).trajectory == trajectory


def test_training_goes_on_where_it_stopped_and_may_be_begun_anew(place):
    train(place, 2)
    with pytest.raises(JobError, match="already holds a trajectory of 2 epochs"):
        train(place)
    train(place, start_epoch=1)
    assert read_trajectory(place).numbers == (1, 2, 3)
    assert [each["step"] for each in read_history(place)] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9]
    train(place, 1, overwrite=True)
    assert read_trajectory(place).numbers == (1,)
    assert len(read_history(place)) == 4


def test_a_damaged_snapshot_is_named(place, raw):
    train(place)
    key = "trajectory/epoch-00002.safetensors"
    for damaged in (raw.read(key)[:-3], raw.read(key)[:-1] + b"\x7f", b"", b"\xff" * 40):
        raw.write(key, damaged)
        trajectory = read_trajectory(place)
        assert trajectory.numbers == (1, 2, 3)
        with pytest.raises(LandscapeError, match=r"snapshot '.*epoch-00002.safetensors' is damaged"):
            trajectory.snapshot(2).load()


def test_checkpoints_are_imported_and_replaced_when_asked(place, tmp_path):
    files = []
    for k in range(3):
        torch.save({"weight": torch.full((2,), float(k))}, tmp_path / f"{k}.pt")
        files.append(tmp_path / f"{k}.pt")
    import_checkpoints(files, place)
    with pytest.raises(JobError, match="overwrite"):
        import_checkpoints(files[1:], place)
    found = import_checkpoints(files[1:], place, overwrite=True)
    assert [each.source for each in found.snapshots] == ["1.pt", "2.pt"]
    assert found.snapshot(1).load()["weight"].tolist() == [1.0, 1.0]


def test_damaged_settings_are_named(place, raw):
    raw_folder = open_folder(place)
    raw_folder.write("run.json", b"[1]")
    with pytest.raises(LandscapeError, match=r"run.json' must hold one JSON object"):
        read_info(place)
    raw_folder.write("run.json", b"{")
    with pytest.raises(LandscapeError, match=r"run.json' cannot be read: .*; restore it or delete it"):
        read_info(place)


# -- one driver ------------------------------------------------------------------------------------------------


def test_a_second_driver_is_refused_while_the_first_lives(place, raw):
    refused = pytest.raises(LandscapeError, match="is being written by process")
    assert not driver_alive(place)
    with run_lock(place):
        assert driver_alive(place)
        assert json.loads(raw.read("driver.json"))["pid"]
        with refused, run_lock(place):
            pass
        assert driver_alive(place)
    assert "driver.json" not in raw.keys()  # noqa: SIM118
    with pytest.raises(RuntimeError), run_lock(place):
        raise RuntimeError
    with run_lock(place):
        pass
    assert not driver_alive(place)


def test_a_run_that_is_not_there_is_said_so(place):
    with pytest.raises(NotFoundError, match="does not exist"):
        open_run(place)
