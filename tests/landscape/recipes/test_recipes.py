"""The recipes train with the collector, go on after a kill to the same bits, and serve as callbacks."""

import gzip
import importlib
import os
import shutil
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from landscape.core.errors import JobError
from landscape.model.history import read_history
from landscape.model.parameters import state_digest
from landscape.model.run_files import read_info, read_network
from landscape.model.snapshots import read_trajectory
from landscape.problem.callback import load_problem
from landscape.problem.terms import Problem
from landscape.recipes import cifar10, cnn, digits, mnist
from landscape.recipes.settings import listed_intervals

ROOT = Path(__file__).parents[3]
SHARED = ROOT.parent / "shared" / "data"
sklearn = pytest.importorskip("sklearn")


def digests(run):
    return {each.number: state_digest(each.load()) for each in read_trajectory(run).snapshots}


def untimed(run):
    """The history without what no two runs have in common."""
    timed = ("seconds", "samples_per_second")
    return [{name: value for name, value in line.items() if name not in timed} for line in read_history(run)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A whole training of LeNet-5 on the digits, shortened to 4 epochs."""
    run = tmp_path_factory.mktemp("digits")
    return run, digits.train(run, epochs=4)


def test_digits_reach_95_percent_on_held_out_digits(trained):
    run, result = trained
    assert result.accuracy > 0.95
    assert read_trajectory(run).numbers == (0, 1, 2, 3, 4)
    info = read_info(run)
    assert (info["model"], info["parameters"], info["optimiser"]) == ("LeNet5", 61_706, "SGD")
    assert info["steps_per_epoch"] == 90
    history = read_history(run)
    assert [line["step"] for line in history if not line.get("epoch_end")] == list(range(1, 361))
    assert [line["epoch"] for line in history if line.get("epoch_end")] == [1, 2, 3, 4]
    assert history[-1]["held_out_accuracy"] == result.accuracy


def test_a_finished_training_returns_at_once_and_changes_nothing(trained):
    run, result = trained
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    again = digits.train(run, epochs=4, report=lambda *_: pytest.fail("trained again"))
    assert (again.accuracy, again.loss) == (result.accuracy, result.loss)
    assert state_digest(again.model.state_dict()) == state_digest(result.model.state_dict())
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.slow
def test_a_training_killed_twice_ends_like_one_that_was_not(trained, tmp_path):
    whole, result = trained
    # Before the last epoch each waits to be killed.
    code = "import sys, time; from landscape.recipes.digits import train\n"
    code += "train(sys.argv[1], epochs=4, report=lambda epoch, _: time.sleep(600 if epoch == 3 else 0))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    for epoch in (1, 2):
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        deadline = time.monotonic() + 200
        while epoch not in read_trajectory(tmp_path).numbers and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert len(read_trajectory(tmp_path).numbers) < 5
    ended = digits.train(tmp_path, epochs=4)
    assert (ended.accuracy, ended.loss) == (result.accuracy, result.loss)
    assert digests(tmp_path) == digests(whole)
    assert untimed(tmp_path) == untimed(whole)


def test_a_run_begun_otherwise_is_refused_unless_overwritten(trained, tmp_path):
    run, _ = trained
    with pytest.raises(JobError, match=r"seed: training in run .* was begun with 0, not 1"):
        digits.train(run, epochs=4, seed=1)
    shutil.copytree(run, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(JobError, match="a trajectory that this training did not make"):
        digits.train(tmp_path, 2)
    digits.train(tmp_path, 2, batch_size=1024, learning_rate=0.001, overwrite=True)
    assert read_info(tmp_path)["learning_rate"] == 0.001


def test_snapshots_that_were_taken_away_are_made_again_and_threads_and_generators_left_alone(tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    digits.train(tmp_path, 2, batch_size=256)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    before = digests(tmp_path)
    Path(read_trajectory(tmp_path).snapshot(1).path).unlink()
    digits.train(tmp_path, 2, batch_size=256)
    assert digests(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "field"), [({"epochs": 0}, "epochs"), ({"epochs": 1}, "epochs"), ({"batch_size": 0}, "batch_size"),
                           ({"learning_rate": 0.0}, "learning_rate"), ({"landscape_size": 2}, "landscape_size")],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(tmp_path, options, field):
    with pytest.raises(JobError, match=f"^{field}: must"):
        digits.train(tmp_path / "run", **options)
    assert not (tmp_path / "run" / "trajectory").exists()


@pytest.mark.parametrize(
    ("epochs", "wanted"),
    [
        (10, [[0, 1, 2, 3], [7, 8, 9, 10]]),
        (12, [[0, 1, 2, 3], [9, 10, 11, 12]]),
        (7, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (5, [[0, 1, 2, 3, 4, 5]]),
        (2, [[0, 1, 2]]),
    ],
)
def test_default_intervals_end_with_the_training(epochs, wanted):
    assert listed_intervals(epochs, digits.INTERVALS) == wanted


# Callbacks and commands


def observed(problem: Problem, count: int = 8) -> dict[str, torch.Tensor]:
    images, targets = problem.data
    return dict(problem.observe(problem.model, (images[:count], targets[:count])))


def test_the_digits_callback(trained, monkeypatch):
    run, _ = trained
    monkeypatch.delenv("LANDSCAPE_WEIGHTS", raising=False)
    values = observed(load_problem("landscape.recipes.digits:problem"))
    assert {name: tuple(each.shape) for name, each in values.items()} == {"loss": (8,), "accuracy": (8,)}
    monkeypatch.setenv("LANDSCAPE_WEIGHTS", read_trajectory(run).snapshot(3).path)
    problem = load_problem("landscape.recipes.digits:problem")
    assert state_digest(problem.model.state_dict()) == digests(run)[3]
    assert float(observed(problem, 1437)["accuracy"].mean()) > 0.95


@pytest.mark.parametrize(("name", "variable"),
                         [("mnist", "LANDSCAPE_MNIST"), ("cnn", "LANDSCAPE_MNIST"), ("cifar10", "LANDSCAPE_CIFAR10"),
                          ("imagefolder", "LANDSCAPE_IMAGES")])  # fmt: skip
def test_callbacks_and_trainings_whose_data_is_not_named_say_so(monkeypatch, tmp_path, name, variable):
    for each in (variable, "LANDSCAPE_DATA"):
        monkeypatch.delenv(each, raising=False)
    with pytest.raises(JobError, match=f"^data: must name the folder .*; give it, or set .* {variable}( or |$)"):
        importlib.import_module(f"landscape.recipes.{name}").train(tmp_path)
    with pytest.raises(JobError, match=f"environment variable {variable}.* must name .* the run remembers none"):
        load_problem(f"landscape.recipes.{name}:problem")


def test_weights_that_do_not_fit_are_refused(tmp_path):
    torch.save({"fc1.weight": torch.zeros(2)}, tmp_path / "w.pt")
    with pytest.raises(JobError, match=r"weights .*w\.pt'.*(missing|misshapen)"):
        digits.make_problem(tmp_path / "w.pt")


def write_mnist(folder, count=256):
    """Pictures of which the label is plain to see: a bright band at the label's height."""
    labels = np.arange(count, dtype=np.uint8) % 10
    images = np.random.default_rng(0).integers(0, 40, (count, 28, 28), np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[2 * label + 3 : 2 * label + 6] = 255
    for stem in ("train", "t10k"):
        header = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28)
        (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, count) + labels.tobytes())


@pytest.mark.parametrize("scaling", ["pad", "resize"])
def test_mnist_trains_and_serves_as_a_callback(tmp_path, monkeypatch, scaling):
    write_mnist(tmp_path)
    result = mnist.train(tmp_path / "run", tmp_path, 3, scaling=scaling, batch_size=8, intervals=[[1, 2, 3]])
    assert result.accuracy > 0.9
    assert read_trajectory(tmp_path / "run").numbers == (1, 2, 3)
    other = "resize" if scaling == "pad" else "pad"
    with pytest.raises(JobError, match="network: training in run"):
        mnist.train(tmp_path / "run", tmp_path, 3, scaling=other, batch_size=8, intervals=[[1, 2, 3]])
    monkeypatch.setenv("LANDSCAPE_MNIST", str(tmp_path))
    assert observed(mnist.problem())["loss"].shape == (8,)
    as_trained = load_problem("landscape.recipes.mnist:problem", network=read_network(tmp_path / "run"))
    assert torch.equal(as_trained.data[0], mnist.make_problem(tmp_path, scaling=scaling).data[0])


def test_the_two_layer_network_trains_goes_on_with_its_dropout_and_serves_as_a_callback(tmp_path, monkeypatch):
    write_mnist(tmp_path, 32)

    class Stop(Exception):
        pass

    def stop(epoch, metrics):
        raise Stop

    options = {"batch_size": 8, "intervals": [[0, 1, 2]], "dropout": 0.25}
    with pytest.raises(Stop):
        cnn.train(tmp_path / "run", tmp_path, 2, **options, report=stop)
    monkeypatch.setenv("LANDSCAPE_MNIST", str(tmp_path))
    result = cnn.train(tmp_path / "run", epochs=2, **options)
    cnn.train(tmp_path / "whole", tmp_path, 2, **options)
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    assert result.accuracy > 0.1
    info = read_info(tmp_path / "run")
    network = {"dropout": 0.25, "split": "train", "data": str(tmp_path)}
    assert (info["parameters"], info["network"]) == (3_274_634, network)
    problem = load_problem("landscape.recipes.cnn:problem", network=read_network(tmp_path / "run"))
    assert problem.data[0].shape == (32, 1, 28, 28)
    assert observed(problem)["accuracy"].shape == (8,)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data beside the repository")
def test_mnist_on_real_digits(tmp_path):
    images, labels = mnist.read_mnist(SHARED, "test")
    assert (images.shape, torch.bincount(labels).tolist()[:3]) == ((10_000, 28, 28), [980, 1135, 1032])
    problem = mnist.make_problem(SHARED, split="test")
    assert problem.data[0].shape == (10_000, 1, 32, 32)


@pytest.mark.parametrize("shortcuts", [True, False])
def test_cifar10_trains_goes_on_and_serves_as_a_callback(tmp_path, monkeypatch, shortcuts):
    numbers = np.random.default_rng(0)
    images, labels = numbers.integers(0, 256, (16, 32, 32, 3), np.uint8), np.arange(16) % 10
    data = tmp_path / "data.npz"
    np.savez(data, images=images, labels=labels)
    options = {"depth": 8, "shortcuts": shortcuts, "batch_size": 8, "device": "cpu", "intervals": [[0, 1, 2]]}

    class Stop(Exception):
        pass

    def stop(epoch, metrics):
        raise Stop

    with pytest.raises(Stop):
        cifar10.train(tmp_path / "run", data, 2, **options, report=stop)
    cifar10.train(tmp_path / "run", data, 2, **options)
    cifar10.train(tmp_path / "whole", data, 2, **options)
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    assert list(digests(tmp_path / "run")) == [0, 1, 2]
    with pytest.raises(JobError, match="network: training in run"):
        cifar10.train(tmp_path / "run", data, 2, **{**options, "shortcuts": not shortcuts})
    monkeypatch.setenv("LANDSCAPE_CIFAR10", str(data))
    assert len(cifar10.problem().data) == 16
    as_trained = load_problem("landscape.recipes.cifar10:problem", network=read_network(tmp_path / "run")).model
    as_trained.load_state_dict(read_trajectory(tmp_path / "run").snapshot(2).load())
    assert as_trained.layer1[0].shortcut == shortcuts


def test_the_commands_print_the_accuracy_and_one_line_for_an_error(tmp_path, capsys):
    digits.main(["--run", str(tmp_path / "run"), "--epochs", "2"])
    out, err = capsys.readouterr()
    assert 0 <= float(out) <= 1
    assert err.count("\n") == 2
    with pytest.raises(SystemExit) as ended:
        mnist.main(["--run", str(tmp_path / "mnist"), "--data", str(tmp_path)])
    assert ended.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.faults
def test_the_recipes_run_as_modules():
    """Run as `python -m` runs a module, which warns where importing its package has imported it already."""
    code = """
        import contextlib, gc, runpy, sys
        sys.argv = ["recipe", "--help"]
        for name in ("digits", "mnist", "cnn", "cifar10", "imagefolder"):
            with contextlib.suppress(SystemExit):
                runpy.run_module(f"landscape.recipes.{name}", run_name="__main__", alter_sys=True)
        gc.freeze()
    """
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage:") == 5
    assert done.stdout.count("--run ") >= 5
