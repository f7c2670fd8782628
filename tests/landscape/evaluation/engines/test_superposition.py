"""Sums of remembered outputs are the outputs at the summed weights, point by point and whatever stands around them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pooled import CPU, POINTS, drawn, evaluator, pooled_problem
from small_models import make_job
from torch import nn
from torch.nn import functional as F

from landscape import run
from landscape.core.grid import Grid, axis_coordinates
from landscape.core.plan import Engine, default_plan
from landscape.evaluation.engines.reuse import InputVaries
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import TuningScope
from landscape.evaluation.tuning.local_search import tune
from landscape.model.parameters import state_of
from landscape.problem.terms import Problem


def grid(axes=2):
    return Grid(tuple("abc"[:axes]), (axis_coordinates(5, -1.0, 1.0),) * axes)


def points(axes):
    return np.random.default_rng(0).uniform(-1, 1, (7, axes))


class Flat(nn.Module):
    """A function of a model's layers, the sum of whose outputs is the loss of a sample."""

    def __init__(self, layers, function=None):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.function = function or (lambda layers, x: layers[0](x))

    def forward(self, x):
        return self.function(self.layers, x).flatten(1).mean(1)


def problem_of(layers, shape, function=None, dtype=torch.float32):
    torch.manual_seed(2)
    model, samples = Flat(layers, function).to(dtype), torch.randn(21, *shape, dtype=dtype)
    return Problem(model, samples, lambda model, batch: {"loss": torch.tanh(model(batch))}), samples


LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear of a sequence": (lambda: nn.Linear(6, 4, bias=False), (5, 6)),
    "1-d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 11)),
    "2-d": (lambda: nn.Conv2d(3, 5, (3, 2), dilation=(1, 2)), (3, 9, 7)),
    "3-d": (lambda: nn.Conv3d(2, 3, 2), (2, 4, 5, 3)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 6, 6)),
    "reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 6, 5)),
    "same": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 6, 5)),
}


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("channels_last", ["", "+channels_last"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer_agrees_with_its_weights_set(name, channels_last, axes):
    make, shape = LAYERS[name]
    problem, samples = problem_of([make()], shape)
    directions = [drawn(problem.model, k) for k in range(axes)]
    found = evaluator(problem, samples, f"eager{channels_last}+superposed", directions=directions)
    expected = evaluator(problem, samples, directions=directions).evaluate(points(axes))
    np.testing.assert_allclose(found.evaluate(points(axes)).mean["loss"], expected.mean["loss"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("moved", [("layers.0.weight",), ("layers.0.bias",), ("layers.0.weight", "layers.0.bias")])
def test_in_double_precision_it_is_the_closed_form(moved):
    """tanh of the mean over outputs of (W₀ + αD)x + b₀ + αe, by numpy."""
    problem, samples = problem_of([nn.Linear(6, 4)], (6,), dtype=torch.float64)
    torch.manual_seed(5)
    state = state_of(problem.model)
    directions = [
        {name: torch.randn_like(state[name]) for name in moved},
        {moved[0]: torch.randn_like(state[moved[0]])},
    ]
    made = evaluator(problem, samples, "eager+superposed", directions=directions, precision="float64")
    found = made.evaluate(POINTS).mean["loss"]
    for value, point in zip(found, POINTS, strict=True):
        weights = {name: tensor.numpy().copy() for name, tensor in state.items()}
        for coordinate, direction in zip(point, directions, strict=True):
            for key, tensor in direction.items():
                weights[key] += coordinate * tensor.numpy()
        outputs = samples.numpy() @ weights["layers.0.weight"].T + weights["layers.0.bias"]
        np.testing.assert_allclose(value, np.tanh(outputs.mean(1)).mean(), rtol=1e-13)


FUNCTIONS = {
    "prepared anew at every call": lambda layers, x: layers[1](torch.relu(layers[0](x / 2 + 1))),
    "called for two inputs": lambda layers, x: torch.relu(layers[0](x)) + torch.relu(layers[0](x.flip(1))),
    "two layers of one input": lambda layers, x: torch.relu(layers[0](x)) * layers[1](x),
    "written over": lambda layers, x: layers[0](x).relu_().mul_(2) + layers[1](x).exp_(),
    "its output again": lambda layers, x: layers[1](torch.relu(layers[0](x))) + layers[0](x),
}


@pytest.mark.parametrize("fused", ["", "+fused"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_models_that_use_the_layer_in_their_own_way_agree(name, fused):
    problem, samples = problem_of([nn.Linear(6, 6), nn.Linear(6, 6)], (6,), FUNCTIONS[name])
    found = evaluator(problem, samples, f"eager{fused}+superposed")
    expected = evaluator(problem, samples).evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(found.evaluate(POINTS).mean["loss"], expected, rtol=1e-5)


def test_the_layer_itself_is_not_computed_at_the_points(monkeypatch):
    problem, samples = problem_of([nn.Linear(6, 6), nn.Linear(6, 6)], (6,), FUNCTIONS["prepared anew at every call"])
    made = evaluator(problem, samples, "eager+superposed")
    widths = []
    linear = F.linear

    def counted(inputs, weight, bias=None):
        widths.append(len(weight))
        return linear(inputs, weight, bias)

    monkeypatch.setattr(F, "linear", counted)
    made.evaluate(POINTS)
    batches = 3
    rows = len({point[0] for point in POINTS})
    assert widths.count(2 * 6) == batches * rows  # what a row shares and its direction, in one product
    assert widths.count(6) == batches * len(POINTS)  # the layer above


@pytest.mark.parametrize("engine", ["eager+superposed", "eager+channels_last+maxima+folded+fused+superposed"])
def test_a_point_has_the_same_bits_in_every_company(engine, monkeypatch):
    problem, samples = pooled_problem()
    made = evaluator(problem, samples, engine)
    together = made.evaluate(POINTS)
    alone = [made.evaluate(point[None]).mean["loss"][0] for point in POINTS]
    np.testing.assert_array_equal(together.mean["loss"], alone)
    monkeypatch.setattr("landscape.evaluation.evaluation_order.LARGEST_GROUP", 2 * made.samples)  # groups of two
    np.testing.assert_array_equal(made.evaluate(POINTS[::-1]).mean["loss"][::-1], alone)
    np.testing.assert_array_equal(
        evaluator(problem, samples, engine).evaluate(POINTS).stderr["loss"], together.stderr["loss"]
    )


def test_samples_that_stream_have_the_same_bits():
    problem, samples = pooled_problem()
    samples = (samples[0].double(), samples[1])  # another type than they are computed in: they are copied
    plan = default_plan(21, "cpu", "float32", "eval", 0, 8, None)
    expected = evaluator(problem, samples, "eager+superposed").evaluate(POINTS).mean["loss"]
    made = Evaluator(
        problem.model,
        samples,
        problem.observe,
        plan,
        CPU,
        state_of(problem.model),
        [drawn(problem.model, 1), drawn(problem.model, 2)],
        limit=0,
    )
    made.use(Engine.parse("eager+superposed"))
    assert not made.resident
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], expected)


def test_whole_sets_of_weights_are_computed_as_they_are():
    problem, samples = pooled_problem()
    states = [{k: v + 0.1 * s for k, v in state_of(problem.model).items() if v.is_floating_point()} for s in (1, 2)]
    states = [{**state_of(problem.model), **each} for each in states]
    expected = evaluator(problem, samples).evaluate_states(states).mean["loss"]
    made = evaluator(problem, samples, "eager+superposed")
    made.evaluate(POINTS)
    np.testing.assert_array_equal(made.evaluate_states(states).mean["loss"], expected)


def test_layers_are_left_as_they_were():
    problem, samples = pooled_problem()
    made = evaluator(problem, samples, "eager+superposed")
    made.evaluate(POINTS)
    assert "maxima" in made.possible_options()
    made.use(Engine.parse("eager"))
    assert not any(
        "forward" in vars(module) and "Reuse" not in repr(module.forward) for module in made.evaluated_model.modules()
    )
    expected = evaluator(problem, samples).evaluate(POINTS).mean["loss"]
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], expected)


def test_nothing_is_kept_after_the_last_batch():
    problem, samples = pooled_problem()
    made = evaluator(problem, samples, "eager+superposed")
    made.evaluate(POINTS)
    assert made.rewrites["superposed"].remembered == 0


def test_layers_above_another_that_moves_are_computed():
    problem, samples = problem_of([nn.Linear(6, 6), nn.Linear(6, 6)], (6,), FUNCTIONS["prepared anew at every call"])
    made = evaluator(problem, samples, "eager+superposed")
    assert list(made.rewrites["superposed"].layers) == [made.evaluated_model.layers[0]]
    tail = [{"layers.1.weight": torch.ones(6, 6)}]
    made = evaluator(problem, samples, "eager+superposed", directions=tail)
    assert list(made.rewrites["superposed"].layers) == [made.evaluated_model.layers[1]]


def drawing(model, batch):
    return {"loss": model(batch + torch.randn_like(batch))}


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return (self.layer(x) + self.calls).flatten()


class Late(nn.Module):
    """Its layer's input depends on the weights, for samples that no first look shows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(torch.where(x[:, :1] > 100, x + self.layer.weight.sum(), x)).flatten()


@pytest.mark.parametrize(
    "model, observe, reason",
    [
        (nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), drawing, "draws random numbers"),
        (Counting(), lambda model, batch: {"loss": model(batch)}, "changes what the model holds"),
        (nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 1), nn.Flatten(0)), lambda m, x: {"loss": m(x)}, "no moved layer"),
        (Late(), lambda model, batch: {"loss": model(batch)}, "gets another input"),
    ],
)
def test_what_cannot_be_superposed_is_refused_with_its_reason(model, observe, reason):
    samples = torch.randn(20, 6)
    samples[-1, 0] = 1000
    found = tune(
        evaluator(Problem(model, samples, observe), samples), grid(), TuningScope(Engine.parse("eager+superposed"))
    )
    assert found.plan.engine == Engine()
    assert reason in found.trials[0].refused
    assert found.warning.startswith("engine: eager+superposed is not used, as it fails")


def test_an_input_that_varies_after_all_is_an_error():
    model, samples = Late(), torch.randn(20, 6)
    samples[-1, 0] = 1000
    made = evaluator(Problem(model, samples, lambda m, x: {"loss": m(x)}), samples, "eager+superposed")
    with pytest.raises(InputVaries, match="another input at another point"):
        made.evaluate(POINTS)


@pytest.mark.parametrize("batch_norm", ["batch", "recalibrate"])
def test_other_modes_of_batch_norm(batch_norm):
    problem, samples = pooled_problem()
    expected = evaluator(problem, samples, batch_norm=batch_norm).evaluate(POINTS).mean["loss"]
    if batch_norm == "recalibrate":
        with pytest.raises(ValueError, match="recalibrate"):
            evaluator(problem, samples, "eager+superposed", batch_norm=batch_norm)
        assert "superposed" not in evaluator(problem, samples, batch_norm=batch_norm).possible_options()
    else:
        found = evaluator(problem, samples, "eager+superposed", batch_norm=batch_norm).evaluate(POINTS).mean["loss"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_bfloat16_loses_no_more_than_it_does_otherwise():
    problem, samples = pooled_problem()
    exact = evaluator(problem, samples).evaluate(POINTS).mean["loss"]
    plain = evaluator(problem, samples, precision="bfloat16").evaluate(POINTS).mean["loss"]
    found = evaluator(problem, samples, "eager+superposed", precision="bfloat16").evaluate(POINTS).mean["loss"]
    assert 0 < np.abs(found - exact).max() <= 2 * np.abs(plain - exact).max()


def test_hooked_and_replaced_layers_are_computed_as_they_are():
    problem, samples = problem_of([nn.Linear(6, 6), nn.Linear(6, 6)], (6,), FUNCTIONS["two layers of one input"])
    problem.model.layers[0].register_forward_hook(lambda module, inputs, output: output * 2)
    made = evaluator(problem, samples, "eager+superposed")
    assert list(made.rewrites["superposed"].layers) == [made.evaluated_model.layers[1]]
    expected = evaluator(problem, samples).evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], expected, rtol=1e-5)


@pytest.mark.long
def test_a_landscape_has_the_same_bytes_in_every_shape_of_tile(tmp_path):
    problem, _ = pooled_problem()
    options = {"num_samples": 21, "batch_size": 8, "engine": "eager+maxima+folded+superposed"}
    found = set()
    for name, tile in (("square", (3, 2)), ("points", (1, 1)), ("rows", (4, 1)), ("columns", (1, 3))):
        job = make_job(tmp_path / name, lambda: problem, [{"name": "plane", "size": [4, 3]}], tile=tile, **options)
        surface = run(job)["plane"]
        assert surface.attributes["plan"]["engine"] == options["engine"]
        found.add((surface.loss.tobytes(), surface["loss_stderr"].tobytes()))
    assert len(found) == 1
