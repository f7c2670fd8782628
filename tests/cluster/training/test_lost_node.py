"""A node is lost under a training, and another one comes: the bits are those of a training that lost nothing."""

from __future__ import annotations

import textwrap

import pytest
from faults import on_nodes

from cluster.training.report import read_log
from landscape.model.history import read_history
from landscape.model.snapshots import read_trajectory

FUNCTION = """
import os, time
from pathlib import Path

import ray
import users_training

HERE = Path({here!r})


def train(training, held: bool = False):
    def after(step):
        mark = HERE / f"rank-{{training.rank}}"
        if held and step == 2 and not mark.exists():
            written = mark.with_suffix(".new")
            written.write_text(f"{{ray.get_runtime_context().get_node_id()}} {{os.getpid()}}")
            written.rename(mark)
            time.sleep(600)  # until the training is begun anew

    users_training.train(training, after=after)
"""
BODY = """
def lose_a_node():
    marks = [HERE / "rank-0", HERE / "rank-1"]
    while not all(mark.exists() for mark in marks):
        time.sleep(0.05)
    ranks = dict(mark.read_text().split() for mark in marks)
    os.kill(int(ranks[extra[0].node_id]), signal.SIGKILL)
    kill_node(extra[0])
    nodes.add_node(num_cpus=1)
    time.sleep(3600)  # a node dies with the thread that started it


threading.Thread(target=lose_a_node, daemon=True).start()
os.chdir(HERE)
told = {}
for run, held in (("calm", False), ("run", True)):
    result = cluster.train(
        "my_training:train", run=HERE / run, workers=2, gpus_per_worker=0, address=nodes.address,
        allow_open=True, held=held,
    )
    told[run] = [result.workers, result.total_steps]
"""


@pytest.mark.slow  # a cluster of several nodes
@pytest.mark.timeout(600)
def test_a_training_goes_on_to_the_same_bits_with_another_node(tmp_path, ray_folder):
    (tmp_path / "my_training.py").write_text(FUNCTION.format(here=str(tmp_path)))
    told = on_nodes(textwrap.dedent(BODY), tmp_path, ray_folder, nodes=2, cpus=1)
    assert told["calm"] == told["run"] == [2, 6]
    for rank in range(2):
        starts = [read_log(str(tmp_path / run), rank).count("starts: process") for run in ("calm", "run")]
        assert starts == [1, 2], "all ranks begin anew where one is lost"
    assert read_history(tmp_path / "run") == read_history(tmp_path / "calm")
    calm, lost = (read_trajectory(tmp_path / run) for run in ("calm", "run"))
    assert list(calm.numbers) == list(lost.numbers)
    for one, other in zip(calm.snapshots, lost.snapshots, strict=True):
        weights = other.load()
        assert {name: weight.numpy().tobytes() for name, weight in one.load().items()} == {
            name: weight.numpy().tobytes() for name, weight in weights.items()
        }
