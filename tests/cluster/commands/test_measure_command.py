"""`landscape measure` as a user gives it: the table, what is kept, its refusals, and the same bytes from workers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

from landscape import run
from landscape.analysis.measures import measure
from landscape.compute.eigenpairs import KeptSteps
from landscape.core.lock import measuring_lock, run_lock
from landscape.job.reading import read_job
from landscape.model.snapshots import write_snapshot


def snapshots(folder: Path, numbers: range) -> None:
    for number in numbers:
        write_snapshot(folder, "epoch", number, {"x": torch.full((1, 1), 0.1 * number), "y": torch.full((1, 1), 0.5)})


def test_snapshots_are_measured_once_and_kept(write_job, call, tmp_path):
    job = write_job(batch_size=20)
    snapshots(tmp_path / "run", range(1, 4))
    code, out, _ = call("measure", job, "--origins", "epoch-1,last", "--serial", "--layers", "--all")
    assert code == 0
    assert out.startswith("20 samples of seed 0, float32, batch_norm eval\nepoch 1\n  measure")
    for word in ("rise at 0.25", "layer ", "Andriushchenko et al. 2023"):
        assert word in out
    written = (tmp_path / "run" / "measures.json").read_bytes()
    evaluated = (tmp_path / "points.log").read_text()
    code, out, _ = call("measure", job, "--origins", "1,3", "--serial", "--json")
    assert code == 0
    document = json.loads(out)
    assert list(document["origins"]) == ["epoch 1", "epoch 3"]
    assert document["origins"]["epoch 3"]["rows"]["loss"]["value"] > 0
    assert (tmp_path / "run" / "measures.json").read_bytes() == written
    # Nothing but the preparation's look at the problem has evaluated anything.
    assert len((tmp_path / "points.log").read_text()) - len(evaluated) < 200
    assert call("measure", job, "--origins", "all", "--serial")[0] == 0
    assert list(json.loads((tmp_path / "run" / "measures.json").read_text())["origins"]) == [
        "epoch 1",
        "epoch 2",
        "epoch 3",
    ]


@pytest.mark.faults  # what workers answer is tested in test_work_items
def test_a_run_is_measured_as_its_landscape_was_computed_and_workers_give_the_same_bytes(
    write_job, call, tmp_path, local_ray
):
    job = write_job(num_samples=16, batch_size=4)
    place = run(read_job(job)).path
    snapshots(Path(place), range(1, 2))
    files = [path for path in Path(place).rglob("*") if "landscapes.zarr" in str(path) and path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert call("measure", place, "--workers", 2)[0] == 0
    there = {path.name: path.read_bytes() for path in Path(place).glob("measures*/*")}
    document = (Path(place) / "measures.json").read_bytes()
    assert json.loads(document)["settings"]["num_samples"] == 16
    (Path(place) / "measures.json").unlink()
    assert call("measure", place, "--serial")[0] == 0
    assert (Path(place) / "measures.json").read_bytes() == document
    assert {path.name: path.read_bytes() for path in Path(place).glob("measures*/*")} == there
    assert {path: path.read_bytes() for path in files} == before


def test_steps_towards_the_curvature_are_kept_until_the_weights_are_measured(write_job, call, tmp_path, monkeypatch):
    job = write_job(batch_size=20)
    with monkeypatch.context() as killed:
        killed.setattr(measure, "layer_rows", None)  # which comes after the curvature
        assert call("measure", job, "--serial", "--layers")[0] == 1
    (kept,) = (tmp_path / "run" / "curvature" / "measured").iterdir()
    assert len(list(kept.glob("step-*"))) == 2
    assert not (tmp_path / "run" / "measures.json").exists()
    with monkeypatch.context() as without_steps:
        without_steps.setattr(KeptSteps, "keep", None)  # each new step would be kept
        assert call("measure", job, "--serial")[0] == 0
    assert not (tmp_path / "run" / "curvature").exists()
    rows = json.loads((tmp_path / "run" / "measures.json").read_text())["origins"]["problem"]["rows"]
    again = write_job(folder=tmp_path / "again", batch_size=20)
    assert call("measure", again, "--serial")[0] == 0
    whole = json.loads((tmp_path / "again" / "run" / "measures.json").read_text())["origins"]["problem"]["rows"]
    assert rows == whole


def test_what_was_measured_is_compared(write_job, call, tmp_path):
    for name, origins in (("one", "last"), ("other", "all")):
        job = write_job(folder=tmp_path / name, batch_size=20)
        snapshots(tmp_path / name / "run", range(1, 3))
        assert call("measure", job, "--origins", origins, "--serial")[0] == 0
    one, other = tmp_path / "one" / "run", tmp_path / "other" / "run"
    code, out, _ = call("compare", one, f"{other}:epoch-1")
    assert code == 0
    assert out.startswith(f"first: {one} epoch 2\nsecond: {other} epoch 1\n")
    assert "worst case in ‖ε‖ ≤ 0.05 (SAM), 1 step" in out
    assert out.endswith("for that, give at least three runs of each.\n")
    code, out, _ = call("compare", one, other, "--json")
    assert code == 0
    assert json.loads(out)["rows"]["rise 0.5"]["verdict"] == "no difference shown"
    # One problem of another number of samples, and runs that do not exist or were not measured.
    few = write_job(folder=tmp_path / "few", num_samples=16)
    assert call("measure", few, "--serial")[0] == 0
    for words, code, told in (
        ((one, tmp_path / "few" / "run"), 2, "are not comparable: num_samples 20 and 16; "),
        ((one, f"{other}:epoch-7"), 2, "'epoch-7' was not measured; name one of epoch 1, epoch 2"),
        ((one, tmp_path / "nowhere"), 3, "does not exist"),
    ):
        found, out, said = call("compare", *words)
        assert (found, out) == (code, ""), words
        assert told in said
        assert said.count("\n") <= 2


SMALL = {"size": 3, "directions": [{"kind": "file", "path": "d1.safetensors"}]}


def test_the_samples_are_those_that_are_named_and_never_those_of_any_landscape(write_job, call, tmp_path):
    """Two jobs wrote one run: one landscape of 20 samples of seed 0, and one of 18 of seed 3."""
    for name, fields in (("a", {}), ("b", {"num_samples": 18, "seed": 3})):
        run(read_job(write_job(batch_size=20, tile=3, landscapes=[{"name": name, **SMALL}], **fields)))
        if name == "a":
            alone = call("measure", tmp_path / "run", "--serial")
    assert (alone.code, alone.out.splitlines()[0]) == (0, "20 samples of seed 0, float32, batch_norm eval")
    place = tmp_path / "run"
    kept = (place / "measures.json").read_bytes()
    code, out, said = call("measure", place, "--serial")
    assert (code, out, said.count("\n")) == (2, "", 1)
    assert "landscape: must be named, since the landscapes of run" in said
    assert "differ in num_samples (20 of a, 18 of b), seed (0 of a, 3 of b); give the one to measure as, or" in said
    assert call("measure", place, "--serial", "--samples", "17")[0] == 2  # the seeds differ still
    assert call("measure", place, "--landscape", "c")[0] == 3
    assert (place / "measures.json").read_bytes() == kept
    for words, told in (
        (("--landscape", "b"), "18 samples of seed 3"),
        (("--samples", "17", "--seed", "1"), "17 samples of seed 1"),
        (("--landscape", "a", "--samples", "16"), "16 samples of seed 0"),
    ):
        code, out, _ = call("measure", place, "--serial", *words)
        assert (code, out.splitlines()[0]) == (0, f"{told}, float32, batch_norm eval")
        settings = json.loads((place / "measures.json").read_text())["settings"]
        assert told == f"{settings['num_samples']} samples of seed {settings['seed']}"
    code, _, said = call("measure", tmp_path / "job.yaml", "--landscape", "a", "--serial")
    assert (code, "landscape: goes with a run, not with a job file" in said) == (2, True)


def test_several_runs_are_measured_in_one_call_and_one_that_fails_loses_no_other(write_job, call, tmp_path):
    places = []
    for name in ("one", "other"):
        folder = tmp_path / name
        job = write_job(folder=folder, batch_size=20, tile=3, landscapes=[{"name": "a", **SMALL}])
        run(read_job(job))
        snapshots(folder / "run", range(1, 3) if name == "one" else range(4, 5))
        places.append(folder / "run")
    one, other = places
    code, out, said = call("measure", one, tmp_path / "absent", other, "--serial")
    assert code == 4
    assert "absent' does not exist" in said
    head, first, second, *rest = out.splitlines()
    assert head.split()[:5] == ["run", "weights", "loss", "rise", "at"]
    assert [line.split()[:3] for line in (first, second)] == [["one/run", "epoch", "2"], ["other/run", "epoch", "4"]]
    assert all("20 samples of seed 0" in line and " ± " in line for line in (first, second))
    assert len(rest) == 1
    for place, label in ((one, "epoch 2"), (other, "epoch 4")):
        assert list(json.loads((place / "measures.json").read_text())["origins"]) == [label]
    code, out, _ = call("measure", *places, tmp_path / "absent", "--origins", "last", "--serial", "--json")
    found = json.loads(out)["runs"]
    assert [row["run"] for row in found] == [str(one), str(other), str(tmp_path / "absent")]
    assert found[0]["origins"] == json.loads((one / "measures.json").read_text())["origins"]
    assert (code, set(found[2])) == (4, {"run", "error"})
    assert call("measure", *places, "--serial")[0] == 0
    assert call("measure", tmp_path / "absent", tmp_path / "neither")[:2] == (3, "")


REFUSED = [
    (
        ["--origins", "epoch-9"],
        2,
        "origins: must be last, first, all, problem, epoch-N or a file of weights, not 'epoch-9'; the",
    ),
    (["--origins", "step-1"], 2, "not 'step-1'; the run has epochs 1-2"),
    (["--origins", "last,elsewhere.safetensors"], 2, "not 'elsewhere.safetensors'"),
    (["--serial", "--workers", "2"], 2, "serial: runs in this process alone"),
    (["--problem", "a:b"], 2, "problem: goes with a run, not with a job file"),
]


def test_what_cannot_be_measured_is_told_in_two_lines_and_nothing_is_written(write_job, call, tmp_path):
    job = write_job()
    snapshots(tmp_path / "run", range(1, 3))
    there = sorted(tmp_path.joinpath("run").rglob("*"))
    for words, code, told in REFUSED:
        found, out, said = call("measure", job, *words)
        assert (found, out) == (code, ""), words
        assert told in said
        assert said.count("\n") <= 2
    few = write_job(num_samples=15)
    assert call("measure", few)[::2] == (
        2,
        "num_samples: must be at least 16 for errors over samples, not 15; give a job with more\n",
    )
    assert call("measure", tmp_path / "nowhere")[0] == 3
    code, _, said = call("measure", tmp_path / "run")
    assert (code, "no landscape whose job says how it is evaluated; name the job file instead" in said) == (2, True)
    assert sorted(set(tmp_path.joinpath("run").rglob("*")) - {tmp_path / "run" / "measuring.lock"}) == there


def test_progress_is_shown_as_run_shows_it(write_job, call, tmp_path):
    job = write_job(batch_size=20)
    snapshots(tmp_path / "run", range(1, 3))
    code, _, said = call("measure", job, "--origins", "all", "--serial")
    assert code == 0
    assert "epoch 1: curvature\n" in said
    shares = [int(share) for share in re.findall(r"2 sets of weights: \d+/\d+ points \((\d+)%\)", said)]
    assert len(shares) > 6
    assert shares == sorted(shares)
    assert shares[-1] == 100


def test_a_driver_of_the_run_is_told_and_hinders_no_measurement(write_job, call, tmp_path):
    """A refusal after the work would lose all of it."""
    job = write_job(batch_size=20)
    with run_lock(str(tmp_path / "run")):
        code, _, said = call("measure", job, "--serial")
    assert code == 0
    assert f"is being written by process {os.getpid()} on" in said
    assert "both go on" in said
    assert list(json.loads((tmp_path / "run" / "measures.json").read_text())["origins"]) == ["problem"]


def test_a_second_measurement_is_refused_before_its_work(write_job, call, tmp_path, monkeypatch):
    job = write_job(batch_size=20)
    monkeypatch.setattr(measure, "measure", None)
    with measuring_lock(str(tmp_path / "run")):
        code, out, said = call("measure", job, "--serial")
    assert (code, out) == (1, "")
    assert f"is being measured by process {os.getpid()} on" in said
    assert said.endswith("wait for it or stop it first\n")
