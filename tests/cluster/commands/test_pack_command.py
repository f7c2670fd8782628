"""`landscape pack`, and a packed job as other commands are given it, in a folder without its code."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from packed_scene import small_file

import cluster
from landscape import extend, open_run, run
from landscape.compute.pack import pack
from landscape.job.reading import read_job

PROBLEM = """
import torch
from torch import nn
from landscape import Problem


class Twice(nn.Module):
    def forward(self, inputs):
        return self.LINE

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)


def problem():
    torch.manual_seed(0)
    inputs = torch.randn(30, 3)
    return Problem.supervised(Twice(), (inputs, (inputs[:, 0] > 0).long()))
"""
JOB = """
run: runs/source
problem: own_problem:problem
num_samples: 20
landscapes: [{name: plane, size: 3, directions: [{kind: random, seed: 1}, {kind: random, seed: 2}]}]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def write_problem(folder: Path, line: str) -> None:
    (folder / "own_problem.py").write_text(PROBLEM.replace("self.LINE", line))


def test_a_job_is_packed_and_run_where_its_code_is_not(folder, call):
    write_problem(folder, "self.layer(inputs * 2)")
    source = run(read_job("job.yaml"))["plane"]
    code, out, _ = call("pack", "job.yaml", "-o", "there/packed.landscape")
    assert code == 0
    assert "its values are equal to the bit; landscape run there/packed.landscape" in out
    (folder / "own_problem.py").unlink()
    sys.modules.pop("own_problem", None)
    code, out, err = call("plan", "there/packed.landscape")
    assert (code, (folder / "runs" / "packed").exists()) == (0, False), err
    assert call("run", "there/packed.landscape", "--serial")[0] == 0
    packed = open_run(folder / "runs" / "packed")["plane"]
    assert all(np.array_equal(values, packed.observables[name]) for name, values in source.observables.items())
    assert "no module" not in call("check", "runs/packed", "plane")[2]
    assert call("extend", "runs/packed", "plane", "--range", "-2,2", "--serial")[0] == 0


def test_a_job_from_before_an_extension_is_packed_with_what_its_run_has(folder, call):
    write_problem(folder, "self.layer(inputs * 2)")
    job = read_job("job.yaml")
    extend(run(job).path, "plane", num_samples=30)
    pack(job, "packed.landscape")
    assert read_job("packed.landscape").num_samples == 30


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "self.layer(inputs if inputs.sum() > 0 else -inputs)",
            "model: must do the same operations whatever the data are to be packed, and a value decides at "
            "own_problem.py:9; write it with tensors alone",
        ),
        (
            "self.layer(inputs.view(len(inputs), 3))",
            "the batch size becomes a constant by len() of a tensor (own_problem.py:9); write tensor.shape[0]",
        ),
        (
            "self.layer(torch.from_numpy(inputs.numpy()))",
            "model: cannot be exported by torch to be packed",
        ),
    ],
)
def test_a_model_that_does_not_export_is_refused_by_its_line(folder, call, line, words):
    write_problem(folder, line)
    sys.modules.pop("own_problem", None)
    code, out, err = call("pack", "job.yaml", "-o", "packed.landscape")
    assert (code, out) == (2, "")
    assert words in err
    assert "(own_problem.py:9)" in err or "own_problem.py:9;" in err
    assert len(err.strip().splitlines()) == 1
    assert not list(folder.glob("*.landscape*"))


def test_another_ending_is_refused(folder, call):
    code, _, err = call("pack", "job.yaml", "-o", "packed.zip")
    assert code == 2
    assert "out: must end in .landscape, not 'packed.zip'; write -o packed.landscape" in err


def test_exit_codes_of_files_that_cannot_be_taken(folder, call):
    assert call("run", "missing.landscape", "--serial")[0] == 3
    (folder / "torn.landscape").write_bytes(small_file().read_bytes()[:1000])
    code, _, err = call("run", "torn.landscape", "--serial")
    assert code == 2
    assert err.strip().endswith("copy the file again, or have it packed anew")


def test_the_file_travels_and_nothing_else(folder, call):
    (folder / "small.landscape").write_bytes(small_file().read_bytes())
    (folder / "more.txt").write_text("stays")
    code, out, err = call("submit", "small.landscape", "--dry-run", "--run", "/shared/small", "--no-look")
    assert code == 0, err
    rendered = json.loads(out)
    assert rendered["files"] == {"small.landscape": small_file().stat().st_size}
    assert rendered["entrypoint"].startswith("landscape run small.landscape --run /shared/small")


@pytest.mark.faults
def test_workers_compute_what_the_serial_run_does(folder, local_ray):
    job = read_job(small_file(), run=str(folder / "ray"))
    serial = run(job.replace(run=str(folder / "serial")))["plane"]
    on_ray = cluster.run(job, workers=2)["plane"]
    assert all(np.array_equal(values, on_ray.observables[name]) for name, values in serial.observables.items())


@pytest.mark.parametrize("limit", [0, 2000])
def test_a_full_disk_is_named_and_nothing_stays(folder, call, limit):
    write_problem(folder, "self.layer(inputs)")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # as on a full disk, a write fails
    try:
        code, out, said = call("pack", "job.yaml", "-o", "there/packed.landscape")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = "'there/packed.landscape' cannot be written: File too large; make room, or give -o another place\n"
    assert (code, out, said) == (1, "", told)
    assert list((folder / "there").iterdir()) == []


MODEL = """
import torch
from torch import nn
from torch.nn.utils import prune
from landscape import Problem


class Even(nn.Module):
    def forward(self, inputs):
        return nn.functional.batch_norm(inputs, None, None, training=True)


def problem():
    plain = nn.Linear(3, 2)
    inputs = torch.randn(30, 3)
    return Problem.supervised(MODEL, (inputs, (inputs[:, 0] > 0).long()))
"""
MODELS = [
    ("torch.jit.script(plain)", "must be a module of Python, and it is a ScriptModule; return the module"),
    ("nn.Sequential(torch.jit.script(plain))", "and '0' is a ScriptModule"),
    ("nn.Sequential(nn.utils.weight_norm(plain))", "as its layer '0' has torch.nn.utils.weight_norm, which is"),
    ("prune.l1_unstructured(plain, 'weight', 0.5)", "make that permanent before you return it: torch.nn.utils.prune"),
    ("nn.Sequential(plain, nn.BatchNorm1d(2, track_running_stats=False))", "and '1' normalises by the statistics of"),
    ("nn.Sequential(plain, Even())", "must take any number of samples to be packed, and of 1 it"),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "words"), MODELS)
def test_a_model_that_cannot_be_packed_is_refused_with_a_remedy(folder, call, model, words):
    (folder / "own_problem.py").write_text(MODEL.replace("MODEL", model))
    sys.modules.pop("own_problem", None)
    code, out, said = call("pack", "job.yaml", "-o", "packed.landscape")
    assert (code, out, said.count("\n")) == (2, "", 1), said
    assert words in said
    assert not list(folder.glob("*.landscape*"))
