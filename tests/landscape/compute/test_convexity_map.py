"""Convexity maps: the ends of the Hessian's spectrum at every point, against closed forms and dense algebra."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from curved import dense_hessian, labelled, mlp
from safetensors.torch import save_file
from small_models import make_job, raw_directions
from torch import nn

from landscape import Job, JobError, Problem, extend, open_run, refine, run
from landscape.compute.planning import plan_job, plan_text
from landscape.core.errors import Interrupted
from landscape.surface.surface import QUARANTINED
from landscape.views.draw.figure import figure
from landscape.views.prepare.figure import prepare_figure

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func itself
SEEDS = [{"kind": "random", "seed": seed} for seed in (3, 4)]
MAP = {"name": "map", "convexity": True, "size": [4, 3], "range": [[-1, 0.5], [-0.5, 1]], "directions": SEEDS}
NAMES = ("eig_max", "eig_max_residual", "eig_min", "eig_min_residual")


class Formula(nn.Module):
    """A loss of one weight matrix [1, n], the same for every sample; its bias moves no loss, and is left out."""

    def __init__(self, formula, weights) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([weights], dtype=torch.float64))
        self.bias = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.formula = formula

    def forward(self, batch):
        return self.formula(self.weights[0], self.bias[0]).expand(len(batch))


def observe(model, batch):
    return {"loss": model(batch)}


def problem_of(formula, weights=(0.3, -0.2)) -> Problem:
    return Problem(Formula(formula, list(weights)), torch.zeros(8, 1, dtype=torch.float64), observe)


def job_of(folder: Path, problem, *landscapes, **fields) -> Job:
    options = {"num_samples": 8, "precision": "float64", "engine": "eager", "tile": 2, **fields}
    return make_job(folder, lambda: problem, landscapes or [MAP], **options)


def network() -> Problem:
    return Problem.supervised(mlp((5, 6, 4)), labelled(), nn.CrossEntropyLoss(), [])


def network_job(folder: Path, *landscapes, **fields) -> Job:
    return job_of(folder, network(), *landscapes, num_samples=17, batch_size=7, **fields)


def arrays_of(folder: Path, name: str = "map") -> dict[str, np.ndarray]:
    return dict(open_run(folder)[name].observables)


def refusal(job: Job) -> str:
    with pytest.raises(JobError) as caught:
        run(job)
    assert str(caught.value).count("\n") <= 1
    assert not (Path(job.run) / "landscapes.zarr").exists()
    return str(caught.value)


# -- values ----------------------------------------------------------------------------------------------------------


def test_a_quadratic_has_the_same_ends_everywhere(tmp_path):
    curvature = torch.tensor([0.5, 1.0, 4.0, -0.25], dtype=torch.float64)
    problem = problem_of(lambda w, bias: (curvature * w**2).sum() / 2 + bias**2, (0.1, 0.2, 0.3, 0.4))
    surface = run(job_of(tmp_path, problem))["map"]
    assert surface.loss.shape == (3, 4)
    for name, value in (("eig_max", 4), ("eig_min", -0.25), ("eig_ratio", 0.0625)):
        np.testing.assert_allclose(surface[name], value, rtol=1e-12)
    for name in ("eig_max_residual", "eig_min_residual"):
        assert surface[name].max() < 1e-12
    assert np.isnan(surface.stderr("eig_max")).all()
    found = {"steps": 60, "parameters": 4, "second_derivatives": "autograd", "most": 240}
    assert surface.attributes["convexity"] == found
    assert (surface["eig_negative"] == 1).all()
    np.testing.assert_allclose(surface["eig_min_bound"], -0.25, rtol=1e-12)  # the whole spectrum was found


def test_a_saddle_has_the_ratio_of_its_second_derivatives(tmp_path):
    # ½a² − ¼b⁴: λ are 1 and −3b².
    problem = problem_of(lambda w, bias: w[0] ** 2 / 2 - w[1] ** 4 / 4)
    surface = run(job_of(tmp_path, problem))["map"]
    one, other = (stored["weights"][0, 1] for stored in raw_directions(tmp_path, "map"))
    b = -0.2 + surface.beta[:, None] * other + surface.alpha[None, :] * one
    assert (3 * b**2 < 1).all()
    np.testing.assert_allclose(surface["eig_min"], -3 * b**2, rtol=1e-9)
    np.testing.assert_allclose(surface["eig_ratio"], 3 * b**2, rtol=1e-9)


@pytest.fixture(scope="module")
def computed(tmp_path_factory) -> Path:
    """A map of a tanh network of 60 weights beside its biases."""
    folder = tmp_path_factory.mktemp("network")
    run(network_job(folder))
    return folder


def test_a_network_has_the_ends_of_its_dense_hessian_at_every_point(computed):
    surface, directions = open_run(computed)["map"], raw_directions(computed, "map")
    for index in np.ndindex(surface.loss.shape):
        model = mlp((5, 6, 4))
        point = surface.alpha[index[1]], surface.beta[index[0]]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                for coordinate, stored in zip(point, directions, strict=True):
                    parameter += coordinate * torch.tensor(stored[name]).double().reshape(parameter.shape)
        values = torch.linalg.eigvalsh(dense_hessian(model, labelled(), least_dimensions=2).detach()).numpy()
        assert len(values) == 54
        for name, value in (("eig_max", values[-1]), ("eig_min", values[0])):
            # An eigenvalue is nearer than its residual, and by the square of that where others are far.
            assert abs(surface[name][index] - value) <= surface[f"{name}_residual"][index] + 1e-12
            assert surface[f"{name}_residual"][index] <= max(0.01 * abs(value), 1e-3 * values[-1])
            assert surface[name][index] == pytest.approx(value, rel=1e-3, abs=1e-4 * values[-1])


def test_a_model_without_second_derivatives_gets_differences_and_says_so(tmp_path):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(context, slope):
            return 2 * context.saved_tensors[0] * slope

    problem = problem_of(lambda w, bias: Square.apply(w[0]) / 2 - w[1] ** 2 / 8)
    surface = run(job_of(tmp_path, problem))["map"]
    assert surface.attributes["convexity"]["second_derivatives"] == "differences"
    np.testing.assert_allclose(surface["eig_ratio"], 0.25, rtol=1e-6)
    assert "by differences of gradients in float64" in plan_text(plan_job(job_of(tmp_path / "other", problem)))


def test_a_function_of_the_users_may_have_an_attribute_called_name(tmp_path):
    class Named(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.name = "mine"
            context.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(context, slope):
            return 2 * context.saved_tensors[0] * slope

    problem = problem_of(lambda w, bias: Named.apply(w[0]) / 2 - w[1] ** 2 / 8)
    np.testing.assert_allclose(run(job_of(tmp_path, problem))["map"]["eig_ratio"], 0.25, rtol=1e-6)


@pytest.mark.faults
def test_points_between_those_of_a_refined_map_have_the_sign_of_their_values_or_none(tmp_path):
    """The Hessian is diag(w₀, 2): negative where w₀ is."""

    def cubic() -> Problem:
        return problem_of(lambda w, bias: w[0] ** 3 / 6 + w[1] ** 2, (0.1, 0.0))

    run(job_of(tmp_path, cubic(), {"name": "map", "convexity": True, "size": [11, 9], "range": [[-9, 9], [-9, 9]]}))
    refine(tmp_path, "map", factor=2, box=[(-9, -4), (-9, 9)], problem=cubic)
    merged = open_run(tmp_path)["map"].merged()
    assert (merged.interpolated > 0).any()
    (said,) = re.findall(
        r"[Aa] negative eigenvalue at (\d+) of (\d+) points(?:, undecided at (\d+))?",
        " ".join(prepare_figure(merged, "eig_min").caption),
    )
    negative, known, undecided = (int(count or 0) for count in said)
    assert negative == int((merged["eig_min"] < 0).sum())
    assert known - negative - undecided <= int((merged["eig_min"] >= 0).sum())
    assert undecided < known / 4


def test_points_without_a_finite_loss_have_no_eigenvalues(tmp_path):
    problem = problem_of(lambda w, bias: w[1] ** 2 - torch.log(w[0]))
    surface = run(job_of(tmp_path, problem))["map"]
    finite = np.isfinite(surface.loss)
    assert finite.any()
    assert not finite.all()
    for name in (*NAMES, "eig_ratio"):
        np.testing.assert_array_equal(np.isfinite(surface[name]), finite)


def test_a_plane_through_networks_has_its_map_and_their_losses(tmp_path):
    problem = problem_of(lambda w, bias: w[0] ** 2 + w[1] ** 2 / 4)
    places = [(0.3, -0.2), (1.3, 0.8), (-0.7, 1.0)]
    for number, place in enumerate(places):
        weights = {"weights": torch.tensor([place], dtype=torch.float64), "bias": torch.ones(1).double()}
        save_file(weights, tmp_path / f"{number}.safetensors")
    plane = [str(tmp_path / f"{number}.safetensors") for number in range(3)]
    surface = run(job_of(tmp_path, problem, {"name": "map", "plane": plane, "convexity": True, "size": 3}))["map"]
    np.testing.assert_allclose(surface["eig_ratio"], 0.25, rtol=1e-9)
    np.testing.assert_allclose(surface.networks.loss, [a**2 + b**2 / 4 for a, b in places], rtol=1e-12)


# -- tiles -----------------------------------------------------------------------------------------------------------


@pytest.mark.faults
def test_interrupted_refined_and_widened_maps_have_the_bits_of_those_computed_at_once(tmp_path):
    def curved() -> Problem:
        return problem_of(lambda w, bias: w[0] ** 4 + w[0] * w[1] ** 2 - w[1] * w[2] ** 2, (0.3, -0.2, 0.5))

    run(job_of(tmp_path / "whole", curved()))
    whole = arrays_of(tmp_path / "whole")
    narrow = {**MAP, "size": 3, "range": [[-0.5, 0.5], [-0.5, 1]]}
    asked = iter(range(1000))
    with pytest.raises(Interrupted):
        run(job_of(tmp_path / "stopped", curved()), stop=lambda: next(asked) > 30)
    assert 0 < np.isnan(arrays_of(tmp_path / "stopped")["eig_max"]).sum() < 12
    run(job_of(tmp_path / "stopped", curved()))
    run(job_of(tmp_path / "wider", curved(), narrow, tile=3))
    extend(tmp_path / "wider", "map", ranges=[(-1, 0.5), (-0.5, 1)], problem=curved)
    for folder in ("stopped", "wider"):
        for name, values in arrays_of(tmp_path / folder).items():
            np.testing.assert_array_equal(values, whole[name], err_msg=f"{folder} {name}")
    refine(tmp_path / "stopped", "map", factor=2, problem=curved)
    finer = run(job_of(tmp_path / "finer", curved(), {**MAP, "size": [7, 5]}))["map"]
    merged = open_run(tmp_path / "stopped")["map"].merged()
    for name in (*NAMES, "eig_ratio"):
        np.testing.assert_array_equal(merged[name], finer[name])


def test_an_engine_computes_the_loss_and_leaves_the_eigenvalues_as_they_are(computed, tmp_path):
    run(network_job(tmp_path, engine="vmap"))
    whole, found = arrays_of(computed), arrays_of(tmp_path)
    for name in NAMES:
        np.testing.assert_array_equal(found[name], whole[name])


def test_tiles_whose_derivatives_raise_are_given_up_and_tried_again_by_the_next_run(tmp_path):
    broken = [True]

    def formula(w, bias):
        if broken and torch.is_grad_enabled() and (w[0] - 0.3).abs() > 0.1:
            raise RuntimeError("no derivative here")
        return w[0] ** 2 + w[1] ** 4

    problem = problem_of(formula)
    surface = run(job_of(tmp_path, problem, tile=1))["map"]
    given_up = surface.status == QUARANTINED
    assert given_up.any()
    assert not given_up.all()
    assert np.isnan(surface["eig_max"][given_up]).all()
    assert np.isfinite(surface["eig_max"][~given_up]).all()
    broken.clear()
    mended = run(job_of(tmp_path, problem, tile=1))["map"]
    np.testing.assert_array_equal(mended["eig_max"][~given_up], surface["eig_max"][~given_up])
    assert np.isfinite(mended["eig_max"]).all()


def test_views_draw_the_ratio_and_say_what_it_is(computed):
    surface = open_run(computed)["map"]
    assert figure(surface, "contour", observable="eig_ratio").data
    said = " ".join(prepare_figure(surface, "eig_ratio").caption)
    assert "ig ratio = abs(eig_min/eig_max) of the Hessian of the mean loss of 17 samples" in said
    assert "Eig min of the Hessian of the mean loss of 17" in " ".join(prepare_figure(surface, "eig_min").caption)


# -- asking ----------------------------------------------------------------------------------------------------------


def test_defaults_hold_where_nothing_is_named():
    alone, other = {"name": "map", "convexity": True}, {"name": "plane"}
    job = Job(run="runs/x", problem="a:b", landscapes=[alone])
    assert (job.num_samples, job.landscapes[0].size) == (256, (11, 11))
    assert "num_samples" not in job.model_fields_set
    named = Job(run="runs/x", problem="a:b", num_samples=64, landscapes=[{**alone, "size": 5}])
    assert (named.num_samples, named.landscapes[0].size) == (64, (5, 5))
    mixed = Job(run="runs/x", problem="a:b", landscapes=[alone, other])
    assert (mixed.num_samples, [each.size for each in mixed.landscapes]) == (2048, [(11, 11), (41, 41)])
    without = Job(run="runs/x", problem="a:b", landscapes=[{**alone, "convexity": False}])
    assert (without.num_samples, without.landscapes[0].size) == (2048, (41, 41))
    steps = Job(run="runs/x", problem="a:b", landscapes=[{**alone, "convexity": {"steps": 7}}])
    assert steps.landscapes[0].convexity.steps == 7


@pytest.mark.parametrize("value", [3, "yes", [], {"steps": 0}, {"steps": 2.5}, {"step": 3}])
def test_what_is_no_convexity_is_refused_by_name(value):
    with pytest.raises(JobError, match=r"landscapes\.0\.convexity|convexity"):
        Job(run="runs/x", problem="a:b", landscapes=[{"name": "map", "convexity": value}])


def test_the_plan_shows_what_it_costs(tmp_path):
    plan = plan_job(network_job(tmp_path, {**MAP, "convexity": {"steps": 20}}))
    (landscape,) = plan["landscapes"]
    assert landscape["convexity"]["parameters"] == 54
    assert (landscape["convexity"]["evaluations"], landscape["convexity"]["all_evaluations"]) == (140, 1680)
    assert plan["seconds"] == pytest.approx((12 + 1680 + 2) * plan["seconds_per_point"] / plan["workers"])
    # 54 products where the sign stays open, each 7 points' time
    times = (12 + 12 * 54 * 7 + 2) / (12 + 1680 + 2)
    assert plan["times_as_long_where_signs_stay_open"] == pytest.approx(times)
    text = plan_text(plan)
    assert f"; up to {times:.2g} times as long where signs stay open" in text
    assert "at each point at most 20 products, about 140 forward passes' time beside the one of the loss" in text
    assert "240 products in all, about 1680 forward passes' time; by double backward in float64, whatever" in text


def test_other_steps_are_another_map(tmp_path, computed):
    with pytest.raises(JobError, match=r"changed: convexity \(?.*steps"):
        run(network_job(computed, {**MAP, "convexity": {"steps": 5}}))
    anew = r"after `landscape rm .* map` \(`landscape.remove_landscape`\)"
    with pytest.raises(JobError, match=rf"change it back, compute it anew {anew}, or give it another name or run"):
        run(
            job_of(
                computed, Problem.supervised(mlp((5, 6, 4)), labelled(30), nn.CrossEntropyLoss(), []), num_samples=30
            )
        )
    with pytest.raises(JobError, match="extended by samples: its eigenvalues would all be computed again"):
        extend(computed, "map", num_samples=30, problem=network)


def test_what_has_no_eigenvalues_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    square = problem_of(lambda w, bias: w.square().sum())
    assert "recalibrate" in refusal(job_of(tmp_path, square, batch_norm="recalibrate"))
    vectors = Problem(nn.BatchNorm1d(1).double(), torch.randn(8, 1).double(), lambda m, x: {"loss": m(x)[:, 0]})
    assert "a trainable parameter of two dimensions or more" in refusal(job_of(tmp_path, vectors))
    blind = problem_of(lambda w, bias: w.detach().square().sum())
    assert "no graph of gradients" in refusal(job_of(tmp_path, blind))
    raising = problem_of(lambda w, bias: torch.ones(1)[:, :, 0] if torch.is_grad_enabled() else w.square().sum())
    assert "taking them raised IndexError: too many indices" in refusal(job_of(tmp_path, raising))
    named = Problem(square.model, square.data, lambda model, batch: {"loss": model(batch), "eig_min": model(batch)})
    assert "'eig_min' is what observe returns already" in refusal(job_of(tmp_path, named))
    monkeypatch.setenv("LANDSCAPE_CURVATURE_BYTES", "40")
    assert "the vectors of the Lanczos method must take at most 40 bytes" in refusal(job_of(tmp_path, square))
