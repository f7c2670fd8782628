"""Models in memory on workers: what cannot be sent to them is refused in a line."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import cluster
from landscape import JobError


@pytest.mark.long
@pytest.mark.usefixtures("local_ray")
def test_a_loss_that_cannot_be_pickled_is_refused():
    lock = threading.Lock()

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        with lock:
            return model(batch).square().mean(1)

    with pytest.raises(
        JobError, match=r"problem: cannot be sent to workers.* cannot pickle '_thread.lock' object"
    ) as said:
        cluster.line(nn.Linear(2, 2), torch.ones(8, 2), loss, size=3, workers=1, progress=False)
    assert len(str(said.value).splitlines()) == 1
