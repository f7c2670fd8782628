"""The ends of LeNet's spectrum against ARPACK on products written out by hand, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from curved import operator_of
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

from landscape import Problem
from landscape.compute.lanczos import lanczos
from landscape.recipes.lenet import LeNet5


def trained(count: int = 16) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LeNet5().double()
        x, y = torch.randn(count, 1, 32, 32).double(), torch.randint(0, 10, (count,))
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.2 * slope
    return model, (x, y)


def by_hand(model: nn.Module, data: tuple[Tensor, Tensor]) -> LinearOperator:
    parameters = list(model.parameters())
    loss = nn.functional.cross_entropy(model(data[0]), data[1])
    slope = torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters, create_graph=True)])

    def product(vector: np.ndarray) -> np.ndarray:
        found = torch.autograd.grad(slope, parameters, torch.from_numpy(vector.reshape(-1)), retain_graph=True)
        return torch.cat([each.flatten() for each in found]).numpy()

    return LinearOperator((len(slope), len(slope)), matvec=product, dtype=np.float64)


@pytest.mark.long
def test_both_ends_are_those_of_arpack(tmp_path):
    model, data = trained()
    operator = operator_of(tmp_path, Problem.supervised(model, data), num_samples=16, batch_size=6)
    krylov = lanczos(operator, operator.size, [1, 2, -1], steps=200, tolerance=1e-4)
    start = np.random.default_rng(1).standard_normal(operator.size)
    truth = by_hand(model, data)
    top, vectors = eigsh(truth, 2, which="LA", v0=start, tol=1e-7)
    (bottom,) = eigsh(truth, 1, which="SA", v0=start, tol=1e-7, return_eigenvectors=False)
    pairs = {rank: krylov.pair(rank) for rank in (1, 2, -1)}
    assert [pairs[1].value, pairs[2].value] == pytest.approx(sorted(top, reverse=True), rel=1e-5)
    assert pairs[-1].value == pytest.approx(bottom, rel=1e-5)
    assert abs(pairs[1].vector @ vectors[:, np.argmax(top)]) > 1 - 1e-5
