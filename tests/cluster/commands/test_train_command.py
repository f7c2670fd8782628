"""`landscape train` and `landscape logs RUN --rank K` as they are given, without Ray."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.runtime.status import training_lines
from cluster.training import train
from landscape.analysis.measures.requested import origins_of
from landscape.core.errors import JobError
from landscape.core.lock import training_lock
from landscape.model.history import log_end, training_state
from landscape.model.run_files import DONE, Launch, write_launch
from landscape.store.results import open_run
from landscape.views.prepare.words import caption

FUNCTION = """
import sys

import torch
from torch import nn


def train(training, epochs: int = 3, lr: float = 0.1, fail_at: int | None = None):
    generator = torch.Generator().manual_seed(1)
    data, model = torch.randn(20, 3, generator=generator), nn.Linear(3, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    network = training.prepare(model)
    done = training.resume(model=model, optimizer=optimizer)
    collector = training.collector(model, optimizer, unit="epoch", intervals=[[0, 1, 2]])
    print("begins with epoch", done.get("epoch", 0))
    for epoch in range(done.get("epoch", 0), epochs):
        for share in training.batches(len(data), 8, epoch):
            loss = (network(data[share.index]) ** 2).mean() * share.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            collector.step(training.mean(loss))
        collector.end_epoch()
        if epoch == fail_at:
            raise ValueError("no more")
        training.keep(model=model, optimizer=optimizer, epoch=epoch + 1)


def problem():
    from landscape import Problem

    data = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    return Problem(nn.Linear(3, 1), data, lambda model, batch: {"loss": model(batch).pow(2).mean(1)})
"""


@pytest.fixture
def call(call, monkeypatch, tmp_path) -> Iterator[Callable[..., Any]]:
    """Give a command, as `call` gives any, in a folder that holds my_training.py."""
    (tmp_path / "my_training.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield call
    sys.modules.pop("my_training", None)


def test_a_training_that_failed_goes_on_and_leaves_its_log(call, tmp_path):
    failed = call("train", "my_training:train", "--run", "run", "--serial", "--fail-at", 1)
    assert failed.code == 1
    assert "function: my_training:train raised ValueError: no more (my_training.py:27) on rank 0" in failed.err
    assert "landscape logs" in failed.err
    assert not failed.out
    log = call("logs", "run", "--rank", 0)
    assert log.code == 0
    assert "rank 0 of 1 starts" in log.out
    assert "begins with epoch 0" in log.out
    assert log.out.rstrip().endswith("ValueError: no more")

    done = call("train", "my_training:train", "--run", "run", "--json")  # here too: nobody asks for Ray
    assert done.code == 0
    assert "epoch 3 of 3: loss " in done.err
    result = json.loads(done.out)
    assert (result["epochs"], result["steps"], result["workers"]) == (2, 6, 1)
    assert (result["total_epochs"], result["total_steps"]) == (3, 9)
    assert result["loss"] > 0
    assert done.err.splitlines()[-1] == (
        f"next: landscape view {tmp_path / 'run'}; its landscapes: landscape run JOB, a file with "
        f"`run: {tmp_path / 'run'}` and the problem"
    )
    assert call("logs", "run", "--rank", 0, "--follow").out.count("starts: process") == 2
    assert [line["step"] for line in open_run("run").history if "loss" in line] == list(range(1, 10))
    assert open_run("run").trajectory.numbers == (0, 1, 2, 3), "the last one is in no interval"

    again = call("train", "my_training:train", "--run", "run")
    assert (again.code, again.out) == (0, f"'{tmp_path / 'run'}': nothing was left to do after 3 epochs, 9 steps\n")
    fresh = call("train", "my_training:train", "--run", "run", "--overwrite", "--epochs", 2)
    assert ": 2 epochs, 6 steps, loss " in fresh.out


def test_a_finished_training_starts_no_ray_to_find_that_out(call, tmp_path, monkeypatch):
    def start_ray(*given):
        raise JobError("workers: Ray starts")

    monkeypatch.setattr(train, "ray_session", start_ray)
    first = call("train", "my_training:train", "--run", "run", "--lr", 0.2)
    assert first.code == 0
    again = ("train", "my_training:train", "--run", "run", "--workers", 2)
    nothing = call(*again, "--lr", 0.2)
    assert (nothing.code, nothing.out) == (0, f"'{tmp_path / 'run'}': nothing was left to do after 3 epochs, 9 steps\n")
    assert "starting" not in nothing.err
    for others in (
        ["--lr", 0.3],
        ["--lr", 0.2, "--epochs", 4],
        ["--lr", 0.2, "--seed", 1],
        ["--lr", 0.2, "--overwrite"],
    ):
        assert "workers: Ray starts" in call(*again, *others).err, others
    deleted = tmp_path / "run" / "trajectory" / "epoch-00001.safetensors"
    kept = deleted.rename(tmp_path / "kept")
    assert "workers: Ray starts" in call(*again, "--lr", 0.2).err, "what a user deleted is made anew"
    kept.rename(deleted)
    assert call(*again, "--lr", 0.2).out == nothing.out
    assert call("train", "my_training:train", "--run", "failed", "--fail-at", 2).code == 1
    assert "workers: Ray starts" in call("train", "my_training:train", "--run", "failed", "--workers", 2).err


def test_a_recipe_whose_package_is_missing_leaves_no_run(call, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    for where in ("--serial", "--workers=2"):
        refused = call("train", "lenet-digits", "--run", "run", where)
        assert refused.code == 1
        assert refused.err.splitlines()[-1] == (
            "recipe: lenet-digits reads its data with sklearn, which is not installed: pip install "
            "'loss-landscape-cluster[recipes]'"
        )
        assert not (tmp_path / "run").exists()


def test_the_status_of_a_run_tells_of_its_training(call, tmp_path):
    run = tmp_path / "run"
    assert call("train", "my_training:train", "--run", run, "--fail-at", 1, "--seed", 3).code == 1
    failed = json.loads(call("status", run, "--json").out)["training"]
    losses = [line["loss"] for line in open_run(run).history if line["epoch"] == 2 and "loss" in line]
    command = f"landscape train my_training:train --run {run} --serial --folder {tmp_path} --seed=3 --fail-at=1"
    assert failed.pop("reason").startswith("function: my_training:train raised ValueError: no more")
    assert failed == {
        "state": "failed", "function": "my_training:train", "workers": 1, "steps": 6, "epochs": 2,
        "loss": pytest.approx(sum(losses) / 3), "loss_not_finite": "", "checkpoint": 3, "next": command,
    }  # fmt: skip
    with training_lock(str(run)):
        lines = call("status", run).out.splitlines()
    assert lines[1].startswith(
        "training: running (my_training:train), 1 worker, 6 steps, 2 epochs, loss at its log's end "
    )
    assert lines[1].endswith(", last checkpoint at step 3")
    assert lines[2] == f"  next: landscape logs {run} --rank 0 --follow"
    (row,) = json.loads(call("list", tmp_path, "--json").out)
    assert (row["state"], row["training"]) == ("empty", "failed")
    assert "training failed" in call("list", tmp_path).out

    assert call(*command.replace("--fail-at=1", "--fail-at=none").split()[1:]).code == 0
    done = json.loads(call("status", run, "--json").out)["training"]
    assert (done["state"], done["steps"], done["checkpoint"]) == ("done", 9, 9)
    assert done["next"] == f"landscape view {run}"


def test_a_training_that_failed_after_its_last_snapshot_says_so_wherever_that_is_the_origin(call, tmp_path, caplog):
    assert call("train", "my_training:train", "--run", "run", "--epochs", 5, "--fail-at", 3).code == 1
    assert open_run("run").trajectory.numbers == (0, 1, 2)
    status = call("status", "run").out
    assert "trajectory: 3 snapshots, epochs 0-2; training went on to epoch 4, which no snapshot has\n" in status
    assert json.loads(call("status", "run", "--json").out)["went_on_to"] == "epoch 4"
    job = {"run": "run", "problem": "my_training:problem", "num_samples": 20}
    line = {"directions": [{"kind": "random"}], "size": 5}
    job["landscapes"] = [{"name": "end", "origin": "last", **line}, {"name": "first", "origin": 1, **line}]
    Path("job.yaml").write_text(json.dumps(job))
    plan = call("plan", "job.yaml").out
    assert "end: 5 around epoch 2 (training went on to epoch 4): 5 points" in plan
    warning = (
        "origin of end: epoch 2 is the last snapshot, and training went on to epoch 4, whose weights no snapshot has"
    )
    remedy = (
        "finish a training that was interrupted, end the collector (`with`, or end_training) to keep the final "
        "weights, or write `origin: 2` to say"
    )
    assert f"warning: {warning}; {remedy} that these are meant\n" in plan
    assert "origin of end, first" not in plan, "a snapshot that the job names is meant"
    assert warning in call("run", "job.yaml", "--serial").err
    surface = open_run("run")["end"]
    assert "Origin: epoch 2 (training went on to epoch 4)" in caption(surface, "loss")
    checked = " ".join(call("check", "run", "end", "--serial").out.split())
    assert "at epoch 2 your training log had " in checked
    assert "; the log ended at " in checked
    assert "(epoch 4)" in checked
    assert "training log ended at" not in checked
    trajectory = open_run("run").trajectory
    assert [each.number for each in origins_of(None, trajectory, tmp_path)] == [2]
    assert "origins: epoch 2 is the last snapshot, and training went on to epoch 4" in caplog.text
    history, caplog_before = Path("run/history.jsonl"), len(caplog.records)
    history.rename("aside")
    history.mkdir()  # what cannot be read decides no value
    assert [each.number for each in origins_of("last", trajectory, tmp_path)] == [2]
    assert len(caplog.records) == caplog_before
    history.rmdir()
    Path("aside").rename(history)

    assert call("train", "my_training:train", "--run", "run", "--epochs", 5).code == 0
    assert open_run("run").trajectory.numbers == (0, 1, 2, 5)
    assert "went on" not in call("status", "run").out
    job["landscapes"][0]["name"] = "ended"
    Path("job.yaml").write_text(json.dumps({**job, "landscapes": job["landscapes"][:1]}))
    assert "ended: 5 around epoch 5: 5 points" in call("plan", "job.yaml").out
    assert call("run", "job.yaml", "--serial").code == 0
    assert "Origin: epoch 5" in caption(open_run("run")["ended"], "loss")
    assert "your training log ended at " in " ".join(call("check", "run", "ended", "--serial").out.split())


def test_a_driver_that_was_killed_leaves_its_training_interrupted(call, tmp_path):
    assert call("train", "my_training:train", "--run", "run").code == 0
    told = tmp_path / "run" / "launch.json"
    told.write_text(told.read_text().replace('"done"', '"running"'))  # as it was meanwhile
    out = call("status", "run").out
    assert "training: interrupted (my_training:train), 1 worker, 9 steps, 3 epochs, " in out
    assert f"  next: landscape train my_training:train --run {tmp_path / 'run'} --serial " in out
    for damaged in ("", "[1]", '{"workers": 1}', "{"):
        told.write_text(damaged)
        assert "training: 9 steps, 3 epochs, " in call("status", "run").out


def test_a_loss_that_is_lost_does_not_hide_behind_the_last_finite_one(tmp_path):
    (tmp_path / "history.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": NaN}\n')
    assert training_state(tmp_path, log_end(tmp_path))["loss"] == 0.5
    said = "training: 2 steps, no finite loss at its log's end, 0.5 on average up to step 1"
    assert training_lines(training_state(tmp_path, log_end(tmp_path))) == [said]


def test_a_training_without_a_collector_leaves_nothing_to_view(tmp_path):
    write_launch(tmp_path, Launch("my_training:train", 1, outcome=DONE))
    assert training_state(tmp_path, log_end(tmp_path))["next"] == ""


def test_a_run_of_another_function_names_both(call, tmp_path):
    (tmp_path / "other_training.py").write_text(FUNCTION.replace("nn.Linear(3, 1)", "nn.Linear(3, 2)"))
    assert call("train", "my_training:train", "--run", "run").code == 0
    before = (tmp_path / "run" / "launch.json").read_bytes()
    refused = call("train", "other_training:train", "--run", "run")
    sys.modules.pop("other_training", None)
    assert refused.code == 2
    assert (
        f"function: run '{tmp_path / 'run'}' was trained by my_training:train, not by other_training:train; go on with "
        "my_training:train, name another run, or begin anew with overwrite\n"
    ) in refused.err
    assert refused.err.splitlines()[-1].startswith("model: does not fit what was trained: ")
    assert "take it out" not in refused.err
    assert "change it back" not in refused.err
    assert (tmp_path / "run" / "launch.json").read_bytes() == before
    shutil.copy(tmp_path / "my_training.py", tmp_path / "moved_training.py")
    moved = call("train", "moved_training:train", "--run", "run", "--epochs", 4)
    sys.modules.pop("moved_training", None)
    assert moved.code == 0
    assert "was trained by my_training:train; it goes on by moved_training:train" in moved.err


def test_a_loss_that_is_not_finite_is_shown_and_makes_no_bad_json(call):
    ended = call("train", "my_training:train", "--run", "run", "--lr", 1e30, "--json")
    assert ended.code == 0
    assert "epoch 3 of 3: loss nan, " in ended.err
    assert json.loads(ended.out)["loss"] is None


def test_a_landscape_of_a_run_is_computed_and_shown_while_it_is_trained(call, tmp_path):
    assert call("train", "my_training:train", "--run", "run").code == 0
    job = "{run: run, problem: my_training:problem, landscapes: [{name: path, trajectory: all, size: 5}]}"
    (tmp_path / "job.yaml").write_text(job)
    with training_lock(str(tmp_path / "run")):
        assert call("run", "job.yaml", "--serial").code == 0
        assert call("export", "run", "--to", "html").code == 0
    assert "path" in open_run("run")


WRONG_WORDS = [
    ("my_training:train --run r --epoch 3", "epoch: is no option of my_training:train; did"),
    ("my_training:train --run r --epochs x", "epochs: must be a whole number, not 'x'"),
    ("my_training:train", "run: must name a folder or URL"),
    ("my_training --run r", "recipe: must be a recipe or module:function, not 'my_training'"),
    ("my_training:absent --run r", "function: module 'my_training' has no function 'absent'"),
    ("my_training:train --run r --serial --workers 2", "serial: trains in this process alone"),
    ("my_training:train --run r --workers 0", "workers: must be at least 1, not 0"),
    ("my_training:train --run r --gpus-per-worker -1", "gpus_per_worker: must be a share from 0"),
    ("my_training:train --run r --target ray --nodes 2", "nodes: serves --target slurm only"),
    (
        "my_training:train --run r --target slurm --dry-run",
        "workers: Slurm must be told how many; give --workers N, one per GPU or per core\n",
    ),
    ("my_training:train --run r --target kuberay", "run: 'r' would lie in a pod"),
    ("my_training:train --run r --worker 2", "did you mean workers of train itself? known: epochs"),
    ("my_training:train --measure-workers 1,x", "measure_workers: must be numbers such as 1,2,4, not"),
    ("lenet-mnist --run r --scaling 1,2", "scaling: must be one of "),
    ("my_training:train --run r --folder absent", "folder: must be a folder, not 'absent'"),
    ("my_training:train --run r --serial --nodes 2", "nodes: serves --target slurm only"),
    ("my_training:train --run r --serial --gpus-per-worker 99", "gpus_per_worker: this machine has"),
    ("my_training:train --run=", "run: must name a folder or URL"),
    ("my_training:train --run my_training.py", "run: must be a folder, not '"),
    ("my_training:train --run my_training.py/r", "run: must be a folder, not '"),
    ("my_training:train --measure-workers 1 --serial", "measure_workers: measures on Ray"),
    ("my_training:train --measure-workers 1 --target slurm", "measure_workers: measures on Ray"),
    ("my_training:train --measure-workers 1 --run r", "measure_workers: trains in folders"),
    ("my_training:train --measure-workers 2,1,2", "measure_workers: must name each number once, not"),
    ("my_training:train --run r --memory 4G", "memory: serves --target only"),
    ("my_training:train --run r --detach", "detach: serves --target only"),
    ("my_training:train --measure-workers 0", "workers: must be at least 1, not 0"),
    ("my_training:train --measure-workers 1 --measure-steps 0", "measure_steps: must be at least 1, not 0"),
]


@pytest.mark.parametrize(("words", "message"), WRONG_WORDS)
def test_wrong_words_are_refused_in_a_line_before_anything_starts(call, tmp_path, words, message):
    ended = call("train", *words.split(" "))
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.err.splitlines()) <= 2
    assert not (tmp_path / "r").exists()


def test_without_ray_train_it_says_what_to_install(call, monkeypatch):
    monkeypatch.setattr("cluster.training.train.find_spec", lambda name: None)
    ended = call("train", "my_training:train", "--run", "r", "--workers", 2)
    assert ended.code == 2
    assert "pip install 'loss-landscape-cluster[train]'" in ended.err


def test_one_training_writes_a_run_at_a_time(call, tmp_path):
    with training_lock(str(tmp_path / "run")):
        ended = call("train", "my_training:train", "--run", "run")
    assert ended.code == 1
    assert f"is being written by process {os.getpid()}" in ended.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("absent", "--rank", 0), 3, "does not exist"),
        (("run", "--rank", 4), 3, "has no log of rank 4; it has logs of ranks 0, 1"),
        (("run", "--rank", -1), 2, "rank: must be 0 or more, not -1"),
        (("run",), 2, "rank: must be given for the log of a training, as 'run' is a run; give --rank 0"),
        (("s3://bucket/run",), 2, "rank: must be given for the log of a training, as 's3://bucket/run' is a run"),
        (("run", "--rank", 0, "--address", "http://x"), 2, "address: belongs to a job that was sent"),
    ],
)
def test_logs_that_are_not_there(call, tmp_path, words, code, message):
    (tmp_path / "run" / "logs").mkdir(parents=True)
    for rank in range(2):
        (tmp_path / "run" / "logs" / f"rank-{rank}.log").write_text(f"rank {rank}\n")
    ended = call("logs", *words)
    assert ended.code == code
    assert message in ended.err
    assert call("logs", "run", "--rank", 1).out == "rank 1\n"


def test_the_options_are_listed(call):
    ended = call("train", "my_training:train", "--list-options")
    assert ended.out.splitlines()[1] == "--lr  a number; default: 0.1"
    as_json = json.loads(call("train", "my_training:train", "--list-options", "--json").out)
    assert as_json[1] == {"name": "--lr", "type": "a number", "default": "0.1"}


def test_a_dry_run_prints_what_would_be_sent(call, tmp_path):
    words = ("train", "my_training:train", "--run", "/runs/mine", "--epochs", 20, "--workers", 2, "--dry-run")
    sent = json.loads(call(*words).out)
    assert sent["entrypoint"] == (
        "landscape train my_training:train --run /runs/mine --address auto --workers 2 --epochs=20"
    )
    assert list(sent["files"]) == ["my_training.py"]
    limited = json.loads(call(*words, "--max-workers", 4, "--worker-resources", "a100=1").out)["entrypoint"]
    assert limited.endswith(" --workers 2 --max-workers 4 --worker-resources=a100=1 --epochs=20")
    assert sent["submission_id"].startswith("landscape-mine-")
    script = call(*words, "--target", "slurm").out
    assert f"landscape train my_training:train --folder {tmp_path} --run /runs/mine --workers 2 --epochs=20" in script
    assert not list(Path(tmp_path).glob("run*"))
