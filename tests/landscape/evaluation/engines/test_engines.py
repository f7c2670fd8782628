"""Every engine computes what the plain evaluation does; rewrites that promise the same bits keep them."""

from __future__ import annotations

import itertools
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pooled import POINTS, Pooled, drawn, evaluator, pooled_problem, rewritten
from small_models import ConvNet, image_samples, wandering
from torch import nn
from torch.nn import functional as F

from landscape.core.plan import Engine, default_plan
from landscape.evaluation.engines.base import ChannelsLast
from landscape.evaluation.engines.cpu_kernels import PoolingByMaxima, pool_by_maxima
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.weights import MovingWeights
from landscape.model.parameters import state_of, targets_of
from landscape.problem.terms import Problem
from landscape.recipes.lenet import LeNet5

# -- names ---------------------------------------------------------------------------------------------------------


def test_names_and_engines_stand_for_each_other():
    for text in (
        "eager",
        "eager+channels_last",
        "eager+maxima+fused+superposed",
        "compile+channels_last+maxima",
        "vmap:4+maxima",
        "cudagraph+folded",
    ):
        assert str(Engine.parse(text)) == text
    assert str(Engine.parse("vmap")) == "vmap:8"
    assert str(Engine.parse("eager+maxima+channels_last")) == "eager+channels_last+maxima"


@pytest.mark.parametrize(
    "text",
    ["", "fast", "eager+fast", "eager:2", "vmap:1", "vmap:x", "vmap:4+folded", "compile+fused", "vmap:4+superposed"],
)
def test_other_names_are_refused(text):
    with pytest.raises(ValueError, match="must"):
        Engine.parse(text)


# -- rewrites ------------------------------------------------------------------------------------------------------


@given(
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    step=st.none() | st.tuples(st.integers(1, 4), st.integers(1, 4)),
    dilation=st.integers(1, 2),
    padded=st.booleans(),
    shape=st.sampled_from([(2, 3, 11, 8), (3, 9, 13), (1, 1, 8, 8)]),
    broken=st.sampled_from([None, float("nan"), float("inf"), float("-inf")]),
    channels_last=st.booleans(),
)
def test_pooling_by_maxima_has_the_bits_of_torch(size, step, dilation, padded, shape, broken, channels_last):
    images = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    if broken is not None:
        images.view(-1)[[1, 17, -1]] = broken
    if channels_last and images.dim() == 4:
        images = images.contiguous(memory_format=torch.channels_last)
    padding = tuple(k // 2 for k in size) if padded else 0
    expected = F.max_pool2d(images, size, step, padding, dilation)
    with torch.no_grad(), PoolingByMaxima() as pooling:
        found = F.max_pool2d(images, size, step, padding, dilation)
    assert pooling.met
    np.testing.assert_array_equal(found.numpy(), expected.numpy())
    np.testing.assert_array_equal(nn.MaxPool2d(size, step, padding, dilation)(images).numpy(), expected.numpy())


def test_pooling_that_has_no_such_form_is_left_to_torch():
    images = torch.randn(1, 1, 5, 5)
    assert torch.equal(pool_by_maxima(images, 2, ceil_mode=True), F.max_pool2d(images, 2, ceil_mode=True))
    pooled, places = pool_by_maxima(images, 2, return_indices=True)
    assert torch.equal(images.view(-1)[places.view(-1)], pooled.view(-1))
    with PoolingByMaxima() as pooling:  # with gradients on, whose ties differ
        F.max_pool2d(images.requires_grad_(), 2)
    assert not pooling.met


def test_only_a_convolution_that_its_norm_alone_reads_is_folded():
    model = Pooled().eval().requires_grad_(False)
    graph, folded = rewritten(model, "folded")
    names = [type(each).__name__ for each in graph.modules()]
    assert names.count("BatchNorm2d") == 1  # `other` stays, as its convolution is read twice
    folded.refresh(None)
    inputs = image_samples(5)[0]
    torch.testing.assert_close(graph(inputs), model(inputs), rtol=1e-5, atol=1e-6)
    with torch.no_grad():  # the folded weights follow those of the model
        model.norm.running_var.mul_(3)
        model.norm.bias.add_(1)
        model.first.bias.mul_(-2)
    folded.refresh(None)
    torch.testing.assert_close(graph(inputs), model(inputs), rtol=1e-5, atol=1e-6)


def test_what_cannot_be_traced_is_not_folded():
    class Branching(ConvNet):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(torch.fx.proxy.TraceError):
        rewritten(Branching().eval(), "folded")


# -- engines -------------------------------------------------------------------------------------------------------

OPTIONS = [
    "+".join(("eager", *chosen))
    for count in range(6)
    for chosen in itertools.combinations(("channels_last", "maxima", "folded", "fused", "superposed"), count)
]


@pytest.mark.long
@pytest.mark.parametrize("engine", [*OPTIONS, "vmap:2+maxima", "vmap:4+channels_last"])
def test_engines_agree_with_plain_evaluation(engine):
    problem, samples = pooled_problem()
    plain = evaluator(problem, samples)
    expected, found = plain.evaluate(POINTS), evaluator(problem, samples, engine).evaluate(POINTS)
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(found.mean[name], expected.mean[name], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(found.stderr[name], expected.stderr[name], rtol=1e-4, atol=1e-7)
    if engine in ("eager", "eager+maxima"):
        np.testing.assert_array_equal(found.mean["loss"], expected.mean["loss"])


@pytest.mark.parametrize("engine", ["eager", "eager+channels_last+maxima+folded+fused+superposed", "vmap:2"])
def test_whole_states_and_points_in_turn_leave_no_trace_of_each_other(engine):
    problem, samples = pooled_problem()
    states = [state for _, state in sorted(wandering(problem.model, 3).items())]
    made = evaluator(problem, samples, engine)
    before, first = made.evaluate(POINTS), made.evaluate_states(states)
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], before.mean["loss"])
    np.testing.assert_array_equal(made.evaluate_states(states).mean["loss"], first.mean["loss"])
    alone = [evaluator(problem, samples, "eager").evaluate_states([state]).mean["loss"][0] for state in states]
    np.testing.assert_allclose(first.mean["loss"], alone, rtol=1e-5)


def test_an_engine_can_be_changed_and_changed_back():
    problem, samples = pooled_problem()
    made = evaluator(problem, samples)
    expected = made.evaluate(POINTS).mean["loss"]
    for engine in ("eager+channels_last+folded", "eager+superposed", "vmap:4", "eager+fused", "eager"):
        made.use(Engine.parse(engine), 5 if engine != "eager" else 8)
        np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], expected, rtol=1e-5)
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], expected)


def test_a_group_of_points_at_once_is_filled_up_so_that_its_shape_is_the_same():
    problem, samples = pooled_problem()
    made = evaluator(problem, samples, "vmap:4")
    together = made.evaluate(POINTS).mean["loss"]
    alone = [made.evaluate(point[None]).mean["loss"][0] for point in POINTS]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("batch_norm", ["batch", "recalibrate"])
def test_layouts_agree_in_the_other_modes_of_batch_norm(batch_norm):
    problem, samples = pooled_problem()
    plain = evaluator(problem, samples, batch_norm=batch_norm).evaluate(POINTS).mean["loss"]
    found = evaluator(problem, samples, "eager+channels_last+maxima", batch_norm=batch_norm).evaluate(POINTS)
    np.testing.assert_allclose(found.mean["loss"], plain, rtol=1e-5)


@pytest.mark.parametrize("engine", ["vmap:4", "eager+folded"])
def test_statistics_that_are_taken_at_every_point_refuse_engines_that_would_not_take_them(engine):
    problem, samples = pooled_problem()
    with pytest.raises(ValueError, match=r"batch_norm: must not be recalibrate .* statistics"):
        evaluator(problem, samples, engine, batch_norm="recalibrate")


def test_points_are_stacked_where_there_are_no_statistics_to_take():
    problem = Problem(nn.Linear(3, 1), torch.randn(6, 3), lambda m, b: {"loss": m(b)[:, 0] ** 2})
    found = [
        evaluator(problem, problem.data, engine, batch_norm="recalibrate").evaluate(POINTS).mean["loss"]
        for engine in ("eager", "vmap:4")
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_bfloat16_may_be_folded():
    problem, samples = pooled_problem()
    exact = evaluator(problem, samples).evaluate(POINTS).mean["loss"]
    found = evaluator(problem, samples, "eager+channels_last+folded", precision="bfloat16").evaluate(POINTS)
    np.testing.assert_allclose(found.mean["loss"], exact, rtol=0.05)
    assert not np.array_equal(found.mean["loss"], exact)


class Branching(nn.Module):
    """A number of steps that depends on the data."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.step, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        while x.norm() > 5:
            x = torch.tanh(self.step(x))
        return self.head(x)


@pytest.mark.slow  # test_bfloat16_weights.py compiles too, in `make test-faults`
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
@pytest.mark.parametrize(
    ("make", "engine"),
    [
        (Branching, "compile"),
        (Branching, "compile+channels_last+maxima"),
        (LeNet5, "compile"),
        (LeNet5, "compile+channels_last+maxima"),
    ],
)
def test_compiled_models_agree(make, engine):
    torch.manual_seed(0)
    model = make().eval()
    shape = (12, 1, 32, 32) if make is LeNet5 else (12, 6)
    samples = (torch.randn(shape), torch.randint(0, 3, (12,)))
    problem = Problem.supervised(model, samples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own making
        found = evaluator(problem, samples, engine, 6).evaluate(POINTS).mean["loss"]
        expected = evaluator(problem, samples, "eager", 6).evaluate(POINTS).mean["loss"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("engine", ["cudagraph", "cudagraph+channels_last+folded", "vmap:4", "compile"])
def test_engines_of_a_gpu_agree(engine):
    problem, samples = pooled_problem()
    plan = default_plan(21, "cuda", "float32", "eval", 0, 8, None)
    values = []
    for name in ("eager", engine):
        made = Evaluator(
            problem.model,
            samples,
            problem.observe,
            replace(plan, engine=Engine.parse(name)),
            torch.device("cuda:0"),
            state_of(problem.model),
            [drawn(problem.model, 1), drawn(problem.model, 2)],
        )
        values.append(made.evaluate(POINTS).mean["loss"])
    np.testing.assert_allclose(values[1], values[0], rtol=1e-5)


# -- weights of a point --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_weights_of_a_point_are_those_of_the_formula(axes, channels_last):
    model = Pooled().requires_grad_(False)
    origin = {name: tensor.clone() for name, tensor in state_of(model).items()}
    directions = [drawn(Pooled(), seed) for seed in range(axes)]
    directions[-1] = {name: tensor for name, tensor in directions[-1].items() if "head" not in name}
    moving = MovingWeights(model, origin, directions, ChannelsLast.layouts if channels_last else {})
    generator = np.random.default_rng(0)
    for point in [generator.normal(size=axes).tolist() for _ in range(4)] * 2:
        moving.set_point(point)
        for name, tensor in state_of(model).items():
            expected = origin[name].double()
            for coordinate, direction in zip(point, directions, strict=True):
                if name in direction:
                    expected = expected + coordinate * direction[name].double()
            torch.testing.assert_close(tensor, expected.to(tensor.dtype), rtol=1e-6, atol=1e-7)


def test_setting_a_point_allocates_nothing():
    model = Pooled().requires_grad_(False)
    moving = MovingWeights(model, state_of(model), [drawn(Pooled(), 1), drawn(Pooled(), 2)], {})
    places = {name: tensor.data_ptr() for name, tensor in targets_of(model).items()}
    with torch.profiler.profile(profile_memory=True) as profile:
        for point in ([0.1, 0.2], [0.1, 0.3], [0.4, 0.3]):
            moving.set_point(point)
    assert all(event.self_cpu_memory_usage <= 0 for event in profile.events())
    assert {name: tensor.data_ptr() for name, tensor in targets_of(model).items()} == places


def test_what_a_forward_pass_changes_is_put_back_before_the_next_point():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("kept", torch.zeros(1))
            self.register_buffer("hidden", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.kept += 1
            self.hidden += 1
            return self.weight * x + self.kept + self.hidden

    problem = Problem(Counting(), torch.ones(8), lambda model, batch: {"loss": model(batch)})
    found = evaluator(problem, torch.ones(8), directions=[{"weight": torch.ones(1)}]).evaluate(np.zeros((3, 1)))
    np.testing.assert_array_equal(found.mean["loss"], [3.0, 3.0, 3.0])


# -- reuse ---------------------------------------------------------------------------------------------------------


class Watched(nn.Linear):
    """Counts how often it is computed."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


def tail_problem(between: nn.Module | None = None, drop: bool = False):
    class Watching(Watched):
        calls = 0

    torch.manual_seed(0)
    layers = [Watching(18, 16), nn.ReLU(), Watching(16, 16), between or nn.ReLU(inplace=True), nn.Linear(16, 3)]
    model = nn.Sequential(*layers)
    samples = (torch.randn(23, 18), torch.randint(0, 3, (23,)))
    direction = {"4.weight": torch.randn(3, 16)}
    return Problem.supervised(model, samples), samples, [direction, {"4.bias": torch.randn(3)}], Watching


def reference(problem, samples, directions, batch_size=8):
    """Point by point, batch by batch, without any of the machinery."""
    found = []
    model, origin = problem.model, state_of(problem.model)
    for point in POINTS:
        state = {name: tensor.clone() for name, tensor in origin.items()}
        for coordinate, direction in zip(point, directions, strict=True):
            for name, tensor in direction.items():
                state[name] = state[name] + coordinate * tensor
        with torch.no_grad():
            values = torch.func.functional_call(model, state, samples[0])
        found.append(F.cross_entropy(values, samples[1]).item())
    return found


def test_layers_below_the_first_moved_one_are_computed_once():
    problem, samples, directions, watched = tail_problem(nn.ReLU())
    made = evaluator(problem, samples, directions=directions)
    found = made.evaluate(POINTS).mean["loss"]
    batches = 3
    assert watched.calls <= 2 * (3 + 3 * (batches - 1))  # two layers: three points teach, of which the third is kept
    calls = watched.calls
    made.evaluate(POINTS)
    assert watched.calls == calls
    np.testing.assert_allclose(found, reference(problem, samples, directions), rtol=1e-5)


def test_layers_that_are_written_over_in_place_are_computed_again():
    problem, samples, directions, _ = tail_problem(nn.ReLU(inplace=True))
    made = evaluator(problem, samples, directions=directions)
    found = made.evaluate(POINTS).mean["loss"]
    np.testing.assert_allclose(found, reference(problem, samples, directions), rtol=1e-5)
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], found)


def test_random_layers_are_drawn_again():
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn(x.shape)

    problem, samples, directions, _ = tail_problem(Noise())
    made = evaluator(problem, samples, directions=directions)
    first = made.evaluate(POINTS).mean["loss"]
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], first)
    moved = evaluator(problem, samples, directions=[{"0.weight": torch.zeros(16, 18), **directions[0]}, directions[1]])
    np.testing.assert_array_equal(moved.evaluate(POINTS).mean["loss"], first)


def test_tied_weights_that_move_elsewhere_are_not_taken_for_still():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.encoder, self.decoder = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.decoder.weight = self.encoder.weight
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.decoder(torch.relu(self.encoder(x))))

    samples = (torch.randn(23, 6), torch.randint(0, 3, (23,)))
    problem = Problem.supervised(Tied(), samples)
    directions = [{"encoder.weight": torch.randn(6, 6)}, {"head.bias": torch.ones(3)}]
    found = evaluator(problem, samples, directions=directions).evaluate(POINTS).mean["loss"]
    expected = []
    for alpha, beta in POINTS:
        model = Tied()
        with torch.no_grad():
            model.encoder.weight.add_(directions[0]["encoder.weight"], alpha=alpha)
            model.head.bias.add_(beta)
            expected.append(F.cross_entropy(model(samples[0]), samples[1]).item())
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_layer_that_uses_weights_which_it_does_not_hold_is_computed_again():
    class Borrowing(nn.Module):
        def __init__(self, lender):
            super().__init__()
            self.lender = [lender]  # out of sight

        def forward(self, x):
            return F.linear(x, self.lender[0].weight)

    torch.manual_seed(0)
    lender = nn.Linear(6, 6, bias=False)
    model = nn.Sequential(Borrowing(lender), lender, nn.Linear(6, 3))
    samples = (torch.randn(23, 6), torch.randint(0, 3, (23,)))
    directions = [{"1.weight": torch.randn(6, 6)}, {"2.bias": torch.ones(3)}]
    found = evaluator(Problem.supervised(model, samples), samples, directions=directions).evaluate(POINTS)
    expected = []
    for alpha, beta in POINTS:
        weight = lender.weight.detach() + alpha * directions[0]["1.weight"]
        values = F.linear(F.linear(samples[0], weight), weight)
        values = F.linear(values, model[2].weight, model[2].bias + beta)
        expected.append(F.cross_entropy(values, samples[1]).item())
    np.testing.assert_allclose(found.mean["loss"], expected, rtol=1e-5)


def test_derivatives_with_respect_to_the_inputs_are_of_the_inputs_at_hand():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    points = torch.linspace(0, 1, 23)[:, None]

    def observe(model, batch):
        with torch.enable_grad():
            x = batch.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(x).sum(), x)
        return {"loss": (slope[:, 0] - 1) ** 2}

    directions = [{"2.weight": torch.randn(1, 8)}, {"2.bias": torch.ones(1)}]
    found = evaluator(Problem(model, points, observe), points, directions=directions).evaluate(POINTS).mean["loss"]
    hidden = torch.tanh(points @ model[0].weight.T + model[0].bias).detach()
    for value, (alpha, _) in zip(found, POINTS, strict=True):
        weight = (model[2].weight + alpha * directions[0]["2.weight"]).detach()
        slope = ((1 - hidden**2) * model[0].weight.detach().T) @ weight.T
        assert value == pytest.approx(((slope - 1) ** 2).mean().item(), rel=1e-5)


def test_what_does_not_fit_is_computed_again(monkeypatch):
    monkeypatch.setattr("landscape.evaluation.engines.reuse.SHARE_OF_MEMORY", 0)
    problem, samples, directions, _ = tail_problem(nn.ReLU())
    made = evaluator(problem, samples, directions=directions)
    np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], reference(problem, samples, directions), rtol=1e-5)
    assert made.rewrites["reuse"].modules == 0
