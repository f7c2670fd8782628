"""THOR on two and four ranks of gloo beside one rank with the whole batch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

SCRIPT = """
import os
import sys
from collections import OrderedDict

import torch
import torch._dynamo  # which the first optimiser imports, in each rank if not here
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from landscape.optim import THOR
from landscape.training.thor.inverses import broadcast
from landscape.training.distributed import share_of

store, kept = sys.argv[1:]
WORLD = 4
torch.set_num_threads(1)
children, rank = [], 0
for number in range(1, WORLD):
    child = os.fork()
    if child == 0:
        rank, children = number, []
        break
    children.append(child)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
groups = {count: dist.new_group(list(range(count))) for count in (1, 2, 4)}

torch.manual_seed(0)
images, labels = torch.randn(40, 2, 5, 5, dtype=torch.float64), torch.randint(0, 3, (40,))
CASES = {
    "frequency": {"frequency": 3},
    "rule": {"refresh": "thor_stop", "frequency": 2, "damping": 0.1},
    "averaged": {"frequency": 2, "average": 0.9, "clip": 0.5, "balance": True},
}


def made(case):
    torch.manual_seed(1)
    norm = nn.Identity() if case == "frequency" else nn.LayerNorm(36)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), norm, nn.Linear(36, 3)).double()


def trained(count, case, options):
    model, group = made(case), groups[count]
    optimizer = THOR(model, 0.05, split_dim=16, weight_decay=1e-3, process_group=group, **options)
    network = DistributedDataParallel(model, process_group=group) if count > 1 else model
    # A batch smaller than the number of ranks is computed whole by each: a LayerNorm would count its samples so often.
    sizes = [10, 10, 9, 8, 3 if case == "frequency" else 7] * 4
    for step, size in enumerate(sizes):
        batch = torch.arange(step, step + size) % 40
        first, last, weight = share_of(size, rank, count)
        chosen = batch[first:last]
        optimizer.zero_grad()
        (F.cross_entropy(network(images[chosen]), labels[chosen]) * weight).backward()
        optimizer.step()
    return {"weights": model.state_dict(), "optimizer": optimizer.state_dict()}


for count in groups:
    for name, options in CASES.items():
        if rank < count:
            torch.save(trained(count, name, options), f"{kept}/{name}-{count}-{rank}.pt")
layer = THOR(made("frequency"), 0.1).layers[0]
assert broadcast(layer, None, rank == 1, 1, groups[WORLD]) is None  # no rank has an inverse where the owner has none
dist.barrier()
dist.destroy_process_group()
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
os._exit(max(map(abs, codes), default=0))  # what gloo's threads do while the interpreter goes down is not tested
"""
CASES = ("frequency", "rule", "averaged")
pytestmark = [pytest.mark.long, pytest.mark.faults, pytest.mark.xdist_group("thor ranks")]  # one process makes `kept`


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    done = subprocess.run([sys.executable, "-c", SCRIPT, folder / "store", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def loaded(folder, case, count, rank=0):
    return torch.load(folder / f"{case}-{count}-{rank}.pt", weights_only=True)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_ranks_train_the_weights_of_one_with_the_whole_batch(kept, case, count):
    alone, together = loaded(kept, case, 1), loaded(kept, case, count)
    for name, weights in alone["weights"].items():
        assert float((together["weights"][name] - weights).norm()) <= 1e-10 * float(weights.norm()), name
    frozen = [[layer["frozen"] for layer in each["optimizer"]["thor"]["layers"]] for each in (alone, together)]
    assert frozen[0] == frozen[1]


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_hold_the_same_bits(kept, case):
    first = loaded(kept, case, 4)
    for rank in (1, 2, 3):
        other = loaded(kept, case, 4, rank)
        assert all(torch.equal(other["weights"][name], value) for name, value in first["weights"].items())
        for layer, theirs in zip(
            first["optimizer"]["thor"]["layers"], other["optimizer"]["thor"]["layers"], strict=True
        ):
            for side in ("a", "g"):
                pairs = zip(layer["inverse"][side], theirs["inverse"][side], strict=True)
                assert all(torch.equal(one, two) for one, two in pairs)
