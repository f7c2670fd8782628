"""One of two processes that train a GPT under FSDP2 with the collector: `sharded_training.py RUN RANK ADDRESS`."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from landscape import TrajectoryCollector
from landscape.problem.mesh import Rank, RankGroup
from landscape.recipes.gpt import GPT


def main(run: str, rank: int, address: str) -> None:
    torch.set_num_threads(1)
    mesh = RankGroup(Rank(rank, 2), address, torch.device("cpu")).mesh
    torch.manual_seed(0)
    model = GPT(vocabulary=31, width=32, depth=2)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    collector = TrajectoryCollector(run, model, optimizer, unit="epoch", intervals=[[0, 1, 2, 4]])
    tokens = torch.randint(0, 31, (16, 8), generator=torch.Generator().manual_seed(1)).split(8)[rank]
    for _ in range(4):
        for _ in range(3):
            loss = cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            collector.step(loss)
        collector.end_epoch()
    collector.end_training()
    distributed.barrier()
    time.sleep(2.0 * (rank == 0))  # its store must outlive the others
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
