"""Gradients and Hessian products against dense algebra, closed forms, and other cuts of the samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from small_models import Quadratic, observe_quadratic, quadratic_samples
from torch import nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, hessian
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from landscape import JobError, Problem
from landscape.core.plan import Plan
from landscape.evaluation.derivatives import Differentiation
from landscape.evaluation.layers import loss_factors
from landscape.evaluation.twice_differentiable import NoSecondDerivative, refuse_wrong_derivatives
from landscape.model.parameters import state_of
from landscape.problem.batches import as_samples
from landscape.problem.terms import PointSets

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func itself


def plan(batch_size=7, **fields) -> Plan:
    return Plan(**{"batch_size": batch_size, "threads": 1, "device": "cpu", "precision": "float64", **fields})


def differentiation(model, data, observe, **fields) -> Differentiation:
    return Differentiation(model, as_samples(data), observe, plan(**fields), CPU, state_of(model))


def factors_of(found: Differentiation, observe) -> dict[str, float]:
    return loss_factors([found.totals(block) for block in range(found.blocks)], observe)


def whole(found: Differentiation, observe, vectors=None, how="autograd"):
    """The gradient, or the products, of all samples."""
    factors = factors_of(found, observe)
    if vectors is None:
        return sum(found.gradient(block, factors) for block in range(found.blocks))
    parts = [torch.stack(found.products(block, factors, vectors, how)) for block in range(found.blocks)]
    return sum(parts[1:], parts[0])


def mlp(widths=(5, 12, 8, 4), activation=nn.Tanh, seed=0) -> nn.Module:
    torch.manual_seed(seed)
    pairs = itertools.pairwise(widths)
    layers = [module for a, b in pairs for module in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1]).double()


def classify(model, batch):
    x, y = batch
    return {"loss": nn.functional.cross_entropy(model(x), y, reduction="none")}


def images(count=17):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 5, generator=generator).double(), torch.randint(0, 4, (count,), generator=generator)


def dense(model, loss) -> torch.Tensor:
    """∇² of `loss(parameters by name)` as a matrix."""
    parameters = dict(model.named_parameters())
    names = list(parameters)
    found = hessian(loss)({name: each.detach() for name, each in parameters.items()})
    rows = [
        torch.cat([found[a][b].reshape(parameters[a].numel(), parameters[b].numel()) for b in names], 1) for a in names
    ]
    return torch.cat(rows)


def probes(size, count=3):
    return list(torch.randn(count, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64))


def test_a_quadratic_has_its_matrix_and_its_slope():
    model, data = Quadratic(torch.float64), quadratic_samples(17, torch.float64)
    found = differentiation(model, data, observe_quadratic)
    vectors = probes(18)
    expected = torch.stack([model.curvature * each for each in vectors])
    torch.testing.assert_close(whole(found, observe_quadratic, vectors), expected, rtol=1e-12, atol=1e-13)
    theta = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    slope = model.curvature * (theta - data.mean(0))
    torch.testing.assert_close(whole(found, observe_quadratic), slope, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("how", ["autograd", "differences"])
def test_products_are_those_of_the_dense_hessian(how):
    model, data = mlp(), images()
    found = differentiation(model, data, classify)
    assert found.blocks == 3
    matrix = dense(model, lambda p: nn.functional.cross_entropy(functional_call(model, p, data[0]), data[1]))
    vectors = probes(found.size)
    expected = torch.stack([matrix @ each for each in vectors])
    atol = 1e-12 if how == "autograd" else 1e-7
    torch.testing.assert_close(whole(found, classify, vectors, how), expected, rtol=1e-9, atol=atol)


class Checkpointed(nn.Module):
    """The layers of a perceptron, each behind a reentrant checkpoint, in which a backward pass leaves gradients."""

    def __init__(self, plain: nn.Sequential, input_has_gradient: bool) -> None:
        super().__init__()
        self.plain, self.input_has_gradient = plain, input_has_gradient

    def forward(self, x):
        x = x.clone().requires_grad_(self.input_has_gradient)
        for layer in self.plain:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("input_has_gradient", [True, False])
def test_derivatives_go_through_reentrant_checkpoints(input_has_gradient):
    own, data = CheckpointFunction.apply, images()
    plain = mlp()
    found, other = (differentiation(each, data, classify) for each in (plain, Checkpointed(plain, input_has_gradient)))
    torch.testing.assert_close(whole(other, classify), whole(found, classify), rtol=0, atol=0)
    vectors = probes(found.size)
    torch.testing.assert_close(whole(other, classify, vectors), whole(found, classify, vectors), rtol=1e-12, atol=1e-14)
    assert CheckpointFunction.apply == own, "the caller's checkpoints stay what they are"


def test_the_blocks_decide_and_not_the_batches_that_fit():
    model, data = mlp(), images()
    found, one = differentiation(model, data, classify), differentiation(model, data, classify, batch_size=17)
    vectors = probes(found.size)
    torch.testing.assert_close(whole(found, classify, vectors), whole(one, classify, vectors), rtol=1e-12, atol=1e-14)
    before = found.products(1, factors_of(found, classify), vectors)
    found.use_batches(2)
    assert found.blocks == 3
    torch.testing.assert_close(found.products(1, factors_of(found, classify), vectors), before, rtol=1e-12, atol=1e-14)


def test_weights_count():
    model, (x, y) = mlp(), images()
    weights = torch.linspace(0.5, 3, len(x)).double()

    def observe(model, batch):
        return {**classify(model, batch[:2]), "weight": batch[2]}

    found = differentiation(model, (x, y, weights), observe)

    def loss(p):
        losses = nn.functional.cross_entropy(functional_call(model, p, x), y, reduction="none")
        return (weights * losses).sum() / weights.sum()

    vectors = probes(found.size)
    expected = torch.stack([dense(model, loss) @ each for each in vectors])
    torch.testing.assert_close(whole(found, observe, vectors), expected, rtol=1e-10, atol=1e-12)


def test_terms_of_different_sizes_count_by_their_factors():
    model = mlp((2, 6, 1))
    inside, rim = torch.rand(9, 2).double(), torch.rand(4, 2).double()

    def residual(model, x):
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return slope.square().sum(1)

    def level(model, x):
        return (model(x)[:, 0] - 1) ** 2

    problem = Problem.terms(model, {"inside": (inside, residual, 0.3), "rim": (rim, level, 2.0)})
    samples = PointSets({"inside": inside, "rim": rim})
    found = Differentiation(model, samples, problem.observe, plan(batch_size=4), CPU, state_of(model))
    assert found.blocks > 1
    assert factors_of(found, problem.observe) == pytest.approx({"inside": 0.3 / 9, "rim": 2.0 / 4})

    def loss(p):
        points = inside.clone().requires_grad_()
        (slope,) = torch.autograd.grad(functional_call(model, p, points).sum(), points, create_graph=True)
        return 0.3 * slope.square().sum(1).mean() + 2.0 * (functional_call(model, p, rim)[:, 0] - 1).square().mean()

    parameters = {name: each.detach().requires_grad_() for name, each in model.named_parameters()}
    first = torch.autograd.grad(loss(parameters), list(parameters.values()), create_graph=True)
    vectors = probes(found.size)
    expected = []
    for vector in vectors:
        parts = torch.split(vector, [each.numel() for each in first])
        dot = sum((a * b.view_as(a)).sum() for a, b in zip(first, parts, strict=True))
        rows = torch.autograd.grad(dot, list(parameters.values()), retain_graph=True, materialize_grads=True)
        expected.append(torch.cat([row.flatten() for row in rows]))
    torch.testing.assert_close(whole(found, problem.observe, vectors), torch.stack(expected), rtol=1e-10, atol=1e-12)


def test_the_callers_model_is_left_alone_and_frozen_parameters_are_no_part():
    model, data = mlp(), images()
    model[0].weight.requires_grad_(False)
    before = state_of(model)
    found = differentiation(model, data, classify)
    assert found.size == sum(each.numel() for each in model.parameters() if each.requires_grad)
    whole(found, classify, probes(found.size), "differences")
    after = state_of(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(each.grad is None for each in model.parameters())


def test_a_linear_loss_has_no_curvature():
    model = nn.Linear(3, 1, bias=False).double()
    data = torch.randn(8, 3).double()

    def observe(model, x):
        return {"loss": model(x)[:, 0]}

    found = differentiation(model, data, observe)
    assert torch.equal(whole(found, observe, probes(3)), torch.zeros(3, 3, dtype=torch.float64))
    torch.testing.assert_close(whole(found, observe), data.mean(0))


class Cube(torch.autograd.Function):
    """x³, whose gradient torch cannot differentiate."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def test_where_there_is_no_second_derivative_differences_of_gradients_serve():
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    data = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).double()

    def cubes(model, x):
        return {"loss": Cube.apply(model(x)[:, 0])}

    def plain(model, x):
        return {"loss": model(x)[:, 0] ** 3}

    vectors = probes(3)
    with pytest.raises(NoSecondDerivative):
        whole(differentiation(model, data, cubes), cubes, vectors)
    expected = whole(differentiation(model, data, plain), plain, vectors)
    found = whole(differentiation(model, data, cubes), cubes, vectors, "differences")
    # Rounding of gradients of about 1, 1e-16, over a step of about 1e-8.
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)


def test_differences_step_over_few_kinks():
    """A step in proportion to the length of the weights would pass so many that nothing is left of the products."""
    model = mlp((5, 200, 200, 4), nn.ReLU)
    for parameter in model.parameters():
        parameter.data *= 3  # a length of 55, as that of a ResNet-20
    data = images(400)
    found = differentiation(model, data, classify, batch_size=400)
    vectors = [each / each.norm() for each in probes(found.size, 2)]
    exact, differences = whole(found, classify, vectors), whole(found, classify, vectors, "differences")
    assert float((exact - differences).norm() / exact.norm()) < 1e-5


def test_attention_has_products_either_way():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, activation="gelu", batch_first=True)
    data = torch.randn(6, 5, 8)

    def observe(model, x):
        return {"loss": model(x).square().mean((1, 2)) + model(x)[:, 0, 0]}

    found = differentiation(layer, data, observe, batch_size=4)
    vectors = [each / each.norm() for each in probes(found.size)]
    exact = whole(found, observe, vectors)
    differences = whole(found, observe, vectors, "differences")
    assert torch.isfinite(exact).all()
    assert float((exact - differences).norm() / exact.norm()) < 1e-6


@pytest.mark.parametrize("mode", ["eval", "batch"])
def test_the_statistics_of_batch_normalisation_are_those_of_the_mode(mode):
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(nn.Linear(5, 6), norm, nn.Tanh(), nn.Linear(6, 4)).double()
    data = images()
    found = differentiation(model, data, classify, batch_norm=mode, batch_size=17)
    vectors = probes(found.size)
    # Not with torch.func, whose second derivatives of batch normalisation by a batch's statistics are wrong in 2.13.
    model.eval()
    if mode == "batch":
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
        norm.track_running_stats = False

    def gradient(shift):
        moved, start = {}, 0
        for name, each in model.named_parameters():
            moved[name] = (each.detach() + shift[start : start + each.numel()].view_as(each)).requires_grad_()
            start += each.numel()
        loss = nn.functional.cross_entropy(functional_call(model, moved, data[0]), data[1])
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(moved.values()))])

    expected = torch.stack([(gradient(1e-5 * each) - gradient(-1e-5 * each)) / 2e-5 for each in vectors])
    torch.testing.assert_close(whole(found, classify, vectors), expected, rtol=1e-6, atol=1e-8)


def test_what_has_no_derivatives_is_refused():
    model, data = mlp(), images()

    def detached(model, batch):
        return {"loss": classify(model, batch)["loss"].detach()}

    with pytest.raises(JobError, match="observe: the loss has no graph of gradients"):
        differentiation(model, data, detached).gradient(0, {"loss": 1.0})
    with pytest.raises(JobError, match=r"batch_norm: recalibrate .* has no derivatives; use eval"):
        differentiation(model, data, classify, batch_norm="recalibrate")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(JobError, match="model: no parameter requires gradients"):
        differentiation(model, data, classify)


def test_factors_are_shares_of_the_whole():
    found = differentiation(mlp(), images(), classify)
    assert factors_of(found, classify) == {"loss": pytest.approx(1 / 17)}
    assert np.isclose(sum(found.totals(block)["loss"] for block in range(3)), 17)


def test_products_from_kept_graphs_have_the_same_bits():
    model, data = mlp(), images()
    found, fresh = differentiation(model, data, classify), differentiation(model, data, classify)
    factors, vectors = factors_of(found, classify), probes(found.size)

    def of_every_block(vector):
        return torch.stack([found.products(block, factors, [vector])[0] for block in range(3)])

    first, others = of_every_block(vectors[0]), [of_every_block(vector) for vector in vectors]
    assert torch.equal(others[0], first)
    for vector, products in zip(vectors, others, strict=True):
        assert torch.equal(torch.stack([fresh.products(block, factors, [vector])[0] for block in range(3)]), products)
        fresh.use_batches(6), fresh.use_batches(7)  # gives the graphs back
    found.products(0, factors, vectors, "differences")  # moves the weights and puts them back
    assert torch.equal(of_every_block(vectors[0]), first)


def test_no_graph_is_kept_of_a_model_that_writes_to_what_it_holds():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = mlp(), torch.zeros(4, dtype=torch.float64)

        def forward(self, x):
            self.calls += 1
            return self.layer(x) * self.calls

    model, data = Counting(), images()
    found = differentiation(model, data, classify)
    factors, vectors = factors_of(found, classify), probes(found.size)
    first = [torch.stack(found.products(block, factors, vectors)) for block in range(3)]
    again = [torch.stack(found.products(block, factors, vectors)) for block in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_beside_the_weights_it_is_as_at_these_weights_and_then_as_before():
    model = mlp()
    data = (torch.randn(17, 5, generator=torch.Generator().manual_seed(1)).double(), torch.arange(17) % 4)
    found = differentiation(model, data, classify)
    vector = torch.randn(found.size, generator=torch.Generator().manual_seed(2)).double()
    gradient, product = whole(found, classify), whole(found, classify, [vector])
    moved = mlp()
    with torch.no_grad():
        for parameter, part in zip(
            moved.parameters(), vector.split([p.numel() for p in moved.parameters()]), strict=True
        ):
            parameter += 0.1 * part.view_as(parameter)
    there = differentiation(moved, data, classify)
    factors = factors_of(found, classify)
    with found.moved(0.1 * vector):
        assert torch.equal(whole(found, classify), whole(there, classify))
        assert torch.equal(whole(found, classify, [vector]), whole(there, classify, [vector]))
        value, _ = found.value_and_gradient(0, factors)
    assert value == there.value_and_gradient(0, factors)[0]
    assert torch.equal(whole(found, classify), gradient)
    assert torch.equal(whole(found, classify, [vector]), product)


def test_a_function_that_may_exchange_gradients_between_processes_is_refused():
    """As transformers' sums over ranks, whose gradient is summed outside of any graph."""

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(context, inputs):
            return inputs.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient.detach()

    loss = Summed.apply(torch.ones(2, requires_grad=True)).square().sum()
    refuse_wrong_derivatives(loss)
    with pytest.raises(NoSecondDerivative, match="may exchange gradients between processes without a graph"):
        refuse_wrong_derivatives(loss, over_processes=True)
