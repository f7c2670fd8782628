"""Points of quantised landscapes against models whose weights are rounded by plain loops beside the evaluator."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import wandering
from torch import nn
from torch.nn import functional as F

from landscape.core.grid import Grid
from landscape.core.plan import Engine, Plan
from landscape.core.quantisation import Quantisation
from landscape.evaluation.derivatives import Differentiation
from landscape.evaluation.engines.cpu_kernels import has_kernels
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.model_rounding import rounded_weights
from landscape.evaluation.tuning.choices import TuningScope
from landscape.evaluation.tuning.local_search import tune
from landscape.model.parameters import state_of

CPU = torch.device("cpu")
POINTS = np.array([[0.0, 0.0], [0.3, -0.2], [0.3, 0.1], [-1.0, 0.5]])
KERNELS = ("convolution.weight", "transposed.weight", "linear.weight", "odd.weight", "still.weight")


class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight is [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) * 0.3), nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


class Mixed(nn.Module):
    """A layer of each layout: output first, input first in two groups, [in, out], and one that does not move."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.convolution, self.norm = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.transposed = nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.linear, self.odd, self.still = nn.Linear(6, 5), Conv1D(4, 5), nn.Linear(4, 3)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, x):
        x = torch.relu(self.norm(self.convolution(x)))
        x = torch.relu(self.transposed(x)).mean((2, 3))
        return self.still(self.odd(torch.relu(self.linear(x))))


def samples(count: int = 21):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(count, 2, 6, 6, generator=generator), torch.arange(count) % 3


def observe(model, batch):
    outputs = model(batch[0]).float()
    return {"loss": F.cross_entropy(outputs, batch[1], reduction="none"), "accuracy": (outputs.argmax(1) == batch[1])}


def axes(model: nn.Module) -> list[dict[str, torch.Tensor]]:
    """Two directions that leave the last layer where it is."""
    generator = torch.Generator().manual_seed(7)
    names = {name: each for name, each in model.named_parameters() if not name.startswith("still")}
    return [{n: 0.2 * torch.randn(each.shape, generator=generator) for n, each in names.items()} for _ in range(2)]


def evaluator(model, quantise, engine="eager", **fields) -> Evaluator:
    plan = Plan(8, 1, "cpu", engine=Engine.parse(engine), quantise=quantise, **fields)
    return Evaluator(model, samples(), observe, plan, CPU, state_of(model), axes(model))


def channels(name: str, weight: np.ndarray) -> list[np.ndarray]:
    """Views of a weight, one per output channel, which the layer's own formula says are those."""
    if name == "transposed.weight":  # [in, out / groups, …]: inputs 0 and 1 lead to outputs 0 to 2
        return [weight[2 * group : 2 * group + 2, j] for group in range(2) for j in range(3)]
    if name == "odd.weight":
        return [weight[:, j] for j in range(weight.shape[1])]
    return list(weight)


def rounded(name: str, weight: torch.Tensor, quantise: Quantisation, at: torch.Tensor | None = None) -> torch.Tensor:
    """The weight rounded by loops, with the scales of `at`."""
    found, scaled = weight.clone().numpy(), (weight if at is None else at).numpy()
    whole = quantise.scheme == "per-tensor"
    n = max(1, 2 ** (quantise.bits - 1) - 1)
    for view, of in zip(
        [found] if whole else channels(name, found), [scaled] if whole else channels(name, scaled), strict=True
    ):
        if quantise.bits == 1:
            view[...] = np.where(view < 0, -1, 1) * np.float32(np.abs(of).mean(dtype=np.float64))
            continue
        scale = np.float32(np.abs(of).max()) / np.float32(n)
        view[...] = np.clip(np.rint(view * (np.float32(1) / scale)), -n, n).astype(np.float32) * scale
    return torch.from_numpy(found)


def dense(model: nn.Module, quantise: Quantisation, state=None, at=None) -> float:
    """The mean loss of a copy of the model whose weights are set to rounded ones, over all samples at once."""
    copied = copy.deepcopy(model).eval()
    state = dict(state or state_of(model))
    for name in KERNELS:
        state[name] = rounded(name, state[name], quantise, None if at is None else at[name])
    copied.load_state_dict(state, strict=False)
    with torch.no_grad():
        return float(observe(copied, samples())["loss"].double().mean())


def at(model: nn.Module, point) -> dict[str, torch.Tensor]:
    state, (one, two) = state_of(model), axes(model)
    return {
        name: tensor + point[0] * one[name] + point[1] * two[name] if name in one else tensor
        for name, tensor in state.items()
    }


def test_matrices_are_rounded_and_nothing_else():
    assert sorted(info.name for info in rounded_weights(Mixed())) == sorted(KERNELS)
    frozen = Mixed()
    frozen.linear.requires_grad_(False)
    assert len(rounded_weights(frozen)) == len(KERNELS)
    assert not rounded_weights(nn.BatchNorm2d(3))


@pytest.mark.parametrize("scheme", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_point_is_that_of_the_model_with_rounded_weights(bits, scheme):
    model, quantise = Mixed(), Quantisation(bits, scheme)
    found = evaluator(model, quantise).evaluate(POINTS).mean["loss"]
    expected = [dense(model, quantise, at(model, point)) for point in POINTS]
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    assert bits == 8 or not np.allclose(found, evaluator(model, None).evaluate(POINTS).mean["loss"], rtol=1e-4)


def test_the_scales_of_the_origin_hold_at_every_point():
    model, quantise = Mixed(), Quantisation(3, scale="origin")
    found = evaluator(model, quantise).evaluate(POINTS).mean["loss"]
    origin = state_of(model)
    expected = [dense(model, quantise, at(model, point), origin) for point in POINTS]
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    moving = evaluator(model, replace(quantise, scale="point")).evaluate(POINTS).mean["loss"]
    assert found[0] == moving[0]
    assert not np.any(found[1:] == moving[1:])


@pytest.mark.parametrize(
    ("engine", "scale"),
    [
        *((each, "point") for each in ("eager+channels_last", "eager+folded+fused", "vmap:3", "eager+maxima")),
        *((each, "origin") for each in ("eager+folded", "eager+folded+fused", "vmap:3")),
    ],
)
def test_every_engine_rounds(engine, scale):
    model, quantise = Mixed(), Quantisation(3, scale=scale)
    plain = evaluator(model, quantise)
    expected, origin = plain.evaluate(POINTS, rise=True), plain.origin().mean["loss"]
    made = evaluator(model, quantise, engine)
    found = made.evaluate(POINTS, rise=True)
    np.testing.assert_allclose(found.mean["loss"], expected.mean["loss"], rtol=1e-5)
    np.testing.assert_allclose(found.rise_stderr, expected.rise_stderr, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(made.origin().mean["loss"], origin, rtol=1e-5)
    np.testing.assert_array_equal(made.evaluate(POINTS[::-1]).mean["loss"][::-1], found.mean["loss"])


def test_whole_sets_of_weights_are_rounded():
    model, quantise = Mixed(), Quantisation(4)
    states = [{**state_of(model), **state} for state in wandering(model, 2).values()]
    made = evaluator(model, quantise)
    for _ in range(2):  # before and after a point
        found = made.evaluate_states(states).mean["loss"]
        np.testing.assert_allclose(found, [dense(model, quantise, state) for state in states], rtol=2e-6)
        point = made.evaluate(POINTS[:1]).mean["loss"]
    assert point[0] == made.origin().mean["loss"][0]


@pytest.mark.parametrize("mode", ["batch", "recalibrate"])
def test_statistics_are_taken_of_the_rounded_network(mode):
    model, quantise = Mixed(), Quantisation(3)
    rounded_already = Mixed()
    state = {**state_of(model), **{n: rounded(n, state_of(model)[n], quantise) for n in KERNELS}}
    rounded_already.load_state_dict(state)
    found = evaluator(model, quantise, batch_norm=mode).origin().mean["loss"]
    np.testing.assert_allclose(
        found, evaluator(rounded_already, None, batch_norm=mode).origin().mean["loss"], rtol=1e-6
    )


def test_in_float64_the_scales_are_of_float64():
    model, quantise = Mixed(), Quantisation(5)
    found = evaluator(model, quantise, precision="float64").origin().mean["loss"]
    np.testing.assert_allclose(found, [dense(model, quantise)], rtol=1e-5)


def test_weights_in_bfloat16_get_the_nearest_of_bfloat16():
    model = Mixed().bfloat16()
    plan = Plan(21, 1, "cpu", "bfloat16", bfloat16_weights=True, quantise=Quantisation(4))
    made = Evaluator(model, samples(), observe, plan, CPU, state_of(model), axes(model))
    weight = made.weights.state_at([0.0, 0.0])["linear.weight"]
    expected = rounded("linear.weight", state_of(model)["linear.weight"].float(), Quantisation(4)).bfloat16()
    assert torch.equal(weight, expected)


def test_what_cannot_round_is_refused_and_left_out_of_the_search():
    model, weights, both = Mixed(), Quantisation(4), Quantisation(4, activations=True)
    for quantise, engine in ((weights, "eager+superposed"), (both, "eager+fused"), (both, "eager+superposed")):
        with pytest.raises(ValueError, match=f"must do without {engine[6:]} where (anything|activations)"):
            evaluator(model, quantise, engine)
    assert "superposed" not in evaluator(model, weights).possible_options()
    assert "superposed" in evaluator(model, None).possible_options()
    assert not {"superposed", "fused"} & set(evaluator(model, both).possible_options())
    assert str(Engine.parse("eager+folded+superposed").suiting(weights)) == "eager+folded"


def test_derivatives_are_those_of_the_network_before_it_is_rounded():
    model = Mixed()
    plain, quantised = (evaluator(model, each) for each in (None, Quantisation(2)))
    gradients = [Differentiation.beside(each, state_of(model)) for each in (plain, quantised)]
    totals = [each.totals(0) for each in gradients]
    assert totals[0] == totals[1]
    one, two = (each.gradient(0, dict.fromkeys(totals[0], 1.0)) for each in gradients)
    assert torch.equal(one, two)


# -- activations ---------------------------------------------------------------------------------------------------


def calibrated(model: nn.Module, bits: int) -> dict[str, tuple[float, float]]:
    """The smallest and the largest input of every layer, of the model as it is."""
    ranges: dict[str, tuple[float, float]] = {}
    copied = copy.deepcopy(model).eval()
    for name in (each.removesuffix(".weight") for each in KERNELS):
        copied.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: ranges.__setitem__(name, (float(args[0].min()), float(args[0].max())))
        )
    with torch.no_grad():
        copied(samples()[0])
    return ranges


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("engine", ["eager", "eager+folded", "vmap:2"])
def test_inputs_of_layers_are_rounded_over_what_they_are_at_the_origin(engine, weights):
    model, bits = Mixed(), 4
    quantise = Quantisation(bits, weights=weights, activations=True)
    found = evaluator(model, quantise, engine).evaluate(POINTS).mean["loss"]
    copied = copy.deepcopy(model).eval()
    for name, (low, high) in calibrated(model, bits).items():
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / (2**bits - 1)
        zero = int(np.clip(np.rint(-low / scale), 0, 2**bits - 1))
        copied.get_submodule(name).register_forward_pre_hook(
            lambda _, args, scale=scale, zero=zero: torch.fake_quantize_per_tensor_affine(
                args[0], scale, zero, 0, 2**bits - 1
            )
        )
    expected = []
    for point in POINTS:
        state = at(model, point)
        if weights:
            state |= {name: rounded(name, state[name], quantise) for name in KERNELS}
        copied.load_state_dict(state, strict=False)
        with torch.no_grad():
            expected.append(float(observe(copied, samples())["loss"].double().mean()))
    np.testing.assert_allclose(found, expected, rtol=1e-4)  # a value in the middle of a step may go either way


def test_ranges_are_taken_anew_around_another_origin():
    model, other = Mixed(), Mixed(1)
    quantise = Quantisation(4, activations=True)
    made = evaluator(model, quantise)
    first = made.origin().mean["loss"]
    made.load(state_of(other), axes(other))
    np.testing.assert_array_equal(made.origin().mean["loss"], evaluator(other, quantise).origin().mean["loss"])
    made.load(state_of(model), axes(model))
    np.testing.assert_array_equal(made.origin().mean["loss"], first)


# -- integers ------------------------------------------------------------------------------------------------------

INT8 = Quantisation(8, activations=True)
needs_kernels = pytest.mark.skipif(not has_kernels(), reason="this processor has no kernels for 8-bit integers")


@pytest.mark.parametrize("engine", [pytest.param("eager+int8", marks=needs_kernels), "eager+folded"])
def test_an_engine_is_taken_though_it_rounds_some_activations_to_other_levels(engine):
    made = evaluator(Mixed(), INT8)
    grid = Grid(("alpha", "beta"), (np.array([-0.5, 0.0, 0.5]), np.array([-0.5, 0.0, 0.5])))
    tuned = tune(made, grid, TuningScope(Engine.parse(engine)))
    assert str(tuned.plan.engine) == engine, tuned.warning


def first_layer_alone(layer: nn.Module, inputs: torch.Tensor, quantise: Quantisation, engine: str, point: float):
    """The outputs of one layer at a point, sample by sample."""

    def outputs(model, batch):
        return {"loss": model(batch).flatten(1)[:, ::7].double().square().sum(1)}

    plan = Plan(5, 1, "cpu", engine=Engine.parse(engine), quantise=quantise)
    direction = {name: torch.full_like(each, 0.01) for name, each in layer.named_parameters()}
    made = Evaluator(nn.Sequential(layer), inputs, outputs, plan, CPU, state_of(nn.Sequential(layer)),
                     [{f"0.{name}": each for name, each in direction.items()}])  # fmt: skip
    return made.evaluate(np.array([[point]]), keep=True).samples.losses[0]


@needs_kernels
@pytest.mark.parametrize("scheme", ["per-channel", "per-tensor"])
@pytest.mark.parametrize("scale", ["point", "origin"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(36, 9),
        lambda: nn.Linear(36, 8, bias=False),
        lambda: nn.Conv2d(4, 6, 3, padding=1),
        lambda: nn.Conv2d(4, 8, 3, stride=2, groups=2),
        lambda: nn.Conv2d(4, 4, 3, dilation=2, groups=4, bias=False),
        lambda: nn.Conv2d(4, 5, (1, 3), padding=(0, 1)),
    ],
)
def test_integers_are_the_numbers_that_they_stand_for(make, scale, scheme):
    torch.manual_seed(0)
    layer = make()
    inputs = torch.randn(10, 36) if isinstance(layer, nn.Linear) else torch.randn(10, 4, 9, 9)
    with torch.no_grad():
        layer.weight[0] = 0  # a channel without a scale
    quantise = replace(INT8, scheme=scheme, scale=scale)
    for point in (0.0, 1.0, 30.0):  # at the last one weights are cut off at the scales of the origin
        expected = first_layer_alone(layer, inputs, quantise, "eager", point)
        found = first_layer_alone(layer, inputs, quantise, "eager+int8", point)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@needs_kernels
def test_integers_are_found_by_the_search_where_both_have_eight_bits():
    model = Mixed()
    assert "int8" in evaluator(model, INT8).possible_options()
    for quantise in (None, Quantisation(8), Quantisation(4, activations=True)):
        assert "int8" not in evaluator(model, quantise).possible_options()
        with pytest.raises(ValueError, match="must do without int8 where not both weights and activations"):
            evaluator(model, quantise, "eager+int8")
    with pytest.raises(ValueError, match="int8 needs a CPU with kernels"):
        evaluator(model, INT8, "eager+int8", precision="float64")
    assert Engine.parse("eager+folded+int8").suiting(None) == Engine.parse("eager+folded")


@needs_kernels
@pytest.mark.parametrize("engine", ["eager+int8", "eager+folded+int8"])
def test_a_network_in_integers_is_the_quantised_one(engine):
    model = Mixed()
    expected = evaluator(model, INT8).evaluate(POINTS)
    found = evaluator(model, INT8, engine).evaluate(POINTS)
    np.testing.assert_allclose(found.mean["loss"], expected.mean["loss"], rtol=2e-4)


class OwnName(nn.Linear):
    """Calls its input by a name of its own."""

    def forward(self, hidden):
        return super().forward(hidden)


class ByName(Mixed):
    """Calls layers by the names of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        state = self.still.state_dict()
        self.still = OwnName(4, 3)
        self.still.load_state_dict(state)

    def forward(self, x):
        x = torch.relu(self.norm(self.convolution(input=x)))
        x = torch.relu(self.transposed(input=x)).mean((2, 3))
        return self.still(hidden=self.odd(x=torch.relu(self.linear(input=x))))


@pytest.mark.parametrize("engine", ["eager", pytest.param("eager+int8", marks=needs_kernels)])
def test_layers_may_get_their_inputs_by_name(engine):
    expected, found = (evaluator(model, INT8, engine).evaluate(POINTS).mean["loss"] for model in (Mixed(), ByName()))
    # A layer derived from torch's is not computed in integers.
    np.testing.assert_allclose(found, expected, rtol=0 if engine == "eager" else 2e-4)


@needs_kernels
def test_what_is_not_finite_stays_so_in_integers():
    model = Mixed()
    with torch.no_grad():
        model.convolution.weight[0, 0, 0, 0] = 1e30
    spoilt = [{**axis, "linear.weight": axis["linear.weight"] * torch.inf} for axis in axes(model)]
    for engine in ("eager", "eager+int8"):
        plan = Plan(8, 1, "cpu", engine=Engine.parse(engine), quantise=INT8)
        made = Evaluator(model, samples(), observe, plan, CPU, state_of(model), spoilt)
        assert not np.isfinite(made.evaluate(np.array([[0.5, 0.5]])).mean["loss"]).any()
