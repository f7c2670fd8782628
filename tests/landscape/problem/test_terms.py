"""`Problem.terms` beside a plain autograd loop; its points, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import make_job
from torch import nn

from landscape import JobError, Problem, run
from landscape.problem.randomness import look_for_randomness
from landscape.problem.selection import select_samples
from landscape.problem.terms import PointSets

X = torch.linspace(0, 1, 40)[:, None]
EDGE = torch.tensor([[0.0], [1.0]])
SEEN = (torch.rand(9, 1, generator=torch.Generator().manual_seed(1)), torch.ones(9, 1))


def residual(model, x):
    """u'' + u = 0, squared."""
    u = model(x)
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return (second + u).square()


def edge(model, x):
    return model(x).square()


def seen(model, pair):
    return (model(pair[0]) - pair[1]).square().squeeze(1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def terms_problem() -> Problem:
    return Problem.terms(network(), {"inside": (X, residual), "edge": (EDGE, edge, 10.0), "seen": (SEEN, seen, 0.5)})


def test_the_losses_of_every_term_are_those_of_a_plain_loop():
    problem = terms_problem()
    points = {"inside": X, "edge": EDGE, "seen": SEEN}
    with torch.no_grad():
        values = problem.observe(problem.model.requires_grad_(False), points)
    x = X.clone().requires_grad_()
    expected = {"inside": residual(network(), x), "edge": edge(network(), EDGE), "seen": seen(network(), SEEN)}
    for name, losses in expected.items():
        assert values[name].shape == (len(losses),)
        assert not values[name].requires_grad
        torch.testing.assert_close(values[name], losses.detach().reshape(-1))
    assert not X.requires_grad
    assert problem.term_weights == {"inside": 1.0, "edge": 10.0, "seen": 0.5}


def test_a_caller_that_takes_gradients_gets_them():
    problem = terms_problem()
    values = problem.observe(problem.model, {"inside": X, "edge": EDGE})
    sum(losses.mean() for losses in values.values()).backward()
    assert all(parameter.grad is not None for parameter in list(problem.model.parameters())[:-1])


def test_batches_go_on_until_the_largest_set_is_used_up():
    samples = select_samples(terms_problem().data, 40, 0).samples
    batches = [samples.batch(start, start + 8) for start in range(0, samples.length, 8)]
    assert [set(batch) for batch in batches] == [{"inside", "edge", "seen"}, {"inside", "seen"}, *[{"inside"}] * 3]
    assert torch.cat([batch["inside"] for batch in batches]).sort(0).values.equal(X)
    assert len(batches[1]["seen"][0]) == 1


def test_fewer_points_are_the_first_of_more_and_no_set_depends_on_another():
    few, many = (select_samples(terms_problem().data, count, 3).samples for count in (7, 30))
    assert few.few(7).digest() == few.digest() == PointSets(many.batch(0, 7)).digest()
    assert few.digest() != select_samples(terms_problem().data, 7, 4).samples.digest()
    alone = select_samples(Problem.terms(network(), {"seen": (SEEN, seen)}).data, 9, 3).samples
    assert alone.batch(0, 9)["seen"][0].equal(many.batch(0, 9)["seen"][0])


def test_there_are_as_many_points_as_the_largest_set_has():
    data = terms_problem().data
    with pytest.raises(JobError, match="must be at most the 40 samples that the data has, not 41"):
        select_samples(data, 41, 0)
    chosen = select_samples(data, 41, 0, at_most=True)
    assert chosen.samples.length == len(chosen.indices) == 40
    assert look_for_randomness(data, 2048, 0).checked == 40


def test_a_weight_is_any_real_number_and_a_loss_may_be_a_flag():
    problem = Problem.terms(network(), {"above": (X, lambda model, x: model(x) > 0, np.float32(2.5))})
    assert problem.term_weights == {"above": 2.5}
    expected = (network()(X) > 0).squeeze(1).double()
    assert problem.observe(problem.model, {"above": X})["above"].equal(expected)


def test_points_that_are_not_finite_are_counted_by_term():
    broken = X.clone()
    broken[3:5] = float("nan")
    data = Problem.terms(network(), {"inside": (broken, residual), "edge": (EDGE, edge)}).data
    assert select_samples(data, 40, 0).samples.not_finite() == {"inside": 2}


@pytest.mark.parametrize(
    "terms, text",
    [
        ([], "terms: must be a dict"),
        ({}, "must be a dict of at least one term"),
        ({"inside": X}, r"'inside' must be \(points, function, weight\), not Tensor"),
        ({"inside": (X,)}, "not 1 values"),
        ({"inside": (residual, X, 1.0)}, "the function of 'inside' must be function"),
        ({"inside": (X[:0], residual)}, "'inside' must have at least one point, not 0"),
        ({"inside": ((X, EDGE), residual)}, "the points of 'inside': all tensors of a batch must share"),
        ({"inside": (X, residual), "edge": ([0.0, 1.0], edge)}, "^terms: the points of 'edge': .* not float$"),
        ({"edge": (np.array(["a"]), edge)}, "^terms: the points of 'edge': arrays must hold numbers, not <U1"),
        ({"inside": (X, residual, 0.0)}, "the weight of 'inside' must be a positive finite number, not 0.0"),
        ({"inside": (X, residual, float("inf"))}, "not inf"),
        ({"loss": (X, residual)}, "terms: 'loss' is what"),
        ({"alpha": (X, residual)}, "'alpha' cannot name an observable"),
        ({"inside": ("points", residual)}, "must hold tensors"),
    ],
)
def test_terms_that_cannot_be_are_refused(terms, text):
    with pytest.raises(JobError, match=text):
        Problem.terms(network(), terms)


@pytest.mark.parametrize("function", [lambda model, x: model(x).mean(), lambda model, x: model(x)[:3], lambda *_: 1.0])
def test_a_function_that_does_not_return_a_loss_per_point_is_refused(function):
    problem = Problem.terms(network(), {"inside": (X, function)})
    with pytest.raises(JobError, match=r"the function of 'inside' must return a loss per point, shape \(40,\), not"):
        problem.observe(problem.model, {"inside": X})


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [3, 64])
def test_a_landscape_of_terms_has_the_means_of_a_plain_loop(tmp_path, batch_size):
    landscapes = [{"name": "a", "size": 3}]
    surface = run(make_job(tmp_path, terms_problem, landscapes, num_samples=40, batch_size=batch_size, tile=3))["a"]
    x = X.clone().requires_grad_()
    losses = {"inside": residual(network(), x), "edge": edge(network(), EDGE), "seen": seen(network(), SEEN)}
    whole = error = 0.0
    for name, values in losses.items():
        values, weight = values.detach().double().reshape(-1), terms_problem().term_weights[name]
        assert surface[name][1, 1] == pytest.approx(float(values.mean()), rel=1e-6)
        stderr = float(values.std() / len(values) ** 0.5)
        assert surface.stderr(name)[1, 1] == pytest.approx(stderr, rel=1e-6)
        whole, error = whole + weight * float(values.mean()), error + (weight * stderr) ** 2
    assert surface.origin_loss == pytest.approx(whole, rel=1e-6)
    assert surface.origin_loss_stderr == pytest.approx(error**0.5, rel=1e-6)


@pytest.mark.long
def test_a_term_of_one_point_adds_no_error(tmp_path):
    alone = {"inside": (X, residual, 2.0)}
    both = alone | {"start": (EDGE[:1], edge, 10.0)}
    surfaces = []
    for terms in (alone, both):
        folder, landscapes = tmp_path / str(len(terms)), [{"name": "a", "size": 3}]
        job = make_job(folder, lambda of=terms: Problem.terms(network(), of), landscapes, num_samples=40, tile=3)
        surfaces.append(run(job)["a"])
    one, other = surfaces
    assert np.isnan(other.stderr("start")).all()
    np.testing.assert_array_equal(other.stderr(), one.stderr())
    np.testing.assert_array_equal(other.rise_stderr, one.rise_stderr)
    np.testing.assert_allclose(other.loss, one.loss + 10 * other["start"], rtol=1e-12)
