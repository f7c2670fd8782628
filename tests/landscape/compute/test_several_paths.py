"""The paths of several runs on one landscape: their plane, their places, their losses, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import (
    ConvNet,
    Counter,
    conv_problem,
    flat,
    image_samples,
    make_job,
    quadratic_problem,
    raw_chunk,
    raw_directions,
    wandering,
    write_trajectory,
)
from torch import nn

from landscape import JobError, Problem, extend, open_run, refine, run
from landscape.analysis.checks.table import check_landscape
from landscape.compute.prepare import prepare
from landscape.core.errors import Interrupted, LandscapeError
from landscape.job.directions.tensors import RandomWalks, principal_components, random_walk_variance
from landscape.job.landscape import Landscape
from landscape.page.runs import LandscapeReader
from landscape.problem.network import network_options
from landscape.store.landscape import LandscapeStore

COUNTS = {"sgd": (6, 0.1), "thor": (4, 0.2)}
PLANE = {"name": "both", "paths": ["../sgd", {"run": "../thor", "label": "THOR"}], "size": [5, 4]}


def train_both(folder: Path, model: nn.Module) -> dict[str, dict[int, dict[str, torch.Tensor]]]:
    """Two runs from the same weights: one counts six epochs, the other four steps."""
    states = {}
    for seed, (name, (count, scale)) in enumerate(COUNTS.items()):
        states[name] = wandering(model, count, scale, seed=seed)
        write_trajectory(folder / name, states[name], "epoch" if name == "sgd" else "step")
    return states


def job_of(folder: Path, spec=PLANE, problem=quadratic_problem, **fields):
    (folder / "run").mkdir(exist_ok=True)  # from which the others are named
    return make_job(folder / "run", problem, [spec], **fields).in_folder(folder / "run")


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Both runs, the landscape of their paths, and their snapshots as float64 rows over the parameters."""
    folder, problem = tmp_path_factory.mktemp("scene"), conv_problem(count=11)
    states = train_both(folder, problem.model)
    surface = run(job_of(folder, problem=lambda: problem, tile=[2, 3]))["both"]
    names = [name for name, _ in problem.model.named_parameters()]
    rows = np.stack([flat(state, names) for states_of in states.values() for state in states_of.values()])
    return folder, problem, states, surface, rows, names


# -- values --------------------------------------------------------------------------------------------------


def test_the_axes_are_the_components_of_all_snapshots_together(scene):
    folder, _, _, surface, rows, names = scene
    _, singular, components = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    for k, axis in enumerate(raw_directions(folder / "run", "both")):
        found = flat(axis, names)
        assert abs(found @ components[k]) == pytest.approx(1, abs=1e-6)
        assert found @ (rows[5] - rows[0]) >= 0, "the first path ends no lower than it starts"
        share = surface.axes[k].record.explained_variance
        assert share == pytest.approx(singular[k] ** 2 / (singular**2).sum(), rel=1e-6)
    assert surface.axes[0].label == "principal component 1 of the paths of sgd and THOR"


def test_each_path_lies_where_its_snapshots_project_and_as_far_off_the_plane(scene):
    folder, _, _, surface, rows, names = scene
    axes = np.stack([flat(axis, names) for axis in raw_directions(folder / "run", "both")])
    offsets = rows - rows[5]  # the origin is the last snapshot of the first path
    places, *_ = np.linalg.lstsq(axes.T, offsets.T, rcond=None)
    far = np.linalg.norm(offsets - places.T @ axes, axis=1)
    sgd, thor = surface.paths
    assert [(path.label, path.unit, path.step.tolist()) for path in (sgd, thor)] == [
        ("sgd", "epoch", [1, 2, 3, 4, 5, 6]), ("THOR", "step", [1, 2, 3, 4]),
    ]  # fmt: skip
    for path, which in ((sgd, slice(0, 6)), (thor, slice(6, 10))):
        np.testing.assert_allclose(path.coordinates["alpha"], places[0, which], atol=1e-5)
        np.testing.assert_allclose(path.coordinates["beta"], places[1, which], atol=1e-5)
        np.testing.assert_allclose(path.distance, far[which], atol=1e-5)
        own = rows[which] - rows[which].mean(0)
        shown = ((own @ axes.T) ** 2).sum() / (own**2).sum()
        assert path.runs[0].shown == pytest.approx(shown, rel=1e-5)
    assert surface.record.origin == "sgd epoch 6"
    assert surface.path.unit == "mixed"
    for axis in surface.axes:
        everywhere = surface.path.coordinates[axis.name]
        assert axis.coordinates[0] < everywhere.min()
        assert axis.coordinates[-1] > everywhere.max()


def loss_of(model, samples) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model.eval()(samples[0]), samples[1]).double())


def test_the_losses_are_those_of_the_snapshots_and_at_their_projections(scene):
    """At a snapshot with its own running statistics, at its projection with those of the origin, as of one path."""
    folder, problem, states, surface, _, _ = scene
    axes, origin = raw_directions(folder / "run", "both"), states["sgd"][6]
    for path, snapshots in zip(surface.paths, states.values(), strict=True):
        assert (path.status == 1).all()
        for k, state in enumerate(snapshots.values()):
            model = copy.deepcopy(problem.model)
            model.load_state_dict(state)
            assert path.loss[k] == pytest.approx(loss_of(model, problem.data), rel=1e-5)
            at = [path.coordinates[axis][k] for axis in ("alpha", "beta")]
            steps = [
                {name: float(c) * torch.tensor(part) for name, part in axis.items()}
                for c, axis in zip(at, axes, strict=True)
            ]
            model.load_state_dict(
                {name: tensor + sum(step.get(name, 0) for step in steps) for name, tensor in origin.items()}
            )
            assert path.projected_loss[k] == pytest.approx(loss_of(model, problem.data), rel=1e-4)


def test_values_are_the_same_to_the_bit_after_an_interruption(scene, tmp_path):
    _, problem, _, expected, _, _ = scene
    train_both(tmp_path, problem.model)
    job = job_of(tmp_path, problem=lambda: problem, tile=[2, 3])
    for after in (9, 26):
        asked = iter(range(10**6))
        with pytest.raises(Interrupted):
            run(job, stop=lambda asked=asked, after=after: next(asked) >= after)
    found = run(job)["both"]
    assert found.loss.tobytes() == expected.loss.tobytes()
    for name in ("loss", "projected_loss", "run", "step"):
        assert getattr(found.path, name).tobytes() == getattr(expected.path, name).tobytes(), name
    assert found.path.runs == expected.path.runs


def test_random_walks_of_one_path_are_those_that_were_recorded_before():
    rng = np.random.default_rng(0)
    walk = rng.standard_normal((7, 400)).cumsum(0)
    gram = (walk - walk.mean(0)) @ (walk - walk.mean(0)).T
    np.testing.assert_allclose(
        RandomWalks.like(gram, [range(7)]).explained_variance, random_walk_variance(range(7)), atol=1e-12
    )


def test_random_walks_of_paths_with_gaps_are_those_of_walks_at_their_own_epochs():
    """Drawn walks that are looked at at the epochs of two paths show what the formula says."""
    rng = np.random.default_rng(2)
    starts, epochs = rng.standard_normal((2, 20_000)), [[0, 1, 2, 3, 9, 10, 11, 12], [2, 4, 20]]
    walks = [
        start + 0.4 * np.concatenate([np.zeros((1, 20_000)), rng.standard_normal((at[-1], 20_000))]).cumsum(0)[at]
        for start, at in zip(starts, epochs, strict=True)
    ]
    states = [{"w": torch.from_numpy(row)} for walk in walks for row in walk]
    found = principal_components(states, ["w"], 2, [8, 3], times=[*epochs[0], *epochs[1]])
    np.testing.assert_allclose(found.explained_variance, found.random_walk_variance, rtol=0.03)
    equal = principal_components(states, ["w"], 2, [8, 3])
    assert abs(equal.random_walk_variance[0] / equal.explained_variance[0] - 1) > 0.03


def test_random_walks_from_the_starts_of_two_paths_explain_what_is_expected_of_them():
    """Drawn walks in many dimensions, from starts apart and with steps of two lengths, show what the formula says."""
    rng = np.random.default_rng(1)
    starts, lengths, steps = rng.standard_normal((2, 20_000)), [9, 5], [0.3, 0.8]
    walks = [
        start + length * np.concatenate([np.zeros((1, 20_000)), rng.standard_normal((count - 1, 20_000))]).cumsum(0)
        for start, count, length in zip(starts, lengths, steps, strict=True)
    ]
    states = [{"w": torch.from_numpy(row)} for walk in walks for row in walk]
    found = principal_components(states, ["w"], 2, lengths)
    np.testing.assert_allclose(found.explained_variance, found.random_walk_variance, rtol=0.03)
    axes = np.stack([component["w"].double().numpy() for component in found.components])
    for walk, share in zip(walks, found.walks.shown([1, 2]), strict=True):
        own = walk - walk.mean(0)
        assert ((own @ axes.T) ** 2).sum() / (own**2).sum() == pytest.approx(share, rel=0.05)


# -- other axes, other snapshots -----------------------------------------------------------------------------


def test_paths_are_projected_on_whatever_axes_are_given(tmp_path):
    states = train_both(tmp_path, quadratic_problem().model)
    plain = {
        "name": "plain",
        "origin": "../sgd@last",
        "directions": [{"kind": "random"}, {"kind": "random"}],
        "size": [4, 3],
    }
    ends = {
        "name": "ends",
        "plane": ["../sgd@last", "../thor@last", "../sgd@1"],
        "paths": ["../sgd", "../thor"],
        "size": 4,
    }
    specs = [plain, {**plain, "name": "drawn", "paths": ["../sgd", "../thor"]}, ends]
    (tmp_path / "run").mkdir()
    job = make_job(tmp_path / "run", quadratic_problem, specs).in_folder(tmp_path / "run")
    found = run(job)
    assert found["plain"].paths == ()
    np.testing.assert_array_equal(found["plain"].alpha, found["drawn"].alpha)
    np.testing.assert_array_equal(found["plain"].loss, found["drawn"].loss)
    sgd, thor = found["drawn"].paths
    assert (sgd.distance[-1], sgd.runs[0].shown_of_walk) == (0, None)
    assert sgd.loss[-1] == found["drawn"].origin_loss
    surface = found["ends"]
    sgd, thor = surface.paths
    np.testing.assert_allclose([sgd.distance[0], sgd.distance[-1], thor.distance[-1]], 0, atol=1e-5)
    assert thor.distance[0] > 0.1
    np.testing.assert_allclose(surface.networks.loss, [sgd.loss[-1], thor.loss[-1], sgd.loss[0]])
    assert [each.name for each in surface.axes[0].record.networks] == ["sgd epoch 6", "thor step 4", "sgd epoch 1"]
    of_page = LandscapeReader(found.path, "ends").view().evaluations
    assert of_page == LandscapeStore.open(found.path, "ends").counts().tolist(), "networks are points of the page too"
    third = {"name": "line", "directions": [{"kind": "towards", "target": "../thor@4"}], "paths": ["../sgd"], "size": 4}
    line = run(make_job(tmp_path / "run", quadratic_problem, [third]).in_folder(tmp_path / "run"))["line"]
    assert line.axes[0].label == "towards thor step 4 (at 1)"
    assert len(states["sgd"]) == len(line.paths[0].step)


def test_a_selection_of_snapshots_a_part_of_a_run_and_a_single_one_are_paths(tmp_path):
    train_both(tmp_path, quadratic_problem().model)
    paths = [
        {"run": "../sgd", "snapshots": [3, 1, 2]},
        {"run": "../sgd", "snapshots": [5, 6], "label": "late"},
        {"run": "../thor", "snapshots": [4]},
    ]
    surface = run(job_of(tmp_path, {**PLANE, "paths": paths, "axes": 1, "size": 5}))["both"]
    assert [(path.label, path.step.tolist()) for path in surface.paths] == [
        ("sgd, epochs 1-3", [1, 2, 3]), ("late", [5, 6]), ("thor", [4]),
    ]  # fmt: skip
    assert surface.record.origin == "sgd, epochs 1-3 epoch 3"
    assert surface.paths[2].runs[0].shown is None, "a single snapshot has no variance"


def test_the_run_of_the_landscape_itself_may_be_among_the_paths(tmp_path):
    train_both(tmp_path, quadratic_problem().model)
    spec = {**PLANE, "paths": [".", "../thor"]}
    surface = run(make_job(tmp_path / "sgd", quadratic_problem, [spec]).in_folder(tmp_path / "sgd"))["both"]
    assert [(path.label, path.runs[0].own) for path in surface.paths] == [("sgd", True), ("thor", False)]


# -- more of it ----------------------------------------------------------------------------------------------


@pytest.mark.faults
def test_more_samples_a_wider_range_and_finer_steps_keep_the_paths(tmp_path):
    train_both(tmp_path, quadratic_problem().model)
    spec = {**PLANE, "size": [5, 4], "range": [[-8, 8], [-6, 6]]}
    once = run(job_of(tmp_path, {**spec, "name": "once"}, num_samples=20, batch_size=4))["once"]
    run(job_of(tmp_path, spec, num_samples=12, batch_size=4))
    extend(tmp_path / "run", "both", num_samples=20, ranges=[(-8, 8), (-10, 6)])
    found = open_run(tmp_path / "run")["both"]
    assert (found.path.status == 1).all()
    assert found.path.loss.tobytes() == once.path.loss.tobytes()
    assert found.path.runs == once.path.runs
    assert found.loss.shape == (5, 5)
    np.testing.assert_array_equal(found.loss[1:], once.loss)
    refine(tmp_path / "run", "both", factor=2)
    finer = open_run(tmp_path / "run")["both"].merged()
    assert finer.loss.shape == (9, 9)
    assert [path.label for path in finer.paths] == ["sgd", "THOR"]


def test_a_damaged_array_of_the_paths_is_mended(scene, tmp_path):
    _, problem, _, expected, _, _ = scene
    train_both(tmp_path, problem.model)
    job = job_of(tmp_path, problem=lambda: problem, tile=[2, 3])
    run(job)
    raw_chunk(tmp_path / "run", "both", "path_run", [0]).write_bytes(b"nothing")
    assert open_run(tmp_path / "run")["both"].paths == ()
    assert run(job)["both"].path.run.tolist() == expected.path.run.tolist()


def test_a_run_that_goes_on_training_is_told(tmp_path):
    states = train_both(tmp_path, quadratic_problem().model)
    job = job_of(tmp_path)
    run(job)
    write_trajectory(tmp_path / "thor", {5: states["thor"][1]}, "step")
    had = r"training has gone on since; list the snapshots that it had \(1-4 of path 2\), or give it another name"
    with pytest.raises(JobError, match=rf"changed: paths \(path 2: other snapshots\): {had}"):
        run(job)
    run(job_of(tmp_path, {**PLANE, "paths": ["../sgd", {"run": "../thor", "snapshots": [1, 2, 3, 4]}]}))
    write_trajectory(tmp_path / "sgd", {2: states["sgd"][3]})
    (tmp_path / "thor" / "trajectory" / "step-00005.safetensors").unlink()
    with pytest.raises(JobError, match=r"paths \(path 1: other weights\)"):
        run(job)
    with pytest.raises(JobError, match=r"paths \(2 of them to 1\)"):
        run(job_of(tmp_path, {**PLANE, "paths": ["../thor"]}))


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"paths": []}, "paths: must list 1 to 12 runs, such as [runs/sgd, runs/thor], not 0 of them"),
        ({"paths": "runs/sgd"}, "paths: must list 1 to 12 runs, such as [runs/sgd, runs/thor], not 'runs/sgd'"),
        ({"paths": [f"r{k}" for k in range(13)]}, "not 13 of them; draw the others in another landscape"),
        ({"paths": ["a", "./a/"]}, "must name each run once, or different snapshots of it, and './a/' stands twice"),
        ({"paths": [{"run": "a", "label": "x"}, {"run": "b", "label": "x"}]}, "labels of their own, and 'x' stands"),
        ({"paths": [{"run": "a", "snapshot": [1]}]}, "paths.0.snapshot: unknown key 'snapshot'"),
        ({"paths": [{"run": "a", "snapshots": []}]}, "must name at least one snapshot, not []"),
        ({"paths": [3]}, "paths.0.run: must be a folder or URL, not 3"),
        ({"paths": ["a"], "trajectory": "all"}, "paths and trajectory exclude each other"),
        ({"directions": [{"kind": "pca", "trajectory": "paths"}]}, "`trajectory: paths` goes with paths only"),
        ({"paths": ["a"], "axes": 4}, "axes must be 1, 2 or 3, not 4"),
        ({"paths": ["a"], "axes": 2, "directions": [{"kind": "random"}]}, "paths with axes and directions exclude"),
        ({"paths": ["a"], "range": "auto"}, "range must be left out along PCA axes"),
        ({"axes": 2}, "axes goes with trajectory and paths only"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_as_it_is_read(fields, told):
    with pytest.raises(JobError) as refused:
        Landscape(name="both", **fields)
    assert told in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_what_was_written_is_what_is_read_back():
    spec = Landscape(**PLANE)
    assert Landscape(**spec.model_dump(mode="json")) == spec
    assert spec.needs_trajectory
    assert not list(Landscape(name="x", origin="runs/sgd@last").named_files()), "a snapshot of a run is no file"


def test_runs_that_cannot_be_drawn_together_are_refused(tmp_path):
    class Wider(ConvNet):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4 * 16, 5)

    problem = conv_problem()
    write_trajectory(tmp_path / "sgd", wandering(problem.model, 4))
    write_trajectory(tmp_path / "wide", wandering(Wider(), 4))
    write_trajectory(tmp_path / "two", wandering(problem.model, 2))
    (tmp_path / "empty").mkdir()

    def refusal(paths, **more) -> str:
        with pytest.raises(LandscapeError) as refused:
            prepare(job_of(tmp_path, {"name": "both", "paths": paths, "size": 3, **more}, lambda: problem))
        assert len(str(refused.value).splitlines()) == 1
        return str(refused.value)

    wide = refusal(["../sgd", "../wide"])
    assert "run '../sgd' has linear.weight (3, 64), and run '../wide' linear.weight (5, 64)" in wide
    assert "linear.weight (5, 64) where the model has (3, 64)" in refusal(["../wide", "../sgd"])
    assert f"run '{tmp_path}/empty' holds no snapshots" in refusal(["../sgd", "../empty"])
    assert "does not exist; name one that was trained" in refusal(["../gone"])
    (tmp_path / "link").symlink_to(tmp_path / "sgd")
    assert "stands twice" in refusal(["../sgd", "../link"])
    assert "epoch 9 is not in run" in refusal([{"run": "../sgd", "snapshots": [9]}])
    assert "at least 3 snapshots of all paths together, not 2" in refusal(["../two"])
    assert "run '/nowhere' holds no snapshots" in refusal(["../sgd"], origin="/nowhere@last")
    assert "a snapshot of a run is RUN@last, RUN@first or RUN@12" in refusal(["../sgd"], origin="../sgd@latest")
    assert "a part of a run is written {run: …, snapshots: [12]}" in refusal(["../sgd@last"])


def test_a_diverged_snapshot_is_named_by_its_run_on_components_and_on_any_axes(tmp_path):
    states = train_both(tmp_path, quadratic_problem().model)
    diverged = {**states["thor"][3], "vector": torch.full((5,), float("nan"))}
    write_trajectory(tmp_path / "thor", {3: diverged}, "step")
    told = "paths: their weights must be finite; of the {} snapshots THOR step 3 holds NaN or infinity"
    for count, axes in ((10, {}), (4, {"directions": [{"kind": "random"}], "size": 3})):
        with pytest.raises(JobError) as refused:
            prepare(job_of(tmp_path, {**PLANE, **axes}))
        assert str(refused.value).startswith(told.format(count))


def test_a_label_is_taken_without_spaces_around_it_and_a_long_folder_by_its_end(tmp_path):
    model = quadratic_problem().model
    long = "a run with a name that says every option of its training -- lr=0.1"
    for name in ("sgd", long):
        write_trajectory(tmp_path / name, wandering(model, 3))
    plan = prepare(job_of(tmp_path, {"name": "b", "paths": [{"run": "../sgd", "label": " SGD "}, f"../{long}"]}))
    path = plan.landscapes[0].path
    assert path is not None
    assert path.labels == ["SGD", f"…{long[-59:]}"]


def test_a_path_of_one_length_is_judged_by_it_though_its_end_is_the_origin(scene):
    """The last snapshots are close to the origin and off the axes: over their own distances that would be far."""
    folder, _, _, surface, rows, _ = scene
    (found,) = [each for each in check_landscape(folder / "run", "both").results if each.number == "11"]
    length = np.linalg.norm(rows[:6] - rows[5], axis=1).max()
    assert found.numbers["sgd, off"] == pytest.approx(surface.paths[0].distance.max() / length, rel=1e-4)
    assert found.text.startswith("path of sgd: at epoch 5 the loss is")


def test_an_architecture_with_other_tensors_is_told_by_the_first_of_them(tmp_path):
    class Deeper(ConvNet):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(2, 2)

    model = ConvNet()
    write_trajectory(tmp_path / "sgd", wandering(model, 3))
    write_trajectory(tmp_path / "deep", wandering(Deeper(), 3))
    job = job_of(
        tmp_path, {"name": "b", "paths": ["../sgd", "../deep"]}, lambda: Problem.supervised(model, image_samples())
    )
    with pytest.raises(JobError, match=r"run '../sgd' has no extra.bias, and run '../deep' extra.bias \(2,\)"):
        prepare(job)


def test_every_snapshot_and_projection_is_evaluated_once(tmp_path):
    problem = quadratic_problem()
    train_both(tmp_path, problem.model)
    counter = Counter(problem.observe)
    job = job_of(tmp_path, {**PLANE, "size": 3}, lambda: Problem(problem.model, problem.data, counter), engine="eager")
    landscape = prepare(job).landscapes[0]
    assert landscape.points == 9 + 2 * 10
    counter.calls = 0
    run(job)
    assert 29 <= counter.calls <= 29 + 10


def test_the_callback_is_told_the_network_of_the_first_path_where_the_run_has_trained_none(tmp_path):
    problem, told = quadratic_problem(), []
    train_both(tmp_path, problem.model)
    (tmp_path / "sgd" / "run.json").write_text('{"unit": "epoch", "network": {"width": 2}}')

    def callback():
        told.append(network_options())
        return problem

    prepare(job_of(tmp_path, problem=callback))
    assert told == [{"width": 2}]
