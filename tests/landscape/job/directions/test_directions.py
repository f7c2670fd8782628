"""Directions against numpy, scikit-learn and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_models import (
    ConvNet,
    Quadratic,
    combine,
    conv_problem,
    flat,
    image_samples,
    make_job,
    quadratic_problem,
    raw_directions,
    wandering,
    write_trajectory,
)
from torch import nn

from landscape import JobError, run
from landscape.compute.prepare import DEFAULTS
from landscape.core.validation import counted
from landscape.job.directions.file import supplied_direction
from landscape.job.directions.plane import towards_direction
from landscape.job.directions.random import random_direction
from landscape.job.directions.tensors import cosines, principal_components, project, random_walk_variance
from landscape.model.parameters import describe_parameters, state_of

NAMES = ("matrix", "vector", "scalar")


def parts(model: nn.Module):
    return state_of(model), describe_parameters(model)


def vectors(states, names=NAMES) -> np.ndarray:
    return np.stack([flat(state, names) for state in states])


def dense(component, like, names=NAMES) -> np.ndarray:
    """A direction as a vector; tensors that it leaves out are zero."""
    return flat({name: component.get(name, torch.zeros_like(like[name])) for name in names}, names)


# -- random --------------------------------------------------------------------------------------------------


def test_a_random_direction_is_gaussian_seeded_and_reproducible():
    origin, infos = parts(nn.Linear(200, 200))
    first = random_direction(origin, infos, 7, "none")
    torch.manual_seed(123)
    again = random_direction(origin, infos, 7, "none")
    assert all(torch.equal(first[name], again[name]) for name in first)
    values = np.sort(first["weight"].numpy().ravel().astype(np.float64))
    assert abs(values.mean()) < 4 / math.sqrt(values.size)
    assert abs(values.std() - 1) < 4 / math.sqrt(2 * values.size)
    normal = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in values[::37]])
    empirical = np.arange(values.size)[::37] / values.size
    assert np.abs(normal - empirical).max() < 1.95 / math.sqrt(values.size)  # Kolmogorov–Smirnov, 0.1 %
    other = random_direction(origin, infos, 8, "none")
    assert abs(float(cosines([first, other])[0, 1])) < 4 / math.sqrt(values.size)


def test_a_random_direction_leaves_the_global_generator_alone():
    origin, infos = parts(ConvNet())
    before = torch.get_rng_state()
    random_direction(origin, infos, 7)
    assert torch.equal(before, torch.get_rng_state())


# -- towards -------------------------------------------------------------------------------------------------


def outputs(model: nn.Module, state) -> torch.Tensor:
    model = ConvNet()
    model.load_state_dict({**model.state_dict(), **state})
    with torch.no_grad():
        return model.eval()(image_samples()[0])


def test_towards_moves_buffers_too_and_ends_at_the_target_network():
    origin, target = ConvNet(0), ConvNet(1)
    target.bn.num_batches_tracked.fill_(50)
    direction = towards_direction(state_of(origin), state_of(target))
    assert {"bn.running_mean", "bn.running_var"} <= set(direction)
    assert "bn.num_batches_tracked" not in direction
    end = combine(state_of(origin), [direction], [1.0])
    with torch.no_grad():
        expected = target.eval()(image_samples()[0])
    torch.testing.assert_close(outputs(origin, end), expected, rtol=1e-5, atol=1e-5)
    half = combine(state_of(origin), [direction], [0.5])
    torch.testing.assert_close(half["bn.running_var"], (origin.bn.running_var + target.bn.running_var) / 2)


def test_the_line_between_two_networks_has_their_losses_at_its_ends(tmp_path):
    problem, target = conv_problem(seed=0), ConvNet(1)
    save_file(target.state_dict(), tmp_path / "target.safetensors")
    spec = {
        "name": "line",
        "directions": [{"kind": "towards", "target": str(tmp_path / "target.safetensors")}],
        "size": 6,
        "range": [0, 1],
        "origin": "problem",
    }
    surface = run(make_job(tmp_path / "run", lambda: problem, [spec]))["line"]
    inputs, targets = problem.data
    for model, value in ((problem.model, surface.loss[0]), (target, surface.loss[-1])):
        with torch.no_grad():
            expected = nn.functional.cross_entropy(model.eval()(inputs), targets)
        assert value == pytest.approx(float(expected), rel=2e-6)
    assert surface.axes[0].attributes["kind"] == "towards"


def test_towards_itself_is_refused():
    with pytest.raises(JobError, match="same weights as the origin"):
        towards_direction(state_of(ConvNet(0)), state_of(ConvNet(0)))


# -- PCA -----------------------------------------------------------------------------------------------------


def test_principal_components_equal_the_singular_vectors_of_the_centred_snapshots():
    states = list(wandering(Quadratic(torch.float64), 7, 0.3).values())
    found = principal_components(states, NAMES, 3)
    rows = vectors(states)
    _, singular, right = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    for k, component in enumerate(found.components):
        vector = dense(component, states[0])
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
        assert abs(vector @ right[k]) == pytest.approx(1, abs=1e-7)
        assert found.explained_variance[k] == pytest.approx(singular[k] ** 2 / (singular**2).sum(), rel=1e-10)
        assert (rows[-1] - rows[0]) @ vector >= 0
    np.testing.assert_allclose(found.random_walk_variance, random_walk_variance(range(7))[:3])


def test_principal_components_agree_with_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition", reason="scikit-learn is not installed")
    states = list(wandering(Quadratic(), 9, 0.2, seed=2).values())
    fitted = decomposition.PCA(2, svd_solver="full").fit(vectors(states))
    found = principal_components(states, NAMES, 2)
    np.testing.assert_allclose(found.explained_variance, fitted.explained_variance_ratio_, rtol=1e-6)
    for k in range(2):
        assert abs(dense(found.components[k], states[0]) @ fitted.components_[k]) == pytest.approx(1, abs=1e-6)


def test_centring_matters_far_from_the_origin_of_weight_space():
    """Without centring the first component would point at the mean of the snapshots."""
    states = [
        {name: tensor + 100 for name, tensor in each.items()}
        for each in wandering(Quadratic(torch.float64), 5).values()
    ]
    found = principal_components(states, NAMES, 1)
    rows = vectors(states)
    mean = rows.mean(0) / np.linalg.norm(rows.mean(0))
    assert abs(dense(found.components[0], states[0]) @ mean) < 0.9
    right = np.linalg.svd(rows - rows.mean(0), full_matrices=False)[2]
    assert abs(dense(found.components[0], states[0]) @ right[0]) == pytest.approx(1, abs=1e-7)


def test_a_path_that_spans_too_little_is_refused():
    start = state_of(Quadratic(torch.float64))
    step = {name: torch.randn_like(tensor) for name, tensor in start.items()}
    line = [combine(start, [step], [t]) for t in (0.0, 1.0, 2.5, 4.0)]
    principal_components(line, NAMES, 1)
    with pytest.raises(JobError, match=r"4 snapshots span 1 direction, PCA onto 2 needs as many"):
        principal_components(line, NAMES, 2)
    with pytest.raises(JobError, match=r"3 snapshots span 0 directions"):
        principal_components([start, start, start], NAMES, 1)
    with pytest.raises(JobError, match="span 2 directions"):
        principal_components(list(wandering(Quadratic(), 3).values()), NAMES, 3)


def test_a_diverged_snapshot_is_refused_in_words():
    states = list(wandering(Quadratic(), 4).values())
    states[3] = states[3] | {"vector": torch.full((5,), torch.nan)}
    with pytest.raises(JobError, match="finite"):
        principal_components(states, NAMES, 2)


@pytest.mark.parametrize("snapshots", [3, 8, 30])
def test_random_walk_variance_equals_a_simulation(snapshots):
    generator = np.random.default_rng(0)
    fractions = []
    for _ in range(25):
        walk = np.cumsum(generator.normal(size=(snapshots, 3000)), 0)
        centred = walk - walk.mean(0)
        variances = np.linalg.eigvalsh(centred @ centred.T)[::-1]
        fractions.append(variances / variances.sum())
    simulated = np.mean(fractions, 0)
    np.testing.assert_allclose(random_walk_variance(range(snapshots))[:2], simulated[:2], rtol=0.02)


@pytest.mark.parametrize("times", [[0, 1, 2, 3, 9, 10, 11, 12], [3, 4, 50], [1, 2, 4, 8, 16]])
def test_random_walk_variance_of_snapshots_with_gaps_equals_a_simulation(times):
    generator = np.random.default_rng(1)
    fractions = []
    for _ in range(25):
        walk = np.cumsum(generator.normal(size=(times[-1] + 1, 3000)), 0)[times]
        centred = walk - walk.mean(0)
        variances = np.linalg.eigvalsh(centred @ centred.T)[::-1]
        fractions.append(variances / variances.sum())
    np.testing.assert_allclose(random_walk_variance(times)[:2], np.mean(fractions, 0)[:2], rtol=0.02)


@pytest.mark.parametrize("times", [range(11), range(3, 14), range(0, 110, 10), range(7, 7 + 11 * 391, 391)])
def test_random_walk_variance_of_equal_steps_has_the_bits_of_cumulated_unit_steps(times):
    steps = np.tril(np.ones((11, 11)))
    steps[:, 0] = 0
    centring = np.eye(11) - 1 / 11
    values = np.linalg.eigvalsh(centring @ (steps @ steps.T) @ centring)[::-1].clip(min=0)
    assert random_walk_variance(times).tobytes() == (values / values.sum()).tobytes()


def test_random_walk_variance_tends_to_the_known_limits():
    found = random_walk_variance(range(800))
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(found[:3], [6 / (math.pi * k) ** 2 for k in (1, 2, 3)], rtol=5e-3)
    assert [round(100 * value, 1) for value in found[:2]] == [60.8, 15.2]


# -- coordinates on the plane ---------------------------------------------------------------------------------


def test_coordinates_are_those_of_least_squares_on_oblique_axes():
    origin, *others = wandering(Quadratic(torch.float64), 4, 0.7).values()
    axes = [{name: torch.randn_like(origin[name]) for name in NAMES} for _ in range(2)]
    axes[1] = {name: tensor + 2 * axes[0][name] for name, tensor in axes[1].items()}  # far from orthogonal
    matrix = vectors(axes).T
    for point in others:
        offset = flat(point, NAMES) - flat(origin, NAMES)
        expected, *_ = np.linalg.lstsq(matrix, offset, rcond=None)
        coordinates, distance = project(point, origin, axes, NAMES)
        np.testing.assert_allclose(coordinates, expected, rtol=1e-9)
        assert distance == pytest.approx(np.linalg.norm(offset - matrix @ expected), rel=1e-9)


def test_a_point_on_the_plane_is_no_distance_off_it():
    origin = state_of(Quadratic(torch.float64))
    axes = [{"matrix": torch.randn(4, 3)}, {"vector": torch.randn(5), "matrix": torch.randn(4, 3)}]
    coordinates, distance = project(combine(origin, axes, [0.5, -2.0]), origin, axes, NAMES)
    np.testing.assert_allclose(coordinates, [0.5, -2.0], rtol=1e-12)
    assert distance < 1e-12


def test_path_and_axes_of_a_trajectory_landscape_agree_with_numpy(tmp_path):
    problem = quadratic_problem()
    snapshots = wandering(problem.model, 6, 0.4)
    write_trajectory(tmp_path, snapshots)
    spec = {"name": "t", "trajectory": [2, 3, 4, 6], "size": [5, 4]}
    surface = run(make_job(tmp_path, lambda: problem, [spec]))["t"]
    used = [2, 3, 4, 6]
    rows = vectors([snapshots[n] for n in used])
    offsets = rows - rows[-1]  # the origin is the last of them
    plane = np.stack([flat(each, NAMES) for each in raw_directions(tmp_path, "t")])
    expected, *_ = np.linalg.lstsq(plane.T, offsets.T, rcond=None)
    assert surface.path.step.tolist() == used
    assert surface.path.unit == "epoch"
    for k, axis in enumerate(("alpha", "beta")):
        np.testing.assert_allclose(surface.path.coordinates[axis], expected[k], rtol=1e-6, atol=1e-7)
        low, high = expected[k].min(), expected[k].max()
        ends = low - 0.2 * (high - low), high + 0.2 * (high - low)
        coordinates = surface.axis(axis).coordinates
        wider = np.array([ends[0] - coordinates[0], coordinates[-1] - ends[1]])
        assert np.abs(wider).min() < 1e-5  # one end is the margin's, the other at most a step beyond
        assert -1e-5 < wider.max() < coordinates[1] - coordinates[0]
        assert 0.0 in coordinates
    distance = np.linalg.norm(offsets - expected.T @ plane, axis=1)
    np.testing.assert_allclose(surface.path.distance, distance, rtol=1e-5, atol=1e-6)
    assert distance[0] > 0.1, "four random snapshots do not lie in a plane"
    centred = np.linalg.svd(rows - rows.mean(0), compute_uv=False) ** 2
    for k, axis in enumerate(surface.axes):
        assert axis.attributes["explained_variance"] == pytest.approx(centred[k] / centred.sum(), rel=1e-6)
        assert axis.attributes["random_walk_variance"] == pytest.approx(random_walk_variance(used)[k])
        assert axis.label == f"principal component {k + 1} of epochs 2-4, 6"
        assert axis.attributes["norm"] == pytest.approx(1, abs=1e-6)
    assert surface.attributes["origin_step"] == 6
    assert surface.attributes["defaults"] == DEFAULTS


def test_parallel_axes_under_a_path_are_refused(tmp_path):
    problem = quadratic_problem()
    write_trajectory(tmp_path, wandering(problem.model, 3))
    spec = {
        "name": "t",
        "directions": [{"kind": "pca", "trajectory": "all"}, {"kind": "pca", "trajectory": [1, 2, 3]}],
        "size": 3,
    }
    with pytest.raises(JobError, match="parallel"):
        run(make_job(tmp_path, lambda: problem, [spec]))


# -- from a file ---------------------------------------------------------------------------------------------


def supplied(model: nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}


def test_a_supplied_direction_is_taken_as_it_is():
    model = ConvNet()
    given = supplied(model)
    origin, infos = parts(model)
    found = supplied_direction(given, origin, infos, "file")
    assert set(found) == set(given)
    assert all(torch.equal(found[name], given[name]) for name in given)
    without = supplied_direction(given, origin, infos, "file", "none", ("bias", "norm"))
    assert set(without) == {"conv.weight", "linear.weight"}


BAD_FILES = {
    "missing": (lambda d: d.pop("conv.weight"), ["missing conv.weight"]),
    "extra": (lambda d: d.update(more=torch.ones(1)), ["extra more"]),
    "misshapen": (lambda d: d.update({"linear.bias": torch.ones(4)}), ["misshapen linear.bias (4,)", "(3,)"]),
    "nan": (lambda d: d["linear.bias"].__setitem__(1, torch.nan), ["finite", "linear.bias"]),
    "infinite": (lambda d: d["linear.bias"].__setitem__(1, torch.inf), ["finite", "linear.bias"]),
    "zero": (lambda d: [tensor.zero_() for tensor in d.values()], ["zero"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_direction_file_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, case):
    spoil, words = BAD_FILES[case]
    problem = conv_problem()
    given = supplied(problem.model)
    spoil(given)
    save_file(given, tmp_path / "mine.safetensors")
    spec = {"name": "f", "directions": [{"kind": "file", "path": str(tmp_path / "mine.safetensors")}], "size": 3}
    with pytest.raises(JobError) as caught:
        run(make_job(tmp_path / "run", lambda: problem, [spec]))
    message = str(caught.value)
    assert "mine.safetensors" in message
    assert message.count("\n") <= 1
    for word in words:
        assert word in message
    assert not (tmp_path / "run").exists()


# -- between axes --------------------------------------------------------------------------------------------


def test_cosines_between_axes_are_recorded(tmp_path):
    problem = conv_problem()
    given = supplied(problem.model)
    save_file(given, tmp_path / "mine.safetensors")
    directions = [{"kind": "file", "path": str(tmp_path / "mine.safetensors")}, {"kind": "random"}]
    surface = run(make_job(tmp_path / "run", lambda: problem, [{"name": "c", "directions": directions, "size": 3}]))[
        "c"
    ]
    names = [name for name, _ in problem.model.named_parameters()]
    first, second = (flat(each, names) for each in raw_directions(tmp_path / "run", "c"))
    expected = first @ second / (np.linalg.norm(first) * np.linalg.norm(second))
    recorded = np.array(surface.attributes["cosine"])
    np.testing.assert_allclose(recorded, [[1, expected], [expected, 1]], atol=1e-7)
    assert surface.axes[1].attributes["norm"] == pytest.approx(np.linalg.norm(second), rel=1e-6)
    np.testing.assert_allclose(first, flat(given, names), rtol=1e-7)


def test_axes_that_share_no_tensor_are_orthogonal():
    found = cosines([{"a": torch.ones(2)}, {"b": torch.ones(3)}])
    assert found[0, 1] == found[1, 0] == 0
    np.testing.assert_allclose(np.diag(found), 1, rtol=1e-15)
    assert cosines([{"a": torch.ones(2)}, {"a": -2 * torch.ones(2)}])[0, 1] == pytest.approx(-1)


def test_a_direction_of_zeros_has_no_angle_and_spans_no_plane():
    axes = [{"a": torch.ones(2)}, {"a": torch.zeros(2)}]
    assert cosines(axes).tolist() == [[pytest.approx(1), 0], [0, 0]]
    with pytest.raises(JobError, match="span no plane"):
        project({"a": torch.ones(2)}, {"a": torch.zeros(2)}, axes, ["a"])


def test_the_snapshots_of_a_component_are_named_with_the_steps_between_them():
    assert counted("epoch", [0, 2, 4, 6, 8]) == "epochs 0 to 8 by 2"
    assert counted("epoch", [0, 1, 2]) == "epochs 0 to 2"
    assert counted("step", [5, 10]) == "steps 5, 10"
