"""The collector keeps what is listed and nothing else, whatever happens to the training, and gives it back whole."""

import errno
import json
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from landscape.core.errors import JobError, LandscapeError
from landscape.core.validation import ranges
from landscape.model.history import log_end, read_history, went_on_to
from landscape.model.parameters import state_digest
from landscape.model.run_files import read_info
from landscape.model.snapshots import read_trajectory
from landscape.training.collector import TrajectoryCollector

ROOT = Path(__file__).parents[3]
INTERVALS = [[1, 2, 3], [5, 6, 8]]


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def set_to(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def train(run, epochs, steps=2, *, begin=0, **options):
    """A stand-in for training whose weights are the number of steps done, from epoch `begin` on."""
    model = small_model()
    set_to(model, begin * steps)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    collector = TrajectoryCollector(run, model, optimizer, start_epoch=begin, **{"intervals": INTERVALS, **options})
    for epoch in range(begin, epochs):
        for step in range(epoch * steps, (epoch + 1) * steps):
            set_to(model, step + 1)
            collector.step(1 / (step + 1), accuracy=step)
        collector.end_epoch(held_out=epoch + 1)
    return collector


def files(run):
    return sorted(path.relative_to(run).as_posix() for path in Path(run).rglob("*") if path.is_file())


def run_script(source: str, *arguments: object, **environment: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", source, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


# What is kept


@pytest.mark.parametrize(("unit", "per_number"), [("epoch", 2), ("step", 1)])
def test_keeps_the_listed_epochs_or_steps_and_only_those(tmp_path, unit, per_number):
    train(tmp_path, 10, unit=unit)
    trajectory = read_trajectory(tmp_path)
    assert (trajectory.unit, trajectory.numbers) == (unit, (1, 2, 3, 5, 6, 8))
    expected = [f"trajectory/{unit}-{number:05d}.safetensors" for number in trajectory.numbers]
    assert files(tmp_path) == ["history.jsonl", "run.json", *expected]
    for snapshot in trajectory.snapshots:
        state = snapshot.load()
        assert set(state) == set(small_model().state_dict())
        assert all(bool((tensor == snapshot.number * per_number).all()) for tensor in state.values())
        assert snapshot.step == snapshot.number * per_number


@pytest.mark.parametrize(("unit", "end"), [("epoch", 10), ("step", 20)])
def test_the_weights_that_a_training_ends_with_are_kept(tmp_path, unit, end):
    collector = train(tmp_path, 10, unit=unit)
    collector.end_training()
    collector.end_training()  # a second time changes nothing
    trajectory = read_trajectory(tmp_path)
    assert trajectory.numbers == (1, 2, 3, 5, 6, 8, end)
    last = trajectory.snapshots[-1]
    assert (last.step, last.epoch) == (20, 10)
    assert all(bool((tensor == 20).all()) for tensor in last.load().values())
    assert went_on_to(log_end(tmp_path), last) == ""
    assert read_info(tmp_path)["collect_landscape"]["intervals"] == INTERVALS, "the landscapes are those of before"


def test_an_end_that_an_interval_lists_is_kept_once(tmp_path):
    train(tmp_path, 8, unit="epoch").end_training()
    assert read_trajectory(tmp_path).numbers == (1, 2, 3, 5, 6, 8)


def four_epochs(run, error: type[BaseException] | None = None):
    with TrajectoryCollector(run, small_model(), intervals=INTERVALS, unit="epoch") as collector:
        for _ in range(4):
            collector.step(0.5)
            collector.end_epoch()
        if error is not None:
            raise error
    return read_trajectory(run)


def test_a_training_that_an_exception_ends_has_not_ended(tmp_path):
    for error in (ValueError, KeyboardInterrupt):
        run = tmp_path / error.__name__
        with pytest.raises(error):
            four_epochs(run, error)
        trajectory = read_trajectory(run)
        assert trajectory.numbers == (1, 2, 3)
        assert went_on_to(log_end(run), trajectory.snapshots[-1]) == "epoch 4"
    assert four_epochs(tmp_path / "ended").numbers == (1, 2, 3, 4)


def test_a_training_that_is_extended_keeps_its_former_end(tmp_path):
    train(tmp_path, 4, unit="epoch").end_training()
    train(tmp_path, 7, begin=4, unit="epoch").end_training()
    assert read_trajectory(tmp_path).numbers == (1, 2, 3, 4, 5, 6, 7)
    train(tmp_path, 4, begin=4, unit="epoch").end_training()  # back to there
    assert read_trajectory(tmp_path).numbers == (1, 2, 3, 4)


def test_no_epoch_stands_for_weights_within_one(tmp_path, caplog):
    collector = train(tmp_path, 4, unit="epoch")
    collector.step(0.1)
    collector.end_training()
    assert read_trajectory(tmp_path).numbers == (1, 2, 3)
    assert "training ended within epoch 5, and snapshots count epochs: its last weights are not kept" in caplog.text
    assert went_on_to(log_end(tmp_path), read_trajectory(tmp_path).snapshots[-1]) == "epoch 4"
    going_on = TrajectoryCollector(tmp_path, small_model(), intervals=INTERVALS, unit="epoch", start_step=9)
    going_on.end_training()
    assert read_trajectory(tmp_path).numbers == (1, 2, 3), "the ninth step is within epoch 5"


def test_a_training_of_no_step_has_no_end(tmp_path):
    for unit in ("step", "epoch"):
        with TrajectoryCollector(tmp_path / unit, small_model(), intervals=INTERVALS, unit=unit):
            pass
        assert read_trajectory(tmp_path / unit).numbers == ()


@pytest.mark.long
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    listed=st.lists(st.integers(0, 12), min_size=3, max_size=6, unique=True),
    epochs=st.integers(0, 12),
    stop=st.integers(0, 12),
    unit=st.sampled_from(["epoch", "step"]),
)
def test_an_interrupted_collection_that_goes_on_leaves_what_an_uninterrupted_one_does(
    tmp_path_factory, listed, epochs, stop, unit
):
    run, whole = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("whole")
    options = {"unit": unit, "intervals": [listed]}
    train(whole, epochs, **options)
    train(run, epochs, **options)  # beyond the stop: what lies there must be dropped
    train(run, epochs, begin=min(stop, epochs), overwrite=True, **options)
    assert read_trajectory(run).numbers == tuple(
        sorted(n for n in listed if n <= epochs * (2 if unit == "step" else 1))
    )
    assert files(run) == files(whole)
    assert read_history(run) == read_history(whole)
    for one, other in zip(read_trajectory(run).snapshots, read_trajectory(whole).snapshots, strict=True):
        assert (one.unit, one.number, one.step, one.epoch) == (other.unit, other.number, other.step, other.epoch)
        assert state_digest(one.load()) == state_digest(other.load())
    assert {**read_info(run), "created": 0} == {**read_info(whole), "created": 0}


def test_the_initial_weights_are_kept_when_0_is_listed(tmp_path):
    train(tmp_path, 0, unit="epoch", intervals=[[0, 1, 2]])
    (snapshot,) = read_trajectory(tmp_path).snapshots
    assert (snapshot.number, snapshot.step, snapshot.epoch) == (0, 0, 0)


def test_a_snapshot_is_a_copy_that_later_training_does_not_move(tmp_path):
    model = small_model()
    set_to(model, 6)
    TrajectoryCollector(tmp_path, model, intervals=[[0, 1, 2]])
    set_to(model, -1)
    assert float(read_trajectory(tmp_path).snapshot(0).load()["0.weight"][0, 0]) == 6


def test_tied_weights_are_kept_once_and_transposed_layouts_come_back_equal(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight
            self.turned = nn.Parameter(torch.arange(6.0).view(2, 3).t())
            self.register_buffer("mask", torch.tensor([True, False]))
            self.register_buffer("cache", torch.ones(1), persistent=False)

    model = Tied()
    TrajectoryCollector(tmp_path, model, intervals=[[0, 1, 2]])
    state = read_trajectory(tmp_path).snapshot(0).load()
    assert sorted(state) == ["embed.weight", "mask", "turned"]
    assert torch.equal(state["turned"], model.turned)
    assert torch.equal(state["mask"], model.mask)
    assert read_info(tmp_path)["parameters"] == 15 + 6


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler imports deprecated parts of itself
@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel, lambda model: compiled(nn.DataParallel(model))])
def test_wrappers_leave_no_prefix_in_the_names(tmp_path, wrap):
    TrajectoryCollector(tmp_path, wrap(small_model()), intervals=[[0, 1, 2]])
    assert set(read_trajectory(tmp_path).snapshot(0).load()) == set(small_model().state_dict())
    assert read_info(tmp_path)["model"] == "Sequential"


# What is recorded


def test_the_history_has_a_line_per_step_and_per_epoch(tmp_path):
    train(tmp_path, 2, unit="epoch")
    assert read_history(tmp_path) == [
        {"step": 1, "epoch": 1, "learning_rate": 0.1, "loss": 1.0, "accuracy": 0},
        {"step": 2, "epoch": 1, "learning_rate": 0.1, "loss": 0.5, "accuracy": 1},
        {"step": 2, "epoch": 1, "epoch_end": True, "learning_rate": 0.1, "held_out": 1},
        {"step": 3, "epoch": 2, "learning_rate": 0.1, "loss": 1 / 3, "accuracy": 2},
        {"step": 4, "epoch": 2, "learning_rate": 0.1, "loss": 0.25, "accuracy": 3},
        {"step": 4, "epoch": 2, "epoch_end": True, "learning_rate": 0.1, "held_out": 2},
    ]


def test_losses_may_be_tensors_and_those_that_are_not_finite_become_null(tmp_path):
    collector = TrajectoryCollector(tmp_path, small_model(), intervals=INTERVALS)
    attached = torch.tensor([2.5], requires_grad=True) * 1
    for loss in (attached, torch.tensor(float("nan")), float("inf"), -float("inf"), None, torch.tensor(3)):
        collector.step(loss, seen=1)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    strict = [json.loads(line, parse_constant=lambda word: pytest.fail(word)) for line in lines]
    assert [line.get("loss", "none given") for line in strict] == [2.5, None, None, None, "none given", 3]
    assert strict == read_history(tmp_path)


def test_steps_without_loss_are_counted_and_leave_no_line(tmp_path):
    collector = TrajectoryCollector(tmp_path, small_model(), intervals=INTERVALS)
    for _ in range(3):
        collector.step()
    assert read_trajectory(tmp_path).numbers == (1, 2, 3)
    assert read_history(tmp_path) == []


def test_a_torn_last_line_is_left_out(tmp_path):
    train(tmp_path, 1, unit="epoch")
    whole = read_history(tmp_path)
    for torn in ('{"step": 9, "lo', '{"step": 9}'):  # the second lacks its newline only
        with open(tmp_path / "history.jsonl", "a") as file:
            file.write(torn)
        assert read_history(tmp_path) == whole
    train(tmp_path, 2, begin=1, unit="epoch")
    assert len(read_history(tmp_path)) == 2 * len(whole)


def test_run_json_says_what_was_trained(tmp_path):
    train(tmp_path, 1, unit="epoch", landscape_size=300, num_samples=7, create_landscape={"result": False})
    info = read_info(tmp_path)
    assert info["model"] == "Sequential"
    assert info["parameters"] == sum(each.numel() for each in small_model().parameters())
    assert (info["optimiser"], info["learning_rate"], info["steps_per_epoch"]) == ("SGD", 0.1, 2)
    assert info["hyperparameters"][0]["momentum"] == 0.9
    assert "params" not in info["hyperparameters"][0]
    assert info["collect_landscape"] == {
        "landscape_size": 300, "unit": "epoch", "num_samples": 7, "intervals": INTERVALS,
        "create_landscape": {"train": True, "result": False},
    }  # fmt: skip
    assert set(info["versions"]) == {"python", "torch", "landscape"}


# Bad input


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"landscape_size": 2}, "landscape_size"),
        ({"landscape_size": 65537}, "landscape_size"),
        ({"landscape_size": "forty"}, "landscape_size"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": -1}, "num_samples"),
        ({"unit": "batch"}, "unit"),
        ({"intervals": [[1, 2]]}, "intervals"),
        ({"intervals": []}, "intervals"),
        ({"create_landscape": {"trian": True}}, "trian"),
        ({"start_step": -1}, "start_step"),
        ({"start_epoch": 1.5}, "start_epoch"),
        ({"run": "ftp://host/run"}, "run"),
    ],
)
def test_options_that_are_not_usable_are_refused_before_anything_is_written(tmp_path, options, field):
    with pytest.raises(JobError, match=field) as caught:
        TrajectoryCollector(**{"run": tmp_path / "run", "model": small_model(), "intervals": INTERVALS, **options})
    assert str(caught.value).count("\n") < 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.ones(2), r"an array of shape \(2,\); take its mean"),
        (np.ones(2), "ndarray"),
        ("high", "'high'"),
        (torch.ones(1, device="meta"), "Tensor"),
        (Fraction(10**400), "Fraction"),
        (1j, "complex"),
    ],
)
def test_a_value_that_is_no_number_does_not_end_the_training(tmp_path, caplog, value, reason):
    collector = TrajectoryCollector(tmp_path, small_model(), intervals=INTERVALS)
    collector.step(1.0, accuracy=value)
    collector.step(value)
    collector.step(value)
    collector.end_epoch(accuracy=value)
    assert [line.get("loss", "none") for line in read_history(tmp_path)] == [1.0, "none", "none", "none"]
    assert not any("accuracy" in line for line in read_history(tmp_path))
    for name in ("loss", "accuracy"):  # once each
        assert len(re.findall(f"{name}: must be one number, not {reason}.*; not recorded", caplog.text)) == 1


def test_metrics_of_any_name_are_recorded(tmp_path, caplog):
    model = small_model()
    collector = TrajectoryCollector(tmp_path, model, torch.optim.SGD(model.parameters(), 0.5), intervals=INTERVALS)
    collector.step(1.0, epoch=3, watch=4)
    collector.step(1.0, learning_rate=0.25)
    collector.end_epoch(learning_rate=0.125, step=5, epoch_end=6)
    first, second, end = read_history(tmp_path)
    assert (first["epoch"], first["metric_epoch"], first["metric_watch"], first["learning_rate"]) == (1, 3, 4, 0.5)
    assert second["learning_rate"] == 0.25
    assert (end["learning_rate"], end["step"], end["metric_step"]) == (0.125, 2, 5)
    assert (end["epoch_end"], end["metric_epoch_end"]) == (True, 6)
    assert "'step' is a name that the collector fills in; recorded as 'metric_step'" in caplog.text
    assert "learning_rate" not in caplog.text


def test_models_whose_weights_are_not_here_are_refused(tmp_path):
    with pytest.raises(JobError, match="has no shape yet"):
        TrajectoryCollector(tmp_path, nn.LazyLinear(2), intervals=INTERVALS)
    with pytest.raises(JobError, match="has no shape yet"):
        TrajectoryCollector(tmp_path, nn.LazyBatchNorm1d(affine=False), intervals=INTERVALS)
    with pytest.raises(JobError, match="meta device"):
        TrajectoryCollector(tmp_path, nn.Linear(2, 2, device="meta"), intervals=INTERVALS)


@pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex128)])
def test_weights_that_no_snapshot_holds_are_refused_before_the_training(tmp_path, tensor):
    model = small_model()
    model.register_buffer("table", tensor)
    with pytest.raises(JobError, match=r"model: 'table' must be a dense tensor.*persistent=False") as caught:
        TrajectoryCollector(tmp_path / "run", model, intervals=INTERVALS)
    assert str(caught.value).count("\n") < 2
    assert not (tmp_path / "run").exists()
    model.register_buffer("table", tensor, persistent=False)
    TrajectoryCollector(tmp_path / "run", model, intervals=[[0, 1, 2]])


@pytest.mark.parametrize("name", ["trajectory", "history.jsonl"])
@pytest.mark.parametrize("kind", ["other kind", "link to nowhere"])
def test_a_run_that_takes_no_snapshots_or_history_is_refused_before_the_training(tmp_path, name, kind):
    if kind == "link to nowhere":
        (tmp_path / name).symlink_to(tmp_path / "nowhere/at/all")
    elif name == "trajectory":
        (tmp_path / name).write_text("")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(LandscapeError) as caught:
        TrajectoryCollector(tmp_path, small_model(), intervals=INTERVALS)
    assert str(tmp_path) in str(caught.value)


def test_an_optimiser_without_a_learning_rate_is_collected(tmp_path):
    model = small_model()
    collector = TrajectoryCollector(tmp_path, model, PlainOptimizer(model), intervals=INTERVALS)
    collector.step(1.0)
    assert read_history(tmp_path)[0]["learning_rate"] is None


class PlainOptimizer(torch.optim.Optimizer):
    """Without any setting."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})


def test_a_trajectory_that_is_there_is_replaced_only_when_told_to(tmp_path):
    train(tmp_path, 8, unit="epoch")
    before = {file: (tmp_path / file).read_bytes() for file in files(tmp_path)}
    with pytest.raises(JobError, match=r"already holds a trajectory of 6 epochs.*overwrite=True"):
        train(tmp_path, 1, unit="epoch")
    with pytest.raises(JobError, match="collected by epoch, not by step"):
        train(tmp_path, 4, begin=3, unit="step")
    assert {file: (tmp_path / file).read_bytes() for file in files(tmp_path)} == before
    train(tmp_path, 1, unit="step", overwrite=True)
    assert (read_trajectory(tmp_path).unit, read_trajectory(tmp_path).numbers) == ("step", (1, 2))
    assert len(read_history(tmp_path)) == 3


def test_one_start_is_enough_where_the_history_tells_the_other(tmp_path):
    train(tmp_path, 4, steps=3, unit="epoch")
    collector = TrajectoryCollector(tmp_path, small_model(), intervals=INTERVALS, unit="epoch", start_step=7)
    collector.step(1.0)
    last = read_history(tmp_path)[-1]
    assert (last["step"], last["epoch"]) == (8, 3)
    assert read_trajectory(tmp_path).numbers == (1, 2)
    assert [line["step"] for line in read_history(tmp_path)] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8]


# Reading


def test_a_run_without_a_trajectory_reads_as_empty(tmp_path):
    for run in (tmp_path, tmp_path / "nowhere"):
        assert read_trajectory(run).snapshots == ()
        assert read_info(run) == {}
        assert read_history(run) == []


def test_an_unknown_snapshot_is_refused_with_those_there_are(tmp_path):
    train(tmp_path, 9, unit="epoch")
    trajectory = read_trajectory(tmp_path)
    assert trajectory.select([6, 1, 1]).numbers == (1, 6)
    assert trajectory.select("all") == trajectory
    with pytest.raises(JobError, match=r"epoch 4 is not in run .*: epochs 1-3, 5-6, 8$"):
        trajectory.select([1, 4])


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], ""),
        ([4], "4"),
        ([1, 2], "1-2"),
        ([1, 5], "1, 5"),
        ([0, 1, 2, 3, 7], "0-3, 7"),
        ([10, 20, 30], "10-30 by 10"),
        ([0, 5, 6, 7, 8], "0, 5-8"),
        ([0, 2, 5, 6], "0, 2, 5-6"),
    ],
)
def test_ranges(numbers, expected):
    assert ranges(numbers) == expected


@given(st.sets(st.integers(0, 40), max_size=9))
def test_ranges_name_every_number(numbers):
    found = set()
    for word in filter(None, ranges(sorted(numbers)).split(", ")):
        ends, _, stride = word.partition(" by ")
        low, _, high = ends.partition("-")
        found |= set(range(int(low), int(high or low) + 1, int(stride or 1)))
    assert found == numbers


@pytest.mark.parametrize("position", [0, 20, -1])
def test_a_damaged_snapshot_is_named_and_hides_no_other(tmp_path, position):
    train(tmp_path, 3, unit="epoch")
    path = tmp_path / "trajectory" / "epoch-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)
    trajectory = read_trajectory(tmp_path)
    assert trajectory.numbers == (1, 2, 3)
    trajectory.snapshot(3).load()
    with pytest.raises(LandscapeError, match=r"epoch-00002\.safetensors' is damaged"):
        trajectory.snapshot(2).load()


def test_a_truncated_snapshot_is_named(tmp_path):
    train(tmp_path, 3, unit="epoch")
    path = tmp_path / "trajectory" / "epoch-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(LandscapeError, match=r"epoch-00002\.safetensors' is damaged"):
        read_trajectory(tmp_path).snapshot(2).load()


def test_a_damaged_run_json_is_named(tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(LandscapeError, match=r"run\.json' cannot be read"):
        read_info(tmp_path)
    (tmp_path / "run.json").write_text('{"model": "a", "options": {"lr": 1, "lr": 2}}')
    with pytest.raises(LandscapeError, match=r"run\.json' cannot be read: key 'lr' stands twice; keep one$"):
        read_info(tmp_path)


# What may happen to the training


def test_a_full_disk_leaves_the_snapshots_before_and_nothing_half_written(tmp_path, monkeypatch):
    whole = safetensors.torch.save_file

    def fails_half_way(state, path, metadata):
        whole(state, path, metadata)
        os.truncate(path, 100)
        raise OSError(errno.ENOSPC, "No space left on device")

    collector = train(tmp_path, 2, unit="epoch")
    before = files(tmp_path)
    monkeypatch.setattr(safetensors.torch, "save_file", fails_half_way)
    with pytest.raises(LandscapeError, match=r"epoch-00003.*No space left on device"):
        collector.end_epoch()
    assert files(tmp_path) == before
    assert [bool(each.load()) for each in read_trajectory(tmp_path).snapshots] == [True, True]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(LandscapeError, match="cannot be written"):
        TrajectoryCollector(tmp_path / "run", small_model(), intervals=INTERVALS)


def test_a_run_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(LandscapeError, match="cannot be written"):
        TrajectoryCollector(tmp_path / "run", small_model(), intervals=INTERVALS)


def test_others_may_read_a_snapshot_as_the_umask_says(tmp_path):
    train(tmp_path, 1, unit="epoch")
    modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert len(modes) == 1


KILLED = """
import os, random, signal, sys, time
import torch
from landscape.training.collector import TrajectoryCollector

def train(run):
    model = torch.nn.Linear(1000, 300)
    collector = TrajectoryCollector(run, model, intervals=[list(range(1, 10_001))])  # more than there is time for
    for step in range(1, 10_001):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(step)
        collector.step(step)

torch.set_num_threads(1)
random.seed(0)
for attempt in range(int(sys.argv[2])):
    run = os.path.join(sys.argv[1], str(attempt))
    child = os.fork()
    if child == 0:
        try:
            train(run)
        finally:
            os._exit(1)
    while not os.path.exists(os.path.join(run, "trajectory", "step-00002.safetensors")):
        time.sleep(0.002)
    time.sleep(random.random() * 0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.long
@pytest.mark.faults
def test_after_kill_9_every_snapshot_is_whole_and_the_run_goes_on(tmp_path):
    attempts = 6
    finished(run_script(KILLED, tmp_path, attempts))
    for attempt in range(attempts):
        run = tmp_path / str(attempt)
        trajectory = read_trajectory(run)
        last = trajectory.numbers[-1]
        assert 2 <= last < 10_000
        assert trajectory.numbers == tuple(range(1, last + 1))
        for snapshot in trajectory.snapshots:
            assert all(bool((tensor == snapshot.number).all()) for tensor in snapshot.load().values())
        assert [line["loss"] for line in read_history(run)][:last] == list(range(1, last + 1))
        model = nn.Linear(1000, 300)
        collector = TrajectoryCollector(run, model, intervals=[list(range(1, 10_001))], start_step=last)
        collector.step(0.0)
        left = {path.name for path in (run / "trajectory").iterdir()}
        assert left == {f"step-{number:05d}.safetensors" for number in range(1, last + 2)}
        assert [line["step"] for line in read_history(run)] == list(range(1, last + 2))


RANKS = """
import os
import re
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from landscape.training.collector import TrajectoryCollector

store, run = sys.argv[1:]
torch.set_num_threads(1)
other = os.fork()
rank = int(other == 0)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
collector = TrajectoryCollector(f"{run}/{rank}", model, optimizer, unit="step", intervals=[[0, 1, 2, 3]])
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.full((4, 3), float(rank + step))).square().mean()
    loss.backward()
    optimizer.step()
    collector.step(loss)
collector.end_epoch(rank=rank)
if rank == 0:
    torch.save(model.module.state_dict(), f"{run}/last.pt")
dist.barrier()
dist.destroy_process_group()
code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) if rank == 0 else 0
os._exit(code)  # what gloo's threads do while the interpreter goes down is not what is tested
"""


@pytest.mark.faults
@pytest.mark.long
def test_under_ddp_rank_0_alone_writes(tmp_path):
    finished(run_script(RANKS, tmp_path / "store", tmp_path))
    assert not (tmp_path / "1").exists()
    trajectory = read_trajectory(tmp_path / "0")
    assert trajectory.numbers == (0, 1, 2, 3)
    last = torch.load(tmp_path / "last.pt", weights_only=True)
    state = trajectory.snapshot(3).load()
    assert set(state) == set(last) == {"weight", "bias"}
    assert all(torch.equal(state[name], last[name]) for name in last)
    assert [line["step"] for line in read_history(tmp_path / "0")] == [1, 2, 3, 3]


def test_the_history_is_synced_at_each_epochs_end_and_before_each_snapshot(tmp_path, monkeypatch):
    events: list[str] = []
    real = os.fsync

    def recording(descriptor: int) -> None:
        real(descriptor)
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    monkeypatch.setattr(os, "fsync", recording)
    collector = TrajectoryCollector(tmp_path / "run", small_model(), intervals=[[1, 2, 4]], unit="step")
    events.clear()
    collector.step(loss=1.0)
    assert events.index("history.jsonl") < next(k for k, each in enumerate(events) if "step-00001" in each)
    collector.step(loss=1.0)
    events.clear()
    collector.step(loss=1.0)
    assert events == [], "a step that is not listed costs no sync"
    collector.end_epoch()
    assert "history.jsonl" in events
