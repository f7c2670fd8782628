"""Products, eigenpairs, traces and densities against closed forms and dense algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from curved import dense_hessian, labelled, mlp, operator_of
from scipy import stats
from small_models import Quadratic, observe_quadratic, quadratic_samples
from torch import nn

from landscape import JobError, Problem
from landscape.compute.hessian import (
    MOST_STRETCHES,
    HessianOperator,
    filter_weighted_trace,
    projected,
    stretches_of,
    trace,
)
from landscape.compute.lanczos import density, half_sample_bracket, lanczos, sampled_curvature
from landscape.core.statistics import interval_of, t_quantile
from landscape.job.directions.random import random_direction
from landscape.model.parameters import describe_parameters, filter_view, state_of

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func itself


@pytest.fixture(scope="module")
def network():
    """A tanh network of 212 parameters, its samples, and its dense Hessian."""
    model, data = mlp(), labelled()
    matrix = dense_hessian(model, data).detach().numpy()
    return Problem.supervised(model, data, nn.CrossEntropyLoss()), (matrix + matrix.T) / 2


def probes(size, count=3, seed=0):
    return np.random.default_rng(seed).standard_normal((count, size))


# -- products ------------------------------------------------------------------------------------------------------


def test_a_quadratic_has_its_matrix_its_eigenpairs_and_its_trace(tmp_path):
    model = Quadratic(torch.float64)
    problem = Problem(model, quadratic_samples(17, torch.float64), observe_quadratic)
    operator = operator_of(tmp_path, problem)
    curvature = model.curvature.numpy()
    vectors = probes(18)
    np.testing.assert_allclose(operator(vectors), vectors * curvature, rtol=1e-12, atol=1e-13)
    krylov = lanczos(operator, 18, [1, 2, -1], tolerance=1e-9)
    for rank, place in ((1, 17), (2, 16), (-1, 0)):
        pair = krylov.pair(rank)
        assert pair.value == pytest.approx(curvature[place], rel=1e-8)
        assert abs(pair.vector[place]) > 1 - 1e-8
        assert pair.residual <= 1e-8 * curvature[place]
    found = trace(operator, 18, probes=4)  # of a diagonal matrix every probe of signs gives the whole trace
    assert found.value.mean == pytest.approx(curvature.sum(), rel=1e-12)


def test_regressions_have_their_textbook_hessians(tmp_path):
    x, labels = labelled(17)
    linear = nn.Linear(5, 1, bias=False).double()
    problem = Problem(linear, x, lambda model, batch: {"loss": model(batch)[:, 0] ** 2})
    vectors = probes(5)
    np.testing.assert_allclose(
        operator_of(tmp_path / "a", problem)(vectors), vectors @ (2 / 17 * x.T @ x).numpy(), rtol=1e-10
    )

    def logistic(model, batch):
        logits = model(batch[0])[:, 0]
        return {"loss": nn.functional.binary_cross_entropy_with_logits(logits, batch[1].double(), reduction="none")}

    chance = torch.sigmoid(x @ linear.weight[0]).detach()
    weighted = (x.T * (chance * (1 - chance))) @ x / 17
    problem = Problem(linear, (x, labels % 2), logistic)
    np.testing.assert_allclose(operator_of(tmp_path / "b", problem)(vectors), vectors @ weighted.numpy(), rtol=1e-10)

    softmax = nn.Linear(5, 4, bias=False).double()
    p = torch.softmax(x @ softmax.weight.T, 1).detach()
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    expected = torch.einsum("nab,ni,nj->aibj", middle, x, x).reshape(20, 20).numpy() / 17
    vectors = probes(20)
    found = operator_of(tmp_path / "c", Problem.supervised(softmax, (x, labels)))(vectors)
    np.testing.assert_allclose(found, vectors @ expected, rtol=1e-10, atol=1e-13)


def test_batches_of_seven_seven_and_three_give_what_one_of_seventeen_gives(tmp_path, network):
    problem, matrix = network
    vectors = probes(len(matrix))
    parts = operator_of(tmp_path / "a", problem)
    whole = operator_of(tmp_path / "b", problem, batch_size=17)
    assert (len(parts.blocks), len(whole.blocks)) == (3, 1)
    np.testing.assert_allclose(parts(vectors), whole(vectors), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(parts(vectors), vectors @ matrix, rtol=1e-10, atol=1e-12)
    assert np.array_equal(parts(vectors)[1], parts(vectors[1]))
    assert parts.products == 2 * 3 + 3 + 1


def test_differences_stand_in_where_there_is_no_second_derivative_and_the_operator_says_so(tmp_path, network):
    problem, matrix = network

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, slope):
            return slope

    def observe(model, batch):
        logits = Once.apply(model(batch[0]))
        return {"loss": nn.functional.cross_entropy(logits, batch[1], reduction="none")}

    operator = operator_of(tmp_path, Problem(problem.model, labelled(), observe))
    vectors = probes(len(matrix))
    found, expected = operator(vectors), vectors @ matrix
    assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)
    assert operator.method == "differences"
    assert "once_differentiable" in operator.refusal
    assert operator.products == 3


def test_the_wrong_second_derivative_of_torchs_weight_norm_is_not_used(tmp_path):
    """Beside the dense Hessian of g·v/‖v‖ written by hand; torch's own is off by several hundredths of it."""
    x, labels = labelled(17)
    torch.manual_seed(0)
    model = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)).double()
    (bias, g, v), sizes = model.parameters(), [4, 4, 20]

    def loss(vector):
        bias, g, v = (
            part.reshape(each.shape) for part, each in zip(vector.split(sizes), model.parameters(), strict=True)
        )
        return nn.functional.cross_entropy(x @ (g * v / v.norm(dim=1, keepdim=True)).T + bias, labels)

    at = torch.cat([each.detach().reshape(-1) for each in (bias, g, v)])
    matrix = torch.autograd.functional.hessian(loss, at).numpy()
    operator = operator_of(tmp_path, Problem.supervised(model, (x, labels)))
    vectors = probes(len(matrix))
    found, expected = operator(vectors), vectors @ matrix
    assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)
    assert operator.refusal == "torch's second derivative of weight normalisation is wrong"


def test_of_a_job_in_float32_differences_agree_with_autograd(tmp_path, network):
    problem, matrix = network
    vector = probes(len(matrix), 1)[0]
    exact = operator_of(tmp_path / "a", problem, precision="float32")(vector)
    near = operator_of(tmp_path / "b", problem, "differences", precision="float32")(vector)
    assert np.linalg.norm(exact - near) < 1e-6 * np.linalg.norm(exact)


def test_stretches_follow_from_the_number_of_blocks_alone():
    for count in (1, 5, 32, 33, 1000):
        stretches = stretches_of(range(count))
        assert [block for stretch in stretches for block in stretch] == list(range(count))
        assert len(stretches) <= MOST_STRETCHES


def test_a_model_without_trainable_parameters_is_refused(tmp_path):
    model = nn.Linear(2, 1)
    problem = Problem(model, torch.ones(17, 2), lambda model, batch: {"loss": model(batch)[:, 0]})
    operator = operator_of(tmp_path, problem)
    model.requires_grad_(False)
    with pytest.raises(JobError, match="no parameter requires gradients"):
        HessianOperator(operator.executor, operator.setting, problem, operator.samples)


# -- eigenpairs ----------------------------------------------------------------------------------------------------


def test_the_ends_of_a_networks_spectrum_are_those_of_its_dense_hessian(tmp_path, network):
    problem, matrix = network
    operator = operator_of(tmp_path, problem)
    values, vectors = np.linalg.eigh(matrix)
    ranks = [1, 2, 3, 4, 5, -1, -2]
    krylov = lanczos(operator, operator.size, ranks, steps=operator.size, tolerance=1e-9)
    for rank in ranks:
        place = len(values) - rank if rank > 0 else -rank - 1
        pair = krylov.pair(rank)
        assert pair.value == pytest.approx(values[place], rel=1e-8)
        assert abs(pair.vector @ vectors[:, place]) > 1 - 1e-8
        assert pair.vector[np.argmax(np.abs(pair.vector))] > 0


def spectrum():
    """Ten outliers to 20, four negative values to -0.3, and a bulk, on 2,000 axes."""
    return np.sort(np.concatenate([np.linspace(2, 20, 10), [-0.3, -0.2, -0.1, -0.05], np.linspace(0, 1, 1986) ** 4]))


def test_both_ends_converge_together_and_residuals_bound_the_errors():
    values = spectrum()
    krylov = lanczos(lambda vector: values * vector, len(values), [1, 2, -1])
    assert krylov.steps < 60
    for rank, truth in ((1, 20.0), (2, 18.0), (-1, -0.3)):
        pair = krylov.pair(rank)
        assert abs(pair.value - truth) <= pair.residual + 1e-12
        assert pair.residual <= 0.01 * abs(pair.value)
        exact = np.linalg.norm(values * pair.vector - pair.value * pair.vector)
        assert pair.residual == pytest.approx(exact, rel=1e-6, abs=1e-12)
    np.testing.assert_allclose(krylov.basis @ krylov.basis.T, np.eye(krylov.steps), atol=1e-13)


@pytest.mark.parametrize("killed_after", [0, 7])
def test_known_steps_are_gone_on_from_to_the_same_bits(killed_after):
    values, kept = spectrum(), []

    def product(vector):
        return values * vector

    whole = lanczos(product, len(values), [1, -1], keep=lambda number, step: kept.append(step))
    after = []
    again = lanczos(
        product, len(values), [1, -1], known=kept[:killed_after], keep=lambda number, step: after.append(number)
    )
    assert after == list(range(killed_after, whole.steps))
    assert again.basis.tobytes() == whole.basis.tobytes()
    assert again.pair(-1).vector.tobytes() == whole.pair(-1).vector.tobytes()


def test_an_invariant_space_is_left_by_another_vector():
    krylov = lanczos(lambda vector: 3.0 * vector, 6, [1, -1])
    assert (krylov.pair(1).value, krylov.pair(-1).value) == (pytest.approx(3.0), pytest.approx(3.0))
    assert krylov.pair(1).residual == 0
    zero = lanczos(lambda vector: 0.0 * vector, 1, [1])
    assert zero.pair(1).value == 0


# -- trace and density ---------------------------------------------------------------------------------------------


def test_deflated_traces_hold_the_truth_and_deflation_narrows_them(tmp_path, network):
    problem, matrix = network
    operator = operator_of(tmp_path, problem)
    plain = trace(operator, operator.size)
    krylov = lanczos(operator, operator.size, (), steps=60)
    deflated = trace(operator, operator.size, krylov.basis, float(krylov.alphas.sum()))
    truth = np.trace(matrix)
    assert plain.value.low < truth < plain.value.high
    assert deflated.value.low < truth < deflated.value.high
    assert deflated.value.stderr < 0.5 * plain.value.stderr
    assert deflated.deflated == pytest.approx(np.trace(krylov.basis @ matrix @ krylov.basis.T))


def test_the_filter_weighted_trace_is_the_mean_curvature_of_filter_normalised_lines(tmp_path, network):
    problem, matrix = network
    operator = operator_of(tmp_path, problem)
    origin, infos = state_of(problem.model), describe_parameters(problem.model)
    expected, start = 0.0, 0
    for info in infos:
        places = torch.arange(start, start + math.prod(info.shape)).reshape(info.shape)
        start += math.prod(info.shape)
        for rows, weights in zip(filter_view(places, info), filter_view(origin[info.name], info), strict=True):
            expected += float(weights.square().sum()) / len(rows) * matrix[rows.numpy(), rows.numpy()].sum()
    found = filter_weighted_trace(operator, operator.layout, origin, probes=64)
    assert abs(found.mean - expected) < 3 * found.stderr
    lines = np.stack([operator.layout.vector(random_direction(origin, infos, k, ignore=())) for k in range(400)])
    curvatures = interval_of(np.einsum("ki,ki->k", lines, lines @ matrix))
    assert abs(curvatures.mean - expected) < 3 * curvatures.stderr
    np.testing.assert_allclose(projected(operator, lines[:3]), np.einsum("ki,ki->k", lines[:3], lines[:3] @ matrix))


def test_moments_of_the_quadrature_are_those_of_the_matrix(tmp_path, network):
    problem, matrix = network
    operator = operator_of(tmp_path, problem)
    found = density(operator, operator.size, runs=6, steps=12)
    for power in (0, 1, 2):
        drawn = interval_of((found.weights * found.nodes**power).sum(1))
        truth = np.trace(np.linalg.matrix_power(matrix, power)) / len(matrix)
        assert abs(drawn.mean - truth) < max(3 * drawn.stderr, 1e-10)


def test_two_clusters_of_equal_size_have_half_of_the_density_each():
    values = np.repeat([-1.0, 4.0], 300) + 0.01 * np.sin(np.arange(600))
    found = density(lambda vector: values * vector, 600, steps=30)
    assert found.share(-2, 0) == pytest.approx(0.5, abs=0.05)
    assert found.share(3, 5) == pytest.approx(0.5, abs=0.05)
    places = np.linspace(-2, 6, 2001)
    assert np.trapezoid(found.smooth(places, 0.1), places) == pytest.approx(1, abs=1e-3)


# -- errors --------------------------------------------------------------------------------------------------------


def test_the_error_of_an_eigenvalue_is_the_spread_of_the_samples_curvatures(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(17, 5).double()
    model = nn.Linear(5, 1, bias=False).double()
    problem = Problem(model, x, lambda model, batch: {"loss": model(batch)[:, 0] ** 2})
    operator = operator_of(tmp_path, problem)
    pair = lanczos(operator, 5, [1], tolerance=1e-9).pair(1)
    each = 2 * (x.numpy() @ pair.vector) ** 2
    tensors = operator.layout.tensors(pair.vector)
    found = sampled_curvature(operator.executor, operator.setting, tensors, pair.value, 0.5)
    assert found.samples == 17
    assert found.mean == pytest.approx(pair.value, rel=1e-3)
    assert found.stderr == pytest.approx(each.std(ddof=1) / math.sqrt(17), rel=1e-3)
    assert sampled_curvature(operator.executor, operator.setting, tensors, 0.0, 0.5) is None


def _tanh_or_relu(activation):
    return nn.Sequential(nn.Linear(6, 12), activation(), nn.Linear(12, 3))


SMALL = {
    "tanh": lambda: _tanh_or_relu(nn.Tanh),
    "relu": lambda: _tanh_or_relu(nn.ReLU),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Flatten(), nn.Linear(4, 3)
    ),
}


@pytest.mark.parametrize(
    "name, loss", [("tanh", 1e-1), ("tanh", 1e-6), ("relu", 1e-3), ("relu", 1e-6), ("convolution", 0.3)]
)
def test_the_error_of_an_eigenvalue_is_right_at_small_losses(tmp_path, name, loss):
    """Against vᵀHᵢv sample by sample in float64, along a steep direction and a nearly flat one."""
    torch.manual_seed(0)
    x = 2 * torch.randn(30, 6)
    labels, model = x[:, :3].argmax(1), SMALL[name]()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(5000):
        value = nn.functional.cross_entropy(model(x), labels)
        if value.item() < loss:
            break
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    operator = operator_of(tmp_path, Problem.supervised(model, (x, labels)), precision="float32", num_samples=30)
    krylov = lanczos(operator, operator.size, [1, -1])
    model.double()
    names, shapes = zip(*((key, each.shape) for key, each in model.named_parameters()), strict=True)
    weights = torch.cat([each.detach().flatten() for each in model.parameters()])

    def loss_of(flat, i):
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        state = {key: part.view(shape) for key, part, shape in zip(names, parts, shapes, strict=True)}
        found = torch.func.functional_call(model, state, (x[i : i + 1].double(),))
        return nn.functional.cross_entropy(found, labels[i : i + 1])

    for rank in (1, -1):
        pair = krylov.pair(rank)
        vector = torch.tensor(pair.vector).float().double()
        each = [
            float(vector @ torch.autograd.functional.hvp(lambda flat, i=i: loss_of(flat, i), weights, vector)[1])
            for i in range(30)
        ]
        found = sampled_curvature(
            operator.executor, operator.setting, operator.layout.tensors(pair.vector), pair.value, value.item()
        )
        assert found.mean == pytest.approx(np.mean(each), rel=1e-6, abs=1e-14)
        assert found.stderr == pytest.approx(np.std(each, ddof=1) / math.sqrt(30), rel=1e-6, abs=1e-14)


class OnceDifferentiable(torch.autograd.Function):
    """exp, without a second derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        return slope * ctx.saved_tensors[0].exp()


@pytest.mark.parametrize(("factor", "is_known"), [(1.0, True), (1e-5, False)])
def test_without_second_derivatives_an_error_is_known_where_two_steps_agree(tmp_path, factor, is_known):
    torch.manual_seed(0)
    x = torch.randn(17, 5).double()
    model = nn.Linear(5, 1, bias=False).double()
    problem = Problem(model, x, lambda model, batch: {"loss": OnceDifferentiable.apply(model(batch)[:, 0])})
    operator = operator_of(tmp_path, problem)
    vector, outputs = np.eye(5)[0], model(x)[:, 0].detach()
    each = (outputs.exp() * x[:, 0] ** 2).numpy()
    asked = operator.executor, operator.setting, operator.layout.tensors(vector)
    found = sampled_curvature(*asked, factor * each.mean(), float(outputs.exp().mean()))
    assert (found is not None) == is_known
    if found is not None:
        assert found.stderr == pytest.approx(each.std(ddof=1) / math.sqrt(17), rel=0.01)


class InFloat32(nn.Module):
    """A model whose code names float32, as that of many normalisations and embeddings of time does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp().float()

    def forward(self, x):
        return self.inner(x.float())


def test_a_model_that_computes_in_float32_alone_has_errors_of_its_eigenvalues(tmp_path, network):
    problem, matrix = network
    operator = operator_of(tmp_path, Problem.supervised(InFloat32(), labelled()), precision="float32")
    vector = np.linalg.eigh(matrix)[1][:, -1]
    exact = operator_of(tmp_path / "double", problem)
    found, expected = (
        sampled_curvature(each.executor, each.setting, each.layout.tensors(vector), 0.5, 1.0)
        for each in (operator, exact)
    )
    assert found.mean == pytest.approx(expected.mean, rel=0.01)
    assert found.stderr == pytest.approx(expected.stderr, rel=0.01)


def test_a_model_without_second_derivatives_that_computes_in_float32_alone_is_refused(tmp_path):
    problem = Problem.supervised(InFloat32(), labelled())
    operator = operator_of(tmp_path, problem, "differences", precision="float32")
    with pytest.raises(JobError, match="differences of gradients are taken in float64: have the model compute in it"):
        operator(np.ones(operator.size))


def test_halves_of_the_samples_bracket_the_largest_eigenvalue(tmp_path, network):
    problem, matrix = network
    operator = operator_of(tmp_path / "a", problem, batch_size=4)
    found = half_sample_bracket(operator)
    assert found.low < np.linalg.eigvalsh(matrix)[-1] < found.high
    assert half_sample_bracket(operator_of(tmp_path / "b", problem, batch_size=17)) is None


@pytest.mark.parametrize("scope", [1, 2, 2.37, 7, 15, 200])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.9995])
def test_quantiles_are_those_of_scipy(probability, scope):
    assert t_quantile(probability, scope) == pytest.approx(stats.t.ppf(probability, scope), rel=1e-9)


def test_one_draw_has_no_interval():
    assert math.isnan(interval_of([2.0]).low)


# -- Gauss-Newton --------------------------------------------------------------------------------------------------


def test_gauss_newton_products_are_those_of_the_dense_matrix(tmp_path, network):
    problem, _ = network
    x, _ = labelled()
    model = mlp()
    parameters = {name: each.detach() for name, each in model.named_parameters()}
    jacobian = torch.func.jacrev(lambda values: torch.func.functional_call(model, values, x))(parameters)
    j = torch.cat([each.reshape(len(x), 4, -1) for each in jacobian.values()], 2)
    p = torch.softmax(model(x), 1).detach()
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    expected = torch.einsum("nap,nab,nbq->pq", j, middle, j).numpy() / len(x)
    vectors = probes(len(expected))
    found = operator_of(tmp_path, problem, "gauss-newton")
    np.testing.assert_allclose(found(vectors), vectors @ expected, rtol=1e-9, atol=1e-12)
    assert lanczos(found, found.size, [-1], steps=found.size).pair(-1).value > -1e-10


def test_gauss_newton_of_a_linear_model_is_its_hessian_and_needs_a_criterion(tmp_path):
    model = nn.Linear(5, 4).double()
    problem = Problem.supervised(model, labelled())
    vectors = probes(24)
    hessian, gauss_newton = (operator_of(tmp_path / how, problem, how) for how in ("autograd", "gauss-newton"))
    np.testing.assert_allclose(gauss_newton(vectors), hessian(vectors), rtol=1e-10, atol=1e-13)
    observed = Problem(model, labelled(), problem.observe.__call__)
    with pytest.raises(JobError, match="method: gauss-newton needs a model's outputs apart from their criterion"):
        operator_of(tmp_path / "c", observed, "gauss-newton")
