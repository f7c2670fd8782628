"""Means and standard errors of weighted samples, block by block: against formulas, to the bit however they are cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from landscape import Problem
from landscape.core.errors import JobError
from landscape.core.plan import Engine, Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.feed import batching_of
from landscape.evaluation.reduction import (
    Before,
    block_moments,
    mean_of_moments,
    merge_moments,
    stderr_of_moments,
    tree_sum,
)
from landscape.model.parameters import state_of
from landscape.problem.supervised import Combination

CPU = torch.device("cpu")
POINTS = np.array([[0.0, 0.0], [0.5, -1.0], [-2.0, 0.25]])


def reference(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Σwℓ/Σw and √(Σw²(ℓ−m)²)/Σw · √(n/(n−1)), in a loop of Python's own numbers."""
    total = sum(map(float, weights))
    mean = sum(float(w) * float(x) for w, x in zip(weights, values, strict=True)) / total
    spread = sum((float(w) * (float(x) - mean)) ** 2 for w, x in zip(weights, values, strict=True))
    count = len(values)
    return mean, spread**0.5 / total * (count / (count - 1)) ** 0.5


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 100, 1023])
def test_the_sum_of_a_row_does_not_depend_on_the_rows_beside_it(count):
    rows = torch.randn(5, 3, count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    sums = tree_sum(rows)
    torch.testing.assert_close(sums, rows.sum(-1))
    for place in np.ndindex(5, 3):
        assert tree_sum(rows[place].clone()) == sums[place]
        assert tree_sum(rows[place[0]].T.contiguous().T)[place[1]] == sums[place]


@pytest.mark.parametrize("cuts", [[97], [40, 57], [1, 1, 95], [32, 32, 32, 1]])
def test_moments_of_blocks_give_the_weighted_mean_and_its_error(cuts):
    generator = np.random.default_rng(1)
    values, weights = 1e3 + generator.normal(size=97), generator.integers(1, 50, 97).astype(float)
    blocks = [
        block_moments(torch.from_numpy(x)[None, None], torch.from_numpy(w)[None]).numpy()
        for x, w in zip(np.split(values, np.cumsum(cuts)[:-1]), np.split(weights, np.cumsum(cuts)[:-1]), strict=True)
    ]
    whole = np.zeros_like(blocks[0])
    for block in blocks:
        whole = merge_moments(whole, block)
    mean, stderr = reference(values, weights)
    assert mean_of_moments(whole).item() == pytest.approx(mean, rel=1e-14)
    assert stderr_of_moments(whole).item() == pytest.approx(stderr, rel=1e-11)
    np.testing.assert_array_equal(merge_moments(whole, np.zeros_like(whole)), whole)


def test_the_error_keeps_a_small_spread_on_a_large_mean_and_is_unknown_of_one_sample():
    values = 1e8 + np.random.default_rng(1).normal(0, 1e-3, 1000)
    moments = block_moments(torch.from_numpy(values)[None, None], None).numpy()
    assert stderr_of_moments(moments).item() == pytest.approx(np.std(values - 1e8, ddof=1) / np.sqrt(1000), rel=1e-6)
    one = block_moments(torch.full((1, 1, 1), 4.0, dtype=torch.float64), None).numpy()
    assert mean_of_moments(one).item() == 4.0
    assert np.isnan(stderr_of_moments(one)).all()


def test_weights_of_one_give_the_bits_of_no_weights():
    values = torch.randn(4, 3, 77, dtype=torch.float64)
    np.testing.assert_array_equal(block_moments(values, torch.ones(4, 77).double()), block_moments(values, None))


def test_what_is_not_finite_stays_so():
    for value in (np.nan, np.inf, -np.inf):
        block = block_moments(torch.tensor([[[1.0, value, 2.0]]], dtype=torch.float64), None).numpy()
        other = block_moments(torch.ones(1, 1, 3).double(), None).numpy()
        for both in (merge_moments(block, other), merge_moments(other, block)):
            np.testing.assert_array_equal(mean_of_moments(both), [[value]])
            assert np.isnan(stderr_of_moments(both)).all()


@pytest.mark.parametrize(
    "samples, size, used, edges, blocks, complete",
    [
        (10, 4, 4, ((0, 4), (4, 8), (8, 10)), (1, 1, 1), 2),
        (10, 4, 2, ((0, 2), (2, 4), (4, 6), (6, 8), (8, 10)), (2, 2, 1), 2),
        (8, 4, 3, ((0, 2), (2, 4), (4, 6), (6, 8)), (2, 2), 2),
        (3, 4, 4, ((0, 3),), (1,), 0),
    ],
)
def test_batches_are_consecutive_and_blocks_stay_when_batches_are_cut(samples, size, used, edges, blocks, complete):
    cut = batching_of(samples, Plan(size, 1, "cpu"), used)
    assert (cut.edges, cut.blocks, cut.complete) == (edges, blocks, complete)


def test_where_layers_use_the_statistics_of_a_batch_no_batch_is_much_smaller():
    cut = batching_of(9, Plan(4, 1, "cpu", batch_norm="batch"), 4)
    assert (cut.edges, cut.complete) == (((0, 3), (3, 6), (6, 9)), 0)


# -- of a model --------------------------------------------------------------------------------------------------


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor([0.3, -0.7]))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift).square().sum(1)


DIRECTIONS = [{"shift": torch.tensor([1.0, 0.0])}, {"shift": torch.tensor([0.0, 1.0])}]


def evaluator_of(observe, samples, batch_size: int = 8, engine: str = "eager") -> Evaluator:
    model, plan = Shifted(), Plan(batch_size, 1, "cpu", engine=Engine.parse(engine))
    return Evaluator(model, samples, observe, plan, CPU, state_of(model), DIRECTIONS)


def weighted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    inputs, weights = batch
    return {"loss": model(inputs), "norm": inputs.norm(dim=1), "weight": weights}


def data(count: int = 29) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 2, generator=generator), torch.randint(1, 9, (count,), generator=generator).float()


@pytest.mark.parametrize("engine", ["eager", "vmap:2"])
def test_weighted_values_and_the_paired_error_of_the_rise(engine):
    inputs, weights = data()
    values = evaluator_of(weighted, (inputs, weights), engine=engine).evaluate(POINTS, rise=True)
    assert set(values.mean) == {"loss", "norm"}
    losses = [
        (inputs - torch.tensor([0.3, -0.7]) - torch.tensor(point).float()).double().square().sum(1).numpy()
        for point in POINTS
    ]
    for number, loss in enumerate(losses):
        mean, stderr = reference(loss, weights.numpy())
        rise = reference(loss - losses[0], weights.numpy())[1]
        assert values.mean["loss"][number] == pytest.approx(mean, rel=1e-6)
        assert values.stderr["loss"][number] == pytest.approx(stderr, rel=1e-6)
        assert values.rise_stderr[number] == pytest.approx(rise, rel=1e-5, abs=1e-12)


def test_weights_of_one_give_the_bytes_of_none():
    inputs, _ = data()
    ones = torch.ones(len(inputs))
    with_weights = evaluator_of(weighted, (inputs, ones)).evaluate(POINTS, rise=True)

    def plain(model, batch):
        return {name: values for name, values in weighted(model, batch).items() if name != "weight"}

    without = evaluator_of(plain, (inputs, ones)).evaluate(POINTS, rise=True)
    for name, array in without.arrays().items():
        np.testing.assert_array_equal(array, with_weights.arrays()[name])


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_positive_number_is_refused(wrong):
    inputs, weights = data()
    weights[20] = wrong
    with pytest.raises(JobError, match=r"^observe: 'weight' must be a positive number for every sample"):
        evaluator_of(weighted, (inputs, weights)).evaluate(POINTS)


@pytest.mark.parametrize("scale", [1e300, 1e-300])
def test_weights_whose_squares_cannot_be_held_are_refused_and_give_no_error_of_zero(scale):
    def scaled(model, batch):
        observed = weighted(model, batch)
        return {**observed, "weight": observed["weight"].double() * scale}

    with pytest.raises(JobError, match=r"^observe: 'weight' must have a sum of squares from 1e-200 to 1e\+200, not"):
        evaluator_of(scaled, data()).evaluate(POINTS)


@pytest.mark.parametrize("scale", [1e90, 1e-90])
def test_the_scale_of_weights_changes_nothing_but_rounding(scale):
    def scaled(model, batch):
        observed = weighted(model, batch)
        return {**observed, "weight": observed["weight"].double() * scale}

    plain = evaluator_of(weighted, data()).evaluate(POINTS, rise=True)
    values = evaluator_of(scaled, data()).evaluate(POINTS, rise=True)
    for name in ("loss", "norm"):
        np.testing.assert_allclose(values.mean[name], plain.mean[name], rtol=1e-12)
        np.testing.assert_allclose(values.stderr[name], plain.stderr[name], rtol=1e-12)
    assert values.rise_stderr[0] == 0.0


@pytest.mark.parametrize("engine", ["eager", "vmap:2"])
@pytest.mark.parametrize("few, many", [(8, 29), (11, 29), (16, 24), (5, 29)])
def test_more_samples_are_added_to_what_is_known_bit_for_bit(engine, few, many):
    """The moments of the complete blocks of a few samples and the rest: the bytes of all samples at once."""
    samples = data(many)
    first = evaluator_of(weighted, tuple(field[:few] for field in samples), engine=engine).evaluate(POINTS, rise=True)
    complete = batching_of(few, Plan(8, 1, "cpu"), 8).complete
    made = evaluator_of(weighted, samples, engine=engine)
    at_once = made.evaluate(POINTS, rise=True)
    on_top = made.evaluate(POINTS, rise=True, before=Before(complete, first.moments.table))
    for name, array in at_once.arrays().items():
        np.testing.assert_array_equal(array, on_top.arrays()[name])
    np.testing.assert_array_equal(at_once.moments.table, on_top.moments.table)


def test_what_is_known_is_not_evaluated_again():
    observed: list[int] = []

    def counted(model, batch):
        observed.append(len(batch[0]))
        return weighted(model, batch)

    samples = data(24)
    made = evaluator_of(counted, samples)
    moments = made.evaluate(POINTS, rise=True).moments
    observed.clear()
    made.evaluate(POINTS, before=Before(2, moments.table))
    assert observed == [8] * len(POINTS)


def test_a_combination_of_terms_has_an_error_of_each_and_of_the_sum():
    inner, edge = data(21)[0], data(6)[0]
    factors = {"inner": 2.0, "edge": 0.5}

    def terms(model, batch):
        inputs, on_edge = batch
        losses = {"inner": model(inputs), "edge": model(inputs[on_edge > 0]).abs()}
        return {name: values for name, values in losses.items() if len(values)}

    flags = torch.zeros(27)
    flags[:6] = 1.0  # in the first batch alone
    samples = (torch.cat([edge, inner]), flags)
    values = evaluator_of(Combination(terms, factors), samples).evaluate(POINTS, rise=True)
    assert list(values.mean) == ["loss", "edge", "inner"]
    shift = torch.tensor([0.3, -0.7])
    rise_at_origin = None
    for number, point in enumerate(POINTS):
        all_losses = (samples[0] - shift - torch.tensor(point).float()).square().sum(1).double().numpy()
        losses = {"inner": all_losses, "edge": all_losses[:6]}
        rise_at_origin = rise_at_origin or losses
        parts = {name: reference(loss, np.ones(len(loss))) for name, loss in losses.items()}
        rises = {name: reference(loss - rise_at_origin[name], np.ones(len(loss)))[1] for name, loss in losses.items()}
        total = sum(factors[name] * parts[name][0] for name in factors)
        error = sum((factors[name] * parts[name][1]) ** 2 for name in factors) ** 0.5
        rise = sum((factors[name] * rises[name]) ** 2 for name in factors) ** 0.5
        assert values.mean["loss"][number] == pytest.approx(total, rel=1e-6)
        assert values.stderr["loss"][number] == pytest.approx(error, rel=1e-6)
        assert values.rise_stderr[number] == pytest.approx(rise, rel=1e-5, abs=1e-12)
        for name in factors:
            assert values.mean[name][number] == pytest.approx(parts[name][0], rel=1e-6)
            assert values.stderr[name][number] == pytest.approx(parts[name][1], rel=1e-6)


def test_terms_that_are_not_named_are_refused():
    observe = Combination(lambda model, batch: {"other": model(batch[0])}, {"inner": 1.0})
    with pytest.raises(JobError, match=r"observe: must return a tensor for each of the terms \['inner'\]"):
        evaluator_of(observe, data()).evaluate(POINTS)


def test_a_stochastic_observe_draws_the_same_for_a_block_whatever_comes_before_it():
    def noisy(model, batch):
        return {"loss": model(batch[0]) + torch.rand(len(batch[0]))}

    samples = data(24)
    made = evaluator_of(noisy, samples)
    first = evaluator_of(noisy, tuple(field[:16] for field in samples)).evaluate(POINTS)
    at_once, on_top = made.evaluate(POINTS), made.evaluate(POINTS, before=Before(2, first.moments.table))
    np.testing.assert_array_equal(at_once.mean["loss"], on_top.mean["loss"])


def test_a_problem_says_that_a_weight_is_no_observable():
    with pytest.raises(JobError, match="'weight' cannot name an observable"):
        Problem(Shifted(), data(), weighted, observables=("loss", "weight"))
