"""Two ranks on Ray: a worker is killed, then the driver; the weights have the bits of a plain loop without Ray."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import cluster
from cluster.training.rank import AFTER_PEER_LOST
from cluster.training.report import read_log
from landscape.core.errors import Interrupted, LandscapeError
from landscape.core.lock import training_alive
from landscape.model.snapshots import read_trajectory
from landscape.store.results import open_run
from landscape.training.distributed import epoch_order

EPOCHS, SAMPLES, BATCH = 4, 23, 8  # the last batch has 7 samples, which two ranks share unevenly
FUNCTION = """
import os, signal, time
from pathlib import Path

import torch
from torch import nn

HERE = Path({here!r})


def once(name):
    try:
        os.close(os.open(HERE / name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def train(training, epochs: int = 4, lost_in: int = -1, held_in: int = -1, raised_by: int = -1):
    torch.manual_seed(5)
    data, target = torch.randn(23, 3), torch.randn(23, 1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    network = training.prepare(model)
    done = training.resume(model=model, optimizer=optimizer)
    collector = training.collector(model, optimizer, unit="epoch", intervals=[[1, 2, 3, 4]])
    print("begins with epoch", done.get("epoch", 0), flush=True)
    for epoch in range(done.get("epoch", 0), epochs):
        for share in training.batches(23, 8, epoch):
            loss = nn.functional.mse_loss(network(data[share.index]), target[share.index]) * share.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            collector.step(training.mean(loss))
            if training.rank == raised_by:
                raise ValueError("cannot go on")
            if share.number == 1 and epoch == lost_in and training.rank == 1 and once("lost"):
                os.kill(os.getpid(), signal.SIGKILL)
            if share.number == 1 and epoch == held_in and once(f"held-{{training.rank}}"):
                time.sleep(600)
        collector.end_epoch()
        training.keep(model=model, optimizer=optimizer, epoch=epoch + 1)
"""


def reference() -> dict[str, torch.Tensor]:
    """The weights of a plain loop, whose gradients are the halves of two shares added up."""
    torch.manual_seed(5)
    data, target = torch.randn(SAMPLES, 3), torch.randn(SAMPLES, 1)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        for batch in epoch_order(SAMPLES, 0, epoch).split(BATCH):
            halves = []
            for share in batch.tensor_split(2):
                loss = nn.functional.mse_loss(model(data[share]), target[share]) * (2 * len(share) / len(batch))
                halves.append([gradient / 2 for gradient in torch.autograd.grad(loss, list(model.parameters()))])
            for parameter, *parts in zip(model.parameters(), *halves, strict=True):
                parameter.grad = parts[0] + parts[1]
            optimizer.step()
    return dict(model.state_dict())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with my_training.py, which is the current one."""
    (tmp_path / "my_training.py").write_text(FUNCTION.format(here=str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
    sys.modules.pop("my_training", None)


def wait_for(*paths: Path, of: subprocess.Popen) -> None:
    end = time.monotonic() + 240
    while not all(path.exists() for path in paths):
        assert of.poll() is None, of.communicate()
        assert time.monotonic() < end, "the training hangs"
        time.sleep(0.1)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_killed_worker_and_killed_driver_change_no_bit(local_ray, folder):
    import ray

    words = ["train", "my_training:train", "--run", "run", "--workers", "2", "--lost-in", "1", "--held-in", "2"]
    address = ["--address", ray.get_runtime_context().gcs_address, "--allow-open"]
    driver = subprocess.Popen(
        [sys.executable, "-m", "cluster", *words, *address], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(Path(cluster.__file__).parents[1]),
                                                                    os.environ.get("PYTHONPATH")]))},
    )  # fmt: skip
    wait_for(folder / "held-0", folder / "held-1", of=driver)
    driver.kill()
    _, said = driver.communicate()
    assert re.search(r"^rank 1 \(.+, pid \d+, node \w{8}\) is lost; going on from step 3$", said, re.MULTILINE)
    assert "Traceback" not in said
    assert "epoch 1 of 4: loss " in said
    left = read_log("run", 0)  # of the rank that survived
    assert left.index("RuntimeError: ") < left.index(AFTER_PEER_LOST)
    while training_alive("run"):
        time.sleep(0.1)
    assert sorted(each.name for each in Path("run/checkpoints").glob("*.pt")) == [
        "step-00000003.pt", "step-00000006.pt"
    ]  # fmt: skip

    result = cluster.train("my_training:train", run="run", workers=2)
    assert (result.epochs, result.steps, result.workers) == (2, 6, 2)
    assert len(result.communication) == 2
    kept = torch.load("run/checkpoints/step-00000012.pt", weights_only=True)["values"]["model"]
    for name, weight in reference().items():
        assert torch.equal(kept[name], weight), name

    lines = open_run("run").history
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["epoch"] for line in lines if line.get("epoch_end")] == [1, 2, 3, 4]
    assert list(read_trajectory("run").numbers) == [1, 2, 3, 4]
    for rank in range(2):
        begun = [line for line in read_log("run", rank).splitlines() if line.startswith("begins")]
        assert begun == ["begins with epoch 0", "begins with epoch 1", "begins with epoch 2"]


@pytest.mark.faults
def test_what_the_function_raises_ends_the_training_in_a_line(local_ray, folder):
    with pytest.raises(LandscapeError) as raised:
        cluster.train("my_training:train", run="run", workers=1, raised_by=0)
    assert str(raised.value).startswith("function: my_training:train raised ValueError: cannot go on (my_training.py:")
    assert "landscape logs" in str(raised.value)
    assert "--rank 0" in str(raised.value)
    log = read_log("run", 0)
    assert log.count("starts: process") == 1
    assert log.rstrip().endswith("ValueError: cannot go on")


@pytest.mark.slow
def test_a_training_that_is_stopped_leaves_the_cluster_as_it_was(local_ray, folder):
    import ray

    with pytest.raises(Interrupted, match="is interrupted; the same command goes on"):
        cluster.train("my_training:train", run="run", workers=2, held_in=1, stop=(folder / "held-0").exists)
    end = time.monotonic() + 60
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert cluster.train("my_training:train", run="run", workers=1, epochs=2).epochs == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recipe_killed_twice_has_the_weights_of_one_that_was_not(local_ray, folder):
    """As the command is given; what kills it knows nothing of the training, but for its checkpoints."""
    import psutil

    words = ["lenet-digits", "--workers", "2", "--epochs", "6", "--checkpoint-steps", "10"]
    environment = os.environ | {"PYTHONPATH": str(Path(cluster.__file__).parents[1])}
    command = [sys.executable, "-m", "cluster", "train", *words, "--run"]
    subprocess.run([*command, "whole"], env=environment, check=True)
    driver = subprocess.Popen([*command, "killed"], env=environment, stderr=subprocess.PIPE, text=True)
    seen = newer_checkpoint("", driver)
    ranks = [each for each in psutil.Process(driver.pid).children(recursive=True)
             if "RayTrainWorker" in " ".join(each.cmdline())]  # fmt: skip
    ranks[0].kill()
    newer_checkpoint(newer_checkpoint(seen, driver), driver)
    driver.kill()
    assert "is lost; going on from " in driver.communicate()[1]
    subprocess.run([*command, "killed"], env=environment, check=True)
    last = max(each.name for each in Path("whole/checkpoints").glob("step-*.pt"))
    one, other = (torch.load(f"{run}/checkpoints/{last}", weights_only=True)["values"] for run in ("whole", "killed"))
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])


def newer_checkpoint(seen: str, driver: subprocess.Popen) -> str:
    """The name of a checkpoint that comes after `seen`."""
    end = time.monotonic() + 300
    while True:
        last = max((each.name for each in Path("killed/checkpoints").glob("step-*.pt")), default="")
        if last > seen:
            return last
        assert driver.poll() is None, driver.communicate()
        assert time.monotonic() < end, "the training hangs"
        time.sleep(0.02)
