"""The sign of the smallest eigenvalue in convexity maps, against dense Hessians of eight small networks in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from safetensors.torch import save_file
from signed_networks import COUNT, NETWORKS, dense_hessian, network, problem_of
from small_models import make_job, raw_directions

from landscape import Axis, Problem, run
from landscape.compute.lanczos import lanczos
from landscape.surface.record_entries import NO, UNDECIDED, YES, ZERO
from landscape.surface.surface import OK, Surface
from landscape.views.draw.figure import figure
from landscape.views.draw.style import colour_scale, colours_at, colours_of
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.scale import NO_SIGN, UNRESOLVED

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch.func itself
# What the rounding of float32 moves a smallest eigenvalue by, as measured: of the largest one, and of itself.
ROUNDED, ROUNDED_OF_ITSELF = 5e-6, 1e-4


@dataclass(frozen=True)
class Judged:
    """A map beside the dense Hessians: λmin and max abs(λ) at each point."""

    surface: Surface
    smallest: np.ndarray
    largest: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """Where a sign that is decided is another one than that of the dense Hessian."""
        negative, share = self.surface["eig_negative"], self.smallest / self.largest
        return ((negative == YES) & (share >= 0)) | ((negative == NO) & (share < -ZERO - ROUNDED))

    def row(self, name: str, epochs: int) -> str:
        """A line of the table."""
        negative, total = self.surface["eig_negative"], self.smallest.size
        counts = [int((negative == each).sum()) for each in (YES, NO, UNDECIDED)]
        return (
            f"{name:<12} {epochs:>5} steps: {total} cells, {total - counts[2]} decided ({counts[0]} negative, "
            f"{counts[1]} not), {int(self.wrong.sum())} wrong"
        )


def judged(folder: Path, name: str, epochs: int, size: int, precision: str = "float32") -> Judged:
    """The map of a network, and its dense Hessian at each point of it."""
    landscape = {"name": "map", "convexity": True, "size": size, "range": [-0.03, 0.03]}
    options = {"num_samples": COUNT, "precision": precision, "engine": "eager"}
    surface = run(make_job(folder, lambda: problem_of(name, epochs), [landscape], **options))["map"]
    directions, (model, data, observe) = raw_directions(folder, "map"), network(name, epochs)
    smallest, largest = np.empty(surface.loss.shape), np.empty(surface.loss.shape)
    for j, i in np.ndindex(surface.loss.shape):
        moved = copy.deepcopy(model).double()
        with torch.no_grad():
            for key, parameter in moved.named_parameters():
                for at, stored in zip((surface.alpha[i], surface.beta[j]), directions, strict=True):
                    if key in stored:
                        parameter += at * torch.tensor(stored[key]).double().reshape(parameter.shape)
        values = torch.linalg.eigvalsh(dense_hessian(moved, data, observe)).numpy()
        smallest[j, i], largest[j, i] = values[0], np.abs(values).max()
    return Judged(surface, smallest, largest)


def check(found: Judged, name: str, epochs: int) -> None:
    print(found.row(name, epochs))
    surface = found.surface
    assert not found.wrong.any()
    assert (surface["eig_negative"] != UNDECIDED).mean() >= 0.9
    slack = ROUNDED * found.largest + ROUNDED_OF_ITSELF * np.abs(found.smallest)
    assert (surface["eig_min_bound"] <= found.smallest + slack).all()
    assert (surface["eig_min"] >= found.smallest - slack).all()


LARGE = ("attention", "batch norm", "burgers", "convolution", "dead units")  # a dense Hessian takes seconds


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.faults] * (name in LARGE)) for name in NETWORKS]
)
def test_no_decided_sign_is_wrong(tmp_path, name):
    check(judged(tmp_path, name, 150, 3), name, 150)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("epochs", [0, 1500])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_decided_sign_is_wrong_on_larger_maps(tmp_path, name, epochs, precision):
    check(judged(tmp_path, name, epochs, 5, precision), name, epochs)


def softmax_regression(loss: float) -> Problem:
    """Softmax regression trained to a loss: it is convex, and its smallest eigenvalue is 0."""
    draw = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(200, 20, generator=draw)
    labels = x[:, :4].argmax(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(20, 4)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.5)
    while (value := torch.nn.functional.cross_entropy(model(x), labels)).item() > loss:
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return Problem.supervised(model, (x, labels))


@pytest.mark.parametrize("loss", [1e-4, pytest.param(1e-6, marks=pytest.mark.faults)])
def test_the_rounding_of_a_small_loss_proves_no_negative_eigenvalue(tmp_path, loss):
    landscape = {"name": "map", "convexity": True, "size": 3, "range": [-0.1, 0.1]}
    surface = run(make_job(tmp_path, lambda: softmax_regression(loss), [landscape], num_samples=200))["map"]
    assert (surface["eig_min"] < -1e-5 * surface["eig_max"]).any()  # rounding, which says that it is negative
    assert not (surface["eig_negative"] == YES).any()


class HeadInFloat32(torch.nn.Linear):
    """Names float32 in its own code, so that it does not compute in float64."""

    def forward(self, x):
        return super().forward(x.float())


def test_a_model_that_does_not_compute_in_float64_has_undecided_signs(tmp_path):
    torch.manual_seed(0)
    problem = Problem.supervised(HeadInFloat32(5, 3), (torch.randn(24, 5), torch.arange(24) % 3))
    landscape = {"name": "map", "convexity": True, "size": 3}
    surface = run(make_job(tmp_path, lambda: problem, [landscape], num_samples=24))["map"]
    assert np.isfinite(surface["eig_min"]).all()
    assert (surface["eig_negative"] == UNDECIDED).all()


# -- the bound -------------------------------------------------------------------------------------------------------


def of_values(values: np.ndarray, steps: int, seed: int):
    return lanczos(lambda vector: values * vector, len(values), (), steps=steps, seed=seed)


@pytest.mark.parametrize("steps", [3, 10, 40, 120])
def test_no_eigenvalue_is_below_the_bound(steps):
    bulk = np.random.default_rng(0).normal(0, 1e-3, 300)
    values = np.concatenate([[-0.01], bulk, [1.0, 3.0, 10.0]])
    found = [of_values(values, steps, seed) for seed in range(20)]
    bounds = np.array([each.lower_bound() for each in found])
    assert (bounds <= values.min() + 1e-12).all()
    assert all(values.min() <= each.ritz_values()[0][0] + 1e-12 for each in found)
    assert np.median(bounds) > {3: -1e5, 10: -1e4, 40: -0.05, 120: -0.0101}[steps]  # it says something, too


def test_the_bound_is_missed_about_as_often_as_its_chance_says():
    # With two thirds of chance it must be missed at times, or it would say less than it can.
    values = np.concatenate([[-1.0], np.linspace(0, 1, 199)])
    missed = np.mean([of_values(values, 6, seed).lower_bound(chance=0.5) > -1 for seed in range(400)])
    assert missed <= 0.5
    assert np.mean([of_values(values, 6, seed).lower_bound(chance=1e-3) > -1 for seed in range(400)]) <= 0.01


def test_a_whole_spectrum_has_its_smallest_value_as_the_bound():
    assert of_values(np.array([-0.5, 0.0, 0.0, 2.0]), 4, 0).lower_bound() == pytest.approx(-0.5, abs=1e-12)
    assert of_values(np.zeros(5), 3, 0).lower_bound() == 0
    assert np.isnan(of_values(np.full(5, np.nan), 3, 0).lower_bound())


def test_lanczos_goes_on_while_a_question_is_open_and_no_further_than_most():
    values = np.linspace(1, 2, 100)
    assert lanczos(lambda vector: values * vector, 100, (1,), is_open=lambda krylov: krylov.steps < 30).steps == 30
    krylov = lanczos(lambda vector: values * vector, 100, (1,), steps=5, is_open=lambda krylov: True, most=20)
    assert krylov.steps == 20
    assert lanczos(lambda vector: values * vector, 100, (), steps=5, most=20).steps == 5


def test_a_hessian_that_is_not_finite_costs_no_more_steps_than_its_ranks_need():
    asked = []

    def product(vector):
        asked.append(vector)
        return np.full_like(vector, np.nan)

    krylov = lanczos(product, 500, (1, -1), is_open=lambda krylov: krylov.has_open_sign(True), most=240)
    assert np.isnan(krylov.ritz_values()[0]).all()
    assert len(asked) == 2
    assert not krylov.has_open_sign(True)
    assert lanczos(product, 500, (), steps=7).steps == 7  # of as many steps as were asked for


@pytest.mark.parametrize("bad", [1, 2, 4])
def test_one_product_that_is_not_finite_leaves_no_eigenvalue_known(bad):
    asked = []

    def product(vector):
        asked.append(vector)
        return np.full_like(vector, np.nan) if len(asked) == bad else np.linspace(-1, 2, 20) * vector

    krylov = lanczos(product, 20, (1, -1))
    assert np.isnan(krylov.pair(1).value)
    assert krylov.negative(False) == UNDECIDED


# -- what stays open -------------------------------------------------------------------------------------------------


class Diagonal(torch.nn.Module):
    """½·Σ λᵢ·wᵢ² of one matrix: its Hessian has the eigenvalues λ everywhere."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(1, len(values), dtype=torch.float64))
        self.values = torch.tensor(values)

    def forward(self, batch):
        return ((self.values * self.weights**2).sum() / 2).expand(len(batch))


def diagonal(values: np.ndarray) -> Problem:
    return Problem(Diagonal(values), torch.zeros(4, 1, dtype=torch.float64), lambda model, x: {"loss": model(x)})


# In a bulk around zero, which few steps do not resolve: one eigenvalue is below.
HARD = np.concatenate([np.linspace(1e-3, 1, 150), [-1e-4, 2.0]])


def map_of(folder: Path, values: np.ndarray, convexity=True, size=(4, 3)) -> Surface:
    options = {"num_samples": 4, "precision": "float64", "engine": "eager"}
    landscape = {"name": "map", "convexity": convexity, "size": list(size)}
    return run(make_job(folder, lambda: diagonal(values), [landscape], **options))["map"]


def test_a_sign_that_is_not_found_is_undecided_and_drawn_so(tmp_path):
    surface = map_of(tmp_path, HARD, {"steps": 3})
    assert surface.attributes["convexity"]["most"] == 12
    assert (surface["eig_min"] > 0).all()  # and the smallest eigenvalue is below 0
    assert (surface["eig_negative"] == UNDECIDED).all()
    for name in ("eig_min", "eig_ratio"):
        data = prepare_figure(surface, name)
        assert (data.states == NO_SIGN).all()
        assert np.isnan(data.drawn).all()
        assert "A negative eigenvalue at 0 of 12 points, undecided at 12" in data.caption
        drawn = figure(surface, "contour", observable=name)
        assert next(each.name for each in drawn.data if each.showlegend) == "sign undecided: 12 points"
    said = " ".join(str(each) for each in figure(surface, observable="eig_negative").data)
    assert "undecided" in said
    assert (prepare_figure(surface, "eig_max").states == OK).all()


@pytest.mark.faults
def test_more_steps_decide_what_few_leave_open(tmp_path):
    surface = map_of(tmp_path, HARD, {"steps": 160}, (3, 3))  # all points have one Hessian
    assert (surface["eig_negative"] == YES).all()
    np.testing.assert_allclose(surface["eig_min"], -1e-4, rtol=0.1)
    lifted = map_of(tmp_path / "lifted", np.where(HARD < 0, 0.0, HARD), {"steps": 160}, (3, 3))
    assert (lifted["eig_negative"] == NO).all()
    np.testing.assert_allclose(lifted["eig_min_bound"], 0, atol=2 * ZERO)


def test_a_negative_value_within_its_residual_keeps_its_sign_and_loses_its_size():
    axis = Axis("alpha", np.array([0.0, 1.0, 2.0, 3.0]))
    observables = {
        "loss": np.ones(4),
        "eig_max": np.full(4, 10.0),
        "eig_max_residual": np.zeros(4),
        "eig_min": np.array([-0.1, -0.1, 0.1, 0.1]),
        "eig_min_residual": np.array([0.01, 0.3, 0.3, 0.01]),
        "eig_min_bound": np.array([-0.2, -0.9, -0.9, -0.9]),
        "eig_negative": np.array([1.0, 1.0, 2.0, 2.0]),
    }
    how = {"convexity": {"steps": 60, "parameters": 9, "second_derivatives": "autograd", "most": 240}}
    surface = Surface("map", (axis,), observables, np.ones(4, np.uint8), attributes=how)
    data = prepare_figure(surface, "eig_min")
    assert data.states.tolist() == [OK, UNRESOLVED, NO_SIGN, NO_SIGN]
    (said,) = (each for each in data.caption if "negative eigenvalue" in each)
    assert said.startswith("A negative eigenvalue at 2 of 4 points, undecided at 2; at 1 of the negative ones")


def test_a_value_that_counts_as_zero_has_hardly_a_colour():
    """Else the rounding of a convex loss is as blue as a valley, under a caption that says that nothing is negative."""
    data = of_smallest([-3.5e-6, -1e-6, 2e-6], [NO, NO, NO])
    colours = [np.array(_rgb(each)) for each in colours_of(None, data.scale, data.values)]
    assert min(each.min() for each in colours) > 230
    mixed = of_smallest([-3.5e-6, -1.0, 2e-6], [NO, YES, NO])
    assert colours_of(None, mixed.scale, mixed.values)[1] == colours_at("rdbu", np.array([0.0]))[0]  # full, as before
    near = of_smallest([-3.5e-6, -1e-4, 2e-6], [NO, YES, NO])
    assert colours_of(None, near.scale, near.values)[1] == colours_at("rdbu", np.array([0.0]))[0]


def of_smallest(values: list[float], negative: list[int]):
    """The figure of a map with these smallest eigenvalues, of which the largest is 10."""
    observables = {
        "loss": np.ones(len(values)),
        "eig_max": np.full(len(values), 10.0),
        "eig_max_residual": np.zeros(len(values)),
        "eig_min": np.array(values),
        "eig_min_residual": np.zeros(len(values)),
        "eig_min_bound": np.array(values) - 1e-7,
        "eig_negative": np.array(negative, float),
    }
    how = {"convexity": {"steps": 60, "parameters": 9, "second_derivatives": "autograd", "most": 240}}
    axis = Axis("alpha", np.arange(len(values), dtype=float))
    return prepare_figure(
        Surface("map", (axis,), observables, np.ones(len(values), np.uint8), attributes=how), "eig_min"
    )


def test_captions_and_hatches_have_the_signs_that_the_map_holds():
    """A point that went over to differences in float64 has a sign that would be within rounding in float32."""
    observables = {
        "loss": np.ones(3),
        "eig_max": np.full(3, 10.0),
        "eig_max_residual": np.zeros(3),
        "eig_min": np.full(3, -5e-5),
        "eig_min_residual": np.zeros(3),
        "eig_min_bound": np.full(3, -1e-3),
        "eig_negative": np.array([float(YES), float(UNDECIDED), np.nan]),
    }
    how = {"convexity": {"steps": 60, "parameters": 9, "second_derivatives": "autograd", "most": 240}}
    axis = Axis("alpha", np.array([0.0, 1.0, 2.0]))
    surface = Surface("map", (axis,), observables, np.ones(3, np.uint8), attributes=how)
    data = prepare_figure(surface, "eig_min")
    assert data.states.tolist() == [OK, NO_SIGN, NO_SIGN]
    assert any(each.startswith("A negative eigenvalue at 1 of 3 points, undecided at 2") for each in data.caption)


# -- colours ---------------------------------------------------------------------------------------------------------


class Bent(torch.nn.Module):
    """2a² + b³/6: the eigenvalues are 4 and b."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor([[1.0, 0.0]], dtype=torch.float64))

    def forward(self, batch):
        a, b = self.weights[0]
        return (2 * a**2 + b**3 / 6).expand(len(batch))


@pytest.fixture(scope="module")
def bent(tmp_path_factory) -> Surface:
    folder = tmp_path_factory.mktemp("bent")
    for number, place in enumerate([(1.0, 0.0), (2.0, 0.0), (1.0, 1.0)]):
        save_file({"weights": torch.tensor([place], dtype=torch.float64)}, folder / f"{number}.safetensors")
    plane = [str(folder / f"{number}.safetensors") for number in range(3)]
    landscape = {"name": "map", "plane": plane, "convexity": True, "size": 5, "range": [[-0.5, 0.5], [-0.25, 1]]}
    problem = Problem(Bent(), torch.zeros(4, 1, dtype=torch.float64), lambda model, x: {"loss": model(x)})
    options = {"num_samples": 4, "precision": "float64", "engine": "eager"}
    return run(make_job(folder, lambda: problem, [landscape], **options))["map"]


def test_colours_of_signed_values_are_pale_at_0(bent):
    assert bent["eig_min"].min() < 0 < bent["eig_min"].max()
    assert ((bent["eig_negative"] == YES) == (bent["eig_min"] < 0)).all()
    data = prepare_figure(bent, "eig_min")
    assert data.scale.signed
    scale = replace(data.scale, low=-1.0, high=3.0)
    below, zero, above = (np.array(_rgb(each)) for each in colours_of(None, scale, np.array([-1.0, 0.0, 1.0])))
    assert zero.min() > 240  # pale
    assert below[2] > below[0]  # blue
    assert above[0] > above[2]  # red
    table = dict(colour_scale(None, scale))
    assert np.abs(np.array(_rgb(table[0.25])) - zero).max() <= 2  # where 0 lies between −1 and 3
    assert (
        "Colours are pale at 0, blue below and red above" in figure(bent, observable="eig_min").layout.meta["caption"]
    )
    for name in ("viridis", "cividis"):  # a scale that is named is used
        assert "Colours are pale" not in figure(bent, observable="eig_min", colour_scale=name).layout.meta["caption"]
        assert colours_of(name, scale, np.array([-1.0, 3.0])) == colours_at(name, np.array([0.0, 1.0]))
    for name, is_pale in ((None, True), ("viridis", False), ("rdbu", True)):  # matplotlib has the same colours
        drawn = bent.plot(kind="topographic", observable="eig_min", colour_scale=name)
        colours = np.concatenate(
            [np.atleast_2d(each.get_facecolor()) for each in drawn.collections if len(each.get_facecolor())]
        )
        assert (colours[:, :3].min(axis=1) > 0.9).any() == is_pale
    pyplot.close("all")
    assert not prepare_figure(bent, "eig_max").scale.signed
    for theme in ("light", "dark"):
        lines = [
            each for each in figure(bent, "contour", observable="eig_min", theme=theme).data if each.type == "contour"
        ]
        assert {each.line.dash for each in lines} == {"dash", "solid"}
    for kind in ("topographic", "contour", "surface"):
        bent.plot(kind=kind, observable="eig_min")  # the same colours on matplotlib's axes
        pyplot.close()
    assert not prepare_figure(bent, "eig_min", log=True).scale.signed


def _rgb(text: str) -> tuple[int, ...]:
    return tuple(int(float(part)) for part in text[4:-1].split(","))
