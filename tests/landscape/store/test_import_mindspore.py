"""A summary folder of MindSpore as a run: values to the bit, training and weights, and folders that are refused."""

from __future__ import annotations

import json
import logging
import os
import shutil

import numpy as np
import pytest
import torch
from mindspore_folders import (
    SHARED,
    checkpoint_bytes,
    frame,
    landscape_event,
    lineage_events,
    scalar_event,
    version_event,
    write_events,
    write_metadata,
)
from torch import nn

from cluster.runtime.status import validate_run
from landscape import Job, JobError, NotFoundError, Problem, import_mindspore, import_surface, list_runs, open_run, run
from landscape.model.checkpoint_import import import_checkpoints
from landscape.model.mindspore_files import read_checkpoint, read_events
from landscape.recipes import mnist
from landscape.store.import_mindspore import history_rows
from landscape.store.mindspore_landscapes import rescaled_components
from landscape.views.prepare.words import caption

X, Y = np.linspace(-1, 2, 5), np.linspace(-2, 1, 4)
Z = (X[None, :] ** 2 + 2 * (Y[:, None] - 0.5) ** 2).astype(np.float32)
PATH = ([0.5, 0.25, 0.0], [-0.5, 0.125, 0.0], [3.0, 2.0, 1.0])
INTERVALS = [[1, 2, 3]]


def weights(number: int) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(number)
    shapes = {"conv.weight": (2, 1, 3, 3), "bn.gamma": (2,), "bn.beta": (2,), "fc.weight": (3, 8), "fc.bias": (3,)}
    state = {name: numbers.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return state | {"bn.moving_mean": np.zeros(2, np.float32), "bn.moving_variance": np.ones(2, np.float32)}


STATE = {"learning_rate": np.full((), 0.1, np.float32), "moments.fc.weight": np.zeros((3, 8), np.float32)}


def write_checkpoints(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in names.items():
        (folder / name).write_bytes(checkpoint_bytes(weights(number) | STATE))


@pytest.fixture
def summary(tmp_path):
    """A folder with a training of 3 epochs of 4 steps, one landscape on its path, and one around its end."""
    folder = tmp_path / "summary"
    write_events(folder, [scalar_event(step, 1 / step) for step in range(1, 13)], 1700000000)
    write_events(folder, lineage_events(), 1700000000, "_lineage")
    events = [
        landscape_event(X, Y, Z, intervals=INTERVALS[0], path=PATH, convergence=(0, 0, 1)),
        landscape_event(X, Y, Z + 1, decomposition="Random", tag="landscape_[3]", convergence=(0.25, 0.5, 7)),
    ]
    write_events(folder, events, 1700000100)
    write_checkpoints(folder / "ckpt_dir", {number: f"Net_{number}_epoch.ckpt" for number in (1, 2, 3)})
    write_metadata(folder, INTERVALS)
    return folder


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.fc(self.bn(self.conv(inputs)).flatten(1))


def problem():
    torch.manual_seed(0)
    return Problem.supervised(Net(), (torch.randn(64, 1, 4, 4), torch.arange(64) % 3), nn.CrossEntropyLoss())


def sources(opened):
    return {snapshot.number: snapshot.source for snapshot in opened.trajectory.snapshots}


def test_a_folder_becomes_a_run_with_every_value(summary, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "landscape"):
        opened = import_mindspore(summary, tmp_path / "run")
    assert caplog.messages == ["import: left out of the checkpoints: learning_rate, moments.* (1)"]
    assert set(opened) == {"mindspore-epochs-1-3", "mindspore-result"}
    assert sources(opened) == {number: f"Net_{number}_epoch.ckpt" for number in (1, 2, 3)}
    path, result = opened["mindspore-epochs-1-3"], opened["mindspore-result"]
    for surface, values in ((path, Z), (result, Z + 1)):
        assert np.array_equal(surface.loss, values.astype(np.float64))
        assert np.array_equal(surface.alpha, X.astype(np.float32).astype(np.float64))
        assert np.array_equal(surface.beta, Y.astype(np.float32).astype(np.float64))
    assert path.path.step.tolist() == INTERVALS[0]
    assert path.path.unit == "epoch"
    own, projected = path.path.losses
    assert np.isnan(own).all()  # MindSpore computes the losses at the projections alone
    assert projected.tolist() == PATH[2]
    assert (path.record.origin, path.origin_loss, path.record.num_samples) == ("epoch 3", 1.0, 64)
    assert result.path is None
    assert result.origin_loss == 1.0  # by the path's landscape, which the same call computed around the same weights
    assert validate_run(str(tmp_path / "run"))["damaged"] == 0


def test_the_training_is_that_of_the_lineage_and_the_scalars(summary, tmp_path):
    import_mindspore(summary, tmp_path / "run")
    opened = open_run(tmp_path / "run")
    info = opened.info
    assert [info[name] for name in ("model", "optimiser", "learning_rate", "steps_per_epoch")] == [
        "Net", "Momentum", 0.01, 4,
    ]  # fmt: skip
    assert (info["source"]["software"], info["batch_size"]) == ("MindSpore", 32)
    assert info["source"]["evaluation"] == {"Accuracy": 0.5}
    assert info["collect_landscape"]["intervals"] == INTERVALS
    assert [(row["step"], row["epoch"]) for row in opened.history] == [(k, (k + 3) // 4) for k in range(1, 13)]
    assert opened.history[2]["loss"] == 0.33333334
    assert list_runs(tmp_path)[0]["source"] == "MindSpore, folder summary"
    assert opened.trajectory.numbers == (1, 2, 3)
    state = opened.trajectory.snapshot(2).load()
    assert set(state) == set(weights(2))
    assert all(np.array_equal(state[name].numpy(), array) for name, array in weights(2).items())


def test_a_problem_gives_the_weights_its_names_and_computes_the_same_planes(summary, tmp_path):
    import_mindspore(summary, tmp_path / "run", problem)
    state = open_run(tmp_path / "run").trajectory.snapshot(3).load()
    assert set(state) == set(Net().state_dict())
    assert np.array_equal(state["bn.weight"].numpy(), weights(3)["bn.gamma"])
    run(Job(run=tmp_path / "run", problem=problem, num_samples=64))
    assert set(open_run(tmp_path / "run")) == {"mindspore-epochs-1-3", "mindspore-result", "epochs-1-3", "result"}
    assert open_run(tmp_path / "run")["epochs-1-3"].loss.shape == (5, 5)


def test_a_callback_that_was_named_once_is_kept(summary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets_of_mindspore.py").write_text(
        "from test_import_mindspore import problem as made\nfrom landscape.problem.network import network_options\n"
        "def problem():\n    assert network_options() == {'depth': 2}\n    return made()\n"
    )
    import_mindspore(summary, tmp_path / "run", "nets_of_mindspore:problem", network={"depth": 2})
    opened = import_mindspore(summary, tmp_path / "run")
    assert set(opened.trajectory.snapshot(3).load()) == set(Net().state_dict())
    assert (opened.info["problem"], opened.info["network"]) == ("nets_of_mindspore:problem", {"depth": 2})


def test_weights_that_do_not_fit_the_problem_are_refused(summary, tmp_path):
    def biased():
        made = problem()
        made.model.conv = nn.Conv2d(1, 2, 3)
        return made

    with pytest.raises(
        JobError, match=r"'Net_1_epoch.ckpt'.*missing conv.bias; MindSpore's Conv2d has no bias by defa"
    ):
        import_mindspore(summary, tmp_path / "run", biased)
    assert not (tmp_path / "run").exists()


def test_the_same_folder_again_changes_nothing_and_adds_what_is_new(summary, tmp_path):
    import_mindspore(summary, tmp_path / "run")
    before = {name: surface.record.imported.digest for name, surface in open_run(tmp_path / "run").items()}
    assert set(import_mindspore(summary, tmp_path / "run")) == set(before)
    write_events(summary, [landscape_event(X, Y, Z + 2, intervals=INTERVALS[0], path=PATH)], 1700000200)
    write_checkpoints(summary / "ckpt_dir", {4: "Net_4_epoch.ckpt"})
    opened = import_mindspore(summary, tmp_path / "run")
    assert set(opened) == {*before, "mindspore-epochs-1-3-2"}
    assert {name: opened[name].record.imported.digest for name in before} == before
    assert opened.trajectory.numbers == (1, 2, 3, 4)
    assert opened["mindspore-epochs-1-3-2"].loss[0, 0] == np.float32(Z + 2)[0, 0]


def test_another_training_of_the_run_is_not_replaced_unasked(summary, tmp_path):
    torch.save({"fc.weight": torch.ones(2)}, tmp_path / "step_7.pt")
    import_checkpoints([tmp_path / "step_7.pt"], tmp_path / "run")
    with pytest.raises(JobError, match=r"already holds another training \(1 snapshots\); name another run"):
        import_mindspore(summary, tmp_path / "run")
    assert open_run(tmp_path / "run").trajectory.numbers == (7,)
    import_mindspore(summary, tmp_path / "run", overwrite=True)
    assert open_run(tmp_path / "run").trajectory.numbers == (1, 2, 3)


def test_checkpoints_of_model_checkpoint_stand_in_where_the_collector_has_none(summary, tmp_path, caplog):
    shutil.rmtree(summary / "ckpt_dir")
    names = {1: "net-1_4.ckpt", 2: "net-2_2.ckpt", 3: "net-3_4.ckpt"}
    write_checkpoints(tmp_path / "kept", names)
    (tmp_path / "kept" / "net-graph.meta").write_bytes(b"x")
    with caplog.at_level(logging.WARNING, "landscape"):
        opened = import_mindspore(summary, tmp_path / "run", checkpoints=[tmp_path / "kept"])
    assert sources(opened) == {1: "net-1_4.ckpt", 3: "net-3_4.ckpt"}
    assert caplog.messages[0] == "import: left out, as their names give no epoch: net-2_2.ckpt"
    shutil.copy(tmp_path / "kept" / "net-1_4.ckpt", tmp_path / "kept" / "net_1-1_4.ckpt")
    import_mindspore(summary, tmp_path / "double", checkpoints=[tmp_path / "kept"])
    assert "import: left out, as others are of the same epoch: net_1-1_4.ckpt" in caplog.messages
    (tmp_path / "kept" / "net_1-1_4.ckpt").unlink()
    with pytest.raises(NotFoundError, match=r"checkpoints: '.*absent' does not exist"):
        import_mindspore(summary, tmp_path / "other", checkpoints=[tmp_path / "absent"])
    # By steps, all of them have a number.
    write_events(summary, [landscape_event(X, Y, Z, intervals=(4, 6, 12), path=PATH, unit="step")], 1700000300)
    steps = import_mindspore(summary, tmp_path / "steps", checkpoints=[tmp_path / "kept"])
    assert sources(steps) == {4: "net-1_4.ckpt", 6: "net-2_2.ckpt", 12: "net-3_4.ckpt"}


def test_a_training_begun_again_replaces_what_comes_after(tmp_path):
    def file(steps, value):
        write_events(tmp_path, [scalar_event(step, value) for step in steps])
        return read_events(next(tmp_path.glob("*_MS"))).scalars

    rows = history_rows([file(range(1, 7), 1.0), file(range(4, 6), 2.0)], None)
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert history_rows([file([3], float("nan"))], 3) == [{"step": 3, "epoch": 1, "epoch_end": True, "loss": None}]


def test_captions_say_what_the_pictures_of_mindspore_do_not(summary, tmp_path):
    import_mindspore(summary, tmp_path / "run")
    opened = open_run(tmp_path / "run")
    text = " ".join(caption(opened["mindspore-epochs-1-3"], "loss"))
    assert "MindSpore rescales each tensor of its components, which takes the path off its own plane" in text
    assert "%" not in text  # the checkpoints are not those that this path was drawn with
    text = " ".join(caption(opened["mindspore-result"], "loss"))
    assert (
        "The loss that MindInsight shows, 7, is that of the point (0.25, 0.5) beside the origin, where it is 1" in text
    )


def drawn_by_mindspore(folder):
    """The path as MindSpore places it, by its own steps over whole vectors: PCA, rescaled tensors, least squares."""
    states = [read_checkpoint(folder / f"Net_{number}_epoch.ckpt")[0] for number in (1, 2, 3)]
    names = [name for name in states[-1] if "weight" in name or "bias" in name]
    flat = np.stack([np.concatenate([state[name].double().numpy().ravel() for name in names]) for state in states])
    differences = (flat[:-1] - flat[-1]).T
    left, sizes, _ = np.linalg.svd(differences - differences.mean(axis=0), full_matrices=False)
    directions, start = left * sizes, 0
    for name in names:
        stop, tensor = start + states[-1][name].numel(), states[-1][name].double().numpy()
        directions[start:stop] *= np.linalg.norm(tensor) / np.linalg.norm(directions[start:stop], axis=0)
        start = stop
    places = np.stack([np.linalg.lstsq(directions, one - flat[-1], rcond=None)[0] for one in flat])
    distances = np.linalg.norm(flat - flat[-1] - places @ directions.T, axis=1)
    return places, distances, np.linalg.norm(directions, axis=0)


def test_the_distance_of_each_snapshot_from_the_plane_that_mindspore_drew(summary, tmp_path):
    places, distances, norms = drawn_by_mindspore(summary / "ckpt_dir")
    path = ([*places[:, 0]], [*places[:, 1]], PATH[2])
    events = [landscape_event(X, Y, Z, intervals=INTERVALS[0], path=path, convergence=(0, 0, 1))]
    write_events(summary, events, 1700000100)
    import_mindspore(summary, tmp_path / "run")
    surface = open_run(tmp_path / "run")["mindspore-epochs-1-3"]
    np.testing.assert_allclose(surface.path.distance, distances, atol=1e-5)
    np.testing.assert_allclose([axis.record.norm for axis in surface.axes], norms, rtol=1e-5)
    moved = [
        np.concatenate([weights(k)[name].ravel() for name in ("conv.weight", "fc.weight", "fc.bias")])
        for k in (1, 2, 3)
    ]
    share = max(distances[k] / np.linalg.norm(moved[k] - moved[2]) for k in (0, 1))
    assert f"lies {100 * share:.0f}\u00a0% of its distance from epoch 3 off the plane" in " ".join(
        caption(surface, "loss")
    )


@pytest.mark.parametrize(("break_it", "message"), [
    (lambda folder: shutil.rmtree(folder), "does not exist"),
    (lambda folder: [shutil.rmtree(folder), folder.write_text("")], "must be a folder, not the file"),
    (lambda folder: [shutil.rmtree(folder), folder.mkdir()], "holds no event file of MindSpore"),
    (lambda folder: [file.unlink() for file in folder.glob("events*")] + [shutil.rmtree(folder / "ckpt_dir"),
        write_events(folder, [])], "holds no landscape, scalar or checkpoint"),
    (lambda folder: write_events(folder, [], 5).write_bytes(frame(version_event("brain.Event:2"))),
     "is of version 'brain.Event:2'.*; move it away to import the others"),
    (lambda folder: (folder / "ckpt_dir" / "Net_2_epoch.ckpt").write_bytes(b"\x0a\x04oops"), "2_epoch.*no checkp"),
    (lambda folder: (folder / "ckpt_dir" / "Net_2_epoch.ckpt").write_bytes(
        checkpoint_bytes({"fc.weight": np.ones(2, np.float32)})), "must be of one network, but .*Net_2_epoch.* diff"),
    (lambda folder: write_events(folder, [landscape_event(X, Y, Z[:2], intervals=[1, 2, 3], path=PATH)], 6),
     r"its 'landscape_\[1, 3\]' .*has shape \[2, 5\]"),
    (lambda folder: write_events(folder, [landscape_event(X, Y, Z, intervals=[1, 2], path=PATH)], 6),
     r"does not give one place for each of its 2 snapshots"),
    (lambda folder: write_events(folder, [landscape_event(X, Y, Z, intervals=[3, 2, 1], path=PATH)], 6),
     r"must list its snapshots in ascending order, not \[3, 2, 1\]"),
    (lambda folder: write_events(folder, [landscape_event(X, Y, Z, intervals=[1], tag="t", unit="day")], 6),
     r"must be of PCA or Random, in steps or epochs, not \['PCA', 'day'\]"),
    (lambda folder: write_events(folder, [landscape_event(np.zeros(5), Y, Z, intervals=[1], tag="t")], 6),
     "coordinates of alpha must differ"),
])  # fmt: skip
def test_a_folder_that_holds_something_else_is_refused_and_nothing_is_written(summary, tmp_path, break_it, message):
    break_it(summary)
    with pytest.raises((JobError, NotFoundError), match=message):
        import_mindspore(summary, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_metadata_that_is_damaged_or_missing_costs_only_what_it_said(summary, tmp_path, caplog):
    (summary / "ckpt_dir" / "train_metadata.json").write_text('{"epoch_group": {"0": [1, 2')
    with caplog.at_level(logging.WARNING, "landscape"):
        made = import_mindspore(summary, tmp_path / "run")
    assert "train_metadata.json' cannot be read; the checkpoints are numbered by their names" in caplog.text
    assert sorted(sources(made)) == [1, 2, 3]
    info = open_run(tmp_path / "run").info
    assert info["steps_per_epoch"] == 4  # the landscapes say it too
    assert info["collect_landscape"]["intervals"] == INTERVALS
    assert open_run(tmp_path / "run")["mindspore-result"].record.num_samples is None


def test_absurd_metadata_is_not_believed(summary, tmp_path):
    os.mkfifo(summary / "events.out.events.summary.9.0.host_MS")
    os.mkfifo(summary / "ckpt_dir" / "Net_9_epoch.ckpt")
    absurd = {
        "epoch_group": {"0": [1, "x", None]},
        "unit": "step",
        "step_per_epoch": 1e308,
        "num_samples": "all",
        "landscape_size": 1e99,
    }
    (summary / "ckpt_dir" / "train_metadata.json").write_text(json.dumps(absurd))
    import_mindspore(summary, tmp_path / "run")
    info = open_run(tmp_path / "run").info
    assert (info["steps_per_epoch"], info["unit"]) == (4, "epoch")


def test_weights_that_are_not_finite_or_span_no_plane_leave_the_distances_unknown(summary, tmp_path):
    for name, array in (("nan", np.full((3, 8), np.nan, np.float32)), ("same", weights(3)["fc.weight"])):
        for number in (1, 2):
            state = {**weights(3), "fc.weight": array}
            (summary / "ckpt_dir" / f"Net_{number}_epoch.ckpt").write_bytes(checkpoint_bytes(state))
        opened = import_mindspore(summary, tmp_path / name)
        assert np.isnan(opened["mindspore-epochs-1-3"].path.distance).all()


def test_other_imports_name_the_command(summary, tmp_path):
    with pytest.raises(JobError, match=r"is a checkpoint of MindSpore; `landscape import-mindspore FOLDER --run RUN`"):
        import_checkpoints([summary / "ckpt_dir" / "Net_1_epoch.ckpt"], tmp_path / "run")
    for place in (summary, next(summary.glob("*_MS"))):
        with pytest.raises(JobError, match=r"is of MindSpore; `landscape import-mindspore '.*summary' --run RUN`"):
            import_surface(place, tmp_path / "run")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data beside the repository")
def test_the_losses_of_a_real_path_are_those_of_the_recipes_network(tmp_path):
    folder = SHARED / "mindspore-lenet"
    options = {"split": "test", "conv_bias": False, "scaling": "resize-uint8", "first": 2048, "data": str(SHARED)}
    import_mindspore(folder, tmp_path / "run", "landscape.recipes.mnist:problem", network=options)
    opened, lenet = open_run(tmp_path / "run"), mnist.make_problem(**options)
    images, targets = lenet.data

    @torch.no_grad()
    def loss(state):
        lenet.model.load_state_dict({name: torch.as_tensor(values) for name, values in state.items()})
        return float(nn.functional.cross_entropy(lenet.model(images), targets))

    for name, worst, away in (("mindspore-epochs-1-3", "epoch 1", 26), ("mindspore-epochs-7-10", "epoch 9", 56)):
        surface = opened[name]
        states = [opened.trajectory.snapshot(int(number)).load() for number in surface.path.step]
        components, last = rescaled_components(states), states[-1]
        places = np.stack([surface.path.coordinates[axis] for axis in ("alpha", "beta")], axis=1)
        offsets = [{key: (state[key].double() - last[key].double()).numpy() for key in last} for state in states]
        steps = [[sum(np.vdot(offset[key], one[key]) for key in last) for one in components] for offset in offsets]
        signs = np.sign((np.array(steps) * places).sum(axis=0))
        for k, height in enumerate(surface.path.losses[1]):
            at = signs * places[k]
            drawn = {
                key: (last[key].numpy() + at[0] * components[0][key] + at[1] * components[1][key]).astype(np.float32)
                for key in last
            }
            assert loss(drawn) == pytest.approx(height, rel=1e-6)
        assert f"({worst} lies {away}\u00a0% of its distance from" in " ".join(caption(surface, "loss"))
    # Drawn at 0.012, the snapshot has 0.045.
    assert opened["mindspore-epochs-7-10"].path.losses[1][2] == pytest.approx(0.01192519, rel=1e-6)
    assert loss(opened.trajectory.snapshot(9).load()) == pytest.approx(0.0449035, rel=1e-5)
    note = "shows, 0.008101, is that of the point (0.0667, 0.0667) beside the origin, where it is 0.006041"
    assert note in " ".join(caption(opened["mindspore-result"], "loss"))
