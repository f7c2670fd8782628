"""The origin, the error of a rise, and that only a process with the same bits goes on with a landscape."""

from __future__ import annotations

import copy
import itertools
import re

import numpy as np
import pytest
import torch
from chosen import chosen_rows
from small_models import conv_problem, make_job, quadratic_problem, wandering, write_trajectory
from torch import nn

from landscape import Problem, run
from landscape.compute.reproducibility import ReferencePoint, check_point
from landscape.core.errors import Interrupted, JobError
from landscape.core.grid import Grid
from landscape.core.plan import Engine, Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.job.directions.random import random_direction
from landscape.model.parameters import describe_parameters, state_of
from landscape.store.landscape import LandscapeStore


def stop_after(count: int):
    asked = itertools.count()
    return lambda: next(asked) >= count


# -- what has another value the second time ------------------------------------------------------------------------


class Counting(nn.Module):
    """Multiplies its output by how often it was called, which it keeps where a subclass's `count` says."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.linear = nn.Linear(4, 3)
        self.numbers, self.bytes = itertools.count(1), bytearray(1)

    def forward(self, x):
        return self.linear(x) * self.count()


def in_its_class(self):
    type(self).calls += 1
    return self.calls


def in_an_iterator(self):
    return next(self.numbers)


def in_bytes(self):
    self.bytes[0] += 1
    return self.bytes[0]


def by_the_clock(self):
    return np.random.default_rng().random()


@pytest.mark.parametrize("count", [in_its_class, in_an_iterator, in_bytes, by_the_clock])
def test_values_that_depend_on_what_was_evaluated_before_are_refused(tmp_path, count):
    kind = type("Counts", (Counting,), {"count": count})
    problem = Problem(kind(), torch.randn(6, 4), lambda model, batch: {"loss": model(batch).square().sum(1)})
    job = make_job(tmp_path, lambda: problem, [{"name": "p", "size": 3}], num_samples=6, engine="eager")
    with pytest.raises(
        JobError, match=r"^observe: must give the same values for the same weights and samples, not loss"
    ):
        run(job)


def test_a_module_whose_slots_a_copy_would_lose_is_refused(tmp_path):
    class Held(nn.Linear):
        __slots__ = ("calls",)

    model = Held(4, 3)
    model.calls = 0
    problem = Problem(model, torch.randn(6, 4), lambda model, batch: {"loss": model(batch).square().sum(1)})
    with pytest.raises(JobError, match=r"^model: Held.calls is in __slots__, which copies of a module lose"):
        run(make_job(tmp_path, lambda: problem, [{"name": "p", "size": 3}], num_samples=6))


# -- the error of a rise ------------------------------------------------------------------------------------------


def per_sample_losses(problem: Problem, samples, state: dict[str, torch.Tensor]) -> np.ndarray:
    """By a copy of the network with these weights, all samples at once."""
    model = copy.deepcopy(problem.model).eval()
    model.load_state_dict(state, strict=False)
    with torch.no_grad():
        return problem.observe(model, samples)["loss"].double().numpy()


@pytest.mark.parametrize("engine", ["eager", "eager+channels_last", "eager+folded", "eager+superposed", "vmap:3"])
def test_the_error_of_a_rise_is_that_of_paired_differences(engine):
    problem = conv_problem(count=21)
    origin, infos = state_of(problem.model), describe_parameters(problem.model)
    directions = [random_direction(origin, infos, seed) for seed in (1, 2)]
    samples = chosen_rows(problem.data, 19, seed=0)
    plan = Plan(batch_size=8, threads=1, device="cpu", engine=Engine.parse(engine))
    evaluator = Evaluator(problem.model, samples, problem.observe, plan, torch.device("cpu"), origin, directions)
    points = np.array([[0.3, -0.2], [0.0, 0.0], [0.3, 0.5], [-1.0, 0.01]])
    found = evaluator.evaluate(points, rise=True)

    at_origin = per_sample_losses(problem, samples, origin)
    for k, point in enumerate(points):
        moved = {
            name: origin[name] + sum(c * d[name] for c, d in zip(point, directions, strict=True) if name in d)
            for name in origin
        }
        rises = per_sample_losses(problem, samples, moved) - at_origin
        assert found.rise_stderr[k] == pytest.approx(rises.std(ddof=1) / np.sqrt(19), rel=1e-4, abs=1e-7)
    assert found.rise_stderr[1] == 0  # exactly: the same bits are subtracted
    assert evaluator.origin().mean["loss"][0] == found.mean["loss"][1]
    assert evaluator.origin().stderr["loss"][0] == found.stderr["loss"][1]


def test_near_the_origin_a_rise_is_known_far_better_than_a_mean(tmp_path):
    problem = conv_problem(count=40)
    found = run(make_job(tmp_path, lambda: problem, [{"name": "p", "size": 5, "range": [-0.02, 0.02]}]))["p"]
    off = np.ones((5, 5), bool)
    off[2, 2] = False
    assert (found.rise_stderr[off] > 0).all()
    assert (found.rise_stderr[off] < 0.2 * found.stderr()[off]).all()
    assert found.rise_stderr[2, 2] == 0


def test_the_error_of_a_rise_is_the_same_in_closed_form(tmp_path):
    """Of ½·Σ aⱼ(θⱼ − xᵢⱼ)² the rise along d is linear in the sample: sd = |α|·sd(Σ aⱼdⱼxᵢⱼ)."""
    problem = quadratic_problem(torch.float64)
    line = {"name": "l", "directions": [{"kind": "random", "ignore": []}], "size": 7}
    job = make_job(tmp_path, lambda: problem, [line], precision="float64")
    found = run(job)["l"]
    model = problem.model
    direction = random_direction(state_of(model), describe_parameters(model), 1, "filter", ())
    flat = torch.cat([direction[name].double().reshape(-1) for name in ("matrix", "vector", "scalar")])
    slopes = (problem.data @ (model.curvature * flat)).numpy()
    expected = np.abs(found.alpha) * slopes.std(ddof=1) / np.sqrt(len(slopes))
    np.testing.assert_allclose(found.rise_stderr, expected, rtol=1e-9, atol=1e-15)


# -- the origin ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 5])
def test_the_loss_at_the_origin_is_kept_though_no_point_of_the_grid_may_be_there(tmp_path, size):
    problem = conv_problem(count=30)
    found = run(make_job(tmp_path, lambda: problem, [{"name": "p", "size": size}], batch_size=8))["p"]
    samples = chosen_rows(problem.data, len(problem.data[0]), seed=0)
    losses = per_sample_losses(problem, samples, state_of(problem.model))
    assert found.origin_loss == pytest.approx(losses.mean(), rel=1e-6)
    assert found.origin_loss_stderr == pytest.approx(losses.std(ddof=1) / np.sqrt(len(losses)), rel=1e-6)
    assert bool((found.loss == found.origin_loss).any()) == (size == 5)


def test_the_origin_is_that_of_the_landscape_and_not_of_the_callback(tmp_path):
    problem = conv_problem(count=12)
    states = wandering(problem.model, 4, 0.2)
    write_trajectory(tmp_path, states)
    found = run(make_job(tmp_path, lambda: problem, [{"name": "p", "trajectory": "all", "size": 4}]))["p"]
    samples = chosen_rows(problem.data, 12, seed=0)
    assert found.origin_loss == pytest.approx(per_sample_losses(problem, samples, states[max(states)]).mean(), rel=1e-6)


# -- the same bits ------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Whose activation is no weight: nothing on disk tells that it was changed."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.activation, self.last = nn.Linear(3, 8), activation, nn.Linear(8, 1)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x):
        return self.last(self.activation(self.first(x)))


def with_activation(activation: nn.Module):
    data = torch.randn(16, 3, generator=torch.Generator().manual_seed(2))
    return lambda: Problem(Net(activation), data, lambda model, batch: {"loss": model(batch)[:, 0] ** 2})


PLANE = {"name": "p", "size": [6, 5]}


def test_code_that_changed_since_the_interruption_is_refused(tmp_path):
    before = make_job(tmp_path, with_activation(nn.ReLU()), [PLANE], tile=3, batch_size=16)
    with pytest.raises(Interrupted):
        run(before, stop=stop_after(16))
    kept = LandscapeStore.open(str(tmp_path), "p").read_surface()
    assert 0 < (kept.status == 1).sum() < 30
    after = make_job(tmp_path, with_activation(nn.Tanh()), [PLANE], tile=3, batch_size=16)
    with pytest.raises(
        JobError, match=r"landscape 'p' was computed on this processor, .*, by other code or with other versions"
    ) as refused:
        run(after)
    assert "go back to those, or give it another name or run" in str(refused.value)
    found = LandscapeStore.open(str(tmp_path), "p").read_surface()
    np.testing.assert_array_equal(found.loss, kept.loss)
    # Changed back, it goes on to the bytes of a run that was never interrupted.
    whole = run(make_job(tmp_path / "whole", with_activation(nn.ReLU()), [PLANE], tile=3, batch_size=16))["p"]
    assert run(before)["p"].loss.tobytes() == whole.loss.tobytes()


def test_code_that_changed_between_two_landscapes_of_a_run_is_refused(tmp_path):
    """The second one holds nothing yet that it could contradict; the first one has the same origin."""
    before = make_job(tmp_path, with_activation(nn.ReLU()), [PLANE], batch_size=16)
    run(before)
    both = [PLANE, {"name": "q", "size": [3, 3], "directions": [{"kind": "random", "seed": each} for each in (5, 6)]}]
    after = make_job(tmp_path, with_activation(nn.Tanh()), both, batch_size=16)
    with pytest.raises(
        JobError, match="landscape 'q' would be of another network than the rest of this run"
    ) as refused:
        run(after)
    assert "as landscape 'p' of this run" in str(refused.value)
    assert not (LandscapeStore.open(str(tmp_path), "q").read_surface().status == 1).any()
    # With the code as it was it is computed, and so it is where the samples differ.
    assert (run(make_job(tmp_path, with_activation(nn.ReLU()), both, batch_size=16))["q"].status == 1).all()
    fewer = [{**both[1], "name": "r"}]
    other = make_job(tmp_path, with_activation(nn.Tanh()), fewer, batch_size=16, num_samples=9)
    assert (run(other)["r"].status == 1).all()


@pytest.mark.long
@pytest.mark.parametrize(
    "record",
    [None, 7, {}, {"point": [0.1, 0.2]}, {"point": "ab", "values": {"loss": "x"}}, {"point": [1], "values": {}}],
)
def test_a_damaged_record_is_replaced_by_a_point_of_the_grid(tmp_path, record):
    job = make_job(tmp_path, with_activation(nn.ReLU()), [PLANE], tile=3, batch_size=16)
    with pytest.raises(Interrupted):
        run(job, stop=stop_after(16))
    LandscapeStore.open(str(tmp_path), "p", write=True).update_attributes(check=record)
    with pytest.raises(JobError, match="by other code"):
        run(make_job(tmp_path, with_activation(nn.Tanh()), [PLANE], tile=3, batch_size=16))
    assert (run(job)["p"].status == 1).all()


def test_user_code_that_raises_at_the_point_costs_its_own_tile_alone(tmp_path):
    def observe(model, batch):
        if float(model.weight) == 0.25:
            raise ValueError("no value here")
        return {"loss": (model(batch) ** 2)[:, 0]}

    def problem():
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return Problem(model, torch.ones(4, 1), observe)

    from safetensors.torch import save_file

    save_file({"weight": torch.ones(1, 1)}, tmp_path / "d.safetensors")
    line = {"name": "l", "directions": [{"kind": "file", "path": str(tmp_path / "d.safetensors")}], "size": 5,
            "range": [-0.5, 0.5]}  # fmt: skip
    found = run(make_job(tmp_path / "run", problem, [line], tile=1))["l"]
    assert found.status.tolist() == [1, 1, 1, 3, 1]


def test_the_point_is_off_the_origin_along_every_axis():
    grid = Grid(("alpha", "beta"), (np.array([-1, -0.5, 0, 0.5, 1.0]), np.array([0.2, 0.4, 0.6])))
    assert check_point(grid) == (-0.5, 0.2)


def test_every_bit_of_a_witness_is_kept_and_compared():
    values = {"loss": 0.1, "loss_stderr": float("nan"), "far": float("inf"), "least": -0.0}
    one = ReferencePoint((0.1,), values, {"loss": float("nan")})
    assert one.origin_value("loss") is None
    assert {name: float.fromhex(text).hex() for name, text in one.record().values.items()} == {
        name: value.hex() for name, value in values.items()
    }
    assert one.differs_from(one) == ""
    for name, other in {"loss": np.nextafter(0.1, 1), "loss_stderr": 1.0, "far": -np.inf, "least": 0.0}.items():
        assert name in one.differs_from(ReferencePoint((0.1,), values | {name: float(other)}, {}))
    assert (
        one.differs_from(ReferencePoint((0.1,), {"loss": 0.1}, {})) == ""
    )  # what the other does not know is no difference


# -- what is shown ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_origin_and_the_error_of_the_rise_are_shown(tmp_path):
    from landscape.views.prepare.tables import observable_rows

    problem = conv_problem(count=30)
    line = {"name": "l", "directions": [{"kind": "random", "seed": 1}], "size": 8, "range": [-0.1, 0.1]}
    surfaces = run(make_job(tmp_path, lambda: problem, [line, {"name": "p", "size": 4}]))
    for surface in surfaces.values():
        rows = dict(observable_rows(surface, "loss"))
        shown = re.match(r"([\d.]+) ± ([\d.]+) \(2 s\.e\.\)", rows["at the origin"])
        assert shown is not None, rows["at the origin"]
        assert float(shown[1]) == pytest.approx(surface.origin_loss, abs=float(shown[2]) / 10)
        assert "the origin" in rows["lowest"]
        assert "standard error of the rise, median" in rows
        assert "rise over the origin" not in dict(observable_rows(surface, "accuracy"))["lowest"]
        drawn = surface.figure()
        assert f"Loss there: {shown[0]}" in drawn.layout.meta["caption"]
    curve, plane = surfaces["l"].figure("curve"), surfaces["p"].figure("contour")
    band = next(trace for trace in curve.data if trace.meta and trace.meta.get("role") == "band")
    assert band.name == "± 2 standard errors of the rise over the origin"
    upper = np.array(band.y[:8], float)
    np.testing.assert_allclose(upper, surfaces["l"].loss + 2 * surfaces["l"].rise_stderr)
    pointed = next(trace for trace in plane.data if trace.customdata is not None)
    raw = np.asarray(pointed.customdata, float)
    np.testing.assert_allclose(raw[..., 2], surfaces["p"].loss - surfaces["p"].origin_loss, rtol=1e-6)
    np.testing.assert_allclose(raw[..., 3], 2 * surfaces["p"].rise_stderr, rtol=1e-6)
    assert "rise over the origin %{customdata[2]" in pointed.hovertemplate
