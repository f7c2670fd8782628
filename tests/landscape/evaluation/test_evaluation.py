"""Evaluation against closed forms, hand-written sums and plain loops; and that nothing of the caller's changes."""

from __future__ import annotations

import copy
import itertools
import math
import random
from typing import get_args

import numpy as np
import pytest
import torch
from small_models import (
    ConvNet,
    Quadratic,
    conv_problem,
    flat,
    image_samples,
    make_job,
    observe_quadratic,
    quadratic_loss,
    quadratic_problem,
    quadratic_samples,
    raw_directions,
    wandering,
    write_trajectory,
)
from torch import nn

from landscape import JobError, Problem, run
from landscape.core.devices import pick_device
from landscape.core.plan import BatchNorm, Plan, default_plan
from landscape.core.random_state import seed_draws
from landscape.evaluation.dry_run import first_look
from landscape.evaluation.evaluator import Evaluator
from landscape.model.parameters import state_of

CPU = torch.device("cpu")
NAMES = ("matrix", "vector", "scalar")


def plan(**fields) -> Plan:
    return Plan(**({"batch_size": 8, "threads": 1, "device": "cpu"} | fields))


def evaluator(model, samples, observe, directions=(), **fields) -> Evaluator:
    return Evaluator(model, samples, observe, plan(**fields), CPU, state_of(model), list(directions))


def drawn(model: nn.Module, seed: int, scale: float = 0.1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: scale * torch.randn(parameter.shape, generator=generator) for name, parameter in model.named_parameters()
    }


# -- closed forms --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    "kind, size, precision",
    [
        ("random", (9,), "float32"), ("random", (3, 4, 3), "float64"), ("pca", (5, 4), "float64"),
        ("pca", (3, 4, 3), "float32"),
    ],
)  # fmt: skip
def test_quadratic_landscape_equals_its_closed_form(tmp_path, kind, size, precision):
    dtype, tolerance = {"float32": (torch.float32, 1e-6), "float64": (torch.float64, 1e-12)}[precision]
    problem = quadratic_problem(dtype)
    if kind == "pca":
        write_trajectory(tmp_path, wandering(problem.model, 6, 0.4))
        snapshots = wandering(problem.model, 6, 0.4)
        spec = {"trajectory": [1, 2, 3, 4, 5, 6], "axes": len(size), "size": size}
        state = snapshots[6]  # its buffers too: the curvature is one
    else:
        directions = [{"kind": "random", "seed": 3 + k} for k in range(len(size))]
        spec = {"directions": directions, "size": size, "range": [[-0.7 - k, 1 + k] for k in range(len(size))]}
        state = state_of(problem.model)
    surface = run(make_job(tmp_path, lambda: problem, [{"name": "q", **spec}], precision=precision))["q"]

    origin = flat({name: tensor.numpy() for name, tensor in state.items()}, NAMES)
    axes = [flat(each, NAMES) for each in raw_directions(tmp_path, "q")]
    samples = problem.data.double().numpy()
    curvature = state["curvature"].double().numpy()
    coordinates = [axis.coordinates for axis in surface.axes]
    assert surface.loss.shape == tuple(reversed(size))
    for place in itertools.product(*map(range, size)):  # alpha first
        theta = origin + sum(coordinates[k][i] * axes[k] for k, i in enumerate(place))
        expected = quadratic_loss(theta, samples, curvature)
        assert surface.loss[tuple(reversed(place))] == pytest.approx(expected, rel=tolerance, abs=0)
    assert (surface.status == 1).all()
    if kind == "pca":
        assert all(np.linalg.norm(axis) == pytest.approx(1, abs=1e-6) for axis in axes)


def test_points_are_computed_from_the_origin_in_any_order():
    model = ConvNet()
    given = model, image_samples(), Problem.supervised(model, None).observe, [drawn(model, 1), drawn(model, 2)]
    made = evaluator(*given)
    points = np.array(list(itertools.product(np.linspace(-1, 1, 5), np.linspace(-2, 2, 4))))
    order = np.random.default_rng(0).permutation(len(points))
    straight, shuffled = made.evaluate(points), made.evaluate(points[order])
    np.testing.assert_array_equal(shuffled.mean["loss"], straight.mean["loss"][order])
    np.testing.assert_array_equal(shuffled.stderr["loss"], straight.stderr["loss"][order])
    zero = np.zeros((1, 2))
    assert made.evaluate(zero).mean["loss"] == evaluator(*given).evaluate(zero).mean["loss"]
    assert len(set(straight.mean["loss"].tolist())) == len(points)


def test_whole_states_are_evaluated_as_they_are_and_leave_nothing_behind():
    model, other = ConvNet(0), ConvNet(1)
    observe = Problem.supervised(model, None).observe
    made = evaluator(model, image_samples(), observe, [drawn(model, 1)])
    before = made.evaluate(np.zeros((1, 1))).mean["loss"]
    inputs, targets = image_samples()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(other.eval()(inputs), targets, reduction="none").double().mean()
    assert made.evaluate_states([state_of(other)]).mean["loss"][0] == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_array_equal(made.evaluate(np.zeros((1, 1))).mean["loss"], before)


# -- mean and standard error ---------------------------------------------------------------------------------


def test_every_observable_has_its_own_mean_and_standard_error():
    raw: dict[str, list[torch.Tensor]] = {"loss": [], "hit": [], "small": []}

    def observe(model, batch):
        loss = model(batch)
        values = {"loss": loss, "hit": loss > 9, "small": loss.to(torch.float16)}
        for name, value in values.items():
            raw[name].append(value.double())
        return values

    found = evaluator(Quadratic(), quadratic_samples(23), observe).evaluate(np.zeros((1, 0)))
    assert list(found.mean) == ["loss", "hit", "small"]
    for name, pieces in raw.items():
        samples = torch.cat(pieces).numpy()
        assert len(samples) == 23
        assert found.mean[name][0] == pytest.approx(samples.mean(), rel=1e-13)
        assert found.stderr[name][0] == pytest.approx(samples.std(ddof=1) / math.sqrt(23), rel=1e-12)
    assert set(found.arrays()) - {"moments"} == {f"{name}{end}" for name in raw for end in ("", "_stderr")}


def test_no_sample_is_dropped_where_they_do_not_fill_a_batch():
    seen = []

    def observe(model, batch):
        seen.append(batch.clone())
        return {"loss": batch[:, 0]}

    samples = torch.arange(513, dtype=torch.float32)[:, None]
    found = evaluator(Quadratic(), samples, observe, batch_size=256).evaluate(np.zeros((1, 0)))
    assert torch.equal(torch.cat(seen), samples)
    assert max(map(len, seen)) <= 256
    assert found.mean["loss"][0] == 256.0  # the mean of 0 … 512; 255.5 without the last


@pytest.mark.parametrize("batch_size", [1, 2, 13, 28, 30, 40])  # of 29 samples
def test_values_do_not_depend_on_the_batch_size_beyond_rounding(batch_size):
    model = ConvNet()
    problem, samples, points = conv_problem(), image_samples(), np.array([[0.3], [-1.0]])
    whole = evaluator(model, samples, problem.observe, [drawn(model, 1)], batch_size=29).evaluate(points)
    parts = evaluator(model, samples, problem.observe, [drawn(model, 1)], batch_size=batch_size).evaluate(points)
    for name in set(whole.arrays()) - {"moments"}:  # which are those of the complete blocks
        np.testing.assert_allclose(parts.arrays()[name], whole.arrays()[name], rtol=2e-6, err_msg=name)


# -- batch normalisation -------------------------------------------------------------------------------------


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(3, eps=1e-3, momentum=0.3)
        self.bn.weight.data = torch.tensor([1.5, -0.5, 2.0])
        self.bn.bias.data = torch.tensor([0.1, 0.2, -0.3])
        self.bn.running_mean.copy_(torch.tensor([0.5, -1.0, 0.0]))
        self.bn.running_var.copy_(torch.tensor([2.0, 0.5, 1.0]))

    def forward(self, x):
        return self.bn(x)


def bn_by_hand(mode: str, samples: np.ndarray, batches: list[np.ndarray]) -> float:
    """The mean of Σⱼ (BN(x)ⱼ + j)², written out for each mode."""
    weight, bias = np.array([1.5, -0.5, 2.0]), np.array([0.1, 0.2, -0.3])
    mean, variance = np.array([0.5, -1.0, 0.0]), np.array([2.0, 0.5, 1.0])
    if mode not in ("eval", "batch", "recalibrate"):
        raise NotImplementedError(f"write out here what batch_norm: {mode} computes")
    if mode == "recalibrate":
        mean = np.mean([batch.mean(0) for batch in batches], 0)
        variance = np.mean([batch.var(0, ddof=1) for batch in batches], 0)
    total = 0.0
    for batch in batches:
        if mode == "batch":
            mean, variance = batch.mean(0), batch.var(0)
        out = (batch - mean) / np.sqrt(variance + 1e-3) * weight + bias
        total += ((out + np.arange(3)) ** 2).sum()
    return total / len(samples)


def test_the_batch_norm_modes_do_what_they_say_and_differ():
    samples = torch.randn(7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 2 + 1

    def observe(model, batch):
        return {"loss": ((model(batch) + torch.arange(3)) ** 2).sum(1)}

    batches = [samples.numpy()[:3], samples.numpy()[3:]]
    found = {}
    for mode in get_args(BatchNorm):
        made = evaluator(Normalised(), samples, observe, batch_size=4, precision="float64", batch_norm=mode)
        found[mode] = made.evaluate(np.zeros((2, 0))).mean["loss"]
        assert found[mode][0] == pytest.approx(
            bn_by_hand(mode, samples.numpy(), batches), rel=1e-6
        )  # stored in float32
        assert found[mode][0] == found[mode][1], "the first point must not leave statistics for the second"
    assert len({round(values[0], 3) for values in found.values()}) == len(found)


def test_batch_norm_without_running_statistics_and_without_affine_is_fine_in_every_mode():
    model = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False, affine=False), nn.Linear(3, 1))
    for mode in get_args(BatchNorm):
        made = evaluator(model, torch.randn(6, 3), lambda m, b: {"loss": m(b)[:, 0] ** 2}, batch_norm=mode)
        assert np.isfinite(made.evaluate(np.zeros((1, 0))).mean["loss"]).all()


def test_an_exception_during_recalibration_leaves_later_points_right():
    model, samples, fail = Normalised(), torch.randn(8, 3), []

    def observe(model, batch):
        if fail:
            raise RuntimeError(fail.pop())
        return {"loss": model(batch).square().sum(1)}

    made = evaluator(model, samples, observe, batch_norm="recalibrate", batch_size=4)
    expected = made.evaluate(np.zeros((1, 0))).mean["loss"]
    fail.append("once")
    with pytest.raises(RuntimeError, match="once"):
        made.evaluate(np.zeros((1, 0)))
    np.testing.assert_array_equal(made.evaluate(np.zeros((1, 0))).mean["loss"], expected)


# -- the caller's things stay as they are ---------------------------------------------------------------------


def surroundings(model: nn.Module) -> dict:
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "training": [module.training for module in model.modules()],
        "grads": [(p.requires_grad, p.dtype, p.device, p.grad is None) for p in model.parameters()],
        "momentum": [getattr(module, "momentum", None) for module in model.modules()],
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].copy(),  # noqa: NPY002
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled),
        "dtype": torch.get_default_dtype(),
    }


def assert_same(before: dict, after: dict) -> None:
    for name, tensor in before.pop("state").items():
        assert torch.equal(tensor, after["state"][name]), name
    assert torch.equal(before.pop("torch"), after["torch"])
    assert np.array_equal(before.pop("numpy"), after["numpy"])
    assert before == {name: after[name] for name in before}


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"precision": "float64"},
        {"precision": "bfloat16"},
        {"precision": "tf32"},
        {"batch_norm": "batch"},
        {"batch_norm": "recalibrate"},
        {"threads": 2},
    ],
)
def test_model_and_process_are_left_as_they_were_found(tmp_path, fields):
    problem = conv_problem()
    problem.model.train()
    problem.model.dropout.eval()
    problem.model.conv.weight.requires_grad_(False)
    inputs, targets = problem.data
    data = inputs.clone(), targets.clone()
    before = surroundings(problem.model)
    found = run(make_job(tmp_path, lambda: problem, [{"name": "a", "size": 3}], **fields))["a"]
    assert (found.status == 1).all()
    assert_same(before, surroundings(problem.model))
    assert torch.equal(inputs, data[0])
    assert torch.equal(targets, data[1])


def test_the_process_is_left_as_it_was_found_when_observe_raises():
    def observe(model, batch):
        torch.rand(3)
        raise RuntimeError("mine")

    model = ConvNet()
    before = surroundings(model)
    with pytest.raises(RuntimeError, match="mine"):
        evaluator(model, image_samples(), observe, precision="tf32", threads=2).evaluate(np.zeros((1, 0)))
    assert_same(before, surroundings(model))


def test_the_plans_threads_are_used_whatever_the_process_has():
    seen = []

    def observe(model, batch):
        seen.append(torch.get_num_threads())
        return {"loss": model(batch)}

    evaluator(Quadratic(), quadratic_samples(), observe, threads=2).evaluate(np.zeros((1, 0)))
    evaluator(Quadratic(), quadratic_samples(), observe, threads=1).evaluate(np.zeros((1, 0)))
    assert set(seen[: len(seen) // 2]) == {2}
    assert set(seen[len(seen) // 2 :]) == {1}


def test_dropout_is_inactive_and_no_gradient_is_kept():
    seen = []

    def observe(model, batch):
        seen.append((torch.is_grad_enabled(), model.training))
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}

    model = ConvNet().train()
    found = evaluator(model, image_samples(), observe).evaluate(np.zeros((2, 0))).mean["loss"]
    inputs, targets = image_samples()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(copy.deepcopy(model).eval()(inputs), targets)
    np.testing.assert_allclose(found, float(expected), rtol=1e-6)
    assert set(seen) == {(False, False)}


# -- what observe may do, and may not ------------------------------------------------------------------------


def test_a_stochastic_observe_draws_the_same_numbers_at_every_point_in_every_order():
    def observe(model, batch):
        noise = torch.rand(len(batch))
        return {"loss": model(batch) + noise, "noise": noise}

    model, samples = Quadratic(), quadratic_samples()
    made = evaluator(model, samples, observe, [drawn(model, 1)], seed=4)
    torch.manual_seed(99)
    forward = made.evaluate(np.array([[0.0], [1.0], [0.0]]))
    torch.rand(17)
    backward = made.evaluate(np.array([[1.0], [0.0]]))
    assert len(set(forward.mean["noise"])) == 1
    assert forward.mean["loss"][0] == forward.mean["loss"][2] == backward.mean["loss"][1]
    assert forward.mean["loss"][1] == backward.mean["loss"][0]
    other = evaluator(model, samples, observe, [drawn(model, 1)], seed=5).evaluate(np.array([[0.0]]))
    assert other.mean["noise"] != forward.mean["noise"][0]


def test_numpys_and_pythons_draws_are_the_same_at_every_point_and_the_process_is_left_as_it_was():
    def observe(model, batch):
        return {"loss": model(batch) + random.random() + np.random.rand()}  # noqa: NPY002

    made = evaluator(Quadratic(), quadratic_samples(), observe, [drawn(Quadratic(), 1)], seed=2**33 + 1)
    states = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    forward, backward = (made.evaluate(np.array(points)).mean["loss"] for points in ([[0.0], [1.0]], [[1.0], [0.0]]))
    np.testing.assert_array_equal(forward, backward[::-1])
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002


BAD_RETURNS = {
    "not a dict": (lambda m, b: m(b), ["dict", "Tensor"]),
    "no loss": (lambda m, b: {"los": m(b)}, ["'loss'", "los"]),
    "empty": (lambda m, b: {}, ["'loss'", "nothing"]),
    "mean": (lambda m, b: {"loss": m(b).mean()}, ["'loss'", "shape (8,)", "()", "reduction='none'"]),
    "column": (lambda m, b: {"loss": m(b)[:, None]}, ["shape (8,)", "(8, 1)"]),
    "other length": (lambda m, b: {"loss": m(b)[1:]}, ["shape (8,)", "(7,)"]),
    "a number": (lambda m, b: {"loss": 1.0}, ["tensor", "float"]),
    "complex": (lambda m, b: {"loss": m(b).to(torch.complex64)}, ["real", "complex64"]),
    "reserved": (lambda m, b: {"loss": m(b), "status": m(b)}, ["status"]),
    "path array": (lambda m, b: {"loss": m(b), "path_loss": m(b)}, ["path_loss"]),
    "stderr": (lambda m, b: {"loss": m(b), "loss_stderr": m(b)}, ["loss_stderr"]),
    "slash": (lambda m, b: {"loss": m(b), "a/b": m(b)}, ["a/b"]),
}


@pytest.mark.parametrize("case", BAD_RETURNS)
def test_what_observe_returns_is_checked_and_the_message_says_what_to_do(case):
    observe, words = BAD_RETURNS[case]
    with pytest.raises(JobError) as caught:
        evaluator(Quadratic(), quadratic_samples(16), observe).evaluate(np.zeros((1, 0)))
    message = str(caught.value)
    assert message.startswith("observe: ")
    assert message.count("\n") <= 1
    for word in words:
        assert word in message


def test_a_first_look_names_the_observables_and_reports_what_observe_raises():
    def observe(model, batch):
        loss = model(batch)
        return {"zeal": loss, "loss": loss, "accuracy": loss}

    model, samples = Quadratic(), quadratic_samples()
    assert first_look(model, observe, samples, "float32", CPU).names == ("loss", "accuracy", "zeal")
    with pytest.raises(JobError, match=r"observe: raised ZeroDivisionError.*first 2 samples"):
        first_look(model, lambda m, b: 1 / 0, samples, "float32", CPU)
    assert first_look(model, observe_quadratic, samples[:1], "float32", CPU).names == ("loss",)


# -- precision -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "precision, dtype", [("float32", torch.float32), ("float64", torch.float64), ("bfloat16", torch.bfloat16)]
)
def test_the_forward_pass_runs_in_the_plans_precision(precision, dtype):
    seen = set()

    def observe(model, batch):
        outputs = model(batch[0])
        seen.add(outputs.dtype)
        return {"loss": nn.functional.cross_entropy(outputs.float(), batch[1], reduction="none")}

    model = ConvNet()
    reference = evaluator(model, image_samples(), observe, precision="float64").evaluate(np.zeros((1, 0))).mean["loss"]
    seen.clear()
    found = evaluator(model, image_samples(), observe, precision=precision).evaluate(np.zeros((1, 0))).mean["loss"]
    assert seen == {dtype}
    assert found == pytest.approx(reference, rel={"float32": 1e-6, "float64": 0, "bfloat16": 5e-2}[precision])
    assert (precision == "float64") == bool(found == reference)


def test_half_precision_weights_are_evaluated_in_the_plans_precision():
    model = ConvNet().bfloat16()
    found = evaluator(model, image_samples(), Problem.supervised(model, None).observe).evaluate(np.zeros((1, 0)))
    inputs, targets = image_samples()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(copy.deepcopy(model).float().eval()(inputs), targets)
    assert found.mean["loss"][0] == pytest.approx(float(expected), rel=1e-6)


# -- models of other kinds -----------------------------------------------------------------------------------


class TinyTransformer(nn.Module):
    """One attention block; the output layer is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(8)
            self.embedding = nn.Embedding(11, 8)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=True)
            self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(
            self.block(self.embedding(tokens), src_mask=mask.to(self.embedding.weight.dtype), is_causal=True)
        )


def next_token(model, batch):
    tokens = batch["tokens"]
    logits = model(tokens[:, :-1]).transpose(1, 2)
    return {"loss": nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none").mean(1)}


def test_a_transformer_with_tied_embeddings_agrees_with_a_plain_loop():
    model = TinyTransformer()
    tokens = torch.randint(0, 11, (13, 6), generator=torch.Generator().manual_seed(1))
    directions = [drawn(model, 1), drawn(model, 2)]
    assert "head.weight" not in directions[0]
    points = np.array([[0.0, 0.0], [0.7, -0.4], [-1.0, 2.0]])
    found = evaluator(model, {"tokens": tokens}, next_token, directions, batch_size=5).evaluate(points).mean["loss"]
    for point, value in zip(points, found, strict=True):
        moved = copy.deepcopy(model).eval()
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                for coordinate, direction in zip(point, directions, strict=True):
                    parameter += float(coordinate) * direction[name]
            assert torch.equal(moved.head.weight, moved.embedding.weight)
            expected = next_token(moved, {"tokens": tokens})["loss"].double().mean()
        assert value == pytest.approx(float(expected), rel=1e-6)


class UntilSmall(nn.Module):
    """Halves its input until it is small: the number of steps depends on data and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        h, steps = x * self.scale, 0
        while h.abs().max() > 0.1:
            h, steps = h / 2, steps + 1
        return h.sum(1) + steps


def test_control_flow_that_depends_on_weights_and_data_is_followed():
    model, samples = UntilSmall(), torch.linspace(0.1, 1, 12).reshape(6, 2)
    made = evaluator(model, samples, lambda m, b: {"loss": m(b)}, [{"scale": torch.tensor(1.0)}], batch_size=6)
    found = made.evaluate(np.array([[0.0], [40.0]])).mean["loss"]
    for coordinate, value in zip((0.0, 40.0), found, strict=True):
        h, steps = samples.numpy().astype(np.float64) * (3 + coordinate), 0
        while np.abs(h).max() > 0.1:
            h, steps = h / 2, steps + 1
        assert value == pytest.approx((h.sum(1) + steps).mean(), rel=1e-6)


def test_a_physics_informed_observe_may_differentiate_with_respect_to_its_inputs():
    class Sine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.amplitude, self.frequency = nn.Parameter(torch.tensor(1.3)), nn.Parameter(torch.tensor(0.8))

        def forward(self, x):
            return self.amplitude * torch.sin(self.frequency * x)

    def observe(model, batch):
        with torch.enable_grad():
            x = batch.clone().requires_grad_()
            u = model(x)
            slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
            bend = torch.autograd.grad(slope.sum(), x)[0]
        return {"loss": ((bend + u) ** 2)[:, 0]}

    x = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
    made = evaluator(Sine(), x, observe, [{"frequency": torch.tensor(1.0)}], precision="float64", batch_size=4)
    found = made.evaluate(np.array([[0.0], [0.2], [0.5]])).mean["loss"]
    for shift, value in zip((0.0, 0.2, 0.5), found, strict=True):
        a, w = float(torch.tensor(1.3)), float(torch.tensor(0.8)) + shift
        expected = ((a * (1 - w**2) * np.sin(w * x.numpy())) ** 2).mean()
        assert value == pytest.approx(expected, rel=1e-10, abs=1e-14)


def test_integer_buffers_and_named_tuples_pass_through():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    model[0].num_batches_tracked.fill_(7)
    made = evaluator(model, torch.randn(5, 2), lambda m, b: {"loss": m(b)[:, 0]}, precision="float64")
    made.evaluate(np.zeros((1, 0)))
    assert made.evaluated_model[0].num_batches_tracked == 7
    assert made.evaluated_model[0].num_batches_tracked.dtype == torch.int64


def test_a_model_that_cannot_be_copied_is_refused_in_words():
    model = Quadratic()
    model.cache = torch.ones(1, requires_grad=True) * 2
    with pytest.raises(JobError, match=r"model: Quadratic cannot be copied"):
        Evaluator(model, quadratic_samples(), observe_quadratic, plan(), CPU, state_of(model), ())


def test_points_that_are_not_finite_are_values_like_others():
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return x / self.w + torch.sqrt(self.w)

    made = evaluator(Root(), torch.ones(4), lambda m, b: {"loss": m(b)}, [{"w": torch.tensor(1.0)}])
    found = made.evaluate(np.array([[0.0], [-1.0], [-2.0], [3.0]])).mean["loss"]
    assert found[0] == 2
    assert found[1] == math.inf
    assert math.isnan(found[2])
    assert found[3] == 2.25


# -- the plan ------------------------------------------------------------------------------------------------


def test_the_default_plan_follows_from_the_job_not_from_the_machine():
    assert default_plan(2048, "cpu", "float32", "eval", 3, None, None) == Plan(256, 1, "cpu", "float32", "eval", 3)
    assert default_plan(100, "cpu", "float32", "eval", 3, None, None).batch_size == 100
    assert default_plan(100, "cpu", "float32", "eval", 3, 64, 2) == Plan(64, 2, "cpu", "float32", "eval", 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused_in_words():
    with pytest.raises(JobError, match=r"device: cuda.*cpu or auto"):
        pick_device("cuda")
    assert pick_device("auto") == CPU


def test_draws_are_those_of_torchs_own_seed():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(8)
    seed_draws(7)
    assert torch.equal(torch.rand(3), expected)
