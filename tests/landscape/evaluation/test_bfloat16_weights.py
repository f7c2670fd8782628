"""Models whose weights are held in bfloat16: one rounding per point from sums in float32, and what it costs."""

from __future__ import annotations

import copy
import gc
import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from types import FunctionType, ModuleType

import numpy as np
import pytest
import torch
from pooled import CPU, POINTS, Pooled, drawn
from small_models import image_samples, make_job, wandering, write_trajectory
from torch import nn
from torch.nn import functional as F

from landscape import Problem, run
from landscape.core.plan import Engine, Plan, in_float32
from landscape.evaluation import dry_run as looking
from landscape.evaluation.dry_run import first_look
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.weights import MovingWeights
from landscape.job.directions.random import random_direction
from landscape.model.parameters import describe_parameters, state_of
from landscape.views.prepare.words import precision_text

HALF_STEP = 2.0**-8  # of a number: the most that rounding it to bfloat16 changes
PLAN = Plan(8, 1, "cpu", "bfloat16", bfloat16_weights=True)


class Mixed(nn.Module):
    """Weights in bfloat16 between norms in float32, as language models are often kept."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.embedding = nn.Embedding(11, 16).bfloat16()
            self.norm = nn.LayerNorm(16)
            self.body, self.head = nn.Linear(16, 16).bfloat16(), nn.Linear(16, 11, bias=False).bfloat16()
        self.register_buffer("scale", torch.tensor(1.25))

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(F.gelu(self.body(self.norm(x) * self.scale)) + x)


def next_token(model, tokens):
    logits = model(tokens[:, :-1]).transpose(1, 2)
    return {"loss": F.cross_entropy(logits.float(), tokens[:, 1:], reduction="none").mean(1)}


def tokens(count: int = 9) -> torch.Tensor:
    return torch.randint(0, 11, (count, 6), generator=torch.Generator().manual_seed(3))


def evaluator(problem, samples, engine="eager", directions=None, plan=PLAN):
    model = problem.model
    axes = [drawn(model, 1), drawn(model, 2)] if directions is None else directions
    planned = replace(plan, engine=Engine.parse(engine))
    return Evaluator(model, samples, problem.observe, planned, CPU, state_of(model), axes)


def mixed_problem() -> Problem:
    return Problem(Mixed().eval(), tokens(), next_token)


def pooled_bfloat16():
    samples = image_samples(21)
    return Problem.supervised(Pooled().eval().bfloat16(), samples), samples


# -- one rounding per point ------------------------------------------------------------------------------------------


def weights_seen(problem: Problem, samples, points) -> list[dict[str, torch.Tensor]]:
    """What the model holds while the points are evaluated, in their order."""
    seen = []

    def observe(model, batch):
        seen.append({name: each.clone() for name, each in model.state_dict().items()})
        return problem.observe(model, batch)

    made = evaluator(replace(problem, observe=observe), samples, plan=replace(PLAN, batch_size=len(samples)))
    seen.clear()
    for point in points:
        made.evaluate(np.array([point]))
    return seen


def test_each_point_is_rounded_once_from_the_origin_and_types_stay_as_they_are():
    problem = mixed_problem()
    origin, axes = state_of(problem.model), [drawn(problem.model, 1), drawn(problem.model, 2)]
    points = [(0.5, -0.3), (0.0, 0.0), (-1.0, 1.0), (0.5, -0.3)]
    seen = weights_seen(problem, tokens(), points)
    for (alpha, beta), found in zip(points, seen, strict=True):
        assert {name: each.dtype for name, each in found.items()} == {n: each.dtype for n, each in origin.items()}
        for name, tensor in found.items():
            moves = [c * axis[name].double() for c, axis in zip((alpha, beta), axes, strict=True) if name in axis]
            exact = sum(moves, start=origin[name].double())
            step = HALF_STEP if tensor.dtype is torch.bfloat16 else 1e-6
            assert ((tensor.double() - exact).abs() <= step * 1.0001 * exact.abs() + 1e-7).all(), name
    assert all(torch.equal(seen[1][name], origin[name]) for name in origin)
    assert all(torch.equal(seen[0][name], seen[3][name]) for name in origin)


@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_all_axes_together_are_rounded_once_and_not_one_after_the_other(piece, monkeypatch):
    monkeypatch.setattr("landscape.evaluation.weights.PIECE", piece)  # of weights that are summed at a time
    model = nn.Linear(256, 64, bias=False).bfloat16()
    origin, axes = state_of(model), [drawn(model, seed) for seed in (1, 2, 3)]
    model.requires_grad_(False)
    weights = MovingWeights(model, origin, axes, {})
    weights.set_point([0.3, -0.2, 0.1])
    total = origin["weight"].float()
    walked = origin["weight"]
    for coordinate, axis in zip((0.3, -0.2, 0.1), axes, strict=True):
        total = torch.add(total, axis["weight"], alpha=coordinate)
        walked = torch.add(walked.float(), axis["weight"], alpha=coordinate).bfloat16()
    torch.testing.assert_close(model.weight.float(), total.bfloat16().float(), rtol=0, atol=0)
    assert not torch.equal(model.weight, walked)


# The share of weights that do not move at all, and the cosine between the real and the wanted move, by the coordinate
# in filter-normalised units.
ROUNDING = [(0.001, 0.78, 0.63), (0.003, 0.47, 0.89), (0.01, 0.17, 0.987), (0.03, 0.06, 0.998), (0.1, 0.02, 0.9999),
            (1.0, 0.002, 1.0)]  # fmt: skip


@pytest.mark.parametrize("coordinate, still, cosine", ROUNDING)
def test_how_many_weights_do_not_move_and_where_the_others_go(coordinate, still, cosine):
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(256, 256, bias=False).bfloat16()
    model.weight.data.normal_(0, 0.02, generator=generator)
    origin, axis = state_of(model), drawn(model, 1)
    MovingWeights(model.requires_grad_(False), origin, [axis], {}).set_point([coordinate])
    real, wanted = model.weight.double() - origin["weight"].double(), coordinate * axis["weight"].double()
    assert float((real == 0).double().mean()) == pytest.approx(still, rel=0.05, abs=0.005)
    found = float((real * wanted).sum() / real.norm() / wanted.norm())
    assert found == pytest.approx(cosine, abs=0.005 if cosine < 0.9 else 1e-3)


def test_the_loss_is_that_of_the_model_with_the_rounded_weights():
    problem, points = mixed_problem(), [(0.5, -0.3), (-1.0, 1.0)]
    found = evaluator(problem, tokens()).evaluate(np.array(points)).mean["loss"]
    model = copy.deepcopy(problem.model)
    for weights, loss in zip(weights_seen(problem, tokens(), points), found, strict=True):
        model.load_state_dict(weights)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert loss == pytest.approx(float(next_token(model, tokens())["loss"].double().mean()), rel=1e-6)


# -- what stays as it was --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_in_float32_is_computed_as_ever(precision):
    samples = image_samples(16)
    model = Pooled().eval()
    problem, point, axis = Problem.supervised(model, samples), 0.5, drawn(model, 1)
    plan = Plan(16, 1, "cpu", precision, bfloat16_weights=True)
    found = evaluator(problem, samples, directions=[axis], plan=plan).evaluate(np.array([[point]])).mean["loss"][0]
    other = copy.deepcopy(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        for name, each in other.named_parameters():
            each.copy_(torch.add(each, axis[name], alpha=point))
        losses = F.cross_entropy(other(samples[0]), samples[1], reduction="none")
    assert found == float(losses.double().mean())
    assert "bfloat16_weights" not in Plan(16, 1, "cpu", precision).record()


def test_plans_are_recorded_and_read_back_and_those_of_before_take_weights_to_float32():
    assert Plan.from_record(PLAN.record()) == PLAN
    before = {name: value for name, value in PLAN.record().items() if name != "bfloat16_weights"}
    assert not Plan.from_record(before).rounds_weights
    assert not replace(PLAN, precision="float32").rounds_weights
    assert not in_float32(PLAN).rounds_weights


@pytest.mark.parametrize("dtype, precision", [(torch.bfloat16, "float32"), (torch.float16, "bfloat16")])
def test_other_precisions_and_types_are_taken_to_float32(dtype, precision):
    model = nn.Linear(5, 3).to(dtype)
    seen = set()

    def observe(model, batch):
        seen.update(each.dtype for each in model.parameters())
        return {"loss": model(batch).float().square().sum(1)}

    look = first_look(model, observe, torch.ones(4, 5), precision, CPU)
    assert seen == {torch.float32}
    assert not look.bfloat16_weights
    assert look.warnings == ()


@pytest.mark.long
def test_a_landscape_begun_in_float32_goes_on_in_it_to_the_same_bytes(tmp_path, monkeypatch):
    def job(folder):
        spec = {"name": "a", "directions": [{"kind": "random"}], "size": 5, "range": [-1, 1]}
        return make_job(folder, mixed_problem, [spec], num_samples=9, precision="bfloat16", engine="eager", tile=[1])

    with monkeypatch.context() as patched:
        patched.setattr(looking, "holds_bfloat16", lambda model: False)
        whole = run(job(tmp_path / "whole"))["a"]
        begun = tmp_path / "begun"
        run(job(begun))
    chunk = begun / "landscapes.zarr" / "a" / "loss" / "c" / "2"
    kept = chunk.read_bytes()
    chunk.unlink()
    again = run(job(begun))["a"]
    assert chunk.read_bytes() == kept
    assert np.array_equal(again.loss, whole.loss)
    assert not np.array_equal(run(job(tmp_path / "new"))["a"].loss, whole.loss)


# -- memory ----------------------------------------------------------------------------------------------------------


def bytes_held(evaluator: Evaluator, *given: Iterable[torch.Tensor]) -> int:
    """The bytes of all tensors that an evaluator leads to, each piece of memory once, without those given to it."""
    foreign = {each.untyped_storage().data_ptr() for tensors in given for each in tensors}
    waiting, seen, storages = [evaluator], set(), {}
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, ModuleType, FunctionType)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        waiting.extend(gc.get_referents(value))
    return sum(size for place, size in storages.items() if place not in foreign)


@pytest.mark.parametrize(
    "dtype, large, expected", [(torch.float32, False, 20), (torch.float32, True, 4), (torch.bfloat16, False, 2)]
)
def test_bytes_held_per_weight(dtype, large, expected, monkeypatch):
    # A small model in float32: the model, the origin, two directions, and the sum that a row shares. Others: the model,
    # as the origin and the directions are read from where they are given.
    monkeypatch.setattr("landscape.evaluation.weights.PIECE", 1 << 10)
    model = nn.Linear(512, 512, bias=False).to(dtype)
    problem = Problem(model, None, lambda model, batch: {"loss": model(batch).float().square().sum(1)})
    axes = [drawn(model, 1), drawn(model, 2)]
    if large:
        monkeypatch.setattr("landscape.evaluation.weights.LARGE", 0)
    samples, origin = torch.ones(2, 512), state_of(model)
    made = Evaluator(model, samples, problem.observe, PLAN, CPU, origin, axes)
    given = (list(model.parameters()), origin.values(), *(axis.values() for axis in axes), [samples])
    held = bytes_held(made, *given)
    assert held / model.weight.numel() == pytest.approx(expected, rel=0.02)
    made.evaluate(np.array([[0.5, 0.5]]))
    assert bytes_held(made, *given) <= held + (1 << 16)


# -- engines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine",
    ["eager+channels_last", "eager+maxima", "eager+folded", "eager+channels_last+maxima+folded+fused"],
)
def test_every_engine_agrees_to_the_rounding_of_bfloat16(engine):
    problem, samples = pooled_bfloat16()
    plain = evaluator(problem, samples).evaluate(POINTS).mean["loss"]
    exact = evaluator(problem, samples, plan=in_float32(PLAN)).evaluate(POINTS).mean["loss"]
    found = evaluator(problem, samples, engine).evaluate(POINTS).mean["loss"]
    assert 0 < np.abs(plain - exact).max() < 0.02
    assert np.abs(found - exact).max() <= 2 * np.abs(plain - exact).max()


def test_several_points_at_once_of_weights_of_two_types():
    problem = mixed_problem()
    plain = evaluator(problem, tokens()).evaluate(POINTS).mean["loss"]
    found = evaluator(problem, tokens(), "vmap:2").evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(found, plain, rtol=2e-2)


@pytest.mark.xdist_group("compiler")  # one process imports it and warms it up
@pytest.mark.faults  # the compiler takes half a minute of a core
def test_compiled_code_reads_the_rounded_weights():
    problem = mixed_problem()
    plain = evaluator(problem, tokens()).evaluate(POINTS).mean["loss"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler itself
        found = evaluator(problem, tokens(), "compile").evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(found, plain, rtol=2e-2)


def test_sums_of_outputs_are_refused_as_rounded_weights_are_no_sums():
    problem, samples = pooled_bfloat16()
    with pytest.raises(ValueError, match="rounded to bfloat16 at every point"):
        evaluator(problem, samples, "eager+superposed")
    assert "superposed" not in evaluator(problem, samples).possible_options()


class FirstInFloat32(nn.Module):
    """A first layer in float32 below one in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3).bfloat16()

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def test_sums_of_outputs_are_taken_of_layers_in_float32_alone():
    model, samples = FirstInFloat32().eval(), (torch.randn(8, 6), torch.arange(8) % 3)
    problem = Problem.supervised(model, samples)
    made = evaluator(problem, samples, "eager+superposed")
    assert [each is made.evaluated_model.first for each in made.rewrites["superposed"].layers] == [True]
    plain = evaluator(problem, samples).evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], plain, rtol=2e-2)


# -- snapshots, and what user code does ------------------------------------------------------------------------------


def test_snapshots_are_evaluated_in_their_own_types_and_the_model_is_put_back():
    problem = mixed_problem()
    made = evaluator(problem, tokens())
    before = made.evaluate(POINTS).mean["loss"]
    with torch.random.fork_rng():
        torch.manual_seed(9)
        snapshot = state_of(Mixed())
    other = copy.deepcopy(problem.model)
    other.load_state_dict(snapshot | {"scale": torch.tensor(2.0)})
    (found,) = made.evaluate_states([state_of(other)]).mean["loss"]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert found == pytest.approx(float(next_token(other, tokens())["loss"].double().mean()), rel=1e-6)
    assert np.array_equal(made.evaluate(POINTS).mean["loss"], before)


@pytest.mark.parametrize("through", ["in place", "past the counters"])
def test_what_observe_writes_to_the_weights_is_put_back(through):
    problem = mixed_problem()
    expected = evaluator(problem, tokens()).evaluate(POINTS).mean["loss"]

    def observe(model, batch):
        values = next_token(model, batch)
        for tensor in (model.body.weight, model.head.weight, model.norm.weight, model.scale):
            (tensor if through == "in place" else tensor.data).mul_(1.5)
        return values

    whole = replace(PLAN, batch_size=9)
    found = evaluator(replace(problem, observe=observe), tokens(), plan=whole).evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_criterion_of_the_users_own_gets_float32():
    model, samples = nn.Linear(4, 2).bfloat16(), (torch.randn(6, 4), torch.randn(6, 2))
    seen = []

    def criterion(outputs, targets):
        seen.append(outputs.dtype)
        return (outputs.exp() - targets).abs().sum(1)

    for plan in (PLAN, replace(PLAN, bfloat16_weights=False)):
        evaluator(Problem.supervised(model, samples, criterion), samples, plan=plan).evaluate(POINTS)
    # Weights that were taken to float32 give outputs of autocast, which have ever been handed on as they are.
    assert seen[0] is torch.float32
    assert seen[-1] is torch.bfloat16


def test_weights_go_to_float32_where_observe_raises_with_bfloat16():
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)).bfloat16()
    look = first_look(model, lambda m, b: {"loss": m(b).float().square().sum(1)}, torch.randn(5, 6), "bfloat16", CPU)
    assert not look.bfloat16_weights
    (warning,) = look.warnings
    assert warning.startswith("model: its weights are taken to float32, in twice the memory, as observe raises")


def test_what_bfloat16_costs_is_measured_against_weights_in_float32(tmp_path):
    spec = {"name": "a", "directions": [{"kind": "random"}], "size": 5, "range": [-1, 1]}
    job = make_job(tmp_path, mixed_problem, [spec], num_samples=9, precision="bfloat16", engine="eager")
    found = run(job)["a"]
    error = found.attributes["precision_error"]
    problem = mixed_problem()
    axes = [random_direction(state_of(problem.model), describe_parameters(problem.model), 1)]
    exact = evaluator(problem, tokens(), directions=axes, plan=in_float32(PLAN))
    values = exact.evaluate(found.alpha[[2, 0, 4], None]).mean["loss"]
    assert error["max_abs_error"] == pytest.approx(np.abs(found.loss[[2, 0, 4]] - values).max(), rel=1e-3)
    assert error["points"] == 3
    said = precision_text(found).replace("\u00a0", " ")
    assert re.match(r"bfloat16, weights included, [\d.]+ % of them move from point to point \(up to ", said), said


def test_a_path_of_snapshots_in_bfloat16_and_the_far_end_of_a_line_are_exact(tmp_path):
    model = mixed_problem().model
    snapshots = {
        number: {name: each.to(state_of(model)[name].dtype) for name, each in state.items()}
        for number, state in wandering(model, 4, 0.1).items()
    }
    write_trajectory(tmp_path, snapshots)
    specs = [
        {"name": "path", "trajectory": "all", "size": 3},
        {"name": "line", "directions": [{"kind": "towards", "target": "first"}], "size": 3, "range": [0, 1]},
    ]
    found = run(make_job(tmp_path, mixed_problem, specs, num_samples=9, precision="bfloat16"))
    losses = []
    for state in snapshots.values():
        model.load_state_dict(state)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            losses.append(float(next_token(model, tokens())["loss"].double().mean()))
    np.testing.assert_allclose(found["path"].path.loss, losses, rtol=1e-6)
    np.testing.assert_allclose(found["line"].loss[[2, 0]], [losses[0], losses[-1]], rtol=1e-6)


@pytest.mark.parametrize("drawn_anew", [False, True])
def test_a_landscape_says_which_share_of_its_weights_moves_from_point_to_point(tmp_path, drawn_anew, monkeypatch):
    if drawn_anew:
        monkeypatch.setattr("landscape.job.directions.computed.HELD_BYTES", 0)
    spec = {"name": "a", "size": 21, "directions": [{"kind": "random"}], "range": [-0.1, 0.1]}
    found = run(make_job(tmp_path, mixed_problem, [spec], num_samples=9, precision="bfloat16"))["a"]
    model = mixed_problem().model
    direction = random_direction(state_of(model), describe_parameters(model), 1)
    still = total = 0
    for name, tensor in state_of(model).items():
        if name in direction and tensor.dtype is torch.bfloat16:
            after = torch.add(tensor.float(), direction[name], alpha=float(np.diff(found.alpha).min())).bfloat16()
            still, total = still + int((after == tensor).sum()), total + tensor.numel()
    share = 1 - still / total
    assert 0.5 < share < 0.95
    assert found.attributes["moving_weights"] == {"alpha": pytest.approx(share)}
    assert f"{100 * share:.3g}\u00a0% of them move from point to point" in precision_text(found)
    plain = run(make_job(tmp_path / "plain", mixed_problem, [spec], num_samples=9))["a"]
    assert "moving_weights" not in plain.attributes
