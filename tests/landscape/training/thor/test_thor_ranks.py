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
from landscape.core.errors import JobError
from landscape.training.thor.factors import Inverse
from landscape.training.thor.inverses import averaged, broadcast
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


def published_step(group, first, last, weight=1.0, joins=True):
    # A step with the samples from `first` to `last` on this rank, its inverses and its gradients.
    model = made("rule")
    options = {"damping": 0.1, "split_dim": 16, "momentum": 0.0, "factors": "mindspore-gpu"}
    optimizer = THOR(model, 1.0, process_group=group, **options)
    network = DistributedDataParallel(model, process_group=group) if joins else model
    (F.cross_entropy(network(images[first:last]), labels[first:last]) * weight).backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()}
    optimizer.step()
    return {"inverses": [layer.inverse for layer in optimizer.layers], "gradients": gradients,
            "weights": model.state_dict()}


for count, size in ((2, 9), (4, 10)):
    if rank < count:
        together = published_step(groups[count], *share_of(size, rank, count))
        if rank == 0:  # what each rank inverts alone, and the steps from the mean of that
            alone = [published_step(groups[1], *share_of(size, each, count)[:2], joins=False) for each in range(count)]
            optimizer = THOR(made("rule"), 1.0, split_dim=16, process_group=groups[1], factors="mindspore-gpu")
            before, expected = made("rule").state_dict(), {}
            for number, layer in enumerate(optimizer.layers):
                own = [each["inverses"][number] for each in alone]
                layer.inverse = Inverse(
                    *(tuple(sum(blocks) / count for blocks in zip(*(getattr(each, side) for each in own)))
                      for side in ("a", "g"))
                )
                name = f"{layer.name}.weight"
                expected[name] = before[name] - layer.preconditioned(together["gradients"][name])
            torch.save(expected, f"{kept}/published-{count}-expected.pt")
        torch.save(together["weights"], f"{kept}/published-{count}-{rank}.pt")
refused = THOR(made("rule"), 0.1, average=0.5, process_group=groups[WORLD], factors="mindspore-gpu")
try:
    refused.step()
except JobError as error:
    assert str(error).startswith("factors: 'mindspore-gpu' on 4 ranks must have refresh 'frequency' or"), error
else:
    raise AssertionError("each rank has factors of its own")

layer = THOR(made("frequency"), 0.1, process_group=groups[WORLD]).layers[0]
ones = Inverse(*(tuple(block + 1 + rank for block in split.zeros(torch.float64, "cpu"))
                 for split in (layer.inputs, layer.outputs)))
mean = averaged(layer, ones if rank < 2 else None, rank < 2, groups[WORLD])  # only two of the ranks have samples
assert all(bool((block == 1.5).all()) for block in (*mean.a, *mean.g))
assert averaged(layer, None if rank == 3 else ones, True, groups[WORLD]) is None  # one could not make its inverse
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


@pytest.mark.parametrize("count", [2, 4])
def test_mindspores_factors_are_inverted_on_each_rank_and_averaged(kept, count):
    expected = torch.load(kept / f"published-{count}-expected.pt", weights_only=True)
    ranks = [torch.load(kept / f"published-{count}-{rank}.pt", weights_only=True) for rank in range(count)]
    assert set(expected) == {"0.weight", "4.weight"}
    for name, weights in expected.items():
        assert float((ranks[0][name] - weights).norm()) <= 1e-10 * float(weights.norm()), name
    for other in ranks[1:]:
        assert all(torch.equal(other[name], value) for name, value in ranks[0].items())
