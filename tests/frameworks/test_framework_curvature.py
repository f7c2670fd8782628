"""Hessian products and eigenvalues of LeNet in float64 beside curvlinops and ARPACK."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from curved import operator_of
from curvlinops import HessianLinearOperator
from scipy.sparse.linalg import eigsh
from torch import nn

from landscape import Problem
from landscape.compute.lanczos import lanczos
from landscape.recipes.lenet import LeNet5

pytestmark = pytest.mark.frameworks
COUNT, BATCH = 40, 16


@pytest.fixture(scope="module")
def scene():
    torch.manual_seed(0)
    model = LeNet5().double().eval()
    data = torch.randn(COUNT, 1, 32, 32).double(), torch.randint(0, 10, (COUNT,))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(12):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimiser.step()
    return model, data


def peer(kind, model, data):
    batches = [tuple(part[k : k + BATCH] for part in data) for k in range(0, COUNT, BATCH)]
    parameters = [each for each in model.parameters() if each.requires_grad]
    return kind(model, nn.CrossEntropyLoss(), parameters, batches)


def test_products_and_eigenvalues_are_those_of_curvlinops(tmp_path, scene):
    model, data = scene
    problem = Problem.supervised(model, data)
    operator = operator_of(tmp_path, problem, num_samples=COUNT, batch_size=BATCH)
    theirs = peer(HessianLinearOperator, model, data)
    vector = np.random.default_rng(0).standard_normal(operator.size)
    expected = (theirs @ torch.from_numpy(vector)).detach().numpy()
    np.testing.assert_allclose(operator(vector), expected, rtol=1e-8, atol=1e-10)
    krylov = lanczos(operator, operator.size, [1, 2, -1], steps=200, tolerance=1e-4)
    top = eigsh(theirs.to_scipy(), 2, which="LA", tol=1e-7, return_eigenvectors=False)
    bottom = eigsh(theirs.to_scipy(), 1, which="SA", tol=1e-7, return_eigenvectors=False)
    found = [krylov.pair(rank).value for rank in (1, 2, -1)]
    assert found == pytest.approx([*sorted(top, reverse=True), *bottom], rel=1e-5)
