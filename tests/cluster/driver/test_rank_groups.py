"""Workers that are groups of processes: the values of one process, and a group for each that loses a rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import cluster
from cluster.driver import transfer
from cluster.driver.transfer import FileWeights, PackedFormula
from landscape import JobError, open_run, read_job, run
from landscape.model.parameters import state_of
from landscape.recipes.gpt import GPT

PROBLEM = """
import os
from dataclasses import replace
from pathlib import Path

import torch
from landscape import Problem
from landscape.recipes.gpt import GPT

HERE = Path(__file__).parent
DTYPE = torch.float32
SIZE = {"vocabulary": 31, "width": 32, "depth": 2}


def cut(mesh, way, dtype=DTYPE):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = GPT(**SIZE).to(dtype)
    for block in model.blocks:
        if way == "fsdp":
            fully_shard(block, mesh=mesh)
        else:
            parallelize_module(block, mesh, {"expand": ColwiseParallel(), "contract": RowwiseParallel()})
    if way == "fsdp":
        fully_shard(model, mesh=mesh)
    tokens = torch.randint(0, 31, (24, 8), generator=torch.Generator().manual_seed(1))
    made = replace(Problem.causal_lm(model, tokens), weights=HERE / "w.safetensors")
    return replace(made, shared_over=mesh) if way == "fsdp" else made


def fsdp(mesh):
    return cut(mesh, "fsdp")


def tensor(mesh):
    return cut(mesh, "tensor")


def whole():
    tokens = torch.randint(0, 31, (24, 8), generator=torch.Generator().manual_seed(1))
    return replace(Problem.causal_lm(GPT(**SIZE).to(DTYPE), tokens), weights=HERE / "w.safetensors")


def mortal(mesh):
    '''Rank 1 ends itself in the middle of a tile, as often as the file says.'''
    made, calls = cut(mesh, "fsdp"), [0]

    def observe(model, batch):
        calls[0] += 1
        left = int((HERE / "kills").read_text())
        if mesh.size() > 1 and mesh.get_local_rank() == 1 and calls[0] == 60 and left:
            (HERE / "kills").write_text(str(left - 1))
            os.kill(os.getpid(), 9)
        return made.observe(model, batch)

    return replace(made, observe=observe)


def raising(mesh):
    '''One rank alone raises, once.'''
    made = cut(mesh, "fsdp")

    def observe(model, batch):
        if mesh.size() > 1 and mesh.get_local_rank() == 1 and (HERE / "raise").exists():
            (HERE / "raise").unlink()
            raise ValueError("a rank of its own mind")
        return made.observe(model, batch)

    return replace(made, observe=observe)


def on_gpus(mesh):
    if mesh.size() > 1:
        with open(HERE / "devices", "a") as file:
            print(os.getppid(), mesh.get_local_rank(), os.environ.get("CUDA_VISIBLE_DEVICES"), file=file)
    return cut(mesh, "fsdp")


def on_nodes(mesh):
    if mesh.size() > 1:
        import ray

        with open(HERE / "nodes", "a") as file:
            print(mesh.get_local_rank(), ray.get_runtime_context().get_node_id(), file=file)
    return cut(mesh, "fsdp")


def half(mesh):
    return cut(mesh, "fsdp", torch.bfloat16)


def unnamed(mesh):
    return replace(cut(mesh, "fsdp"), observables=None)


def without_file(mesh):
    return replace(cut(mesh, "fsdp"), weights=None)
"""


EIGEN = {
    "landscapes": [
        {"name": "a", "size": 3, "directions": [{"kind": "eigen", "rank": 1}, {"kind": "eigen", "rank": 2}]}
    ],
    "batch_size": 8,
}


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "grouped.py").write_text(PROBLEM)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(state_of(GPT(vocabulary=31, width=32, depth=2)), tmp_path / "w.safetensors")
    return tmp_path


def job(folder: Path, name: str, **fields):
    resources = {} if name == "whole" or "resources" in fields else {"resources": {"cpus": 2}}
    spec = {"name": "a", "size": [6, 5], "range": [-1, 1]}
    written = {"run": f"runs/{name}", "problem": f"grouped:{name}", "num_samples": 24, "batch_size": 5, "tile": 2}
    fields = {**written, **resources, "landscapes": f"[{spec}]", **fields}
    (folder / f"{name}.yaml").write_text("\n".join(f"{key}: {value}" for key, value in fields.items()))
    return read_job(folder / f"{name}.yaml")


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_a_group_has_the_values_of_one_process_on_ray(folder):
    one = run(job(folder, "whole"))["a"]
    for name in ("fsdp", "tensor"):
        # Without a tile the cost of a point is measured, by ranks whose clocks differ.
        found = cluster.run(job(folder, name, tile="null"), workers=1)["a"]
        assert found.attributes["own_model"]["state"] == "agrees"
        if name == "fsdp":
            assert found.loss.tobytes() == one.loss.tobytes()
        assert found.loss == pytest.approx(one.loss, rel=1e-6)
    # In one process, with a mesh of one.
    assert run(job(folder, "fsdp", run="runs/alone", resources="{}"))["a"].loss.tobytes() == one.loss.tobytes()


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_a_group_computes_directions_from_the_files_that_it_reads(folder, monkeypatch):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        save_file(state_of(GPT(vocabulary=31, width=32, depth=2)), folder / "other.safetensors")
    line = {
        "landscapes": [{"name": "a", "size": 5, "directions": [{"kind": "towards", "target": "other.safetensors"}]}]
    }
    one = run(job(folder, "whole", **line))["a"]
    sent = []
    monkeypatch.setattr("landscape.job.directions.computed.HELD_BYTES", 0)
    monkeypatch.setattr("landscape.compute.landscape_context.LARGE", 0)
    pack = transfer.pack_direction
    monkeypatch.setattr(transfer, "pack_direction", lambda given: sent.append(pack(given)) or sent[-1])
    for name in ("fsdp", "tensor"):
        found = cluster.run(job(folder, name, **line), workers=1)["a"]
        assert found.loss == pytest.approx(one.loss, rel=1e-6)
    assert all(isinstance(packed, PackedFormula) for packed in sent)
    assert any(isinstance(source, FileWeights) for packed in sent for source in packed.sources)


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_a_group_has_the_curvature_of_one_process(folder):
    one = run(job(folder, "whole", **EIGEN))["a"]
    found = cluster.run(job(folder, "tensor", **EIGEN), workers=1)["a"]
    assert found.loss == pytest.approx(one.loss, rel=1e-6)
    rows = measured(folder, "tensor", "λmax of the Hessian")
    assert "residual" in rows
    assert "by differences of gradients" not in rows


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_fsdp_has_no_curvature_in_float32_and_says_so(folder):
    job(folder, "fsdp", batch_size=24)  # one batch: `landscape measure` makes 550 passes over the samples
    rows = measured(folder, "fsdp", "rise at 0.5", "λmax of the Hessian")
    assert "0.001" in rows
    assert "keeps no graph of its parts" in rows


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_fsdp_takes_differences_of_gradients_in_float64_and_says_so(folder):
    fields = {**EIGEN, "batch_size": 24, "precision": "float64"}
    (folder / "doubled.py").write_text(PROBLEM.replace("torch.float32", "torch.float64"))
    numbers = load_file(folder / "w.safetensors")
    save_file({name: tensor.double() for name, tensor in numbers.items()}, folder / "w.safetensors")
    one = run(job(folder, "whole", problem="doubled:whole", **fields))["a"]
    found = cluster.run(job(folder, "fsdp", problem="doubled:fsdp", **fields), workers=1)["a"]
    assert found.loss == pytest.approx(one.loss, rel=1e-6)
    assert "by differences of gradients: fully_shard (FSDP2)" in measured(folder, "fsdp", "λmax of the Hessian")


def measured(folder: Path, name: str, *rows: str) -> str:
    """Rows of the table of `landscape measure`."""
    landscape = Path(sys.executable).with_name("landscape")
    command = [landscape, "measure", str(folder / f"{name}.yaml"), "--workers", "1"]
    table = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout
    return "\n".join(line for line in table.splitlines() if any(row in line for row in rows))


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_a_rank_that_is_killed_takes_its_group_with_it_and_another_goes_on(folder, caplog):
    (folder / "kills").write_text("2")
    start = time.monotonic()
    cluster.run(job(folder, "mortal"), workers=1)
    assert time.monotonic() - start < 120
    assert (folder / "kills").read_text() == "0"
    lost = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert len(lost) == 2
    one = run(job(folder, "whole"))["a"]
    assert open_run(folder / "runs" / "mortal")["a"].loss.tobytes() == one.loss.tobytes()


@pytest.mark.faults
@pytest.mark.usefixtures("local_ray")
def test_an_exception_of_one_rank_ends_the_group_and_no_wait(folder):
    (folder / "raise").touch()
    start = time.monotonic()
    cluster.run(job(folder, "raising"), workers=1)
    assert time.monotonic() - start < 90
    one = run(job(folder, "whole"))["a"]
    assert open_run(folder / "runs" / "raising")["a"].loss.tobytes() == one.loss.tobytes()


REFUSED = [
    ("whole", {"resources": {"cpus": 2}}, "resources: 2 processes need a callback that takes their device mesh"),
    ("unnamed", {}, "observables: a model over several processes is first called by the workers; name what"),
    ("without_file", {}, "needs its weights in a file"),
    (
        "half",
        {},
        "needs float32; call model.float() before it is cut, or take precision: bfloat16",
    ),
    (
        "fsdp",
        {**EIGEN, "resources": {"cpus": 2}},
        "precision: must be float64 for the curvature of a model",
    ),
    ("fsdp", {"num_gpus": 2}, "resources: must be gpus or cpus"),
    ("whole", {"resources": {"gpus": 4, "nodes": 2}}, "resources: 2 nodes need a callback that takes the device mesh"),
    ("fsdp", {"resources": {"cpus": 2, "nodes": 3}}, "nodes must divide the processes of a worker, 2, not 3"),
]


@pytest.mark.parametrize("name, fields, message", REFUSED)
def test_what_no_group_can_do_is_refused_before_anything_starts(folder, name, fields, message):
    with pytest.raises(JobError, match=re.escape(message)):
        cluster.run(job(folder, name, **fields), workers=1)
    assert not (folder / "runs").exists() or not os.listdir(folder / "runs")


# A node with four GPUs, as far as Ray can tell; torch sees none here, so that the groups compute on their cores.
PRETENDED = """
import ray
from ray.cluster_utils import Cluster

nodes = Cluster(initialize_head=True, head_node_args={{"num_cpus": 4, "num_gpus": 4}})
nodes.wait_for_nodes()
import cluster
from landscape import read_job

cluster.run(read_job({job!r}), address=nodes.address, workers=2)
nodes.shutdown()
"""


# Two nodes of one core each, as far as Ray can tell.
TWO_NODES = """
import ray
from ray.cluster_utils import Cluster

nodes = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0}})
for _ in range(2):
    nodes.add_node(num_cpus=1)
nodes.wait_for_nodes()
import cluster
from landscape import read_job

cluster.run(read_job({job!r}), address=nodes.address, workers=1, allow_open=True)
nodes.shutdown()
"""


@pytest.mark.faults
def test_a_group_lies_on_as_many_nodes_as_asked(folder, ray_folder):
    asked = job(folder, "on_nodes", resources="{cpus: 2, nodes: 2}")
    environment = {**os.environ, "RAY_TMPDIR": str(ray_folder), "PYTHONPATH": str(folder)}
    text = TWO_NODES.format(job=str(folder / "on_nodes.yaml"))
    subprocess.run([sys.executable, "-c", text], check=True, env=environment, timeout=200, capture_output=True)
    ranks, nodes = zip(*(line.split() for line in (folder / "nodes").read_text().splitlines()), strict=True)
    assert sorted(ranks) == ["0", "1"]
    assert len(set(nodes)) == 2
    one = run(job(folder, "whole"))["a"]
    assert open_run(asked.run_path)["a"].loss.tobytes() == one.loss.tobytes()


@pytest.mark.faults
def test_each_rank_of_a_group_has_a_gpu_of_its_own_and_sees_no_other(folder, ray_folder):
    asked = job(folder, "on_gpus", resources="{gpus: 2}", tile=1)
    environment = {**os.environ, "RAY_TMPDIR": str(ray_folder), "PYTHONPATH": str(folder)}
    text = PRETENDED.format(job=str(folder / "on_gpus.yaml"))
    subprocess.run([sys.executable, "-c", text], check=True, env=environment, timeout=200, capture_output=True)
    seen = [line.split() for line in (folder / "devices").read_text().splitlines()]
    assert len(seen) == 4
    assert sorted(device for _, _, device in seen) == ["0", "1", "2", "3"]
    assert sorted(rank for _, rank, _ in seen) == ["0", "0", "1", "1"]
    one = run(job(folder, "whole"))["a"]
    assert open_run(asked.run_path)["a"].loss.tobytes() == one.loss.tobytes()
