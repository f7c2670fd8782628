"""The serial pipeline against a plain loop; the same bits whatever tiles and interruptions; failures and resuming."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small_models import (
    COUNTED,
    LOOK,
    MEASURED,
    OWN_MODEL,
    WITNESS,
    Counter,
    conv_problem,
    make_job,
    quadratic_problem,
    raw_chunk,
    raw_directions,
    wandering,
    write_trajectory,
)
from torch import nn

from cluster.runtime.status import run_status
from landscape import JobError, Problem, open_run, run
from landscape.compute.prepare import prepare
from landscape.core.devices import cores
from landscape.core.errors import Interrupted
from landscape.store.landscape import LandscapeStore

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data"


def plain_loss(model: nn.Module, samples) -> float:
    """Mean cross-entropy, the mean in float64."""
    model, total = model.eval(), 0.0
    with torch.no_grad():
        for inputs, targets in zip(*(each.split(64) for each in samples), strict=True):
            total += float(nn.functional.cross_entropy(model(inputs), targets, reduction="none").double().sum())
    return total / len(samples[1])


def moved(model: nn.Module, origin, directions, point) -> nn.Module:
    """A copy with its weights set by hand, parameter by parameter."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        for name, tensor in itertools.chain(found.named_parameters(), found.named_buffers()):
            value = np.array(origin[name].double().numpy() if tensor.is_floating_point() else origin[name].numpy())
            for coordinate, direction in zip(point, directions, strict=True):
                if name in direction:
                    value = value + coordinate * direction[name].astype(np.float64)
            tensor.copy_(torch.from_numpy(np.asarray(value)))
    return found


def normals_by_hand(seed: int, name: str) -> Iterator[float]:
    """SplitMix64 after a state from a digest, four normal quantiles of 16 bits each word."""
    mask, quantile = (1 << 64) - 1, NormalDist().inv_cdf
    state = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        word ^= word >> 31
        for lane in range(4):
            yield quantile(((word >> 16 * lane & 0xFFFF) + 0.5) / 65536)


def random_by_hand(model: nn.Module, seed: int) -> dict[str, np.ndarray]:
    """Li et al.'s direction for a network of convolutions and linear layers, biases and norms ignored."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() <= 1:
            continue
        drawn = np.array(list(itertools.islice(normals_by_hand(seed, name), parameter.numel())))
        drawn = drawn.reshape(parameter.shape)
        for row, weight in zip(drawn, parameter.detach().numpy(), strict=True):
            row *= np.linalg.norm(weight) / (np.linalg.norm(row) + 1e-10)
        found[name] = drawn.astype(np.float32)
    return found


def assert_same_bytes(first, second) -> None:
    assert first.observables.keys() == second.observables.keys()
    for name, values in first.observables.items():
        assert values.tobytes() == second.observables[name].tobytes(), name
    assert first.status.tobytes() == second.status.tobytes()
    if first.path is not None:
        for name in ("loss", "projected_loss", "status"):
            assert getattr(first.path, name).tobytes() == getattr(second.path, name).tobytes(), name


# -- values --------------------------------------------------------------------------------------------------


def test_a_serial_run_agrees_with_a_plain_loop_on_a_grid_that_is_not_square(tmp_path):
    problem = conv_problem()
    spec = {"name": "plane", "size": [7, 4], "range": [[-1, 0.5], [-0.3, 2]]}
    surface = run(make_job(tmp_path, lambda: problem, [spec], tile=[3, 2], batch_size=10))["plane"]
    directions = [random_by_hand(problem.model, seed) for seed in (1, 2)]
    for axis, direction in zip(raw_directions(tmp_path, "plane"), directions, strict=True):
        for name, values in axis.items():
            np.testing.assert_allclose(values, direction.get(name, np.zeros_like(values)), rtol=2e-6)
    origin = dict(problem.model.state_dict())
    assert surface.loss.shape == (4, 7)
    for i, alpha in enumerate(np.linspace(-1, 0.5, 7)):
        for j, beta in enumerate(np.linspace(-0.3, 2, 4)):
            model = moved(problem.model, origin, directions, (alpha, beta))
            assert surface.loss[j, i] == pytest.approx(plain_loss(model, problem.data), rel=3e-6)
            with torch.no_grad():
                hits = (model.eval()(problem.data[0]).argmax(1) == problem.data[1]).double().numpy()
            assert surface.accuracy[j, i] == pytest.approx(hits.mean())
            assert surface.stderr("accuracy")[j, i] == pytest.approx(hits.std(ddof=1) / math.sqrt(len(hits)))
    assert surface.attributes["progress"]["state"] == "complete"
    assert surface.attributes["num_samples"] == 29


def test_the_paths_losses_are_those_of_the_snapshots_and_of_their_projections(tmp_path):
    problem = conv_problem()
    snapshots = wandering(problem.model, 5, 0.15)
    write_trajectory(tmp_path, snapshots)
    spec = {"name": "t", "trajectory": "all", "size": [4, 3]}
    surface = run(make_job(tmp_path, lambda: problem, [spec], tile=2))["t"]
    directions = raw_directions(tmp_path, "t")
    assert (surface.path.status == 1).all()
    for k, number in enumerate(range(1, 6)):
        real = copy.deepcopy(problem.model)
        real.load_state_dict(snapshots[number])
        assert surface.path.loss[k] == pytest.approx(plain_loss(real, problem.data), rel=3e-6)
        point = [surface.path.coordinates[axis][k] for axis in ("alpha", "beta")]
        projected = moved(problem.model, snapshots[5], directions, point)
        assert surface.path.projected_loss[k] == pytest.approx(plain_loss(projected, problem.data), rel=3e-6)
    assert surface.path.loss[-1] == surface.path.projected_loss[-1], "the last snapshot is the origin"
    assert abs(surface.path.loss[0] - surface.path.projected_loss[0]) > 1e-3, "the first lies off the plane"


@pytest.mark.long
@pytest.mark.skipif(
    not (DATA / "resnet20-cifar10.safetensors").is_file(), reason="shared/data with the trained ResNet-20 is absent"
)
@pytest.mark.parametrize(
    ("points", "count", "engine"),
    [(3, 96, "eager"), pytest.param(315, 160, "auto", marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_resnet20_on_real_images_agrees_with_a_plain_loop(tmp_path, points, count, engine):
    """A 21×15 plane over some of CIFAR-10's test images: every point, or the first ones of the coarsest lattice.

    Where every point is computed the fastest engine is searched for, which takes as long as dozens of points.
    """
    images = np.load(DATA / "cifar10-test-2048.npz")
    model = PlainResNet20(DATA / "resnet20-cifar10.safetensors")
    inputs, targets = images_for_resnet(images["images"]), torch.from_numpy(images["labels"].astype(np.int64))
    problem = Problem.supervised(model, (inputs, targets))
    spec = {"name": "plane", "size": [21, 15], "range": [[-1, 1], [-0.7, 0.7]]}
    job = make_job(tmp_path, lambda: problem, [spec], num_samples=count, batch_size=64, tile=1, engine=engine)
    seen = []
    with contextlib.suppress(Interrupted):
        run(job, seen.append, stop=lambda: bool(seen) and seen[-1].points_done >= points)
    surface = open_run(tmp_path)["plane"]
    assert (surface.status == 1).sum() == points
    assert (surface.loss.shape, surface.attributes["num_samples"]) == ((15, 21), count)

    chosen = torch.randperm(2048, generator=torch.Generator().manual_seed(0))[:count].sort().values
    samples = inputs[chosen], targets[chosen]
    directions, origin = [random_by_hand(model, seed) for seed in (1, 2)], dict(model.state_dict())
    for j, i in np.argwhere(surface.status == 1):
        point = np.linspace(-1, 1, 21)[i], np.linspace(-0.7, 0.7, 15)[j]
        expected = plain_loss(moved(model, origin, directions, point), samples)
        assert surface.loss[j, i] == pytest.approx(expected, rel=1e-5), point


class PlainResNet20(nn.Module):
    """He et al. 2016 with option-A shortcuts, written for this test from the paper."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for stage, (width, before) in enumerate(((16, 16), (32, 16), (64, 32)), 1):
            blocks = []
            for k in range(3):
                block = nn.Module()
                inside, stride = (before, 1 if stage == 1 else 2) if k == 0 else (width, 1)
                block.conv1, block.bn1 = nn.Conv2d(inside, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
                block.conv2, block.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
                blocks.append(block)
            setattr(self, f"layer{stage}", nn.ModuleList(blocks))
        self.linear = nn.Linear(64, 10)
        self.load_state_dict(load_file(weights), strict=False)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        for block in itertools.chain(self.layer1, self.layer2, self.layer3):
            h = block.bn2(block.conv2(torch.relu(block.bn1(block.conv1(x)))))
            if h.shape != x.shape:
                spare = (h.shape[1] - x.shape[1]) // 2
                x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, spare, spare))
            x = torch.relu(h + x)
        return self.linear(x.mean((2, 3)))


def images_for_resnet(pixels: np.ndarray) -> torch.Tensor:
    scaled = (pixels.astype(np.float32) / 255 - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
    return torch.from_numpy(scaled).permute(0, 3, 1, 2).contiguous()


# -- the same bits -------------------------------------------------------------------------------------------

PLANE = {"name": "p", "trajectory": "all", "size": [5, 4]}
PATH_POINTS, GRID_POINTS = 4, 20


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """One run without interruption: its problem, its snapshots and its surface."""
    folder = tmp_path_factory.mktemp("reference")
    problem = conv_problem(count=11)
    write_trajectory(folder, wandering(problem.model, PATH_POINTS, 0.2))
    return problem, run(make_job(folder, lambda: problem, [PLANE], tile=[2, 3]))["p"]


@settings(max_examples=3)
@given(tile=st.tuples(st.integers(1, 5), st.integers(1, 4)))
def test_values_are_the_same_to_the_bit_for_any_tile_shape(tmp_path_factory, reference, tile):
    problem, expected = reference
    folder = tmp_path_factory.mktemp("tiles")
    write_trajectory(folder, wandering(problem.model, PATH_POINTS, 0.2))
    found = run(make_job(folder, lambda: problem, [PLANE], tile=tile))["p"]
    assert_same_bytes(found, expected)
    assert LandscapeStore.open(str(folder), "p").tile_shape == (tile[1], tile[0])


def stop_after(count: int):
    """Asked before every point; true from the `count`-th question on."""
    asked = itertools.count()
    return lambda: next(asked) >= count


@settings(max_examples=4)
@given(stops=st.lists(st.integers(0, GRID_POINTS + 2 * PATH_POINTS + MEASURED + WITNESS), min_size=1, max_size=3))
def test_values_are_the_same_to_the_bit_after_interruptions_anywhere(tmp_path_factory, reference, stops):
    problem, expected = reference
    folder = tmp_path_factory.mktemp("stops")
    write_trajectory(folder, wandering(problem.model, PATH_POINTS, 0.2))
    job = make_job(folder, lambda: problem, [PLANE], tile=[2, 3])
    for count in stops:
        stopped = []
        try:
            run(job, stop=stop_after(count))
        except Interrupted as error:
            stopped.append((error.exit_code, "the same command" in str(error)))
        if stopped:
            assert stopped == [(130, True)]
            if "p" in open_run(folder):  # two points are measured before anything is written
                assert open_run(folder)["p"].attributes["progress"]["state"] == "interrupted"
    found = run(job)["p"]
    assert_same_bytes(found, expected)
    assert found.attributes["progress"]["state"] == "complete"
    assert found.attributes["progress"]["points_done"] == GRID_POINTS + 2 * PATH_POINTS


def test_a_partial_surface_holds_whole_tiles_and_nothing_else(tmp_path, reference):
    problem, expected = reference
    write_trajectory(tmp_path, wandering(problem.model, PATH_POINTS, 0.2))
    job = make_job(tmp_path, lambda: problem, [PLANE], tile=[2, 3])
    with pytest.raises(Interrupted):
        # Beside the first points, the path, the tiles (0, 0) and (0, 2) of 6 and 3 points, and some of (0, 1).
        run(job, stop=stop_after(MEASURED + WITNESS + OWN_MODEL + 2 * PATH_POINTS + 6 + 3 + 4))
    found = open_run(tmp_path)["p"]
    assert found.status.tolist() == [[1, 1, 0, 0, 1]] * 3 + [[0] * 5]
    assert (found.path.status == 1).all()
    assert np.isnan(found.loss[found.status == 0]).all()
    np.testing.assert_array_equal(found.loss[found.status == 1], expected.loss[found.status == 1])


# -- resuming ------------------------------------------------------------------------------------------------


def counted(problem: Problem, fault=None) -> tuple[Problem, Counter]:
    counter = Counter(problem.observe, fault)
    return Problem(problem.model, problem.data, counter), counter


def test_resuming_computes_what_is_missing_and_nothing_else(tmp_path):
    problem, counter = counted(quadratic_problem())  # 23 samples: one batch, so one call per point
    job = make_job(tmp_path, lambda: problem, [{"name": "a", "size": [6, 5]}], tile=[2, 5])
    with pytest.raises(Interrupted):
        run(job, stop=stop_after(MEASURED + WITNESS + OWN_MODEL + 10 + 10 + 4))
    assert counter.calls == LOOK + COUNTED + MEASURED + WITNESS + OWN_MODEL + 24
    counter.calls = 0
    seen = []
    run(job, observer=seen.append)
    assert counter.calls == LOOK + WITNESS + 10
    assert (seen[0].points_done, seen[-1].points_done, seen[-1].tasks_done) == (30, 30, 3)
    counter.calls = 0
    run(job)
    assert counter.calls == LOOK, "only the first look at what observe returns"


def test_a_run_killed_after_its_last_tile_is_complete_when_it_is_run_again(tmp_path):
    problem = quadratic_problem()
    job = make_job(tmp_path, lambda: problem, [{"name": "a", "size": 3}])
    run(job)
    store = LandscapeStore.open(str(tmp_path), "a", write=True)
    store.update_attributes(progress=store.attributes["progress"] | {"state": "running", "tiles_done": 2})
    assert run(job)["a"].attributes["progress"]["state"] == "complete"


def test_several_landscapes_are_computed_and_one_can_be_added(tmp_path):
    problem, counter = counted(quadratic_problem())
    first = {"name": "first", "size": 3}
    line = {"name": "line", "directions": [{"kind": "random", "seed": 9}], "size": 4}
    run(make_job(tmp_path, lambda: problem, [first]))
    counter.calls = 0
    found = run(make_job(tmp_path, lambda: problem, [first, line]))
    assert list(found) == ["first", "line"]
    assert counter.calls == LOOK + MEASURED + WITNESS + OWN_MODEL + 4
    assert found["line"].loss.shape == (4,)


CHANGES = {
    "seed": ({"seed": 1}, ["seed 0 to 1"]),
    "num_samples": ({"num_samples": 20}, ["num_samples 23 to 20"]),
    "precision": ({"precision": "float64"}, ["precision float32 to float64"]),
    "batch_norm": ({"batch_norm": "batch"}, ["batch_norm eval to batch"]),
    "batch_size": ({"batch_size": 7}, ["batch_size 23 to 7"]),
    "threads": ({"threads": 2}, ["threads 1 to 2"]),
    "size": ({"size": [4, 3]}, ["coordinates", "axis 1", "3", "4"]),
    "range": ({"range": [[-1, 1], [-1, 2]]}, ["coordinates", "axis 2", "2.0"]),
    "direction": ({"directions": [{"kind": "random", "seed": 1}, {"kind": "random", "seed": 5}]}, ["directions"]),
}


SMALLEST = {"name": "a", "size": 3}


@pytest.fixture(scope="module")
def smallest(tmp_path_factory) -> Path:
    """A run of the smallest plane, for tests that change nothing in it."""
    return Path(run(make_job(tmp_path_factory.mktemp("smallest"), quadratic_problem, [SMALLEST])).path)


@pytest.mark.parametrize("change", CHANGES)
def test_another_job_under_the_same_name_is_refused_with_what_changed(smallest, change):
    fields, words = CHANGES[change]
    files = {path: path.read_bytes() for path in smallest.rglob("*") if path.is_file()}
    inside = {key: value for key, value in fields.items() if key in ("size", "range", "directions")}
    outside = {key: value for key, value in fields.items() if key not in inside}
    with pytest.raises(JobError) as caught:
        run(make_job(smallest, quadratic_problem, [SMALLEST | inside], **outside))
    message = str(caught.value)
    assert "'a' was computed with another job" in message
    assert message.count("\n") <= 1
    for word in words:
        assert word in message
    others = {"seed", "num_samples", "precision", "batch_norm", "batch_size", "threads", "coordinates"} - {change}
    assert not any(f"{other} " in message for other in others if other not in words[0])
    assert files == {path: path.read_bytes() for path in smallest.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "words", "not_said"),
    [
        ({"size": [5, 7]}, ["landscape refine", "`landscape.refine`", "landscape rm"], "extend"),
        ({"size": [7, 3]}, ["landscape rm", "(`landscape.remove_landscape`)"], "refine"),
        ({"range": [[-1, 1], [-0.5, 0.5]]}, ["landscape rm"], "refine"),
        ({"range": [[-2, 2], [-2, 2]], "size": 5}, ["landscape extend", "--range=", "`landscape.extend`"], "refine"),
    ],
    ids=str,
)
def test_a_job_of_other_points_names_the_commands_that_keep_or_drop_the_values(smallest, change, words, not_said):
    with pytest.raises(JobError) as refused:
        run(make_job(smallest, quadratic_problem, [SMALLEST | change]))
    assert all(word in str(refused.value) for word in words), str(refused.value)
    assert f"landscape {not_said}" not in str(refused.value)


def test_other_weights_and_other_data_are_refused(smallest):
    problem, other = quadratic_problem(), quadratic_problem()
    with torch.no_grad():
        other.model.vector[0] += 1
    with pytest.raises(JobError, match="origin"):
        run(make_job(smallest, lambda: other, [SMALLEST]))
    data = Problem(problem.model, problem.data + 1, problem.observe)
    with pytest.raises(JobError, match=r"samples \(other data\)"):
        run(make_job(smallest, lambda: data, [SMALLEST]))


def test_tile_shape_and_callback_name_may_change(tmp_path):
    problem = quadratic_problem()
    with pytest.raises(Interrupted):
        run(make_job(tmp_path, lambda: problem, [{"name": "a", "size": 4}], tile=2), stop=stop_after(8))
    found = run(make_job(tmp_path, functools.partial(lambda p: p, problem), [{"name": "a", "size": 4}], tile=3))["a"]
    assert (found.status == 1).all()
    assert LandscapeStore.open(str(tmp_path), "a").tile_shape == (2, 2)


# -- failures ------------------------------------------------------------------------------------------------


def scalar_problem(fault=None) -> tuple[Problem, Counter]:
    class Line(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([[1.0]]))

        def forward(self, x):
            return x * self.w

    counter = Counter(lambda model, batch: {"loss": model(batch)[:, 0]}, fault)
    return Problem(Line(), torch.ones(3, 1), counter), counter


def line_spec(tmp_path: Path) -> dict:
    save_file({"w": torch.ones(1, 1)}, tmp_path / "d.safetensors")
    return {
        "name": "l",
        "directions": [{"kind": "file", "path": str(tmp_path / "d.safetensors")}],
        "size": 9,
        "range": [0, 8],
    }


def test_points_where_user_code_raises_are_quarantined_and_retried_by_the_next_run(tmp_path):
    broken = [True]

    def fault(model):
        if broken and float(model.w) in (5.0, 7.0):  # alpha 4 and 6
            raise ValueError(f"bad weight {float(model.w)}")

    problem, counter = scalar_problem(fault)
    job = make_job(tmp_path / "run", lambda: problem, [line_spec(tmp_path)], tile=2)
    found = run(job)["l"]
    assert found.status.tolist() == [1, 1, 1, 1, 3, 3, 3, 3, 1]
    np.testing.assert_array_equal(found.loss, [1, 2, 3, 4, np.nan, np.nan, np.nan, np.nan, 9])
    assert found.attributes["progress"]["state"] == "partial"
    # The second point that is measured raises; each of the two tiles does at its first point, three times.
    assert counter.calls == LOOK + 2 + WITNESS + OWN_MODEL + 5 + 2 * 3
    failures = sorted(found.attributes["failures"], key=lambda each: each["task"])
    assert [(each["task"], each["attempts"]) for each in failures] == [("tile (2,)", 3), ("tile (3,)", 3)]
    assert failures[0]["cause"] == "ValueError: bad weight 5.0"
    assert "in fault" in failures[0]["traceback"]

    broken.clear()
    counter.calls = 0
    found = run(job)["l"]
    assert counter.calls == LOOK + WITNESS + 4
    assert found.status.tolist() == [1] * 9
    assert found.loss.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert found.attributes["failures"] == []
    assert found.attributes["progress"]["state"] == "complete"


def test_an_exception_that_passes_by_itself_costs_a_retry_only(tmp_path):
    left = [2]

    def fault(model):
        if float(model.w) == 5.0 and left[0]:
            left[0] -= 1
            raise OSError("the file server is busy")

    problem, _ = scalar_problem(fault)
    found = run(make_job(tmp_path / "run", lambda: problem, [line_spec(tmp_path)], tile=2))["l"]
    assert (found.status == 1).all()
    assert found.attributes["failures"] == []


def test_an_exception_at_the_measured_corner_does_not_stop_the_job(tmp_path):
    def fault(model):
        if float(model.w) == 9.0:
            raise ValueError("corner")

    problem, _ = scalar_problem(fault)
    found = run(make_job(tmp_path / "run", lambda: problem, [line_spec(tmp_path)], tile=2))["l"]
    assert found.status.tolist() == [1] * 8 + [3]


def test_a_failing_path_is_quarantined_and_retried_like_a_tile(tmp_path):
    problem = quadratic_problem()
    snapshots = wandering(problem.model, 4, 0.3)
    write_trajectory(tmp_path, snapshots)
    broken = [True]

    def fault(model):
        if broken and torch.equal(model.vector, snapshots[2]["vector"]):
            raise ValueError("snapshot 2")

    faulty, _ = counted(problem, fault)
    job = make_job(tmp_path, lambda: faulty, [{"name": "t", "trajectory": "all", "size": 3}], tile=2)
    found = run(job)["t"]
    assert found.path.status.tolist() == [3, 3, 1, 1]
    assert np.isnan(found.path.loss[:2]).all()
    assert (found.status == 1).all()
    assert LandscapeStore.open(str(tmp_path), "t").examine().damaged == (), "given up is not damaged"
    broken.clear()
    found = run(job)["t"]
    assert found.path.status.tolist() == [1, 1, 1, 1]
    assert np.isfinite(found.path.loss).all()


def test_points_that_are_not_finite_are_kept_as_such_and_the_job_goes_on(tmp_path):
    problem, _ = scalar_problem()

    def observe(model, batch):
        w = model.w[0, 0]
        count = len(batch)
        return {"loss": torch.log(w - 3).expand(count), "accuracy": w.expand(count)}  # NaN at 1, 2; -inf at 3

    bad = Problem(problem.model, problem.data, observe)
    found = run(make_job(tmp_path / "run", lambda: bad, [line_spec(tmp_path)], tile=2))["l"]
    assert found.status.tolist() == [2, 2, 2, 1, 1, 1, 1, 1, 1]
    np.testing.assert_array_equal(found.loss[:4], [np.nan, np.nan, -np.inf, 0])
    np.testing.assert_array_equal(found.accuracy, np.arange(1, 10))
    assert found.attributes["progress"]["state"] == "complete"
    examined = LandscapeStore.open(str(tmp_path / "run"), "l").examine()
    assert examined.complete
    assert examined.damaged == ()


def test_observables_that_come_and_go_end_the_job_in_words(tmp_path):
    problem, _ = scalar_problem()

    def observe(model, batch):
        loss = model(batch)[:, 0]
        return {"loss": loss} if float(model.w) < 4 else {"loss": loss, "late": loss}

    changing = Problem(problem.model, problem.data, observe)
    with pytest.raises(JobError, match=r"observe: must return the same names .* 'late'"):
        run(make_job(tmp_path / "run", lambda: changing, [line_spec(tmp_path)], tile=2))


def test_a_damaged_directions_chunk_is_made_again_and_the_rest_computed_right(tmp_path):
    problem = conv_problem()
    spec = {"name": "a", "size": 4}
    whole = run(make_job(tmp_path / "whole", lambda: problem, [spec], tile=2))["a"]
    for damage in ("flip", "delete"):
        folder = tmp_path / damage
        job = make_job(folder, lambda: problem, [spec], tile=2)
        with pytest.raises(Interrupted):
            run(job, stop=stop_after(MEASURED + WITNESS + OWN_MODEL + 4 + 1))
        chunk = raw_chunk(folder, "a", "directions", (1, 0))
        intact = chunk.read_bytes()
        if damage == "flip":
            chunk.write_bytes(bytes([intact[0] ^ 1]) + intact[1:])
        else:
            chunk.unlink()
        found = run(job)["a"]
        assert_same_bytes(found, whole)
        assert chunk.read_bytes() == intact


@pytest.mark.parametrize("tile", [[1, 2, 3], [2, 2, 2]])
def test_a_tile_of_another_number_of_axes_is_refused(tmp_path, tile):
    problem = quadratic_problem()
    with pytest.raises(JobError, match=r"tile: must be one number or one per axis \(2\)"):
        run(make_job(tmp_path / "run", lambda: problem, [{"name": "a", "size": 3}], tile=tile))
    assert not (tmp_path / "run" / "landscapes.zarr").exists()


def test_more_threads_than_help_are_told(tmp_path):
    problem, _ = scalar_problem()
    found = prepare(make_job(tmp_path / "run", lambda: problem, [line_spec(tmp_path)], threads=1024))
    (told,) = [each for each in found.warnings if each.startswith("threads")]
    assert f"1024 per worker are more than 4 times the {cores()} cores here" in told
    few = prepare(make_job(tmp_path / "run", lambda: problem, [line_spec(tmp_path)], threads=1))
    assert not [each for each in few.warnings if each.startswith("threads")]


def test_an_interrupted_job_shows_the_landscapes_that_it_has_not_begun(tmp_path):
    job = make_job(tmp_path, quadratic_problem, [{"name": name, "size": 5} for name in ("a", "b")], tile=2)
    done: list[str] = []
    with pytest.raises(Interrupted):
        run(job, lambda progress: done.append(progress.landscape), lambda: len(done) == 2)
    assert done == ["a", "a"]
    states = {each["name"]: (each["state"], each["missing"]) for each in run_status(job.run_path)["landscapes"]}
    assert states["b"] == ("interrupted", 25)
    run(job)
    uninterrupted = make_job(
        tmp_path / "other", quadratic_problem, [{"name": n, "size": 5} for n in ("a", "b")], tile=2
    )
    expected = run(uninterrupted)
    for name in ("a", "b"):
        assert np.array_equal(open_run(job.run_path)[name].loss, expected[name].loss)
