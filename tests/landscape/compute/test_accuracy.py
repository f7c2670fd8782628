"""Landscapes with an accuracy: true to it, to the bit however they are reached, and refused where they cannot be."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cluster.runtime.status import validate_run
from landscape import Job, Problem, extend, open_run, pack, run
from landscape.compute.extend import truer_job
from landscape.compute.planning import plan_job, plan_text
from landscape.core.errors import Interrupted, JobError
from landscape.store.landscape import LandscapeStore
from landscape.surface.surface import QUARANTINED, Surface

SAMPLES = 1500


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 4, generator=draw)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long()


def classes() -> Problem:
    model = Net()
    x, y = data()
    step = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        step.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        step.step()
    return Problem.supervised(model, (x, y), nn.CrossEntropyLoss(), metrics=["accuracy"])


def job(folder: Path, accuracy: Any, problem: Callable[[], Problem] = classes, **spec: Any) -> Job:
    fields = {name: spec.pop(name) for name in ("batch_norm", "num_samples", "keep_samples") if name in spec}
    landscape = {"name": "a", "range": [-1, 1], "accuracy": accuracy, **spec}
    return Job(run=str(folder), problem=problem, engine="eager", device="cpu", landscapes=[landscape], **fields)


def compute(folder: Path, accuracy: Any, problem: Callable[[], Problem] = classes, **spec: Any) -> Surface:
    return run(job(folder, accuracy, problem, **spec), progress=False)["a"]


def truth(surface: Surface, problem: Callable[[], Problem], places: np.ndarray) -> np.ndarray:
    """The mean rise over all samples at coordinates [points, axes], by a plain loop in float64."""
    made = problem()
    model = made.model.double()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    axes = [surface.weights(*row) for row in np.eye(len(surface.axes))]

    def loss(point: np.ndarray) -> float:
        moved = {
            name: tensor + sum(c * (axis[name].double() - tensor) for c, axis in zip(point, axes, strict=True))
            for name, tensor in start.items()
        }
        model.load_state_dict(moved)
        with torch.no_grad():
            batch = tuple(part.double() if part.is_floating_point() else part for part in made.data)
            return float(made.observe(model, batch)["loss"].mean())

    origin = loss(np.zeros(len(axes)))
    return np.array([loss(place) - origin for place in places])


def same(first: Surface, second: Surface) -> bool:
    return all(np.array_equal(first[name], second[name], equal_nan=True) for name in first.observables)


@pytest.fixture(scope="module")
def at_four(tmp_path_factory) -> Surface:
    return compute(tmp_path_factory.mktemp("four") / "run", "4%")


def test_the_true_error_off_the_grid_is_within_the_stated_one(at_four) -> None:
    record = at_four.record.accuracy
    assert record is not None
    assert record.reached is not None
    assert record.reached <= 0.04
    assert record.stopped == "reached"
    draw = np.random.default_rng(0)
    places = draw.uniform(-1, 1, (200, 2))
    steps = (places + 1) / 2 * (np.array([len(at_four.alpha), len(at_four.beta)]) - 1)
    low = np.minimum(steps.astype(int), len(at_four.alpha) - 2)
    share = steps - low
    rise = at_four.loss - at_four.origin_loss
    shown = sum(
        rise[low[:, 1] + j, low[:, 0] + i]
        * (share[:, 0] if i else 1 - share[:, 0])
        * (share[:, 1] if j else 1 - share[:, 1])
        for i in (0, 1)
        for j in (0, 1)
    )
    error = np.abs(shown - truth(at_four, classes, places))
    assert np.percentile(error, 95) <= record.reached * record.relief
    assert record.relief == pytest.approx(np.subtract(*np.percentile(rise, [95, 5])), rel=0.2)


def test_far_less_is_evaluated_than_all_samples_at_all_points(at_four) -> None:
    record = at_four.record.accuracy
    assert record.evaluations < 0.15 * SAMPLES * 21**2
    known = at_four["samples_known"]
    assert int(known.sum()) == record.evaluations
    assert int((known > 0).sum()) == record.points
    assert ((known > 0) == (at_four.interpolated == 0)).all()
    assert (known[::32, ::32] >= 256).all()
    assert (known[::16, ::16] >= 32).all()


def test_a_point_with_all_samples_has_their_mean(at_four) -> None:
    places = np.argwhere(at_four["samples_known"] == SAMPLES)
    assert len(places)
    coordinates = np.stack([at_four.alpha[places[:, 1]], at_four.beta[places[:, 0]]], axis=1)
    rise = (at_four.loss - at_four.origin_loss)[tuple(places.T)]
    assert np.allclose(rise, truth(at_four, classes, coordinates), rtol=1e-5, atol=1e-6)
    assert not at_four["loss_rise_stderr"][tuple(places.T)].any()
    assert at_four.origin_loss == pytest.approx(float(LandscapeStore.open(at_four.run, "a").record.origin_loss))


def test_eight_per_cent_and_then_four_give_the_bits_of_four_at_once(at_four, tmp_path) -> None:
    first = compute(tmp_path / "run", "8%")
    assert first.record.accuracy.evaluations < at_four.record.accuracy.evaluations
    assert same(compute(tmp_path / "run", "4%"), at_four)
    assert compute(tmp_path / "run", "8%").record.accuracy.evaluations == at_four.record.accuracy.evaluations


def test_extending_by_accuracy_goes_on_where_it_ended(at_four, tmp_path) -> None:
    compute(tmp_path / "run", "8%")
    opened = extend(tmp_path / "run", "a", accuracy="4%", problem=classes, progress=False)
    assert same(opened["a"], at_four)


@pytest.mark.parametrize("tasks", [1, 5, 40])
def test_an_interruption_changes_no_bit(at_four, tmp_path, tasks: int) -> None:
    done: list[int] = []
    with pytest.raises(Interrupted):
        run(job(tmp_path / "run", "4%"), observer=lambda progress: done.append(1), stop=lambda: len(done) >= tasks)
    while True:
        count = len(done)
        try:
            run(
                job(tmp_path / "run", "4%"), observer=lambda p: done.append(1), stop=lambda c=count: len(done) >= c + 25
            )
            break
        except Interrupted:
            continue
    assert same(open_run(tmp_path / "run")["a"], at_four)


def test_damage_is_mended_to_the_bit(at_four, tmp_path) -> None:
    shutil.copytree(at_four.run, tmp_path / "run")
    rounds = tmp_path / "run" / "landscapes.zarr" / "a" / "rounds"
    chunk = next((rounds / "0" / "rises" / "c").rglob("*/0"))
    chunk.write_bytes(chunk.read_bytes()[:-3])
    (rounds / "1" / "status" / "c" / "0").unlink()
    shutil.rmtree(rounds / str(max(int(each.name) for each in rounds.iterdir() if each.name.isdigit())))
    assert same(compute(tmp_path / "run", "4%"), at_four)


def test_validation_names_the_damaged_parts(at_four, tmp_path) -> None:
    shutil.copytree(at_four.run, tmp_path / "run")
    sound = validate_run(str(tmp_path / "run"))["landscapes"][0]
    assert sound["damaged"] == []
    assert sound["missing_tiles"] == 0
    rounds = tmp_path / "run" / "landscapes.zarr" / "a" / "rounds"
    chunk = next((rounds / "1" / "moments" / "c").rglob("*/0"))
    chunk.write_bytes(b"\x00" * 30)
    (rounds / "3" / "zarr.json").write_text("{}")
    (rounds / "3" / "status" / "zarr.json").write_text("no")
    damaged = validate_run(str(tmp_path / "run"))["landscapes"][0]["damaged"]
    assert damaged[0].startswith("rounds/1 part ")
    assert damaged[1].startswith("rounds/3: does not read")


def test_a_round_whose_document_is_lost_is_chosen_again(at_four, tmp_path) -> None:
    shutil.copytree(at_four.run, tmp_path / "run")
    (tmp_path / "run" / "landscapes.zarr" / "a" / "rounds" / "2" / "zarr.json").unlink()
    assert same(compute(tmp_path / "run", "3.9%"), compute(tmp_path / "other", "3.9%"))


def test_a_budget_ends_the_rounds_and_says_what_the_rest_would_cost(at_four, tmp_path) -> None:
    most = 12_000
    surface = compute(tmp_path / "run", "4%", budget=f"{most} evaluations")
    record = surface.record.accuracy
    assert record.stopped == "budget"
    assert record.evaluations <= most
    assert record.reached > 0.04
    assert record.rest > 0
    assert "more evaluations would reach 4" in record.ending
    assert same(compute(tmp_path / "run", "4%"), at_four)


@pytest.mark.parametrize("axes", [1, 3])
def test_lines_and_volumes(tmp_path, axes: int) -> None:
    directions = [{"kind": "random", "seed": seed} for seed in range(1, axes + 1)]
    surface = compute(tmp_path / "run", "8%", directions=directions, range=[-0.6, 0.8])
    assert surface.loss.ndim == axes
    assert surface.record.accuracy.reached <= 0.08
    places = np.random.default_rng(1).integers(0, surface.loss.shape[0], (40, axes))
    coordinates = np.stack([axis.coordinates[places[:, -1 - k]] for k, axis in enumerate(surface.axes)], axis=1)
    error = np.abs((surface.loss - surface.origin_loss)[tuple(places.T)] - truth(surface, classes, coordinates))
    assert np.percentile(error, 95) <= 1.3 * surface.record.accuracy.reached * surface.record.accuracy.relief


def test_an_absolute_accuracy_and_one_of_logarithms(tmp_path) -> None:
    absolute = compute(tmp_path / "absolute", 0.2)
    assert absolute.record.accuracy.reached <= 0.2
    assert not absolute.record.accuracy.relative
    logarithms = compute(tmp_path / "log", {"error": "5%", "scale": "log"})
    record = logarithms.record.accuracy
    assert record.reached <= 0.05
    shown = np.log10(logarithms.loss)
    assert record.relief == pytest.approx(np.subtract(*np.percentile(shown, [95, 5])), rel=0.2)
    with pytest.raises(JobError, match="accuracy"):
        compute(tmp_path / "log", "5%")


def few() -> Problem:
    made = classes()
    return Problem.supervised(made.model, tuple(part[:30] for part in made.data), nn.CrossEntropyLoss())


def test_fewer_samples_than_a_block_are_all_known(tmp_path) -> None:
    surface = compute(tmp_path / "run", "2%", few)
    record = surface.record.accuracy
    assert (record.most_samples, record.population, record.sampling) == (30, 30, 0.0)
    assert record.reached <= 0.02
    assert not surface["loss_rise_stderr"].any()


def weighted() -> Problem:
    made = classes()

    def observe(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        losses = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return {"loss": losses, "weight": 1.0 + (batch[0][:, 3] > 0).to(losses.dtype)}

    return Problem(made.model, tuple(part[:200] for part in made.data), observe)


def test_weights_of_samples_weigh(tmp_path) -> None:
    surface = compute(tmp_path / "run", "6%", weighted)
    index = tuple(np.argwhere(surface["samples_known"] == 200)[0])
    made = weighted()
    made.model.load_state_dict(surface.weights(surface.alpha[index[1]], surface.beta[index[0]]))
    with torch.no_grad():
        observed = made.observe(made.model, made.data)
    mean = float((observed["weight"] * observed["loss"]).sum() / observed["weight"].sum())
    assert surface.loss[index] == pytest.approx(mean, rel=1e-5)


def inside(model: nn.Module, points: Tensor) -> Tensor:
    return (model(points)[:, 0] - points[:, 0] * points[:, 1]).square()


def edge(model: nn.Module, points: Tensor) -> Tensor:
    return model(points)[:, 1].square()


def terms() -> Problem:
    x, _ = data()
    return Problem.terms(Net(), {"inside": (x[:300], inside, 1.0), "edge": (x[:70], edge, 5.0)})


def test_terms_have_samples_of_their_own(tmp_path) -> None:
    surface = compute(tmp_path / "run", "1%", terms)
    assert surface.record.accuracy.reached <= 0.01
    index = tuple(np.argwhere(surface["samples_known"] == 300)[0])
    assert surface.loss[index] == pytest.approx(surface["inside"][index] + 5 * surface["edge"][index], rel=1e-6)
    made = terms()
    made.model.load_state_dict(surface.weights(surface.alpha[index[1]], surface.beta[index[0]]))
    x, _ = data()
    with torch.no_grad():
        whole = float(inside(made.model, x[:300]).mean() + 5 * edge(made.model, x[:70]).mean())
    assert surface.loss[index] == pytest.approx(whole, rel=1e-5)


def wall() -> Problem:
    made = classes()
    start = made.model.layers[0].weight.detach().clone()

    def observe(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        losses = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        far = (model.layers[0].weight - start.to(losses.dtype)).norm() > 4.0
        return {"loss": torch.where(far, torch.full_like(losses, torch.inf), losses)}

    return Problem(made.model, made.data, observe)


def test_points_that_are_not_finite_are_holes_and_the_rest_is_a_picture(tmp_path) -> None:
    surface = compute(tmp_path / "run", "8%", wall)
    finite = np.isfinite(surface.loss)
    assert 0.2 < finite.mean() < 0.98
    assert (surface.status[~finite] == 2).all()
    assert surface.record.accuracy.reached <= 0.08


RAISES = [True]


def raising() -> Problem:
    made = classes()
    start = made.model.layers[0].weight.detach().clone()

    def observe(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        if RAISES[0] and (model.layers[0].weight - start.to(batch[0].dtype)).norm() > 2.9:
            raise ValueError("too far")
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}

    return Problem(made.model, made.data, observe)


def test_parts_that_raise_are_given_up_and_tried_again(tmp_path) -> None:
    RAISES[0] = True
    opened = run(job(tmp_path / "run", "8%", raising), progress=False)
    record = opened["a"].record
    assert record.progress.state == "partial"
    assert record.accuracy.stopped == "given up"
    assert "too far" in record.failures[0].cause
    rounds = LandscapeStore.open(opened.path, "a").rounds().read()
    assert any(QUARANTINED in each.status for each in rounds)
    RAISES[0] = False
    mended = run(job(tmp_path / "run", "8%", raising), progress=False)["a"].record
    assert (mended.accuracy.stopped, mended.progress.state, mended.failures) == ("reached", "complete", ())


class Batches:
    """Batches of 5 to 59 samples that cannot be cut, as each has a text too."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, str]]:
        x, y = data()
        draw, start = np.random.default_rng(0), 0
        while start < SAMPLES:
            size = int(draw.integers(5, 60))
            yield x[start : start + size], y[start : start + size], f"from {start}"
            start += size


def ragged() -> Problem:
    def observe(model: nn.Module, batch: tuple[Tensor, Tensor, str]) -> dict[str, Tensor]:
        return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}

    return Problem(classes().model, Batches(), observe, length=lambda batch: len(batch[1]))


def test_batches_that_the_data_cut_are_blocks(tmp_path) -> None:
    surface = compute(tmp_path / "run", "10%", ragged)
    assert surface.record.accuracy.reached <= 0.1
    assert surface.record.accuracy.population == SAMPLES


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": 9}, "accuracy and size exclude each other"),
        ({"refine": {"tolerance": "1%"}}, "accuracy and refine exclude each other"),
        ({"convexity": True}, "accuracy and convexity exclude each other"),
        ({"batch_norm": "batch"}, "accuracy: landscape 'a' has batch_norm: batch"),
        ({"num_samples": 64}, "num_samples: must be left out with accuracy, .* all 1500 samples, not 64"),
        ({"accuracy": "0%"}, "accuracy.error: must be a share of the relief"),
        ({"accuracy": "100%"}, "must be below 100% of the relief"),
        ({"budget": "soon"}, "budget: must be a time or a number of evaluations"),
        ({"accuracy": None, "budget": "1 h"}, "budget goes with accuracy only"),
    ],
)
def test_what_contradicts_an_accuracy_is_refused(tmp_path, fields: dict[str, Any], words: str) -> None:
    accuracy = fields.pop("accuracy", "5%")
    with pytest.raises(JobError, match=words):
        compute(tmp_path / "run", accuracy, **fields)
    assert not (tmp_path / "run").exists()


def test_fixed_grids_are_not_extended_by_accuracy_nor_pictures_by_samples(at_four, tmp_path) -> None:
    fixed = Job(run=str(tmp_path / "run"), problem=classes, num_samples=64, landscapes=[{"name": "b", "size": 5}])
    run(fixed, progress=False)
    with pytest.raises(JobError, match="'b' is a fixed grid"):
        extend(tmp_path / "run", "b", accuracy="1%", problem=classes)
    with pytest.raises(JobError, match="extend it by accuracy"):
        extend(at_four.run, "a", num_samples=4000, problem=classes)


def test_one_job_may_have_fixed_grids_beside(tmp_path) -> None:
    both = [{"name": "a", "accuracy": "10%"}, {"name": "b", "size": 5}]
    opened = run(
        Job(run=str(tmp_path / "run"), problem=classes, num_samples=100, engine="eager", landscapes=both),
        progress=False,
    )
    assert opened["b"].record.num_samples == 100
    assert opened["a"].record.num_samples == SAMPLES
    mixed = Job(run=str(tmp_path / "other"), problem=classes, num_samples=100, landscapes=both)
    with pytest.raises(JobError, match="landscape 'a' takes all samples of the problem, and others num_samples"):
        pack(mixed, tmp_path / "mixed.landscape")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rounds", "has an observable rounds, the name of the folder of its rounds"),
        ("interpolated", "the store uses it itself"),
        ("samples_known", "the store uses it itself"),
        ("loss_interpolation_error", "the store uses it itself"),
    ],
)
def test_observables_have_other_names_than_what_is_stored_beside_an_accuracy(tmp_path, name: str, words: str) -> None:
    def named() -> Problem:
        made = classes()
        return Problem.supervised(made.model, data(), nn.CrossEntropyLoss(), metrics={name: lambda out, y: out[:, 0]})

    with pytest.raises(JobError, match=words):
        compute(tmp_path / "run", "20%", named)
    assert not (tmp_path / "run").exists()


def test_the_plan_of_going_on_says_what_is_left(at_four) -> None:
    planned = plan_job(truer_job(at_four.run, "a", "1%", None, classes))
    assert "so far true to" in planned["landscapes"][0]["accuracy"]["text"]
    assert "more evaluations are left" in plan_text(planned)
    record = at_four.record.accuracy
    expected = record.evaluations * ((record.reached / 0.01) ** 2 - 1)
    assert planned["landscapes"][0]["missing_points"] == pytest.approx(expected / SAMPLES, abs=1)
    last = truer_job(at_four.run, "a", None, "1 h", classes).landscapes[0].accuracy
    assert (last.error, last.relative) == (record.error, record.relative)
