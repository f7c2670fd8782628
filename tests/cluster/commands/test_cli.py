"""The command as a user gives it: exit codes, one or two lines on stderr, data on stdout, runs left as they were."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from counting import WITNESS
from real_commands import CLI, HELD, committed
from safetensors.torch import save_file

import landscape
from cluster.runtime.supervision import descendants
from landscape.store.results import open_run


def environment(ray_folder: Path | None = None) -> dict[str, str]:
    extra = {"RAY_TMPDIR": str(ray_folder)} if ray_folder else {}
    return os.environ | extra


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# -- bad input -------------------------------------------------------------------------------------------------

BAD_FIELDS = [
    ({"sizes": 40}, 2, ["sizes", "unknown key", "did you mean"]),
    ({"landscapes": [{"name": "a", "siez": 40}]}, 2, ["landscapes.0.siez", "did you mean 'size'"]),
    ({"landscapes": [{"name": "a", "size": 2}]}, 2, ["size", "3 to 65536", "2"]),
    ({"landscapes": [{"name": "a", "size": -1}]}, 2, ["size", "-1"]),
    ({"landscapes": [{"name": "a", "size": "forty"}]}, 2, ["size", "whole number", "forty"]),
    ({"landscapes": [{"name": "a", "range": [1, -1]}]}, 2, ["range", "low to high", "[1, -1]"]),
    ({"landscapes": [{"name": "a", "range": [1, 1]}]}, 2, ["range", "low to high"]),
    ({"num_samples": 0}, 2, ["num_samples", "at least 1", "0"]),
    ({"num_samples": 25}, 2, ["num_samples", "at most the 24", "25"]),
    ({"landscapes": [{"name": "a", "trajectory": [1, 2, 9]}]}, 2, ["trajectory", "epoch 1 is not in run"]),
    ({"landscapes": [{"name": "a", "trajectory": [1, 2]}]}, 2, ["trajectory", "at least 3"]),
    ({"problem": "no_such_module:problem"}, 2, ["problem", "no_such_module", "does not import"]),
    ({"problem": "my_problem:no_such"}, 2, ["problem", "no_such", "known:"]),
    ({"problem": "my_problem:once"}, 2, ["problem", "once", "raised"]),
    ({"problem": "my_problem"}, 2, ["problem", "module:function"]),
    ({"precision": "float8"}, 2, ["precision", "float32", "float8"]),
    ({"landscapes": [{"name": "../a"}]}, 2, ["name", "../a"]),
    ({"landscapes": [{"name": "a", "directions": [{"kind": "file", "path": "nowhere.safetensors"}]}]}, 3, ["nowhere"]),
]


@pytest.mark.parametrize(("fields", "code", "words"), BAD_FIELDS)
def test_bad_fields_get_a_line_that_names_them_and_leave_no_trace(call, write_job, fields, code, words):
    file = write_job(**fields)
    found = call("run", "--serial", file)
    assert found.code == code, found.err
    assert found.out == ""
    assert 1 <= len(found.err.strip().splitlines()) <= 2, found.err
    for word in words:
        assert word in found.err
    assert not (file.parent / "run").exists()


BAD_OPTIONS = [
    ("run --seed 1.5", ["--seed", "must be a whole number, not '1.5'"]),
    ("run --seed 0x10", ["--seed", "must be a whole number, not '0x10'"]),
    ("run --seed -1", ["seed", "must be at least 0, not -1"]),
    (f"run --seed {2**64}", ["seed", f"must be at most {2**64 - 1}"]),
    (f"run --seed {'9' * 5000}", ["--seed", "must be a whole number, not '9999"]),
    ("run --workers 1e9", ["--workers", "must be a whole number, not '1e9'"]),
    ("run --workers 1000000000", ["workers", "must be at most 100000, not 1000000000"]),
    ("run --workers 0", ["workers", "must be at least 1, not 0"]),
    ("run --threads 1.5", ["--threads", "whole number"]),
    ("run --threads 100000", ["threads", "must be at most 1024"]),
    ("run --num-gpus nan", ["--num-gpus", "must be a finite number, not 'nan'"]),
    ("run --num-gpus some", ["--num-gpus", "must be a finite number, not 'some'"]),
    ("run --num-gpus 1.5", ["num_gpus", "a share from 0 to 1, or a whole number"]),
    ("run --device-ids 0 1.5", ["--device-ids", "whole number, not '1.5'"]),
    ("run --device-ids 0 0", ["device_ids", "each once, not [0, 0]"]),
    ("run --batch-size 1e3", ["--batch-size", "whole number, not '1e3'"]),
    ("run --run=", ["run: must be a folder or URL, not ''"]),
    ("run --precision float8", ["precision", "'float32'", "'float8'"]),
    ("run --sead 3", ["--sead", "Did you mean --seed? (see landscape run --help)"]),
    (
        "export --images png",
        ["Unknown option: --images. Known: --run, --name, --to,", "(see landscape export --help)"],
    ),
    ("run --seed \x1b[2J[/a]", ["--seed", r"\x1b[2J[/a]"]),
    ("plan --workers 0", ["workers", "must be at least 1, not 0"]),
    ("plan --workers 2.5", ["--workers", "whole number, not '2.5'"]),
    ("submit --dry-run --workers 2.5", ["--workers", "whole number, not '2.5'"]),
    ("submit --dry-run --workers 1000000", ["workers", "at most 100000"]),
    ("submit --dry-run --target slurm --nodes 1.5", ["--nodes", "whole number, not '1.5'"]),
    ("submit --qqqq", ["Known: --job, --target, --dry-run, --name,", "--max-requeues (see landscape submit --help)"]),
    ("bench --rounds 1.5", ["--rounds", "whole number, not '1.5'"]),
    ("bench --search nan", ["--search", "finite number, not 'nan'"]),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS)
def test_bad_options_get_a_line_that_names_them_and_leave_no_trace(call, write_job, options, words):
    file = write_job()
    command, *given = options.split(" ")
    before = tree(file.parent)
    found = call(command, file, *given, cwd=file.parent)
    assert found.code == 2, found.err
    assert found.out == ""
    assert len(found.err.strip().splitlines()) == 1, found.err
    assert "\x1b" not in found.err
    for word in words:
        assert word in found.err
    assert tree(file.parent) == before


BAD_PROBLEMS = [
    ("return 5", ["must return a landscape.Problem", "int"]),
    ("raise RuntimeError('no weights')", ["raised RuntimeError: no weights (my_problem.py:"]),
    ("sys.exit(0)", ["called sys.exit(0) (my_problem.py:"]),
    ("return Problem(Plane(), (sys.exit(0) for _ in range(9)), observe)", ["batch 0", "called sys.exit(0) (my_probl"]),
    (
        "return Problem(Plane(), torch.zeros(24), lambda model, batch: {'accuracy': batch})",
        ["must return 'loss'", "accuracy"],
    ),
    ("return Problem(Plane(), torch.zeros(24), lambda model, batch: {'loss': batch.mean()})", ["shape (2,)", "()"]),
    ("return Problem(Plane(), torch.zeros(24), lambda model, batch: 1 / 0)", ["observe", "ZeroDivisionError"]),
    ("return Problem(Plane(), torch.zeros(24), lambda model, batch: {'loss': batch.add_(1)})", ["in place"]),
]


@pytest.mark.parametrize(("body", "words"), BAD_PROBLEMS)
def test_bad_callbacks_are_refused_before_anything_is_written(call, make_job, body, words):
    job = make_job()
    file = job.folder / "my_problem.py"
    file.write_text(file.read_text().replace("def problem():\n", f"def problem():\n    {body}\n"))
    found = call("run", "--serial", job.folder / "job.yaml")
    assert found.code == 2, found.err
    assert len(found.err.strip().splitlines()) <= 2
    for word in words:
        assert word in found.err
    assert not (job.folder / "run").exists()


DIRECTION_FILES = [
    ({"x": torch.ones(1, 1)}, "missing y"),
    ({"x": torch.ones(1, 1), "y": torch.ones(1, 1), "z": torch.ones(1)}, "extra z"),
    ({"x": torch.ones(1, 1), "y": torch.ones(2, 1)}, "misshapen y (2, 1) where the model has (1, 1)"),
    ({"x": torch.ones(1, 1), "y": torch.full((1, 1), torch.nan)}, "finite"),
]


@pytest.mark.parametrize(("tensors", "words"), DIRECTION_FILES)
def test_direction_files_that_do_not_fit_are_refused(call, make_job, tensors, words):
    job = make_job()
    save_file(tensors, job.folder / "d2.safetensors")
    found = call("run", "--serial", job.folder / "job.yaml")
    assert found.code == 2
    assert words in found.err
    assert "d2.safetensors" in found.err


def test_usage_errors_end_with_2_and_missing_things_with_3(call, make_job, tmp_path):
    job = make_job()
    for arguments, code in [
        (["run"], 2),
        (["nonsense"], 2),
        (["run", job.folder / "job.yaml", "--wrokers", 2], 2),
        (["run", job.folder / "job.yaml", "--workers", 0], 2),
        (["run", job.folder / "job.yaml", "--serial", "--workers", 2], 2),
        (["run", tmp_path / "none.yaml"], 3),
        (["status", tmp_path / "none"], 3),
        (["validate", tmp_path / "none"], 3),
        (["export", tmp_path / "none"], 3),
        (["run", job.folder / "job.yaml", "--address", "127.0.0.1:1"], 5),
        (["run", job.folder / "job.yaml", "--address", "ray://127.0.0.1:1"], 2),
    ]:
        found = call(*arguments)
        assert found.code == code, (arguments, found.err)
        assert 1 <= len(found.err.strip().splitlines()) <= 2, found.err
        assert "Traceback" not in found.err


def test_a_job_file_that_is_no_job(call, tmp_path):
    for text in ("a: [", "- 1", "just text", ""):
        (tmp_path / "job.yaml").write_text(text)
        found = call("plan", tmp_path / "job.yaml")
        assert found.code == 2
        assert "job.yaml" in found.err


# -- the commands on a real run --------------------------------------------------------------------------------


@pytest.fixture
def finished(call, make_job):
    job = make_job()
    assert call("run", "--serial", job.folder / "job.yaml").code == 0
    return job


def test_run_is_idempotent_and_refuses_another_job_on_the_same_run(call, finished):
    before = tree(finished.folder / "run" / "landscapes.zarr" / "plane" / "loss")
    assert call("run", "--serial", finished.folder / "job.yaml").code == 0
    other = call("run", "--serial", finished.folder / "job.yaml", "--num-samples", 12, "--seed", 3)
    assert other.code == 2
    assert "changed: seed 0 to 3: " in other.err
    fewer = call("run", "--serial", finished.folder / "job.yaml", "--num-samples", 12)
    assert fewer.code == 0
    assert "'plane' holds more than the job asks for, and is taken as it is: num_samples: 20" in fewer.err
    assert tree(finished.folder / "run" / "landscapes.zarr" / "plane" / "loss") == before


def test_the_run_option_counts_from_the_working_directory(call, make_job, tmp_path):
    job = make_job(folder=tmp_path / "jobs")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert call("run", "--serial", "../jobs/job.yaml", "--run", "mine", cwd=elsewhere).code == 0
    assert (elsewhere / "mine" / "landscapes.zarr" / "plane").is_dir()
    assert not (job.folder / "run").exists()


def test_what_a_lower_precision_costs_stands_in_plan_and_status(call, write_job):
    job = write_job(precision="bfloat16", engine="eager")
    assert " % of float32, batches of " in call("plan", job).out
    assert call("run", job, "--serial").code == 0
    told = call("status", job.parent / "run").out
    assert "bfloat16 within " in told
    assert " % of float32" in told
    (found,) = json.loads(call("status", job.parent / "run", "--json").out)["landscapes"]
    assert (found["engine"], found["precision"]) == ("eager", "bfloat16")
    assert set(found["precision_error"]) == {"max_abs_error", "max_rel_error", "points"}


def test_status_and_validate_as_text_and_json(call, finished, caplog):
    run = finished.folder / "run"
    status = json.loads(call("status", run, "--json").out)
    assert (
        status["landscapes"][0] | {"name": "plane", "state": "complete", "points": 63, "done": 63}
        == status["landscapes"][0]
    )
    assert "63/63 points" in call("status", run).out
    assert json.loads(call("validate", run, "--json").out)["damaged"] == 0

    chunk = run / "landscapes.zarr" / "plane" / "loss" / "c" / "1" / "0"
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(bytes(data))
    found = call("validate", run)
    assert found.code == 1
    assert "loss chunk 1/0" in found.out
    before = len((finished.folder / "points.log").read_text().splitlines())
    again = call("run", "--serial", finished.folder / "job.yaml")
    assert again.code == 0
    assert "loss chunk 1/0 is damaged and computed again" in caplog.text
    assert len((finished.folder / "points.log").read_text().splitlines()) - before == WITNESS + 6
    assert call("validate", run).code == 0


def test_plan_writes_nothing(call, make_job):
    job = make_job()
    found = call("plan", job.folder / "job.yaml", "--json")
    assert found.code == 0, found.err
    plan = json.loads(found.out)
    assert plan["points"] == 63
    assert plan["landscapes"][0]["tiles"] == 5 * 3
    assert plan["seconds"] > 0
    assert not (job.folder / "run").exists()


def test_init_writes_a_job_that_runs_and_never_replaces_files(call, tmp_path):
    assert call("init", cwd=tmp_path).code == 0
    file = tmp_path / "job.yaml"
    job = yaml.safe_load(file.read_text())
    job["landscapes"][0]["size"] = 5
    job["num_samples"] = 64
    file.write_text(yaml.safe_dump(job))
    assert call("run", "--serial", file).code == 0
    assert open_run(tmp_path / "runs" / "mine")["minimum"].loss.shape == (5, 5)
    again = call("init", cwd=tmp_path)
    assert again.code == 2
    assert yaml.safe_load(file.read_text()) == job


def test_export_writes_a_comparison_of_landscapes(call, finished, tmp_path):
    both = [f"{finished.folder / 'run'}:plane", f"{finished.folder / 'run'}:plane"]
    drawn = call("export", *both, "--mode", "tiled", "--no-rise", "--out", tmp_path)
    assert [Path(line).name for line in drawn.out.splitlines()] == ["plane-topographic-and-1-more-tiled.html"]
    for words, message in (
        ([*both[:1], finished.folder / "run"], "must be RUN:NAME with --mode"),
        ([*both, "--to", "csv"], "to: unknown format 'csv'"),
        ([*both, "--width", "3in"], "compare: unknown option 'width'"),
    ):
        refused = call("export", *words, "--mode", "overlay")
        assert (refused.code, message in refused.err) == (2, True), refused.err
    assert "goes with --mode" in call("export", finished.folder / "run", "plane", "--no-lock").err


def test_export_writes_data_that_reads_back(call, finished):
    found = call("export", finished.folder / "run", "plane", "--to", "csv,npz,html")
    assert found.code == 0, found.err
    paths = [Path(line) for line in found.out.split()]
    assert [path.suffix for path in paths] == [".csv", ".npz", ".html"]
    np.testing.assert_array_equal(np.load(paths[1])["loss"], open_run(finished.folder / "run")["plane"].loss)
    assert call("export", finished.folder / "run", "--to", "jpg").code == 2
    nothing = finished.folder / "nothing"
    misnamed = call("export", finished.folder / "run", "--observable", "los", "--to", "report,csv", "--out", nothing)
    assert misnamed.code == 2
    assert (misnamed.out, nothing.exists()) == ("", False)
    assert "observable: 'plane' has no 'los'; did you mean 'loss'" in misnamed.err
    assert call("export", finished.folder / "run", "plain").code == 3


def test_importing_checkpoints_gives_a_trajectory_to_draw(call, make_job):
    job = make_job(landscapes=[{"name": "path", "trajectory": "all", "size": 5}])
    files = []
    for k in range(4):
        files.append(job.folder / f"c{k}.pt")
        torch.save(
            {"state_dict": {"module.x": torch.full((1, 1), k / 3), "module.y": torch.full((1, 1), (k / 3) ** 2)}},
            files[-1],
        )
    # As a shell may give them, and the last of them no end of the training.
    imported = call("import", *files[1:], files[0], "--run", job.folder / "run")
    assert imported.code == 0
    assert imported.err.splitlines()[:2] == ["c0.pt -> step 0", "c1.pt -> step 1"]
    assert "4 snapshots, steps 0-3" in call("status", job.folder / "run").out
    found = call("run", "--serial", job.folder / "job.yaml")
    assert found.code == 0, found.err
    path = open_run(job.folder / "run")["path"].path
    assert path.step.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(path.distance, 0, atol=1e-6)
    np.testing.assert_allclose(path.loss, path.projected_loss, atol=1e-6)
    missing = call("import", "nowhere.pt", "--run", job.folder / "other")
    assert missing.code == 3


def test_a_newer_schema_is_refused(call, finished):
    """By the job, and named by what shows the others all the same."""
    file = finished.folder / "run" / "landscapes.zarr" / "plane" / "zarr.json"
    file.write_text(file.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    refused = call("run", "--serial", finished.folder / "job.yaml")
    assert refused.code == 2
    shown = call("status", finished.folder / "run")
    assert shown.code == 1
    for text in (refused.err, shown.out):
        assert "schema version 99" in text
        assert "update it" in text


def test_help_and_version(call):
    assert "landscape" in call("--help").out
    assert call("--version").out.strip() == landscape.__version__


# -- signals, kills, two drivers -------------------------------------------------------------------------------

SLOW = """
    def trouble(x, y):
        time.sleep(0.02)
"""


def start(job, *arguments: str, ray_folder: Path) -> subprocess.Popen[str]:
    command = [*CLI, "run", str(job.folder / "job.yaml"), *arguments]
    return subprocess.Popen(
        command, env=environment(ray_folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_points(job, process: subprocess.Popen[str], points: int) -> None:
    end = time.monotonic() + 120
    while True:
        lives = process.poll() is None  # asked first: it may end between the two
        if committed(job.run_path) >= points:
            return
        assert lives, process.communicate()
        assert time.monotonic() < end, "no points are committed"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        ("--serial", signal.SIGTERM),
        # A Ray each; test_supervision sends a signal to a command with a worker.
        pytest.param("--workers=2", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("--workers=2", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_in_order_with_130_and_the_same_command_goes_on(call, make_job, ray_folder, number, mode):
    job = make_job(HELD, tile=[1])
    process = start(job, mode, ray_folder=ray_folder)
    wait_for_points(job, process, 5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    assert 5 <= committed(job.run_path) < 63
    status = json.loads(call("status", job.run_path, "--json").out)
    assert status["landscapes"][0]["state"] == "interrupted"
    (job.folder / "hurry").touch()
    assert call("run", job.folder / "job.yaml", "--serial").code == 0
    assert committed(job.run_path) == 63


@pytest.mark.slow  # starts six Rays; test_supervision kills a command with workers once
def test_killed_five_times_the_result_is_the_same_to_the_bit(call, make_job, ray_folder):
    job = make_job(SLOW, tile=[1])
    expected = landscape.run(job.replace(run="undisturbed"))["plane"]
    (job.folder / "points.log").unlink()
    chance = random.Random(0)
    for kill in range(1, 6):
        process = start(job, "--workers=2", ray_folder=ray_folder)
        wait_for_points(job, process, 9 * kill)
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.communicate(timeout=100)
    final = call("run", job.folder / "job.yaml", "--workers", 2)
    assert final.code == 0, final.err
    found = open_run(job.run_path)["plane"]
    for name in expected.observables:
        assert found[name].tobytes() == expected[name].tobytes(), name
    # Every point once, two measured, in each of six runs two by each of two workers before its first tile, and after
    # each kill at most two tiles in flight at each of two workers.
    evaluated = len((job.folder / "points.log").read_text().splitlines())
    assert evaluated <= 63 + 2 + 6 * 2 * WITNESS + 5 * 4


@pytest.mark.faults
def test_a_second_driver_is_refused_while_the_first_lives(call, make_job, ray_folder):
    job = make_job(HELD, tile=[1])
    first = start(job, "--serial", ray_folder=ray_folder)
    wait_for_points(job, first, 3)
    second = call("run", "--serial", job.folder / "job.yaml")
    assert second.code == 1
    owner = re.search(r"is being written by process (\d+) on ", second.err)
    assert owner is not None
    assert int(owner[1]) in descendants(first.pid)
    first.kill()
    first.communicate(timeout=100)
    (job.folder / "hurry").touch()
    assert call("run", "--serial", job.folder / "job.yaml").code == 0  # a dead driver's lock is no lock


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_data_without_an_end_are_given_up_at_a_signal(write_job, number):
    file = write_job()
    with (file.parent / "my_problem.py").open("a") as module:
        module.write(
            "\n\ndef endless():\n    print('begun', file=sys.stderr)\n    while True:\n        yield torch.ones(2)\n"
        )
        module.write("\n\ndef problem():\n    return Problem(Plane(), endless(), observe)\n")
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*CLI, "plan", file], **piped) as process:
        assert process.stderr.readline() == "begun\n"
        process.send_signal(number)
        out, said = process.communicate(timeout=100)
    assert (process.returncode, out) == (130, "")
    assert said.splitlines()[-1] == "interrupted; the same command goes on"


@pytest.mark.parametrize("out", ["s3://bucket/demo", ""])
def test_a_demo_is_written_to_a_folder_and_nowhere_else(out, call, tmp_path):
    ended = call("demo", "--out", out, cwd=tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("out: must be a folder of this machine, which report and pictures are written to, not")
    assert not list(tmp_path.iterdir())
