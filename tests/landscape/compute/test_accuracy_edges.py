"""Landscapes with an accuracy at their edges: damage after the end, other units, no finite value, errors of terms."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from object_stores import new_url, s3_server, use
from torch import Tensor, nn

from cluster.runtime.status import run_status, validate_run
from landscape import Job, Problem, extend, open_run, refine, run
from landscape.analysis.quantised import compare_landscapes, sides_of
from landscape.compute import serial
from landscape.core.errors import Interrupted, JobError
from landscape.evaluation.feed import growing_blocks
from landscape.surface.accuracy import KnownValues, first_pass, first_round, judge, levels_of, next_round
from landscape.surface.nested_samples import Known
from landscape.surface.surface import Surface

SAMPLES = 600


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 4, generator=draw)
    return x, x[:, :1] * x[:, 1:2]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def squares() -> Problem:
    return Problem.supervised(Net(), data(), nn.MSELoss())


def changed(change: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[], Problem]:
    """The problem with losses [samples] that `change` makes of the model and of its losses."""

    def observe(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        x, y = batch
        return {"loss": change(model, (model(x) - y).square()[:, 0])}

    return lambda: Problem(Net(), data(), observe)


def bias(model: nn.Module) -> Tensor:
    """How far the weights are from the origin, in the first layer."""
    return (model.layers[0].weight - Net().layers[0].weight.to(model.layers[0].weight)).norm()


def compute(folder: Path, accuracy: Any, problem: Callable[[], Problem] = squares, **spec: Any) -> Surface:
    landscape = {"name": "a", "range": [-1, 1], "accuracy": accuracy, **spec}
    job = Job(run=str(folder), problem=problem, engine="eager", device="cpu", landscapes=[landscape])
    return run(job, progress=False)["a"]


def same(first: Surface, second: Surface) -> bool:
    return all(np.array_equal(first[name], second[name], equal_nan=True) for name in first.observables)


@pytest.fixture(scope="module")
def settled(tmp_path_factory) -> Surface:
    return compute(tmp_path_factory.mktemp("settled") / "run", "10%")


@pytest.fixture
def copy(settled, tmp_path) -> Path:
    shutil.copytree(settled.run, tmp_path / "run")
    return tmp_path / "run"


def test_a_damaged_picture_is_written_again(settled, copy) -> None:
    chunk = copy / "landscapes.zarr" / "a" / "loss" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:20])
    assert same(compute(copy, "10%"), settled)
    assert not validate_run(str(copy))["landscapes"][0]["damaged"]


def test_a_picture_without_its_states_is_written_again(settled, copy) -> None:
    shutil.rmtree(copy / "landscapes.zarr" / "a" / "status" / "c")
    assert same(compute(copy, "10%"), settled)


def test_a_round_that_is_lost_after_the_end_is_computed_again(settled, copy) -> None:
    last = settled.record.accuracy.rounds - 1
    assert last > 0
    shutil.rmtree(copy / "landscapes.zarr" / "a" / "rounds" / str(last))
    assert validate_run(str(copy))["landscapes"][0]["damaged"]
    assert same(compute(copy, "10%"), settled)
    assert not validate_run(str(copy))["landscapes"][0]["damaged"]


def test_a_settled_picture_is_left_alone(settled, copy) -> None:
    chunks = (path for path in copy.rglob("*") if path.is_file() and "/c/" in str(path.relative_to(copy)))
    before = {path: path.stat().st_mtime_ns for path in chunks}
    compute(copy, "10%")
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_another_unit_is_judged_in_that_unit(settled, copy) -> None:
    reached = settled.record.accuracy
    tighter = compute(copy, 0.5 * reached.absolute).record.accuracy
    assert not tighter.relative
    assert tighter.reached <= 0.5 * reached.absolute
    assert tighter.evaluations > reached.evaluations
    looser = compute(copy, "20%").record.accuracy
    assert looser.relative
    assert looser.reached == pytest.approx(tighter.reached / tighter.relief)
    assert looser.evaluations == tighter.evaluations


def test_two_pictures_of_one_network_do_not_differ_by_more_than_they_state(settled, copy) -> None:
    extend(copy, "a", accuracy="6%", problem=squares)
    sides = sides_of(f"{settled.run}:a", f"{copy}:a")
    assert sides is not None
    found = compare_landscapes(*sides, problem=squares)
    assert np.nanmax(np.abs(found.difference)) > 0
    known = np.isfinite(found.stderr)
    assert (np.abs(found.difference[known]) <= 3 * found.stderr[known]).mean() > 0.9


def test_a_flat_landscape_is_true_at_once(tmp_path) -> None:
    surface = compute(tmp_path / "run", "5%", changed(lambda model, losses: losses * 0.0 + 2.0))
    assert surface.record.accuracy.reached == 0
    assert surface.record.accuracy.stopped == "reached"
    assert np.allclose(surface.loss, 2.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_without_a_finite_point_the_first_pass_is_all(tmp_path, value: float) -> None:
    surface = compute(tmp_path / "run", "5%", changed(lambda model, losses: losses + value))
    record = surface.record.accuracy
    assert record.reached is None
    assert "less than two points of the first pass have a finite loss" in record.ending
    assert record.evaluations == 25 * 256 + 56 * 32


RADIUS = 1.2


def walled() -> Problem:
    return changed(lambda model, losses: losses.where(bias(model) < RADIUS, np.inf))()


def test_the_edge_of_what_is_not_finite_is_narrowed(tmp_path) -> None:
    surface = compute(tmp_path / "run", "20%", walled)
    origin = Net().layers[0].weight.detach().double()
    d, e = (surface.weights(*row)["layers.0.weight"].double() - origin for row in np.eye(2))
    far = np.array([[float((a * d + b * e).norm()) for a in surface.alpha] for b in surface.beta])
    assert 0.1 < (far < RADIUS).mean() < 0.9
    hidden = (far < RADIUS) & ~np.isfinite(surface.loss)
    assert hidden.mean() < 0.03
    assert not np.isfinite(surface.loss[far > RADIUS]).any()
    known = surface["samples_known"]
    assert surface.record.accuracy.evaluations > known.sum()  # points that are not finite cost as much as others


def test_where_the_origin_alone_is_finite_the_range_is_too_large(tmp_path) -> None:
    surface = compute(tmp_path / "run", "20%", changed(lambda model, losses: losses.where(bias(model) < 0.3, np.inf)))
    record = surface.record.accuracy
    assert np.isfinite(surface.loss).sum() == 1
    assert (record.reached, record.stopped) == (None, "exhausted")
    assert "choose a smaller range" in record.ending


def test_logarithms_need_a_positive_loss_at_the_origin(tmp_path) -> None:
    with pytest.raises(JobError, match="log needs a positive loss at the origin, not -"):
        compute(tmp_path / "run", {"error": 0.1, "scale": "log"}, changed(lambda model, losses: losses - 9.0))


def test_a_term_whose_samples_are_all_known_has_no_error(tmp_path) -> None:
    def square(model: nn.Module, points: Tensor) -> Tensor:
        return model(points).square()

    x, _ = data()
    terms = {"inside": (x, square, 1.0), "edge": (x[:70] + 1, square, 3.0)}
    surface = compute(tmp_path / "run", "15%", lambda: Problem.terms(Net(), terms))
    evaluated = surface["samples_known"] >= 70
    assert evaluated.sum() >= 25
    assert (surface["edge_stderr"][evaluated] < 1e-9).all()
    assert (surface["inside_stderr"][evaluated] > 0).any()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"size": 41}, "accuracy and size exclude each other"),
        ({"size": 641}, "accuracy and size exclude each other"),
        ({"budget": "1000 evaluations"}, "budget: must be at least 8192 evaluations .* not 1000"),
        ({"budget": {}}, "budget: must be a time or a number of evaluations"),
        ({"budget": {"seconds": -5}}, "budget.seconds"),
        ({"budget": {"evaluations": 0}}, "budget.evaluations"),
        (
            {"accuracy": {"error": "5%", "relative": False}},
            "accuracy: error is in per cent",
        ),
    ],
)
def test_what_would_mislead_is_refused(tmp_path, spec: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        compute(tmp_path / "run", spec.pop("accuracy", "10%"), **spec)
    assert not (tmp_path / "run").exists()


def test_refinement_is_refused_and_leaves_nothing(settled, copy) -> None:
    with pytest.raises(JobError, match="cannot be refined: it has an accuracy"):
        refine(copy, "a", factor=2, problem=squares)
    assert not (copy / "landscapes.zarr" / "a" / "levels").exists()


def test_a_first_pass_counts_whole_blocks() -> None:
    """Where the data cuts the batches, a block may have more samples than a pilot needs."""
    assert first_pass(2, np.array([100, 200, 300, 400])) == 25 * 300 + 56 * 100
    assert first_pass(1, np.array([32, 64, 256, 512])) == 11 * 256 + 10 * 32
    assert first_pass(3, np.array([20])) == 9**3 * 20


@pytest.mark.parametrize("population", [200, 257, 3000])
def test_samples_are_added_only_where_their_error_matters(population: int) -> None:
    """The error is of interpolation alone, so that no known point needs more samples."""
    levels, draw = levels_of(2), np.random.default_rng(0)
    ends = np.array([end for _, end in growing_blocks(population)])
    items = first_round(levels, ends)
    places = np.concatenate([levels.places(0), levels.places(1)])
    places = places[np.sort(np.unique(places, axis=0, return_index=True)[1])]
    counts = [ends[items.blocks[(items.places == place).all(axis=1)].max()] for place in places]
    x = places / 64 - 1.0
    height = np.sin(9 * x[:, 0]) * np.cos(7 * x[:, 1])
    slopes = draw.normal(size=(2, population)) * 1e-4
    rises = [h + (point @ slopes)[:count] for h, point, count in zip(height, x, counts, strict=True)]
    picture = judge(KnownValues(levels, places, [Known(rises, population)], ends))
    assert picture.between > 100 * picture.sampling
    following = next_round(picture)
    assert len(following.places)
    assert not (following.places[:, None] == places[None]).all(axis=2).any()


def test_two_accuracies_and_a_grid_of_all_samples_in_one_run(tmp_path) -> None:
    plane, line = {"name": "a", "accuracy": "20%"}, {"name": "b", "accuracy": "20%", "directions": [{"kind": "random"}]}
    grid = {"name": "c", "size": 3}
    (tmp_path / "net.py").write_text("from tests.landscape.compute.test_accuracy_edges import squares as problem\n")
    job = Job(run=str(tmp_path / "run"), problem="net:problem", engine="eager", landscapes=[plane, line, grid])
    opened = run(job.in_folder(tmp_path), progress=False)
    assert all(opened[name].record.progress.state == "complete" for name in "abc")


def test_status_counts_evaluations_and_says_running_until_the_end(settled, copy) -> None:
    found = run_status(str(copy))["landscapes"][0]
    record = settled.record.accuracy
    assert found["state"] == "complete"
    assert (found["done"], found["points"], found["unit"]) == (record.evaluations, record.evaluations, "evaluations")
    store = open_run(copy)["a"]
    going_on = replace(store.record.accuracy, stopped="")
    assert going_on.text == record.text
    extend(copy, "a", accuracy="5%", budget=f"{record.evaluations} evaluations", problem=squares)
    found = run_status(str(copy))["landscapes"][0]
    assert found["state"] == "complete"
    assert "ended by its budget" in found["accuracy"]["ending"]


def test_rounds_in_a_bucket_have_the_bits_of_those_in_a_folder(settled, monkeypatch) -> None:
    with s3_server() as endpoint:
        use(monkeypatch, endpoint)
        url = new_url()
        landscape = {"name": "a", "range": [-1, 1], "accuracy": "10%"}
        job = Job(run=url, problem=squares, engine="eager", device="cpu", landscapes=[landscape])
        tasks = iter(range(20))
        with pytest.raises(Interrupted):
            serial.run(job, lambda _: None, stop=lambda: next(tasks, None) is None)
        assert same(run(job, progress=False)["a"], settled)
        assert not validate_run(url)["landscapes"][0]["damaged"]
