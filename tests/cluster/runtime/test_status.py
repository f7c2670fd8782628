"""What status, validate and export say of a run where something cannot be read: by name, and of all the others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from torch import Tensor, nn

from cluster.commands.exporting import export_run
from cluster.commands.runs import list_ as list_command
from cluster.commands.runs import status as status_command
from cluster.runtime.status import is_readable, run_status, status_text, validate_run, validation_text
from landscape import Job, Problem, TrajectoryCollector, list_runs, open_run, run
from landscape.core.errors import Interrupted, LandscapeError
from landscape.core.lock import run_lock, training_lock
from landscape.model.run_files import Launch, write_launch
from landscape.store.landscape import LandscapeStore


def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    return {"loss": ((model(batch) - 1) ** 2).mean(1)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lines and the history of a training."""
    torch.manual_seed(0)
    model, folder = nn.Linear(3, 2), tmp_path_factory.mktemp("finished") / "run"
    collector = TrajectoryCollector(folder, model, unit="epoch", intervals=[[1, 2, 3]])
    for _ in range(3):
        collector.step(1.0)
        collector.end_epoch()
    run(job_of(folder))
    return folder


@pytest.fixture
def place(tmp_path: Path, finished: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def job_of(folder: Path) -> Job:
    torch.manual_seed(1)
    landscapes = [{"name": name, "directions": [{"kind": "random"}], "size": 4} for name in ("a", "b")]
    problem = Problem(nn.Linear(3, 2), torch.randn(8, 3), observe)
    fields = {"engine": "eager", "batch_size": 8, "num_samples": 8}
    return Job(run=str(folder), problem=lambda: problem, landscapes=landscapes, **fields)


def lose(place: Path) -> None:
    """The metadata of `a`, and their copy."""
    (place / "landscapes.zarr" / "a" / "zarr.json").write_bytes(b"")
    (place / "landscapes.zarr" / "zarr.json").unlink()


@pytest.mark.long
def test_an_unreadable_landscape_is_named_and_hides_no_other(place, tmp_path):
    assert is_readable(run_status(str(place)))
    lose(place)
    status = run_status(str(place))
    assert not is_readable(status)
    a, b = status["landscapes"]
    assert (a["name"], a["state"], b["state"], b["done"]) == ("a", "unreadable", "complete", 4)
    (line,) = [each for each in status_text(status).splitlines() if each.startswith("a")]
    assert line.startswith("a  unreadable: landscape 'a' cannot be read: ")
    assert "landscapes.zarr/a/zarr.json': is empty; restore that file, or move the folder" in line
    json.dumps(status, allow_nan=False)
    found = validate_run(str(place))
    assert [bool(each["damaged"]) for each in found["landscapes"]] == [True, False]
    assert found["damaged"] == 2, "the root's document is gone as well"
    assert "zarr.json': is not there; running the job again writes it anew" in validation_text(found)
    assert "\na: unreadable\n  landscape 'a' cannot be read: " in validation_text(found)
    assert ("a" in open_run(place), "b" in open_run(place)) == (False, True)
    assert (open_run(place)["b"].status == 1).all()
    written = []
    with pytest.raises(LandscapeError, match="landscape 'a' cannot be read"):
        written.extend(export_run(str(place), [], ["csv"], tmp_path / "out"))
    assert [each.name for each in tmp_path.joinpath("out").iterdir()] == ["b.csv"]


@pytest.mark.long
@pytest.mark.parametrize("attribute", ["identity", "digest", "plan", "job"])
def test_validate_promises_no_mending_where_run_refuses(attribute, place, caplog):
    """Neither the landscape's own metadata nor the root's copy tell what going on depends on."""
    folder = place / "landscapes.zarr"
    document = json.loads((folder / "a" / "zarr.json").read_text())
    del document["attributes"][attribute]
    (folder / "a" / "zarr.json").write_text(json.dumps(document))
    root = json.loads((folder / "zarr.json").read_text())
    del root["consolidated_metadata"]
    (folder / "zarr.json").write_text(json.dumps(root))
    caplog.clear()
    with pytest.raises(LandscapeError) as refused:
        run(job_of(place))
    assert not [each for each in caplog.messages if "is missing" in each], "it is told once"
    found = validate_run(str(place))
    assert found["landscapes"][0]["damaged"] == [str(refused.value)]
    text = validation_text(found)
    assert text.count(f"{attribute}: is missing; restore that file, or move the folder") == 1
    assert "running the job again computes" not in text
    assert open_run(place)["a"].loss.shape == (4,), "it is read nevertheless"
    (folder / "b" / "loss" / "c" / "0").write_bytes(b"")
    assert "running the job again computes" in validation_text(validate_run(str(place)))


def test_an_array_that_cannot_be_read_is_named_too(place):
    for path in ("a/loss/zarr.json", "zarr.json"):
        (place / "landscapes.zarr" / path).write_bytes(b"{}")
    found = validate_run(str(place))
    assert "a/loss/zarr.json': zarr_format: must be 3, not None" in found["landscapes"][0]["damaged"][0]
    with pytest.raises(LandscapeError, match=r"landscape 'a' cannot be read: .*a/loss/zarr.json"):
        open_run(place)["a"]


def test_a_root_without_a_copy_is_what_a_killed_driver_leaves(place):
    root = place / "landscapes.zarr" / "zarr.json"
    for text, damaged in (('"attributes": {}', 0), ('"attributes": {}, "consolidated_metadata": 3', 1)):
        root.write_text(f'{{"zarr_format": 3, "node_type": "group", {text}}}')
        assert validate_run(str(place))["damaged"] == damaged


def test_what_the_copy_mends_is_said_and_no_reason_to_fail_a_status(place):
    (place / "landscapes.zarr" / "a" / "zarr.json").write_bytes(b"{")
    status = run_status(str(place))
    assert is_readable(status)
    assert "its copy in the root stands in for it" in status_text(status)
    assert validate_run(str(place))["damaged"] == 1


def test_status_and_list_agree_on_what_the_copy_mends(place):
    (place / "landscapes.zarr" / "a" / "zarr.json").unlink()
    (row,) = list_runs(place)
    assert (row["state"], row["readable"]) == ("complete", True)
    assert "its copy in the root stands in for it" in row["problem"]
    assert (status_command(str(place)), list_command(str(place))) == (0, 0)


@pytest.mark.parametrize(
    ("file", "damage"), [("loss/c/0", "truncated"), ("loss/c/0", "deleted"), ("status/c/0", "truncated")]
)
def test_points_that_cannot_be_read_are_counted_and_no_landscape_with_them_is_complete(place, file, damage):
    chunk = place / "landscapes.zarr" / "a" / file
    chunk.unlink() if damage == "deleted" else chunk.write_bytes(chunk.read_bytes()[:5])
    status = run_status(str(place))
    points = open_run(place)["a"].status
    lost = int((points == 0).sum())
    assert lost > 0, "the damaged chunk holds some points"
    a, b = status["landscapes"]
    assert (a["state"], a["unreadable"], b["state"], b["unreadable"]) == ("damaged", lost, "complete", 0)
    plural = "s" * (lost != 1)
    line = f"{lost} point{plural} cannot be read; `landscape validate {place}` names the damaged files"
    text = status_text(status).splitlines()
    assert line in text[-2]
    assert "lowest loss 0" not in text[-2]
    (row,) = list_runs(place)
    assert (row["state"], row["readable"]) == ("damaged", False)
    assert row["landscapes"][0]["lowest"] is None
    told = line.replace(str(place), "RUN")
    assert row["problem"] == f"landscape 'a': {told}"
    assert (status_command(str(place)), list_command(str(place))) == (1, 1)
    with run_lock(str(place)):
        assert run_status(str(place))["landscapes"][0]["state"] == "running", "a driver mends it"


def test_a_loss_that_is_not_finite_where_the_status_says_so_is_damage(place):
    group = zarr.open_group(place / "landscapes.zarr" / "a", mode="r+")
    group["loss"][1] = np.nan
    (a, _) = run_status(str(place))["landscapes"]
    assert (a["state"], a["unreadable"]) == ("damaged", 1)


def test_the_lowest_loss_of_a_landscape_that_is_not_whole_is_the_lowest_so_far(place):
    assert "lowest loss " in status_text(run_status(str(place))).splitlines()[-2]
    group = zarr.open_group(place / "landscapes.zarr" / "a", mode="r+")
    group["status"][3], group["loss"][3] = 0, np.nan
    line = status_text(run_status(str(place))).splitlines()[-2]
    assert "interrupted" in line
    assert "lowest so far " in line


@pytest.mark.long
def test_damage_of_what_training_left_is_found_and_hides_no_landscape(place):
    with open(place / "history.jsonl", "ab") as file:
        file.write(b'\x00\xff\n[1]\n{"step": 4, "epoch"')  # the last was never finished
    found = validate_run(str(place))
    assert found["damaged"] == 1
    assert "history.jsonl: lines that are no JSON object: 7, 8" in validation_text(found)
    for data in (b"", b'{"a":' * 50_000):
        (place / "run.json").write_bytes(data)  # which says what history counts
        assert validate_run(str(place))["damaged"] == 1
        assert not is_readable(run_status(str(place)))
    status = run_status(str(place))
    assert not is_readable(status)
    assert [each["state"] for each in status["landscapes"]] == ["complete", "complete"]
    assert "run.json' cannot be read: it is empty, no JSON, or nested too deeply" in status_text(status)


def test_a_stray_folder_is_named_and_control_characters_are_spelled_out(place):
    stray = place / "landscapes.zarr" / "x\x1b[2Jy\nz"
    stray.mkdir()
    (stray / "notes.txt").write_text("mine")
    text = status_text(run_status(str(place)))
    assert "x\\u001b[2Jy z  unreadable: " in text
    assert "\x1b" not in text + validation_text(validate_run(str(place)))
    assert validate_run(str(place))["damaged"] == 1


def test_numbers_that_json_cannot_hold_are_left_out(place):
    file = place / "landscapes.zarr" / "a" / "zarr.json"
    document = json.loads(file.read_text())
    document["attributes"]["precision_error"] = {"max_rel_error": float("nan")}
    file.write_text(json.dumps(document))
    status = run_status(str(place))
    json.dumps(status, allow_nan=False)
    assert "nan" not in status_text(status)


def test_what_the_record_of_a_worker_does_not_say_is_not_made_up(place):
    """Earlier versions recorded less of a worker than this one."""
    file = place / "landscapes.zarr" / "a" / "zarr.json"
    document = json.loads(file.read_text())
    document["attributes"]["progress"]["by_worker"] = [{"name": "w-1", "host": "h", "tasks": 3}]
    file.write_text(json.dumps(document))
    (worker,) = run_status(str(place))["landscapes"][0]["by_worker"]
    unknown = dict.fromkeys(("node", "pid", "device", "points", "seconds"))
    assert worker == {"name": "w-1", "host": "h", "tasks": 3, **unknown}
    status = run_status(str(place))
    status["landscapes"][0]["state"] = "running"
    assert "w-1 on h: 3 tiles\n" in status_text(status) + "\n"


def test_a_driver_that_crashed_does_not_run(place):
    chunk = place / "landscapes.zarr" / "a" / "status" / "c" / "0"
    chunk.unlink()
    (place / "driver.json").write_text(json.dumps({"pid": os.getpid(), "host": "another-host", "started": 0}))
    status = run_status(str(place))
    assert (status["driver"], status["landscapes"][0]["state"]) == (False, "interrupted")
    assert np.isnan(open_run(place)["a"].loss[0])


def test_a_landscape_that_was_not_compared_with_the_users_model_says_so(tmp_path: Path) -> None:
    job = job_of(tmp_path / "run")
    rounded = [each.model_dump(mode="json", exclude_none=True) | {"quantise": {"bits": 4}} for each in job.landscapes]
    run(Job(run=job.run, problem=job.problem, landscapes=rounded[:1], engine="eager", batch_size=8, num_samples=8))
    assert "not compared with your own model" in status_text(run_status(str(tmp_path / "run")))


def test_an_exit_code_says_whether_a_run_is_complete(place, capsys, monkeypatch):
    """So that a script need not read the text: `until landscape status RUN --exit-code; do …`."""

    def codes() -> tuple[int, int]:
        return status_command(str(place)), status_command(str(place), exit_code=True)

    assert codes() == (0, 0)
    with run_lock(str(place)):
        assert codes() == (0, 4), "a driver may begin another landscape"
    with training_lock(str(place)):
        assert codes() == (0, 4)
    for outcome, code in (("done", 0), ("running", 4), ("interrupted", 4), ("failed", 1)):
        write_launch(str(place), Launch("recipe", 1, outcome=outcome))
        assert codes() == (0, code), outcome
    (place / "launch.json").unlink()
    store = LandscapeStore.open(str(place), "b", write=True)
    store.quarantine_tile(store.tile((0,)))
    assert codes() == (0, 4), "points were given up"
    lose(place)
    assert codes() == (1, 1)


def test_an_interrupted_run_is_not_complete_nor_is_an_empty_one(tmp_path, capsys):
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        run(job_of(tmp_path / "run"), stop=lambda: next(asked) > 5)
    assert status_command(str(tmp_path / "run"), exit_code=True) == 4
    (tmp_path / "empty" / "landscapes.zarr").mkdir(parents=True)
    assert status_command(str(tmp_path / "empty")) == 0
    assert status_command(str(tmp_path / "empty"), exit_code=True) == 4
