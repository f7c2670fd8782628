"""The arithmetic on parameters against hand-written double loops."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import combine
from torch import nn

from landscape import JobError
from landscape.job.directions.base import DEFAULT_IGNORE, Normalise
from landscape.job.directions.file import supplied_direction
from landscape.job.directions.plane import step_towards
from landscape.job.directions.random import random_direction
from landscape.model.parameters import (
    ParameterInfo,
    describe_parameters,
    direction_digest,
    dot,
    filter_unview,
    filter_view,
    flatten,
    layout,
    match_state,
    norm,
    persistent_buffers,
    state_digest,
    state_of,
    unflatten,
)

# -- filter normalisation ------------------------------------------------------------------------------------


def normalise_direction(direction, origin, infos, normalise):
    """The tensors of a direction from a file, scaled to the weights."""
    moved = [info for info in infos if info.name in direction]
    return dict(supplied_direction(direction, origin, moved, "direction", normalise))


def output_filter_of(module: nn.Module, name: str, place: tuple[int, ...]) -> int:
    """Which output unit the weight at `place` feeds, from the definition of each layer."""
    if name == "weight" and isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        # weight[i, o]: input channel i belongs to group i // (in/groups) and feeds that group's o-th output.
        return place[0] // (module.in_channels // module.groups) * (module.out_channels // module.groups) + place[1]
    return place[0] if place else 0


def by_double_loop(module: nn.Module, name: str, direction: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    squares: dict[int, list[float]] = {}
    for place in itertools.product(*map(range, weight.shape)):
        sums = squares.setdefault(output_filter_of(module, name, place), [0.0, 0.0])
        sums[0] += float(weight[place]) ** 2
        sums[1] += float(direction[place]) ** 2
    found = torch.zeros_like(direction)
    for place in itertools.product(*map(range, weight.shape)):
        w, d = squares[output_filter_of(module, name, place)]
        found[place] = float(direction[place]) * math.sqrt(w) / (math.sqrt(d) + 1e-10)
    return found


LAYERS = {
    "linear": nn.Linear(4, 3),
    "bilinear": nn.Bilinear(2, 3, 4),
    "conv1d": nn.Conv1d(2, 3, 3),
    "conv2d": nn.Conv2d(4, 6, 3, groups=2),
    "conv3d": nn.Conv3d(2, 3, 2),
    "conv_transpose1d": nn.ConvTranspose1d(3, 2, 3),
    "conv_transpose2d": nn.ConvTranspose2d(2, 5, (3, 2)),
    "conv_transpose2d_groups": nn.ConvTranspose2d(6, 4, 2, groups=2),
    "conv_transpose1d_depthwise": nn.ConvTranspose1d(3, 6, 2, groups=3),
    "conv_transpose3d_groups": nn.ConvTranspose3d(4, 6, 2, groups=2),
    "embedding": nn.Embedding(7, 3),
    "batch_norm": nn.BatchNorm2d(4),
    "layer_norm": nn.LayerNorm((2, 3)),
    "group_norm": nn.GroupNorm(2, 4),
    "prelu": nn.PReLU(3),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_filter_normalisation_equals_a_double_loop(layer):
    module = LAYERS[layer]
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    infos, origin = describe_parameters(module), state_of(module)
    direction = {info.name: torch.randn(info.shape, generator=generator) for info in infos}
    found = normalise_direction(direction, origin, infos, "filter")
    for info in infos:
        expected = by_double_loop(module, info.name, direction[info.name], origin[info.name])
        torch.testing.assert_close(found[info.name], expected, rtol=2e-6, atol=0)
        assert found[info.name].dtype == torch.float32


@pytest.mark.parametrize("layer", [name for name in LAYERS if "transpose" in name])
def test_the_filters_of_a_transposed_convolution_are_those_that_feed_an_output_channel(layer):
    """The truth is the layer itself: a filter of zeros gives an output channel that is zero for any input."""
    module = LAYERS[layer]
    info = describe_parameters(module)[0]
    for channel in range(module.out_channels):
        rows = filter_view(torch.ones(info.shape), info).clone()
        assert len(rows) == module.out_channels
        rows[channel] = 0
        with torch.no_grad():
            weight, bias = module.weight.clone(), module.bias.clone()
            module.weight.copy_(filter_unview(rows, info))
            module.bias.zero_()
            outputs = module(torch.ones(1, module.in_channels, *[4] * (module.weight.dim() - 2)))[0]
            module.weight.copy_(weight)
            module.bias.copy_(bias)
        zero = [bool((each == 0).all()) for each in outputs]
        assert zero == [k == channel for k in range(module.out_channels)]


class Conv1D(nn.Module):
    """As in transformers.pytorch_utils: a linear layer that holds [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.empty(nx, nf)), nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view((*x.size()[:-1], self.nf))


def linear_and_conv1d_twins(sizes=(5, 7, 3)):
    """The same network twice: of nn.Linear, and of GPT-2's layer."""
    torch.manual_seed(4)
    linear = nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])
    twin = nn.Sequential(*[Conv1D(b, a) for a, b in itertools.pairwise(sizes)])
    twin.load_state_dict(turned(linear.state_dict()))
    return linear, twin


def turned(state):
    return {name: (tensor.t().contiguous() if tensor.dim() == 2 else tensor) for name, tensor in state.items()}


@pytest.mark.parametrize("sizes", [(5, 7, 3), (4, 4, 4)])
def test_gpt2_layers_are_scaled_as_the_linear_layers_they_are(sizes):
    linear, twin = linear_and_conv1d_twins(sizes)
    generator = torch.Generator().manual_seed(5)
    drawn = [{k: torch.randn(v.shape, generator=generator) for k, v in linear.state_dict().items()} for _ in range(2)]
    inputs, losses = torch.randn(11, sizes[0], generator=generator), []
    for model, directions in ((linear, drawn), (twin, [turned(each) for each in drawn])):
        infos, origin = describe_parameters(model), state_of(model)
        scaled = [normalise_direction(each, origin, infos, "filter") for each in directions]
        for info in infos:
            norms = filter_view(scaled[0][info.name].double(), info).norm(dim=1)
            expected = filter_view(origin[info.name].double(), info).norm(dim=1)
            torch.testing.assert_close(norms, expected, rtol=1e-6, atol=1e-9)
        moved = combine(origin, scaled, (0.7, -0.4))
        losses.append(torch.func.functional_call(model, moved, (inputs,)).square().mean())
    torch.testing.assert_close(losses[0], losses[1])


def test_a_layer_of_that_name_whose_outputs_come_first_is_left_as_it_is():
    class Conv1D(nn.Conv1d):
        nf = 3

    assert [info.transposed_groups for info in describe_parameters(Conv1D(2, 3, 3))] == [0, 0]


class MixtureExperts(nn.Module):
    """As in transformers 5: one parameter for all experts; with biases and inputs first as in GPT-OSS."""

    def __init__(self, *, is_transposed: bool) -> None:
        super().__init__()
        experts, inputs, outputs = 3, 4, 5
        self.is_transposed = is_transposed
        shape = (experts, inputs, outputs) if is_transposed else (experts, outputs, inputs)
        self.gate_up_proj = nn.Parameter(torch.randn(shape))
        self.gate_up_proj_bias = nn.Parameter(torch.randn(experts, outputs))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_fused_experts_have_a_filter_per_expert_and_output(is_transposed):
    torch.manual_seed(6)
    module = MixtureExperts(is_transposed=is_transposed)
    origin, infos = state_of(module), describe_parameters(module)
    assert [info.role for info in infos] == ["weight", "bias"]
    direction = {name: torch.randn(tensor.shape) for name, tensor in origin.items()}
    found = normalise_direction(direction, origin, infos, "filter")
    for expert, row in itertools.product(range(3), range(5)):
        place = (expert, slice(None), row) if is_transposed else (expert, row)
        d, w = direction["gate_up_proj"][place].double(), origin["gate_up_proj"][place].double()
        torch.testing.assert_close(found["gate_up_proj"][place], (d * (w.norm() / (d.norm() + 1e-10))).float())
        bias = origin["gate_up_proj_bias"][expert, row]
        assert float(found["gate_up_proj_bias"][expert, row].abs()) == pytest.approx(float(bias.abs()))
    for info in infos:
        assert torch.equal(filter_unview(filter_view(direction[info.name], info), info), direction[info.name])


@pytest.mark.parametrize(("shape", "groups"), [((0, 3), 0), ((3, 0), 0), ((2, 0, 3), 1), ((0, 3, 3), 1)])
def test_tensors_without_elements_have_filters_without_elements(shape, groups):
    info = ParameterInfo("weight", shape, "weight", True, groups)
    view = filter_view(torch.zeros(shape), info)
    assert view.dim() == 2
    assert filter_unview(view, info).shape == shape


@pytest.mark.parametrize("layer", LAYERS)
def test_filter_unview_undoes_filter_view(layer):
    for info in describe_parameters(LAYERS[layer]):
        tensor = torch.randn(info.shape)
        assert torch.equal(filter_unview(filter_view(tensor, info), info), tensor)


def test_layer_and_model_normalisation_scale_by_whole_norms():
    model = nn.Sequential(nn.Linear(4, 3), nn.Conv2d(1, 2, 2))
    infos, origin = describe_parameters(model), state_of(model)
    direction = {info.name: torch.randn(info.shape) for info in infos}
    layered = normalise_direction(direction, origin, infos, "layer")
    whole = normalise_direction(direction, origin, infos, "model")
    for name, tensor in layered.items():
        assert float(tensor.norm()) == pytest.approx(float(origin[name].norm()), rel=1e-5)
        cosine = torch.dot(tensor.flatten(), direction[name].flatten()) / (tensor.norm() * direction[name].norm())
        assert float(cosine) == pytest.approx(1, abs=1e-5)
    assert norm(whole) == pytest.approx(norm(origin), rel=1e-6)
    ratios = [float((whole[name] / direction[name]).flatten()[0]) for name in whole]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-4)
    plain = normalise_direction(direction, origin, infos, "none")
    assert all(torch.equal(plain[name], direction[name]) for name in direction)


@pytest.mark.parametrize("normalise", get_args(Normalise))
@pytest.mark.parametrize("ignore", [(), DEFAULT_IGNORE])
def test_a_random_direction_is_the_whole_draw_normalised_at_once(normalise, ignore):
    model = Renamed()
    infos, origin = describe_parameters(model), state_of(model)
    moved = [info for info in infos if info.role not in ignore]
    draw = random_direction(origin, infos, 6, "none", ignore)
    expected = normalise_direction(draw, origin, moved, normalise)
    direction = random_direction(origin, infos, 6, normalise, ignore)
    assert list(direction) == list(expected)
    assert all(torch.equal(direction[name], expected[name]) for name in expected)


@pytest.mark.parametrize("normalise", get_args(Normalise))
def test_zero_weights_and_zero_directions_give_no_nan(normalise):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    nn.init.zeros_(model[0].weight)
    model[0].bias.data.zero_()
    infos, origin = describe_parameters(model), state_of(model)
    direction = {info.name: torch.randn(info.shape) for info in infos}
    direction["1.weight"][0] = 0
    found = normalise_direction(direction, origin, infos, normalise)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found.values())
    if normalise in ("filter", "layer"):
        assert not found["0.weight"].any()
    assert not found["1.weight"][0].any()


# -- what each parameter is ----------------------------------------------------------------------------------


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Linear(3, 3)
        self.bn = nn.Conv2d(1, 1, 1)
        self.x = nn.LayerNorm(3)
        self.bias_layer = nn.Linear(3, 2, bias=False)
        self.group, self.batch, self.rms = nn.GroupNorm(1, 3), nn.BatchNorm1d(3), nn.RMSNorm(3)
        self.instance = nn.InstanceNorm1d(3, affine=True)
        self.gain = nn.Parameter(torch.tensor(1.0))


def test_roles_follow_the_modules_type_not_its_name():
    roles = {info.name: info.role for info in describe_parameters(Renamed())}
    assert roles == {
        "gain": "bias", "norm.weight": "weight", "norm.bias": "bias", "bn.weight": "weight", "bn.bias": "bias",
        "x.weight": "norm", "x.bias": "norm", "bias_layer.weight": "weight", "group.weight": "norm",
        "group.bias": "norm", "batch.weight": "norm", "batch.bias": "norm", "rms.weight": "norm",
        "instance.weight": "norm", "instance.bias": "norm",
    }  # fmt: skip


def test_ignored_roles_do_not_move_and_do_not_change_the_rest():
    model = Renamed()
    infos, origin = describe_parameters(model), state_of(model)
    everything = random_direction(origin, infos, 4, ignore=())
    rest = random_direction(origin, infos, 4)
    assert set(everything) == {info.name for info in infos}
    assert set(rest) == {"norm.weight", "bn.weight", "bias_layer.weight"}
    assert all(torch.equal(rest[name], everything[name]) for name in rest)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_tied_weights_are_one_parameter_and_move_together():
    model = Tied()
    infos = describe_parameters(model)
    assert [info.name for info in infos] == ["embedding.weight"]
    assert list(state_of(model)) == ["embedding.weight"]
    assert list(random_direction(state_of(model), infos, 1)) == ["embedding.weight"]
    both = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert list(match_state(model, both, "file")) == ["embedding.weight"]
    assert list(match_state(model, {"embedding.weight": both["embedding.weight"]}, "file")) == ["embedding.weight"]


def test_frozen_parameters_and_buffers_never_move():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[0].bias.requires_grad_(False)
    infos = describe_parameters(model)
    assert set(random_direction(state_of(model), infos, 1)) == {"0.weight"}
    assert set(random_direction(state_of(model), infos, 1, ignore=())) == {"0.weight", "1.weight", "1.bias"}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(JobError, match=r"no parameter moves: of 4 4 are frozen"):
        random_direction(state_of(model), describe_parameters(model), 1)


# -- states --------------------------------------------------------------------------------------------------


def test_a_state_is_a_copy_of_parameters_and_persistent_buffers():
    model = nn.BatchNorm1d(2)
    model.register_buffer("scratch", torch.ones(2), persistent=False)
    state = state_of(model)
    assert set(state) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert set(persistent_buffers(model)) == {"running_mean", "running_var", "num_batches_tracked"}
    state["weight"].fill_(9)
    assert not (model.weight == 9).any()
    assert not any(tensor.requires_grad for tensor in state.values())


def test_weights_that_do_not_fit_are_named():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = state_of(model)
    del state["0.weight"]
    state |= {"extra": torch.ones(1), "0.bias": torch.ones(3)}
    with pytest.raises(JobError) as caught:
        match_state(model, state, "file 'x'")
    for word in ("file 'x'", "missing 0.weight", "extra extra", "misshapen 0.bias (3,)", "(2,)"):
        assert word in str(caught.value)
    without = {name: tensor for name, tensor in state_of(model).items() if name != "1.num_batches_tracked"}
    assert "1.num_batches_tracked" in match_state(model, without, "file")


def test_norms_products_and_differences():
    first = {"a": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([4.0])}
    second = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([-1.0])}
    assert norm(first) == 5.0
    assert dot(first, second) == -1.0
    found = step_towards(second | {"n": torch.tensor(3)}, first)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [[2.0, -2.0]], "b": [5.0]}


@given(shapes=st.lists(st.lists(st.integers(1, 4), max_size=3).map(tuple), min_size=1, max_size=5), data=st.data())
def test_flatten_and_unflatten_are_inverse(shapes, data):
    state = {f"t{k}": torch.randn(shape) for k, shape in enumerate(shapes)}
    absent = data.draw(st.sets(st.sampled_from(sorted(state))))
    places = layout(state, state)
    kept = {name: tensor for name, tensor in state.items() if name not in absent}
    vector = flatten(kept, places)
    assert vector.dtype == np.float32
    assert len(vector) == sum(tensor.numel() for tensor in state.values())
    assert [place["offset"] for place in places] == np.cumsum([0, *(t.numel() for t in state.values())])[:-1].tolist()
    found = unflatten(vector, places)
    assert set(found) == set(kept)
    assert all(torch.equal(found[name], kept[name]) for name in kept)


def test_digests_tell_values_names_types_and_shapes_apart_but_not_order():
    base = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3)}
    variants = [
        base,
        base | {"a": torch.tensor([1.0, 2.0000002])},
        base | {"a": torch.tensor([[1.0, 2.0]])},
        base | {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"c": base["a"], "b": base["b"]},
    ]
    assert len({state_digest(each) for each in variants}) == len(variants)
    assert state_digest({"b": base["b"], "a": base["a"]}) == state_digest(base)
    assert state_digest({"a": torch.arange(6.0).reshape(2, 3).T}) == state_digest(
        {"a": torch.arange(6.0).reshape(2, 3).T.contiguous()}
    )
    assert state_digest({"a": torch.zeros(0), "n": torch.tensor(True), "h": torch.ones(2).bfloat16()})
    moved = {"a": torch.ones(2)}
    assert direction_digest(moved | {"zero": torch.zeros(3)}) == direction_digest(moved)
