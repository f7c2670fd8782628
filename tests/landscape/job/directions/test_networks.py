"""The plane through three networks: its geometry against numpy's, its corners against the networks, what is refused."""

from __future__ import annotations

import itertools
from dataclasses import asdict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import combine

from landscape import Job, JobError, Landscape, PlaneDirection, Problem, open_run, run
from landscape.compute import axes_and_paths as path_on_axes
from landscape.compute.executor import AtPoints, LocalExecutor, setting_of
from landscape.compute.prepare import prepare
from landscape.core.text import number_text
from landscape.job.directions.plane import plane_through
from landscape.surface.barriers import curve_places
from landscape.surface.record import Record
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.tables import landscape_rows

SAMPLES = 40


def network(seed: int = 0, hidden: int = 5) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, hidden), torch.nn.BatchNorm1d(hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 3)
    )
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    return model


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(SAMPLES, 4, generator=generator), torch.randint(0, 3, (SAMPLES,), generator=generator)


def problem() -> Problem:
    return Problem.supervised(network(), data())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    paths = [folder / f"{name}.safetensors" for name in "abc"]
    for seed, path in enumerate(paths, 1):
        save_file(network(seed).state_dict(), path)
    return [str(path) for path in paths]


def job(folder, files, **fields) -> Job:
    plane = {"name": "plane", "plane": files}
    own = {key: fields.pop(key) for key in ("size", "range", "origin", "curve") if key in fields}
    landscapes = [plane | own, *fields.pop("others", [])]
    return Job(run=str(folder / "run"), problem=problem, num_samples=SAMPLES, landscapes=landscapes, **fields)


def test_lengths_and_angles_are_those_in_weight_space():
    vectors = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    plane = plane_through([{"w": torch.from_numpy(vector)} for vector in vectors], ["w"])
    exact = vectors.astype(np.float64)
    for k, m in itertools.combinations(range(3), 2):
        assert np.linalg.norm(plane.corners[k] - plane.corners[m]) == pytest.approx(np.linalg.norm(exact[k] - exact[m]))
    u, v = (axis["w"].double().numpy() for axis in plane.axes)
    assert [u @ u, v @ v, u @ v] == pytest.approx([1, 1, 0], abs=1e-6)
    for corner, vector in zip(plane.corners, exact, strict=True):
        assert exact[0] + corner[0] * u + corner[1] * v == pytest.approx(vector, abs=1e-6)


def test_masks_and_counts_have_no_part_in_how_near_networks_are():
    beside = {"mask": torch.tensor([0.0, -torch.inf]), "norm.num_batches_tracked": torch.tensor(10**9)}
    near = [{"w": torch.tensor(place), **beside} for place in ([1.0, 0.0], [1.03, 0.04], [1.0, 0.05])]
    assert plane_through(near, ["w"]).corners == pytest.approx(np.array([[0, 0], [0.05, 0], [0.04, 0.03]]), abs=1e-6)


def test_corners_are_the_networks_batch_norm_included(tmp_path, files):
    prepared = prepare(job(tmp_path, files, batch_norm="eval"))
    (landscape,) = prepared.landscapes
    axes = [axis.tensors for axis in landscape.directions]
    networks = [axis.attributes["networks"] for axis in landscape.directions]
    corners = np.array([[each["at"] for each in axis] for axis in networks]).T
    images, labels = data()
    values = LocalExecutor(prepared, landscape).ask(setting_of(landscape), [AtPoints(corners)])[0]
    for corner, file, loss in zip(corners, files, values.mean["loss"], strict=True):
        weights, model = load_file(file), network()
        point = combine(landscape.origin, axes, corner)
        for name, tensor in weights.items():
            assert torch.allclose(point[name], tensor, atol=1e-6), name
        model.load_state_dict(weights)
        plain = torch.nn.functional.cross_entropy(model.eval()(images), labels)
        assert loss == pytest.approx(plain.item(), rel=1e-5)
    assert landscape.record.cosine == pytest.approx(np.eye(2), abs=1e-7)
    assert [axis.record.norm for axis in landscape.directions] == [1.0, 1.0]
    assert [each["name"] for each in networks[0]] == ["a", "b", "c"]


def test_defaults_are_garipovs(tmp_path, files):
    prepared = prepare(job(tmp_path, files))
    (landscape,) = prepared.landscapes
    assert landscape.grid.shape == (21, 21)
    for axis, coordinates in zip(landscape.directions, landscape.grid.coordinates, strict=True):
        places = [each["at"] for each in axis.attributes["networks"]]
        margin = 0.2 * (max(places) - min(places))
        step = coordinates[1] - coordinates[0]
        assert 0.0 in coordinates
        assert min(places) - margin - step < coordinates[0] <= min(places) - margin + 1e-9
        assert max(places) + margin - 1e-9 <= coordinates[-1] < max(places) + margin + step
    assert landscape.record.batch_norm == landscape.plan.batch_norm == "recalibrate"
    assert landscape.identity["batch_norm"] == "recalibrate"
    assert any(line.startswith("batch_norm: recalibrate, as the job names none") for line in prepared.warnings)


def test_a_mode_that_is_named_or_shared_stays(tmp_path, files):
    named = prepare(job(tmp_path, files, batch_norm="batch"))
    assert named.landscapes[0].record.batch_norm == "batch"
    assert not any("batch_norm" in line for line in named.warnings)
    shared = prepare(job(tmp_path, files, others=[{"name": "random"}]))
    assert {each.record.batch_norm for each in shared.landscapes} == {"eval"}
    assert any(line.startswith("batch_norm: eval holds for plane too") for line in shared.warnings)


def test_the_short_form_means_its_axes_and_survives_its_record(files):
    short = Landscape(name="p", plane=files, curve="bezier")
    assert short.directions == tuple(PlaneDirection(models=files, axis=axis, curve="bezier") for axis in (1, 2))
    assert (short.origin, short.size) == (files[0], (21, 21))
    assert Landscape(**short.model_dump(mode="json")) == short
    assert set(short.named_files()) == set(files)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"plane": ["a", "b", "a"]}, "must list three different networks"),
        ({"plane": ["a", "b"]}, "must list three networks"),
        ({"plane": ["a", "b", "c"], "origin": "b"}, "origin must be the first network of plane, 'a'"),
        ({"plane": ["a", "b", "c"], "trajectory": "all"}, "plane and trajectory exclude each other"),
        ({"plane": ["a", "b", "c"], "directions": [{"kind": "random"}]}, "plane and directions exclude each other"),
        ({"plane": ["a", "b", "c"], "curve": "circle"}, "curve"),
        ({"curve": "bezier"}, "curve goes with plane only"),
        ({"plane": ["a", "b", 1.5]}, "plane"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, words):
    with pytest.raises(JobError, match=words):
        Landscape(name="p", **fields)


def line_between(first: str, second: str, share: float) -> dict[str, torch.Tensor]:
    start, end = load_file(first), load_file(second)
    return {name: (start[name] + share * (end[name] - start[name])).to(start[name].dtype) for name in start}


@pytest.mark.parametrize(
    ("third", "words"),
    [
        (lambda a, b: line_between(a, b, 0.3), "plane: the three networks lie on a straight line"),
        (lambda a, b: line_between(a, b, -4.0), "plane: the three networks lie on a straight line"),
        (lambda a, b: load_file(b), "plane: must hold three different networks, but .*b.safetensors' and"),
        (lambda a, b: network(3, hidden=6).state_dict(), r"misshapen 0.weight \(6, 4\) where the model has \(5, 4\)"),
        (lambda a, b: load_file(a) | {"1.running_mean": torch.ones(5)}, "two have the same parameters"),
        (lambda a, b: load_file(a) | {"3.bias": torch.full((3,), torch.inf)}, "must be finite"),
    ],
)
def test_networks_that_span_no_plane_are_refused(tmp_path, files, third, words):
    path = tmp_path / "third.safetensors"
    save_file(third(*files[:2]), path)
    with pytest.raises(JobError, match=words):
        prepare(job(tmp_path, [*files[:2], str(path)]))
    assert not (tmp_path / "run").exists()


def test_networks_that_differ_in_what_cannot_move_are_refused():
    def state(mask, batches, place):
        return {
            "w": torch.tensor(place),
            "mask": torch.tensor(mask),
            "bn.num_batches_tracked": torch.tensor(batches),
        }

    places = ([1.0, 0.0], [4.0, 4.0], [1.0, 5.0])
    same = [state([True, False], batches, place) for batches, place in enumerate(places)]
    assert plane_through(same, ["w"]).corners[1].tolist() == [5.0, 0.0]
    other = [*same[:2], state([True, True], 2, places[2])]
    with pytest.raises(JobError, match="plane: the networks must have the same mask"):
        plane_through(other, ["w"])


def test_an_axis_alone_needs_the_first_network_as_its_origin(tmp_path, files):
    one = {"name": "one", "directions": [{"kind": "plane", "models": files}], "size": 5}
    with pytest.raises(JobError, match="origin: must be the first network of the plane"):
        prepare(Job(run=str(tmp_path / "run"), problem=problem, landscapes=[one]))


def test_a_plane_that_was_begun_without_its_networks_is_gone_on_with(tmp_path, files, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr(path_on_axes, "networks_of", lambda spec: ())
        assert run(job(tmp_path, files, size=3))["plane"].networks is None
    again = run(job(tmp_path, files, size=3))["plane"]
    assert (again.networks, again.path) == (None, None)
    assert dict(landscape_rows(again))["network a"] == "alpha 0, beta 0"


def test_figures_mark_the_networks_where_they_are(tmp_path, files):
    asked = job(tmp_path, files, size=5, curve="bezier")
    surface = run(asked)["plane"]
    run(job(tmp_path, files, size=5, curve="polyline"))  # another curve is no other landscape
    networks = prepare_figure(surface).networks
    corners = np.array([[each.at for each in axis.record.networks] for axis in surface.axes])
    assert np.array_equal(networks.places, corners)
    assert networks.names == ("a", "b", "c")
    assert np.isfinite(networks.heights).all()
    assert networks.curve[:, [0, -1]] == pytest.approx(corners[:, :2])
    assert networks.curve[:, 60] == pytest.approx(corners @ [0.25, 0.25, 0.5])
    flat = surface.figure("contour")
    (marks,) = [trace for trace in flat.data if trace.name == "networks"]
    assert np.array_equal([marks.x, marks.y], corners)
    assert [note.text for note in flat.layout.annotations if note.name == "network"] == [
        "<b>a</b>",
        "<b>b</b>",
        "<b>c</b>",
    ]
    names = {trace.name for trace in surface.figure("surface").data}
    assert {"networks", "bezier curve"} <= names
    assert "bezier curve" in {trace.name for trace in flat.data}
    labels = surface.plot(kind="contour").get_legend_handles_labels()[1]
    assert {"networks", "bezier curve"} <= set(labels)
    rows = dict(landscape_rows(surface))
    losses = surface.networks.loss
    assert surface.path is None
    assert losses == pytest.approx(surface.networks.projected_loss, rel=1e-5)
    assert losses[0] == surface.record.origin_loss
    assert rows["network a"] == f"loss {number_text(losses[0])} at alpha 0, beta 0"
    assert [hover.rpartition(" ")[2] for hover in networks.hover] == [number_text(loss) for loss in losses]
    assert f"Loss at the networks: a {number_text(losses[0])}, b " in flat.layout.meta["caption"]
    assert {"network b", "network c"} <= set(rows)
    assert "batch norm recalibrate" in " ".join(prepare_figure(surface).caption)
    np.testing.assert_equal(asdict(prepare_figure(open_run(tmp_path / "run")["plane"]).networks), asdict(networks))


def test_a_damaged_record_of_networks_counts_as_none(tmp_path, files):
    surface = run(job(tmp_path, files, size=3))["plane"]
    for broken in ("three", [{"name": 1, "at": "x"}], None):
        axis = surface.axes[0].__class__("alpha", surface.alpha, {**surface.axes[0].attributes, "networks": broken})
        assert axis.record.networks is None
    assert Record.of(surface.attributes).batch_norm == "recalibrate"


def test_a_polyline_bends_at_its_bend():
    corners = np.array([[0.0, 0.0], [4.0, 0.0], [1.0, 2.0]])
    places = curve_places("polyline", corners, np.array([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert places.tolist() == [[0, 0], [0.5, 1], [1, 2], [2.5, 1], [4, 0]]
