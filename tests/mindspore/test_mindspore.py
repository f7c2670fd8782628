"""A training and its landscapes by MindSpore, imported: every value is MindSpore's, and ours agree with it.

MindSpore trains, draws and reads in its own interpreter. Losses are computed anew here, by the network and the pixels
of the recipe lenet-mnist, at the weights that MindSpore's formulas give.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from mindspore_planes import components, flat, random_directions
from safetensors.torch import save_file
from torch import nn

from landscape import Job, Problem, import_mindspore, open_run
from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.model.history import read_history
from landscape.model.run_files import read_info
from landscape.recipes import mnist
from landscape.recipes.lenet import LeNet5

pytestmark = [pytest.mark.mindspore, pytest.mark.timeout(1800)]  # MindSpore trains for two epochs


@pytest.fixture(scope="session")
def imported(summary, tmp_path_factory):
    """The run that `landscape import-mindspore` makes, and what MindSpore read."""
    folder, read = summary
    run = str(tmp_path_factory.mktemp("imported") / "run")
    import_mindspore(folder, run)
    return run, read


def landscapes_of(run, read):
    """Each landscape as the run has it, with its parts as MindSpore read them."""
    first, _, last = read["kept"]
    tags = {
        f"landscape_[{first}, {last}]": f"mindspore-steps-{first}-{last}",
        f"landscape_[{last}]": "mindspore-result",
    }
    opened = open_run(run)
    assert set(opened) == set(tags.values())
    for tag, name in tags.items():
        start = f"landscape/{tag}/"
        yield opened[name], {key.removeprefix(start): read[key] for key in read if key.startswith(start)}


def weights_at(read, step):
    start = f"weights/{step}/"
    return {key.removeprefix(start): read[key] for key in read if key.startswith(start)}


# -- the import --------------------------------------------------------------------------------------------------------


def test_every_value_is_the_one_that_protobuf_reads(imported):
    for surface, parts in landscapes_of(*imported):
        assert np.array_equal(surface.loss, parts["grid/z"])
        assert np.array_equal(surface.alpha, parts["grid/x"])
        assert np.array_equal(surface.beta, parts["grid/y"])
        assert surface.loss.shape == (6, 6)
        if "path/z" in parts:
            path = surface.path
            assert np.array_equal(path.projected_loss, parts["path/z"])
            assert np.array_equal(path.coordinates["alpha"], parts["path/x"])
            assert np.array_equal(path.coordinates["beta"], parts["path/y"])
            assert surface.origin_loss == parts["end/z"]
        else:
            assert surface.path is None


def test_snapshots_and_history_are_mindspores(imported):
    run, read = imported
    trajectory = open_run(run).trajectory
    assert (trajectory.unit, list(trajectory.numbers)) == ("step", list(read["kept"]))
    for snapshot in trajectory.snapshots:
        own, theirs = snapshot.load(), weights_at(read, snapshot.number)
        assert own.keys() == theirs.keys()
        assert all(np.array_equal(own[name].numpy(), theirs[name]) for name in theirs)
    rows = [row for row in read_history(run) if "loss" in row]
    assert [row["step"] for row in rows] == list(read["steps"])
    assert np.array_equal(np.float32([row["loss"] for row in rows]), read["losses"])
    info, lineage = read_info(run), json.loads(str(read["lineage"]))
    assert (info["model"], info["optimiser"]) == (lineage["network"], lineage["optimizer"])
    assert np.float32(info["learning_rate"]) == lineage["learning_rate"]
    assert (info["source"]["epochs"], info["batch_size"]) == (lineage["epochs"], lineage["batch_size"])


# -- the same losses, computed here ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def samples(mnist_folder, summary):
    """The samples of MindSpore's landscapes: the first ones, resized as MindSpore resizes them."""
    _, read = summary
    images, labels = mnist.network_input(mnist.read_mnist(mnist_folder, "test"), "resize-uint8")
    resized = ((images * mnist.MNIST_DEVIATION + mnist.MNIST_MEAN) * 255).round().to(torch.uint8)
    assert np.array_equal(resized[:, 0].numpy(), read["resized"][..., 0])
    count = len(read["pixels"])
    np.testing.assert_allclose(images[:count].numpy(), read["pixels"], rtol=0, atol=5e-7)
    return images[:count], labels[:count]


def losses_at(run, samples, step, directions, points, folder):
    """The mean losses that this project has at points of a plane around a snapshot of the run."""
    files = [{"kind": "file", "path": str(folder / f"{k}.safetensors")} for k in range(2)]
    for file, direction in zip(files, directions, strict=True):
        save_file({name: torch.from_numpy(values) for name, values in direction.items()}, file["path"])

    def problem():
        return Problem.supervised(LeNet5(conv_bias=False), samples, nn.functional.cross_entropy)

    plane = {"name": "plane", "origin": int(step), "size": 3, "directions": files}
    job = Job(run=run, problem=problem, num_samples=len(samples[1]), precision="float64", landscapes=[plane])
    prepared = prepare(job)
    return make_evaluator(prepared, prepared.landscapes[0]).evaluate(np.array(points)).mean["loss"]


def test_the_losses_of_the_snapshots_are_mindspores(imported, samples, tmp_path):
    run, read = imported
    for step in read["kept"]:
        weights = weights_at(read, step)
        (own,) = losses_at(run, samples, step, [weights, weights], [(0, 0)], tmp_path)
        assert own == pytest.approx(float(read[f"loss/{step}"]), rel=1e-6)


def test_the_landscape_on_the_path_is_that_of_its_formula(imported, samples, tmp_path):
    """The points of the path and of the grid; the end of the path is the last snapshot, the others lie off theirs."""
    run, read = imported
    snapshots = [weights_at(read, step) for step in read["kept"]]
    directions = components(snapshots)
    (_, parts), _ = landscapes_of(run, read)
    places = np.stack([parts["path/x"], parts["path/y"]], axis=1)
    plane = np.stack([flat(direction) for direction in directions], axis=1)
    offsets = np.stack([flat(weights) - flat(snapshots[-1]) for weights in snapshots], axis=1)
    np.testing.assert_allclose(np.linalg.lstsq(plane, offsets, rcond=None)[0].T, places, rtol=0, atol=1e-6)
    path = losses_at(run, samples, read["kept"][-1], directions, places, tmp_path)
    np.testing.assert_allclose(path, parts["path/z"], rtol=1e-6)
    assert parts["path/z"][-1] == parts["end/z"]
    compare_grid(run, samples, read["kept"][-1], directions, parts, tmp_path)


def test_the_landscape_of_the_result_is_that_of_its_directions(imported, samples, tmp_path):
    run, read = imported
    last = read["kept"][-1]
    _, (_, parts) = landscapes_of(run, read)
    compare_grid(run, samples, last, random_directions(weights_at(read, last)), parts, tmp_path)


def compare_grid(run, samples, step, directions, parts, folder):
    points = [(x, y) for y in parts["grid/y"] for x in parts["grid/x"]]
    own = losses_at(run, samples, step, directions, points, folder)
    np.testing.assert_allclose(own.reshape(parts["grid/z"].shape), parts["grid/z"], rtol=1e-6)
