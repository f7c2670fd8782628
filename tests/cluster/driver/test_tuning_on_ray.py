"""The choice of an engine on Ray: every worker of the node is timed at once, and what is kept holds serially too."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

import cluster
import landscape
from landscape.core.errors import Interrupted
from landscape.evaluation.tuning.choices import Limits
from landscape.job.job import Job
from landscape.job.reading import read_job
from landscape.recipes.lenet import LeNet5
from landscape.surface.surface import OK

pytestmark = pytest.mark.usefixtures("local_ray")

LONG = Limits(share=1000.0, longest=1.5, shortest=0.2)  # as if the job had very many points

PROBLEM = """
import os

import torch
from torch import nn
from landscape import Problem


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, {channels}, 5)
        self.linear = nn.Linear({channels} * 36, 3)

    def forward(self, x):
        return self.linear(nn.functional.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))


def problem():
    torch.manual_seed(0)
    given = Problem.supervised(Net(), (torch.randn(520, 2, 16, 16), torch.randint(0, 3, (520,))))

    def observe(model, batch):
        {trouble}
        return given.observe(model, batch)

    return Problem(given.model, given.data, observe)
"""


def make_job(folder: Path, channels: int, trouble: str = "pass") -> Job:
    """A model of its own for each test, as they share a folder of kept choices."""
    folder.mkdir(exist_ok=True)
    (folder / "net_problem.py").write_text(PROBLEM.format(channels=channels, trouble=trouble))
    text = """
        run: run
        problem: net_problem:problem
        num_samples: 520
        tile: 2
        landscapes:
        - {name: plane, size: 4}
    """
    (folder / "job.yaml").write_text(textwrap.dedent(text))
    return read_job(folder / "job.yaml")


@pytest.mark.faults
def test_the_same_job_has_the_same_bits_on_ray_and_serially_in_another_folder(tmp_path):
    on_ray = cluster.run(make_job(tmp_path / "one", 6), workers=2, limits=LONG)["plane"]
    serially = landscape.run(make_job(tmp_path / "two", 6), limits=LONG)["plane"]
    first, second = (each.attributes["provenance"]["engine"] for each in (on_ray, serially))
    assert first["processes"] == 2
    assert len(first["trials"]) > 1
    assert not first["cached"]
    assert second["cached"]
    assert second["since"] >= on_ray.attributes["provenance"]["created"]
    assert on_ray.attributes["plan"] == serially.attributes["plan"]
    for name in on_ray.observables:
        assert on_ray[name].tobytes() == serially[name].tobytes()


SHORT_JOB = """
import torch
from torch import nn
from landscape import Problem
from landscape.recipes.lenet import LeNet5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = LeNet5()

    def forward(self, x):
        first = self.net.state_dict(keep_vars=True)["{first}"]
        return self.net(x * (1.0 + (first.abs().max() > 3)))  # far away, what comes in depends on the weights


def problem():
    torch.manual_seed(0)
    return Problem.supervised(Net(), (torch.randn(48, 1, 32, 32), torch.randint(0, 10, (48,))))
"""


@pytest.mark.faults
def test_short_jobs_have_the_same_engines_by_rule_and_the_same_bits_on_any_number_of_workers(tmp_path):
    """The second landscape reaches where layers may not be superposed; the third one keeps what the second had."""

    def job(name):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        first = next(name for name, tensor in LeNet5().named_parameters() if tensor.dim() == 4)
        (folder / "short_problem.py").write_text(SHORT_JOB.replace("{first}", first))
        text = """
            run: run
            problem: short_problem:problem
            num_samples: 48
            tile: 3
            landscapes:
            - {name: near, size: [7, 5], range: [-0.5, 0.5]}
            - {name: far, size: [5, 3], range: [-100, 100]}
            - {name: line, size: 9, range: [-0.1, 0.1], directions: [{kind: random, seed: 3}]}
        """
        (folder / "job.yaml").write_text(textwrap.dedent(text))
        return read_job(folder / "job.yaml")

    serially = landscape.run(job("serially"))
    seen = []
    with pytest.raises(Interrupted):
        cluster.run(job("resumed"), 1, observer=lambda told: seen.append(told), stop=lambda: len(seen) > 2)
    runs = {"one": cluster.run(job("one"), workers=1), "two": cluster.run(job("two"), workers=2)}
    runs["resumed"] = cluster.run(job("resumed"), workers=2)
    engines = {name: serially[name].attributes["provenance"]["engine"] for name in serially}
    assert "superposed" in engines["near"]["engine"]
    assert "superposed" not in engines["far"]["engine"]
    assert engines["near"]["by"] == "rule"
    for name in serially:
        for run in runs.values():
            of_run = run[name].attributes["provenance"]["engine"]
            assert [of_run[key] for key in ("engine", "by")] == [engines[name][key] for key in ("engine", "by")]
            assert run[name].attributes["plan"] == serially[name].attributes["plan"]
            for observable in serially[name].observables:
                assert run[name][observable].tobytes() == serially[name][observable].tobytes()


@pytest.mark.slow
def test_a_candidate_that_ends_its_workers_is_out_and_the_job_goes_on(tmp_path):
    """The first one tried, channels_last, ends every process."""
    job = make_job(tmp_path, 7, "model.conv.weight.is_contiguous() or os._exit(1)")
    found = cluster.run(job, workers=2, limits=LONG)["plane"]
    assert (found.status == OK).all()
    assert found.attributes["plan"]["engine"] == "eager"
    refused = {each["engine"]: each["refused"] for each in found.attributes["provenance"]["engine"]["trials"]}
    assert refused["eager+channels_last"] == "ends the process that tries it"
    sound = landscape.run(make_job(tmp_path / "sound", 7), limits=LONG)["plane"]
    assert not sound.attributes["provenance"]["engine"]["cached"]  # what was broken off is not kept
