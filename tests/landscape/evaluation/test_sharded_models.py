"""Models that are cut over processes have the values of one process: under FSDP2 the bits, else up to rounding."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import make_job

from landscape import JobError, Problem, run
from landscape.model.parameters import state_of
from landscape.model.shards import Box, blocks_of
from landscape.model.snapshots import read_trajectory
from landscape.problem.mesh import free_address
from landscape.recipes.gpt import GPT

SCRIPT = Path(__file__).parents[2] / "support" / "sharded_points.py"


def points(folder: Path, way: str, ranks: int, *more: str) -> dict[str, np.ndarray]:
    out = folder / f"{way}-{ranks}{'-'.join(more)}.npz"
    command = [sys.executable, "-W", "ignore", str(SCRIPT), way, str(ranks), "--out", str(out), *more]
    subprocess.run(command, check=True, timeout=240)
    return dict(np.load(out))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return points(tmp_path_factory.mktemp("alone"), "one", 1)


@pytest.mark.parametrize(
    "way, ranks",
    [
        pytest.param("fsdp", 2, marks=pytest.mark.faults), ("shared", 2), ("tp", 2),
        pytest.param("shared", 4, marks=pytest.mark.faults), pytest.param("fsdp", 3, marks=pytest.mark.faults),
        pytest.param("tp", 4, marks=pytest.mark.faults), pytest.param("both", 4, marks=pytest.mark.faults),
    ],
)  # fmt: skip
def test_a_group_of_processes_has_the_values_of_one(tmp_path, alone, way, ranks):
    found = points(tmp_path, way, ranks)
    for name in ("loss", "states", "rise_stderr"):
        if way in ("fsdp", "shared"):
            assert found[name].tobytes() == alone[name].tobytes(), name
        else:
            tolerance = 1e-5 if name == "rise_stderr" else 1e-6  # an error is of small differences
            np.testing.assert_allclose(found[name], alone[name], rtol=tolerance, atol=1e-12)
    share = {"fsdp": 1 / ranks, "shared": 1 / ranks}.get(way, 1)
    assert found["held"] <= 1.02 * share * alone["held"] + 64


@pytest.mark.faults
def test_directions_that_are_held_give_the_bits_of_drawn_ones(tmp_path, alone):
    assert points(tmp_path, "fsdp", 2, "--held")["loss"].tobytes() == alone["loss"].tobytes()


# -- derivatives -----------------------------------------------------------------------------------------------------

NO_GRAPH = "fully_shard (FSDP2) keeps no graph of its parts"


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.faults)])
@pytest.mark.parametrize(
    "way, ranks",
    [
        ("tp", 2), pytest.param("fsdp", 2, marks=pytest.mark.faults), pytest.param("tp", 4, marks=pytest.mark.faults),
        pytest.param("fsdp", 3, marks=pytest.mark.faults), pytest.param("both", 4, marks=pytest.mark.faults),
    ],
)  # fmt: skip
def test_derivatives_of_a_model_over_processes_are_those_of_one(tmp_path, way, ranks, dtype):
    """torch's own second derivatives under tensor parallel are wrong by a tenth, see `twice_differentiable`."""
    alone, found = (points(tmp_path, *how, "--derivatives", dtype) for how in (("one", 1), (way, ranks)))
    scale = 1e-6 if dtype == "float32" else 1e-14
    for name in ("value", "gradient", "state", "loss", "autograd", "gauss-newton", "curvatures"):
        if way != "tp" and name in ("autograd", "gauss-newton", "curvatures"):
            assert str(found[name]) == NO_GRAPH
        else:
            np.testing.assert_allclose(found[name], alone[name], rtol=0, atol=scale * np.abs(alone[name]).max())
    assert found["unused"].size == 0
    if dtype == "float64":
        largest = np.abs(alone["differences"]).max()
        np.testing.assert_allclose(found["differences"], alone["differences"], rtol=0, atol=1e-6 * largest)
        np.testing.assert_allclose(alone["differences"], alone["autograd"], rtol=0, atol=1e-6 * largest)


# -- which part of a tensor is where ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, leading, starts, sizes",
    [
        ((6, 4), 1, (2, 0), (3, 4)), ((6, 4), 1, (0, 1), (6, 2)), ((6, 4), 1, (2, 1), (3, 2)),
        ((6, 4), 1, (6, 0), (0, 4)), ((5,), 1, (2,), (2,)), ((), 0, (), ()), ((3, 4, 5), 2, (1, 0, 0), (2, 4, 5)),
        ((3, 4, 5), 2, (0, 1, 0), (3, 2, 5)),
        ((3, 4, 5), 2, (0, 0, 2), (3, 4, 3)), ((4, 3, 2, 2), 1, (1, 0, 0, 0), (2, 3, 2, 2)),
        ((4, 3, 2, 2), 1, (0, 1, 0, 0), (4, 2, 2, 2)),
    ],
)  # fmt: skip
def test_the_blocks_of_a_part_are_its_numbers(shape, leading, starts, sizes):
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    box = Box(starts, sizes)
    matrix = whole.reshape(torch.Size(shape[:leading]).numel(), -1) if whole.numel() else whole
    part, seen = torch.full(sizes, -1), 0
    for block in blocks_of(shape, leading, box, "w"):
        numbers = matrix[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop]
        part[block.local] = numbers.reshape(part[block.local].shape)
        seen += numbers.numel()
    assert torch.equal(part, box.cut(whole))
    assert seen == part.numel()


def test_parts_that_are_no_rectangles_are_refused():
    with pytest.raises(JobError, match="must be cut along one of its first 2 dimensions"):
        list(blocks_of((4, 3, 2, 2), 1, Box((0, 0, 1, 0), (4, 3, 1, 2)), "w"))


def test_every_number_of_a_tensor_is_in_one_part():
    shape, seen = (7, 5), torch.zeros(7, 5)
    for rows, columns in itertools.product([(0, 3), (3, 4)], [(0, 2), (2, 3)]):
        (block,) = blocks_of(shape, 1, Box((rows[0], columns[0]), (rows[1], columns[1])), "w")
        seen[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop] += 1
    assert (seen == 1).all()


# -- a training under FSDP2 ------------------------------------------------------------------------------------------


@pytest.mark.faults
def test_a_training_under_fsdp_keeps_whole_snapshots_of_which_a_path_is_drawn(tmp_path):
    script, address = SCRIPT.with_name("sharded_training.py"), free_address()
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path / "run")]
    ranks = [subprocess.Popen([*command, str(rank), address]) for rank in range(2)]
    assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    trajectory = read_trajectory(tmp_path / "run")
    assert trajectory.numbers == (0, 1, 2, 4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        start = state_of(GPT(vocabulary=31, width=32, depth=2))
    first, last = (trajectory.snapshots[place].load() for place in (0, -1))
    assert all(torch.equal(first[name], tensor) for name, tensor in start.items())
    assert not torch.equal(first["tokens.weight"], last["tokens.weight"])
    tokens = torch.randint(0, 31, (16, 8), generator=torch.Generator().manual_seed(1))

    def problem() -> Problem:
        return Problem.causal_lm(GPT(vocabulary=31, width=32, depth=2), tokens)

    spec = {"name": "p", "trajectory": "all", "size": 4}
    surface = run(make_job(tmp_path / "run", problem, [spec], num_samples=16))["p"]
    assert surface.path.step.tolist() == [0, 1, 2, 4]
    assert surface.path.loss[-1] < 0.9 * surface.path.loss[0]
