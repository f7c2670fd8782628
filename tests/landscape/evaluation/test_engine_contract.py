"""What every engine promises, checked on every engine of the table and on every combination of options that parses."""

from __future__ import annotations

import contextlib
import copy
import itertools
import re
import shutil
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pooled import CPU, POINTS, drawn, evaluator, pooled_problem
from small_models import wandering
from torch import nn
from torch.func import functional_call

from landscape.core.errors import JobError
from landscape.core.plan import BASES, OPTIONS, Engine, EngineBase, Option, default_plan
from landscape.core.quantisation import Quantisation
from landscape.evaluation.engines.base import Forward, Rewrite, RewriteTarget
from landscape.evaluation.engines.cpu_kernels import has_kernels
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.running_model import ALWAYS, REWRITES, LoadedModel, class_of, make_forward
from landscape.model.parameters import state_of
from landscape.problem.terms import Problem

SAME_BITS = {"maxima"}  # options that promise the bits of an engine without them


def _parses(text: str) -> bool:
    try:
        Engine.parse(text)
    except ValueError:
        return False
    return True


def _engines() -> list[str]:
    """Every base with every combination of options that the rules allow."""
    bases = [f"{name}:3" if base.stacks else name for name, base in BASES.items()]
    combinations = [each for count in range(len(OPTIONS) + 1) for each in itertools.combinations(OPTIONS, count)]
    return [text for base in bases for each in combinations if _parses(text := "+".join((base, *each)))]


ALL = [Engine.parse(text) for text in _engines()]
INTEGERS = [str(each) for each in ALL if "int8" in each.options]
HERE = [str(each) for each in ALL if not each.needs_gpu and not BASES[each.base].setup_seconds]
HERE = [each for each in HERE if each not in INTEGERS]  # of quantised networks, with one test for all of them
# Compiling takes seconds: plain, and with all that goes with it.
# Every option alone, every pair and all together; what goes beyond pairs, `make test-faults` asks for as well.
BEYOND = {str(each) for each in ALL if 2 < len(each.options) < 5}
COMPILED = [str(each) for each in ALL if each.base == "compile" and len(each.options) in (0, 3)]


def beyond_pairs_in_faults(engines: Iterable[str]) -> list[Any]:
    return [pytest.param(each, marks=[pytest.mark.faults] * (each in BEYOND)) for each in engines]


# -- the table -----------------------------------------------------------------------------------------------------


def test_the_table_has_a_class_for_every_name_and_the_rules_name_nothing_else():
    assert all(issubclass(class_of(name), Forward) for name in BASES)
    assert len(set(map(class_of, BASES))) == len(BASES)
    assert set(REWRITES) == set(OPTIONS)
    assert all(issubclass(rewrite, Rewrite) for rewrite in REWRITES.values())
    assert len(set(REWRITES.values())) == len(OPTIONS)
    assert not set(ALWAYS) & set(OPTIONS)
    for option in OPTIONS.values():
        assert set(option.along) <= set(OPTIONS)
        assert option.bases
        assert option.refusal.startswith("must ") or not option.refusal


def test_every_name_has_its_row_in_the_tables_of_the_documentation():
    page = (Path(__file__).parents[3] / "docs" / "bench.md").read_text()
    rows = re.findall(r"^\| `(\+?\w+)(?::N)?` \|", page, re.MULTILINE)
    assert rows == [*BASES, *(f"+{name}" for name in OPTIONS)]


def test_every_combination_that_the_rules_allow_parses_and_is_its_own_name():
    # Eager with five options, and int8 with the three that it goes with; two bases with three options, stacks with two.
    assert len(ALL) == 32 + 8 + 8 + 8 + 4
    with pytest.raises(ValueError, match="must not be int8 and fused or superposed, not 'eager"):
        Engine.parse("eager+int8+fused+superposed")
    assert [str(Engine.parse(str(engine))) for engine in ALL] == list(map(str, ALL))


# -- values --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain():
    problem, samples = pooled_problem()
    return evaluator(problem, samples).evaluate(POINTS, rise=True)


@pytest.mark.parametrize("engine", beyond_pairs_in_faults(HERE))
def test_an_engine_keeps_its_promises(engine, plain):
    _agree(_values_of_kept_promises(engine, plain), plain)


@pytest.mark.skipif(not has_kernels(), reason="this processor has no kernels for 8-bit integers")
@pytest.mark.parametrize("engine", beyond_pairs_in_faults(INTEGERS))
def test_integers_keep_the_promises_of_an_engine(engine):
    quantise = Quantisation(8, activations=True)
    problem, samples = pooled_problem()
    plain = evaluator(problem, samples, quantise=quantise).evaluate(POINTS, rise=True)
    _agree(_values_of_kept_promises(engine, plain, quantise), plain, 2e-3)


def _values_of_kept_promises(engine, plain, quantise=None):
    """The values of an engine, once order, grouping, whole states and the caller's model are what they must be.

    All with one evaluator, to save time.
    """
    problem, samples = pooled_problem()
    before = copy.deepcopy(problem.model.state_dict())
    made = evaluator(problem, samples, engine, quantise=quantise)
    together = made.evaluate(POINTS, rise=True)
    if made.plan.engine.base in {"eager", "cudagraph"} and made.plan.engine.options <= SAME_BITS:
        np.testing.assert_array_equal(together.mean["loss"], plain.mean["loss"])
    # A point has the same bits alone, in another order, and after whole sets of weights.
    np.testing.assert_array_equal(made.evaluate(POINTS[3:4]).mean["loss"], together.mean["loss"][3:4])
    states = [state for _, state in sorted(wandering(problem.model, 2).items())]
    whole = made.evaluate_states(states)
    np.testing.assert_array_equal(made.evaluate(POINTS[::-1]).mean["loss"], together.mean["loss"][::-1])
    np.testing.assert_array_equal(made.evaluate_states(states[::-1]).mean["loss"], whole.mean["loss"][::-1])
    expected = _plain_states(problem, samples, states) if quantise is None else _plain_whole(quantise, states)
    np.testing.assert_allclose(whole.mean["loss"], expected, rtol=1e-5 if quantise is None else 2e-3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in problem.model.state_dict().items())
    # Another engine takes back what this one had installed in the evaluator's own model.
    made.use(Engine())
    fresh = evaluator(problem, samples, "eager", quantise=quantise)
    for each in (made, fresh):
        each.evaluate(POINTS[:1])
    assert _taken_over(made) == _taken_over(fresh)
    return together


def _taken_over(made):
    return [name for name, module in made.evaluated_model.named_modules() if "forward" in vars(module)]


def _plain_whole(quantise, states):
    problem, samples = pooled_problem()
    return evaluator(problem, samples, quantise=quantise).evaluate_states(states).mean["loss"]


def _agree(found, expected, rtol=1e-5):
    """Within rounding; of quantised activations one that rounding takes to the next level changes a loss by more."""
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(found.mean[name], expected.mean[name], rtol=rtol, atol=1e-7)
        np.testing.assert_allclose(found.stderr[name], expected.stderr[name], rtol=10 * rtol, atol=1e-7)
    np.testing.assert_allclose(found.rise_stderr, expected.rise_stderr, rtol=10 * rtol, atol=1e-7)


def _plain_states(problem, samples, states):
    """The mean losses at whole sets of weights, without an evaluator."""
    losses, model = [], copy.deepcopy(problem.model).eval()
    for state in states:
        model.load_state_dict(state)
        with torch.no_grad():
            losses.append(nn.functional.cross_entropy(model(samples[0]), samples[1]).item())
    return losses


@pytest.mark.parametrize(
    "engine", beyond_pairs_in_faults(str(each) for each in ALL if each.base == "eager" and each.shares_rows)
)
def test_values_do_not_depend_on_how_points_are_grouped(engine, monkeypatch):
    problem, samples = pooled_problem()
    made = evaluator(problem, samples, engine)
    together = made.evaluate(POINTS).mean["loss"]
    monkeypatch.setattr("landscape.evaluation.evaluation_order.LARGEST_GROUP", 1)  # each point is a group of its own
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], together)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
@pytest.mark.slow
@pytest.mark.parametrize("engine", COMPILED)
def test_a_compiled_engine_keeps_its_promises(engine, plain):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler's own making
        values = _values_of_kept_promises(engine, plain)
    _agree(values, plain)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("engine", [str(each) for each in ALL if not {"maxima", "fused", "superposed"} & each.options])
def test_an_engine_agrees_on_a_gpu(engine):
    problem, samples = pooled_problem()
    losses = []
    for each in (Engine(), Engine.parse(engine)):
        made = _evaluator_on(torch.device("cuda:0"), problem, samples, each)
        losses.append(made.evaluate(POINTS).mean["loss"])
        np.testing.assert_array_equal(made.evaluate(POINTS[::-1]).mean["loss"][::-1], losses[-1])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def _evaluator_on(device, problem, samples, engine):
    plan = default_plan(21, device.type, "float32", "eval", 0, 8, None)
    plan = type(plan)(**{**vars(plan), "engine": engine})
    axes = [drawn(problem.model, 1), drawn(problem.model, 2)]
    return Evaluator(problem.model, samples, problem.observe, plan, device, state_of(problem.model), axes)


def test_stacked_points_are_those_of_one_after_the_other():
    problem, samples = pooled_problem()
    target = _target(problem, samples)
    with torch.no_grad():
        stacked = target.weights.stacked([[0.1, 0.2], [0.3, -0.4]])
        found = make_forward(target, Engine.parse("vmap:2"), remembering=False).observe_points(stacked, samples)
        for k in range(2):
            weights = {name: tensor[k] for name, tensor in stacked.items()}
            outputs = functional_call(target.model, weights, (samples[0],))
            losses = nn.functional.cross_entropy(outputs, samples[1], reduction="none")
            torch.testing.assert_close(found["loss"][k], losses, rtol=1e-5, atol=1e-6)
    with pytest.raises(NotImplementedError, match="one point after the other"):
        make_forward(target, Engine(), remembering=False).observe_points(stacked, samples)


def _target(problem, samples, **fields):
    plan = default_plan(21, "cpu", "float32", "eval", 0, 8, None)
    loaded = LoadedModel(problem.model, plan, CPU)
    weights = loaded.place(state_of(problem.model), [drawn(problem.model, 1), drawn(problem.model, 2)], plan.engine)
    return RewriteTarget(
        loaded.model, loaded.state, weights, problem.observe, plan, CPU, lambda: samples, **fields
    )  # fmt: skip


# -- state ---------------------------------------------------------------------------------------------------------


class Restless(nn.Module):
    """Assigns, counts and fills a list and a buffer at every call; the values depend on all of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.calls, self.kept = nn.Conv2d(1, 2, 3), 0, []
        self.norm = nn.BatchNorm2d(2)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.kept.append(self.calls)
        self.count += 1
        return torch.relu(self.norm(self.layer(x))).flatten(1) * self.calls * len(self.kept) + self.count


@pytest.mark.parametrize("engine", [each for each in HERE if not {"folded", "fused"} & Engine.parse(each).options])
def test_what_a_model_changes_is_put_back_or_the_engine_is_refused(engine):
    """The batch holds all samples, so that a point's value is that of the first call of a fresh model.

    Without the engines that trace: their graph holds what tracing saw, and a search refuses them by their values.
    """
    samples = pooled_problem()[1]
    problem = Problem(Restless(), samples, lambda model, batch: {"loss": model(batch[0]).mean(1)})
    points = np.array([[0.0], [0.5], [0.0], [-1.0], [0.5]])
    axis = [drawn(problem.model, 1)]
    expected = evaluator(problem, samples, batch_size=21, directions=axis).evaluate(points).mean["loss"]
    np.testing.assert_array_equal(expected[[0, 1]], expected[[2, 4]])
    parsed = Engine.parse(engine)
    if parsed.stacks or parsed.shares_rows:
        with pytest.raises((JobError, ValueError), match="change"):
            evaluator(problem, samples, engine, batch_size=21, directions=axis).evaluate(points)
    else:
        found = evaluator(problem, samples, engine, batch_size=21, directions=axis).evaluate(points)
        np.testing.assert_allclose(found.mean["loss"], expected, rtol=1e-5)
    assert problem.model.calls == 0
    assert problem.model.kept == []


# -- what a base does for rewrites ---------------------------------------------------------------------------------


class Witness(Rewrite):
    """Notes which of its hooks a base calls, and changes nothing."""

    def __init__(self):
        self.called = set()
        self.mode = Noting(self.called)
        self.compiler_passes = (self.mode,)

    @classmethod
    def applies(cls, target):
        return True

    @classmethod
    def install(cls, target, graph, taken):
        return cls()

    def refresh(self, point):
        self.called |= {"refresh"} if point is not None else set()

    def begin(self, batch):
        self.called |= {"calls"} if batch is not None else set()


class Noting(contextlib.AbstractContextManager):
    """A mode, and a pass of a compiler that is handed to it."""

    def __init__(self, called):
        self._called = called

    def __call__(self, graph):
        self._called.add("mode")

    def __enter__(self):
        self._called.add("mode")

    def __exit__(self, *cause):
        return None


@pytest.mark.parametrize("name", [name for name, base in BASES.items() if not base.needs_gpu])
def test_a_base_calls_the_hooks_that_its_line_in_the_table_names(name, monkeypatch):
    def compiled(model, backend, dynamic):  # the compiler's passes, without the compiler
        for change in backend.args[0]:
            change(None)
        return model

    problem, samples = pooled_problem()
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setitem(OPTIONS, "witness", Option(""))
    monkeypatch.setitem(REWRITES, "witness", Witness)
    made = evaluator(problem, samples, f"{name}+witness")
    witness = made.rewrites["witness"]
    made.evaluate(POINTS)
    assert witness.called == BASES[name].hooks


def test_what_a_base_does_not_do_for_a_rewrite_is_refused_however_the_engine_was_made(monkeypatch):
    """The hooks that a rewrite has a method for are among those that its line in the table asks for."""
    problem, samples = pooled_problem()
    target = _target(problem, samples)
    for name, rewrite in REWRITES.items():
        needs = OPTIONS[name].needs
        assert "refresh" in needs or rewrite.refresh is Rewrite.refresh
        assert "calls" in needs or rewrite.begin is Rewrite.begin
        for base in BASES:
            refused = base not in OPTIONS[name].bases
            assert refused == (not _parses(f"{base}+{name}"))
            if refused:
                with pytest.raises(ValueError, match=rf"^must .*, not '{base}(:1)?\+{name}'$"):
                    make_forward(target, Engine(base, frozenset({name})))
    monkeypatch.setitem(BASES, "bare", EngineBase("forward:Forward", frozenset()))
    assert _parses("bare+channels_last")
    with pytest.raises(ValueError, match=r"^must be eager or compile or cudagraph or vmap to be maxima, not 'bare"):
        Engine.parse("bare+maxima")


def test_a_rewrite_that_trusts_counters_leaves_with_its_mode():
    problem, samples = pooled_problem()
    forward = make_forward(_target(problem, samples), Engine.parse("eager+maxima"), remembering=False)
    witness = Witness()
    witness.trusts_counters = True
    forward = Forward(forward.model, problem.observe, forward.rewrites | {"witness": witness})
    forward.distrust_counters()
    with torch.no_grad():
        forward.observe(0, samples)
    assert list(forward.rewrites) == ["maxima"]
    assert witness.called == set()


# -- adding one ----------------------------------------------------------------------------------------------------


class Doubled(Rewrite):
    """A toy: every linear layer is computed in double precision."""

    points: list = []  # noqa: RUF012 - those that it was refreshed for, for the test

    def __init__(self, layers):
        self.layers = frozenset(layers)
        for layer in layers:
            layer.forward = lambda x, layer=layer: nn.functional.linear(
                x.double(), layer.weight.double(), layer.bias.double()
            ).float()

    @classmethod
    def applies(cls, target):
        return any(type(each) is nn.Linear for each in target.model.modules())

    @classmethod
    def install(cls, target, graph, taken):
        return cls([each for each in target.model.modules() if type(each) is nn.Linear and each not in taken])

    def refresh(self, point):
        self.points.append(point)

    def close(self):
        for layer in self.layers:
            del layer.forward


@pytest.fixture
def doubled(monkeypatch):
    """One more engine: a class, its line in the table, and its line of rules."""
    monkeypatch.setitem(OPTIONS, "doubled", Option("", frozenset({"refresh", "calls"}), "must be eager to be doubled"))
    monkeypatch.setitem(REWRITES, "doubled", Doubled)
    monkeypatch.setattr(Doubled, "points", [])


@pytest.mark.parametrize("engine", ["eager+doubled", "eager+channels_last+maxima+folded+doubled"])
def test_a_new_engine_is_a_class_and_its_lines_in_the_tables(engine, doubled, plain):
    problem, samples = pooled_problem()
    assert "doubled" in evaluator(problem, samples).possible_options()
    made = evaluator(problem, samples, engine)
    values = made.evaluate(POINTS, rise=True)
    _agree(values, plain)
    assert not np.array_equal(values.mean["loss"], plain.mean["loss"])
    assert made.plan.record()["engine"] == engine
    assert {tuple(point) for point in Doubled.points} == {tuple(point) for point in POINTS.tolist()}
    made.use(Engine())
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], plain.mean["loss"])
    with pytest.raises(ValueError, match=r"^must be eager to be doubled, not 'compile\+doubled'"):
        Engine.parse("compile+doubled")


# -- refusals ------------------------------------------------------------------------------------------------------


def test_an_engine_that_cannot_run_is_refused_at_every_call_until_another_is_used():
    problem, samples = pooled_problem()
    made = evaluator(problem, samples)
    expected = made.evaluate(POINTS).mean["loss"]
    bare = Problem.supervised(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), samples)
    other = evaluator(bare, samples)
    for _ in range(2):
        with pytest.raises(ValueError, match="no convolution is followed"):
            other.use(Engine.parse("eager+folded"))
        with pytest.raises(ValueError, match="no convolution is followed"):
            other.evaluate(POINTS)
    other.use(Engine())
    assert np.isfinite(other.evaluate(POINTS).mean["loss"]).all()
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], expected)


@pytest.mark.parametrize("engine", ["eager+superposed", "eager+maxima"])
def test_another_landscape_has_the_bits_that_a_fresh_evaluator_gives_it(engine):
    """A layer that did not move before, whose outputs were reused, may move now and be computed as sums."""
    problem, samples = pooled_problem()
    tail = [{"second.weight": torch.ones_like(problem.model.second.weight)}, {"head.bias": torch.ones(3)}]
    made = evaluator(problem, samples, directions=tail)
    made.evaluate(POINTS)
    whole = [drawn(problem.model, 1), drawn(problem.model, 2)]
    made.load(state_of(problem.model), whole)
    made.use(Engine.parse(engine))
    expected = evaluator(problem, samples, engine, directions=whole).evaluate(POINTS).mean["loss"]
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], expected)


def test_a_rewrite_that_fails_leaves_nothing_of_the_others_behind():
    """Superposed layers are taken over first; folding then finds a model that cannot be traced."""
    _, samples = pooled_problem()

    class Branching(nn.Sequential):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    torch.manual_seed(0)
    problem = Problem.supervised(Branching(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 3)), samples)
    made = evaluator(problem, samples)
    expected = made.evaluate(POINTS).mean["loss"]
    with pytest.raises(torch.fx.proxy.TraceError):
        made.use(Engine.parse("eager+folded+superposed"))
    taken_over = [name for name, module in made.evaluated_model.named_modules() if "forward" in vars(module)]
    assert not taken_over
    made.use(Engine())
    np.testing.assert_array_equal(made.evaluate(POINTS).mean["loss"], expected)
