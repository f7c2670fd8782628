"""The points of a GPT's landscape by a group of processes, or by one: what tests and measures compare.

    python tests/support/sharded_points.py fsdp 4 --out points.npz [--size 30m] [--grid 9] [--tokens 512]
    python tests/support/sharded_points.py tp 2 --out derivatives.npz --derivatives float64

Ways: one, fsdp (every rank observes all samples), shared (FSDP2, samples shared out), tp (tensor parallel), both (a
mesh of two dimensions: FSDP2 over tensor parallel).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import distributed

import landscape.evaluation.derivatives as derivatives_of_processes
from landscape.core.plan import Plan
from landscape.evaluation.derivatives import Differentiation
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.twice_differentiable import NoSecondDerivative
from landscape.job.directions.random import random_direction
from landscape.model.parameters import describe_parameters, match_state, state_of
from landscape.model.weight_files import load_weights
from landscape.problem.mesh import Rank, RankGroup, free_address
from landscape.problem.terms import Problem
from landscape.recipes.gpt import GPT, NextByte

SIZES = {
    "tiny": {"vocabulary": 131, "width": 60, "depth": 2, "heads": 4},
    "30m": {"vocabulary": 8192, "width": 512, "depth": 8, "heads": 8},
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
WAYS = ("one", "fsdp", "shared", "tp", "both")


def cut(model: GPT, way: str, mesh: Any) -> Any:
    """Cut the model over the mesh; returns the mesh over which samples are shared out."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    across, along = mesh, mesh
    if way == "both":
        from torch.distributed.device_mesh import init_device_mesh

        whole = init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("data", "tensor"))
        across, along = whole["tensor"], whole["data"]
    if way in ("tp", "both"):
        plan = {"expand": ColwiseParallel(), "contract": RowwiseParallel()}
        for block in model.blocks:
            parallelize_module(block, across, plan)
    if way in ("fsdp", "shared", "both"):
        for block in model.blocks:
            fully_shard(block, mesh=along)
        fully_shard(model, mesh=along)
    return along if way in ("shared", "both") else None


def compute(way: str, mesh: Any, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """The values of the grid, of two whole sets of weights, and what this process holds."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT(**SIZES[options.size]).eval()
    infos = describe_parameters(model)
    file = Path(options.folder) / "weights.safetensors"
    if not file.exists():
        save_file(state_of(model), file)
    shared = cut(model, way, mesh) if way != "one" else None
    assert describe_parameters(model) == infos
    origin = match_state(model, load_weights(file), "weights")
    length = 64 if options.size == "30m" else 16
    rows = options.tokens // length
    vocabulary = SIZES[options.size]["vocabulary"]
    tokens = torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))
    problem = Problem.causal_lm(model, tokens)
    directions = [random_direction(origin, infos, seed) for seed in (1, 2)]
    if options.held:
        directions = [dict(direction) for direction in directions]
    plan = Plan(max(1, rows // 4), 1, "cpu")
    of_model = model, tokens, problem.observe, plan, torch.device("cpu"), origin, directions
    evaluator = Evaluator(*of_model, shared_over=shared)
    axis = np.linspace(-1, 1, options.grid)
    points = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    values = evaluator.evaluate(points, rise=True)
    smaller = {name: tensor * 0.9 for name, tensor in origin.items()}
    states = evaluator.evaluate_states([origin, smaller])
    held = sum(each.numel() for each in evaluator.weights.moved_tensors)
    return {
        "loss": values.mean["loss"], "rise_stderr": values.rise_stderr, "states": states.mean["loss"],
        "seconds": np.array(values.seconds), "held": np.array(held),
    }  # fmt: skip


def differentiate(way: str, mesh: Any, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Derivatives over a block of samples, after a point of a landscape was set in the same model."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = NextByte(vocabulary=31, width=32, depth=2, heads=4).eval().to(dtype)
        vector = torch.randn(sum(parameter.numel() for parameter in model.parameters()), dtype=torch.float64)
        inputs, targets = torch.randint(0, 31, (2, 8, 12))
    origin = {name: tensor.clone() for name, tensor in state_of(model).items()}
    direction = random_direction(origin, describe_parameters(model), 1)
    if way != "one":
        cut(model, way, mesh)
    problem = Problem.supervised(model, (inputs, targets))
    plan = Plan(4, 1, "cpu", "float64" if dtype is torch.float64 else "float32")
    evaluator = Evaluator(model, problem.data, problem.observe, plan, torch.device("cpu"), origin, [direction])
    derivatives = Differentiation.beside(evaluator, origin)
    evaluator.evaluate(np.array([[0.5]]))
    derivatives.begin(evaluator)
    factors = {"loss": 1 / 8}
    value, gradient = derivatives.value_and_gradient(0, factors)
    found: dict[str, Any] = {"value": value, "gradient": gradient, "unused": sorted(derivatives.unused(0, factors))}
    # Memory that differs from process to process: none may decide by it to leave out a part that others compute.
    free = 1 << 40 if mesh is None or mesh.get_rank() == 0 else 0
    derivatives_of_processes.free_bytes = lambda device: free
    for how in ("autograd", "differences", "gauss-newton"):
        if how != "differences" or dtype is torch.float64:
            try:
                (found[how],) = derivatives.products(0, factors, [vector], how)
                for _ in range(2):
                    (again,) = derivatives.products(0, factors, [vector], how)
                    assert torch.equal(again, found[how])
            except NoSecondDerivative as error:
                found[how] = str(error)
    try:
        along = {name: vector[: tensor.numel()].view(tensor.shape) for name, tensor in origin.items()}
        found["curvatures"] = derivatives.curvatures(0, along)["loss"][0]
    except NoSecondDerivative as error:
        found["curvatures"] = str(error)
    at_point = evaluator.weights.state_at([0.5])
    found["state"] = torch.cat([tensor.flatten() for tensor in at_point.values()])
    found["loss"] = evaluator.evaluate(np.array([[0.0]])).mean["loss"]
    return {name: np.asarray(values) for name, values in found.items()}


def rank(way: str, number: int, ranks: int, address: str, options: argparse.Namespace) -> None:
    """One process of a group; rank 0 writes the values."""
    mesh = RankGroup(Rank(number, ranks), address, torch.device("cpu")).mesh
    found = (
        differentiate(way, mesh, DTYPES[options.derivatives]) if options.derivatives else compute(way, mesh, options)
    )
    if number == 0:
        np.savez(options.out, **found)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--grid", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=208)
    parser.add_argument("--held", action="store_true")
    parser.add_argument("--derivatives", choices=DTYPES)
    parser.add_argument("--folder")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--address")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.rank is not None:
        rank(options.way, options.rank, options.ranks, options.address, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        options.folder = options.folder or folder
        if options.derivatives and options.way == "one":
            np.savez(options.out, **differentiate("one", None, DTYPES[options.derivatives]))
            return
        if options.way == "one":
            np.savez(options.out, **compute("one", None, options))
            return
        compute("one", None, argparse.Namespace(**{**vars(options), "grid": 1}))  # writes the weights
        again = [sys.executable, __file__, *sys.argv[1:], "--folder", options.folder, "--address", free_address()]
        processes = [subprocess.Popen([*again, "--rank", str(number)]) for number in range(options.ranks)]
        if any(process.wait() for process in processes):
            sys.exit(1)


if __name__ == "__main__":
    main()
