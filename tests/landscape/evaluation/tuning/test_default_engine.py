"""The engine that a job takes by rule: where each rewrite is taken, that its values agree, and what it gives way to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from pooled import POINTS, evaluator
from small_models import make_job, plan_on_disk
from torch import nn

from landscape import Problem, open_run, run
from landscape.bench.problems import SYNTHETIC_MODELS, synthetic_problem
from landscape.core.grid import Grid, axis_coordinates
from landscape.core.plan import Engine
from landscape.evaluation.tuning.choices import Limits, TuningScope
from landscape.evaluation.tuning.default_engine import cost_of_sample, default_candidate
from landscape.evaluation.tuning.local_search import tune
from landscape.recipes.lenet import LeNet5

GRID = Grid(("alpha", "beta"), (axis_coordinates(5, -1.0, 1.0),) * 2)
SHORT = TuningScope(points=25)


def of_recipe(name, samples, **fields):
    problem = synthetic_problem(name, samples)
    return evaluator(problem, problem.data, batch_size=256, **fields)


def by_rule(made, points=10_000, **facts):
    return default_candidate(made.target, made.samples, points, **facts)


@pytest.mark.parametrize(
    "name, samples, engine, batch_size",
    [
        ("lenet", 512, "eager+maxima+fused+superposed", 256),
        ("lenet", 16, "eager+maxima+fused+superposed", 16),
        ("resnet20", 256, "eager+channels_last+folded+fused", 128),
        ("unet", 64, "eager+channels_last+maxima+folded+fused", 32),
        ("resnet50", 4, "eager+channels_last+folded+fused", 4),
        ("mlp", 64, "eager+superposed", 64),
        ("transformer", 64, "eager", 32),
        ("control-flow", 256, "eager", 256),
        ("tiny", 16, "vmap:32", 16),
        ("tiny", 20_000, "vmap:32", 2048),
    ],
)
def test_what_the_rules_give(name, samples, engine, batch_size):
    found = by_rule(of_recipe(name, samples))
    assert (str(found.engine), found.batch_size) == (engine, batch_size)


def test_the_cost_of_a_sample_is_counted():
    """LeNet-5: 25·6·28² + 150·16·10² multiply-adds of convolutions, 400·120 + 120·84 + 84·10 of linear layers."""
    made = of_recipe("lenet", 64)
    cost = cost_of_sample(made.target, made.samples)
    convolutions, linear = 25 * 6 * 28**2 + 150 * 16 * 10**2, 400 * 120 + 120 * 84 + 84 * 10
    assert cost.multiply_adds == convolutions + linear
    assert cost.of_convolutions == pytest.approx(convolutions / (convolutions + linear))
    assert cost.superposable == pytest.approx(25 * 6 * 28**2 / (convolutions + linear))
    assert (cost.per_output, cost.large_output) == (25, 4 * 6 * 28**2)


def test_weights_that_are_multiplied_with_one_another_are_no_cost_of_a_sample():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.up, self.down = nn.Linear(50, 50), nn.Linear(4, 50), nn.Linear(50, 4)

        def forward(self, x):
            return nn.functional.linear(x, self.base.weight + self.up.weight @ self.down.weight)

    samples = torch.randn(12, 50), torch.zeros(12, dtype=torch.long)
    made = evaluator(Problem.supervised(Adapted(), samples), samples)
    cost = cost_of_sample(made.target, made.samples)
    assert (cost.multiply_adds, cost.large_output) == (2500, 200)


@pytest.mark.parametrize("change", [{"precision": "float64"}, {"precision": "bfloat16"}])
def test_there_is_no_rule_for_other_precisions(change):
    found = by_rule(of_recipe("lenet", 32, **change))
    assert (found.engine, found.batch_size) == (Engine(), 32)


def test_batches_whose_statistics_count_stay_as_planned_and_nothing_is_folded():
    problem = synthetic_problem("unet", 64)
    made = evaluator(problem, problem.data, batch_size=64, batch_norm="batch")
    found = by_rule(made)
    assert (str(found.engine), found.batch_size) == ("eager+channels_last+maxima", 64)


def test_a_batch_size_of_the_job_stays():
    found = by_rule(of_recipe("unet", 64), may_choose_batch_size=False)
    assert found.batch_size == 64


def test_no_layer_is_superposed_where_the_landscapes_of_a_job_move_weights_of_different_layers(tmp_path):
    assert "superposed" not in by_rule(of_recipe("lenet", 32), same_moved=False).engine.options
    with_biases = {"name": "other", "size": 3, "directions": [{"kind": "random", "seed": 1, "ignore": []}]}
    job = make_job(
        tmp_path, partial(synthetic_problem, "lenet", 32), [{"name": "one", "size": 3}, with_biases], num_samples=32
    )
    run(job)
    engines = {plan_on_disk(tmp_path, name)[0]["engine"] for name in ("one", "other")}
    assert engines == {"eager+maxima+fused+superposed"}, "biases are no layers"


@pytest.mark.parametrize("name", [each for each in SYNTHETIC_MODELS if each not in ("resnet50", "resnet56")])
def test_the_default_agrees_with_float64(name):
    samples = {"mlp": 32, "transformer": 8, "unet": 8}.get(name, 32)
    problem = synthetic_problem(name, samples)
    made = evaluator(problem, problem.data, batch_size=256)
    tune(made, GRID, TuningScope(points=10_000), limits=Limits(share=0.0), load_processes=0)
    exact = evaluator(problem, problem.data, batch_size=256, precision="float64").evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], exact, rtol=1e-6)


# -- what gives way --------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Adds a constant that tracing would keep: a new one is made at every call."""

    def __init__(self):
        super().__init__()
        self.convolution, self.calls = nn.Conv2d(1, 4, 3), 0

    def forward(self, images):
        return torch.relu(self.convolution(images)).mean((2, 3)) * (1 + torch.rand(1))


class Penalised(nn.Module):
    """Divides its outputs by a function of its weights, which tracing would keep."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.Conv2d(6, 8, 3, 4), nn.ReLU(), nn.Flatten())
        self.last = nn.LazyLinear(4)

    def forward(self, images):
        outputs = self.last(self.layers(images))
        return outputs / (1 + sum(parameter.square().sum() for parameter in self.parameters()))


class Late(nn.Module):
    """The input of the layer depends on the layer's own weights, but for one sample only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(30, 4)

    def forward(self, x):
        return self.layer(torch.where(x[:, :1] > 100, x + self.layer.weight.sum(), x))


class Watched(nn.Module):
    """The loss adds what a hook of a layer has kept, such as a penalty of activations."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten())
        self.last, self.kept = nn.Linear(8 * 14 * 14, 4), None
        self.layers[2].register_forward_hook(self.keep)

    def keep(self, layer, inputs, output):
        self.kept = output.square().mean((1, 2, 3))

    def forward(self, images):
        return self.last(self.layers(images))


class Counting(nn.Module):
    """Does something else from the second batch of a point on, or with a batch of another size."""

    def __init__(self, where):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.Conv2d(6, 8, 3, 4), nn.ReLU(), nn.Flatten())
        self.last, self.calls, self.size, self.where = nn.Linear(8 * 4 * 4, 4), 0, 0, where

    def forward(self, images):
        self.calls += 1
        changed = self.calls > 1 if self.where == "second" else self.size not in (0, 16)
        return self.last(self.layers(images)) * (1.5 if changed else 1.0)


def labelled(inputs):
    return inputs, torch.zeros(len(inputs), dtype=torch.long)


def test_what_tracing_would_change_is_computed_as_it_is():
    samples = labelled(torch.randn(40, 1, 8, 8))
    made = evaluator(Problem.supervised(Noisy(), samples), samples)
    assert "fused" in by_rule(made).engine.options
    found = tune(made, GRID, SHORT, load_processes=0)
    assert found.plan.engine == Engine()
    assert "is off by" in found.trials[0].refused
    assert not found.warning, "nobody asked for it"


def test_what_tracing_would_keep_of_the_weights_is_computed_at_every_point(tmp_path):
    model, samples = Penalised(), labelled(torch.randn(40, 1, 20, 20))
    model(samples[0])
    made = evaluator(Problem.supervised(model.eval(), samples), samples, batch_size=40)
    assert "fused" in by_rule(made).engine.options
    tune(made, GRID, SHORT, load_processes=0)
    exact = evaluator(Problem.supervised(model, samples), samples, batch_size=40).evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], exact, rtol=1e-6)


def test_a_model_with_hooks_is_not_traced():
    samples = labelled(torch.randn(40, 1, 20, 20))
    model = Watched()

    def observe(model, batch):
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none") + model.kept}

    made = evaluator(Problem(model, samples, observe), samples, batch_size=40)
    assert not {"fused", "folded"} & by_rule(made).engine.options
    exact = made.evaluate(POINTS).mean["loss"]
    tune(made, GRID, SHORT, load_processes=0)
    np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], exact, rtol=1e-6)
    forced = tune(made, GRID, TuningScope(Engine.parse("eager+fused"), points=25), load_processes=0)
    assert "'layers.2' has hooks, which are not called where its call is replaced" in forced.warning


@pytest.mark.parametrize("where", ["second", "last"])
def test_a_model_that_does_something_else_in_a_later_batch_is_computed_as_it_is(where):
    samples = labelled(torch.randn(40, 1, 20, 20))

    def observe(model, batch):
        model.size = len(batch[0])
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}

    made = evaluator(Problem(Counting(where), samples, observe), samples, batch_size=16)
    assert "fused" in by_rule(made).engine.options
    found = tune(made, GRID, SHORT, load_processes=0)
    assert found.plan.engine == Engine()
    assert "is off by" in found.trials[0].refused


def test_few_points_are_not_stacked_as_the_first_stack_costs_an_import():
    made = of_recipe("tiny", 16)
    assert by_rule(made, points=625).engine == Engine()
    assert by_rule(made, points=2000).engine.stacks


def test_a_job_that_goes_on_has_the_engine_of_its_last_landscape(tmp_path):
    """The second landscape takes no sums, as it is rounded; the third is computed as that one is, also after a stop."""
    torch.manual_seed(0)
    model, samples = LeNet5().eval(), labelled(torch.randn(48, 1, 32, 32))
    specs = [
        {"name": "one", "size": 3},
        {"name": "two", "size": 3, "quantise": {"bits": 6}},
        {"name": "three", "size": 3, "directions": [{"kind": "random", "seed": 5}]},
    ]
    found = {}
    for name, begun in (("whole", 3), ("resumed", 2)):
        for count in sorted({begun, 3}):
            job = make_job(tmp_path / name, lambda: Problem.supervised(model, samples), specs[:count], num_samples=48)
            run(job)
        choices = {spec["name"]: open_run(tmp_path / name)[spec["name"]].record.provenance.engine for spec in specs}
        found[name] = {key: (choice.engine, choice.by) for key, choice in choices.items()}
        found[name]["bits"] = open_run(tmp_path / name)["three"].loss.tobytes()
    assert found["whole"] == found["resumed"]
    assert found["whole"]["one"] == ("eager+maxima+fused+superposed", "rule")
    assert found["whole"]["three"] == ("eager+maxima+fused", "rule")


def test_losses_that_depend_on_the_batch_keep_its_size():
    problem = synthetic_problem("tiny", 2048)

    def observe(model, batch):
        logits = model(batch[0])
        return {"loss": (logits @ logits.T).logsumexp(1)}

    made = evaluator(Problem(problem.model, problem.data, observe), problem.data, batch_size=256)
    assert by_rule(made).batch_size == 256


def test_a_criterion_that_depends_on_the_batch_keeps_its_size():
    problem = synthetic_problem("tiny", 2048)
    contrastive = Problem.supervised(problem.model, problem.data, lambda outputs, _: (outputs @ outputs.T).logsumexp(1))
    made = evaluator(contrastive, problem.data, batch_size=256)
    assert by_rule(made).batch_size == 2048
    found = tune(made, GRID, SHORT, load_processes=0)
    assert (found.plan.engine, found.plan.batch_size) == (Engine(), 256)
    assert "is off by" in found.trials[0].refused


def test_with_several_threads_no_points_are_stacked():
    made = of_recipe("tiny", 16)
    assert by_rule(made).engine.stacks
    assert by_rule(made.twin(replace(made.plan, threads=2))).engine == Engine()


@pytest.mark.parametrize("size", [1, 3])
def test_of_batches_of_less_than_four_nothing_is_known(size):
    problem = synthetic_problem("unet", 16)
    found = by_rule(evaluator(problem, problem.data, batch_size=size))
    assert (found.engine, found.batch_size) == (Engine(), size)


def test_a_large_output_of_one_operation_bounds_the_batch_and_the_stack():
    model = nn.Sequential(nn.Linear(8, 50), nn.Upsample(scale_factor=2000))
    wide = nn.Sequential(nn.Unflatten(1, (1, 8)), model, nn.Flatten(), nn.Linear(100_000, 2))
    samples = labelled(torch.randn(64, 8))
    found = by_rule(evaluator(Problem.supervised(wide, samples), samples, batch_size=64))
    assert found.batch_size * 4 * 100_000 <= 32 << 20
    assert not found.engine.stacks


def test_an_engine_that_is_asked_for_is_used_in_batches_that_fit():
    problem, most = synthetic_problem("lenet", 64), [64]

    def observe(model, batch):
        if len(batch[0]) > most[0]:
            raise MemoryError
        return problem.observe(model, batch)

    most[0] = 16
    made = evaluator(Problem(problem.model, problem.data, observe), problem.data, batch_size=64)
    found = tune(made, GRID, TuningScope(Engine.parse("eager+fused"), points=25), load_processes=0)
    assert (str(found.plan.engine), found.plan.batch_size) == ("eager+fused", 16)
    assert found.warning == "batch_size: 64 does not fit the memory; 16 is used"


def test_a_layer_whose_input_varies_for_one_sample_is_not_superposed():
    samples = labelled(torch.randn(40, 30))
    samples[0][-1, 0] = 1000
    made = evaluator(Problem.supervised(Late(), samples), samples)
    made.model.requires_grad_(False)
    found = tune(made, GRID, TuningScope(points=25, may_choose_batch_size=False), load_processes=0)
    assert found.plan.engine in (Engine(), Engine("vmap", points=32))


def test_a_model_that_raises_leaves_the_error_to_its_point(tmp_path):
    def observe(model, batch):
        raise RuntimeError("no such thing")

    samples = labelled(torch.randn(8, 4))
    made = evaluator(Problem(nn.Linear(4, 2), samples, observe), samples)
    assert by_rule(made).engine == Engine()
    assert "no such thing" in tune(made, GRID, SHORT, load_processes=0).raised


def test_the_same_job_has_the_same_bits_in_tiles_of_any_shape(tmp_path):
    torch.manual_seed(0)
    model, samples = LeNet5().eval(), labelled(torch.randn(48, 1, 32, 32))
    values = []
    for name, tile in (("rows", (1, 5)), ("columns", (5, 1)), ("points", (1, 1))):
        job = make_job(
            tmp_path / name, lambda: Problem.supervised(model, samples), [{"name": "plane", "size": [5, 3]}],
            num_samples=48, tile=tile,
        )  # fmt: skip
        run(job)
        assert "superposed" in plan_on_disk(tmp_path / name, "plane")[0]["engine"]
        values.append(open_run(tmp_path / name)["plane"].loss)
    assert values[0].tobytes() == values[1].tobytes() == values[2].tobytes()
