"""Paths and lines over which batch norm's statistics are those of other weights, beside plain loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import make_job, raw_directions, write_trajectory
from torch import Tensor, nn

from landscape import Problem, open_run, run
from landscape.analysis.checks.paths import Between, LossesByStatistics, OnPath, OnPlane, judge_path, judge_statistics
from landscape.analysis.checks.table import check_landscape
from landscape.analysis.checks.values import Lowest, Range, judge_holes, judge_lowest, judge_range
from landscape.compute.prepare import prepare
from landscape.surface.record import Along
from landscape.surface.record_entries import Check
from landscape.views.prepare.figure import prepare_figure
from landscape.views.prepare.tables import landscape_rows

State = dict[str, Tensor]
SAMPLES = 600
PATH = {"name": "a", "trajectory": "all", "size": 5}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 32), nn.BatchNorm1d(32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def clouds() -> tuple[Tensor, Tensor]:
    labels = torch.arange(SAMPLES) % 3
    middles = torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])
    return 3 + middles[labels] + torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(0)), labels


def problem() -> Problem:
    return Problem.supervised(Network(), clouds())


@cache
def trained(seed: int, epochs: int = 6, shrink: float = 0.93) -> dict[int, State]:
    """The network after each epoch of 5 steps; weight decay shrinks the first layer, to which batch norm is blind."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Network()
    x, y = clouds()
    kept = {}
    for epoch in range(1, epochs + 1):
        for _ in range(5):
            loss = nn.functional.cross_entropy(network(x), y)
            gradients = torch.autograd.grad(loss, list(network.parameters()))
            with torch.no_grad():
                for each, gradient in zip(network.parameters(), gradients, strict=True):
                    each -= 0.1 * gradient
                network.first.weight *= shrink
                network.first.bias *= shrink
        with torch.no_grad():  # running statistics that are those of these weights
            network.norm.momentum = 1.0
            network(x)
        kept[epoch] = {name: each.detach().clone() for name, each in network.state_dict().items()}
    return kept


def plain_loss(state: Mapping[str, Tensor], *, renew: bool) -> float:
    """The mean loss over all samples; with statistics that one pass over them has taken anew, or with the state's."""
    network, (x, y) = Network(), clouds()
    network.load_state_dict(dict(state))
    with torch.no_grad():
        if renew:
            network.norm.momentum = 1.0
            network.train()(x)
        return float(nn.functional.cross_entropy(network.eval()(x), y))


def job(folder: Path, spec: Mapping[str, object] = PATH, make=problem, **fields):
    return make_job(folder, make, [spec], num_samples=SAMPLES, batch_size=SAMPLES, engine="eager", **fields)


def found(folder: Path, make=problem) -> dict[str, Check]:
    return {check.number: check for check in check_landscape(folder, "a", problem=make).results}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One path in planes of both modes."""
    folders = {}
    for mode in ("eval", "recalibrate"):
        folders[mode] = tmp_path_factory.mktemp(mode)
        write_trajectory(folders[mode], trained(0))
        run(job(folders[mode], batch_norm=mode))
    return folders


# -- a path ---------------------------------------------------------------------------------------------------


def test_stale_statistics_along_a_path_do_not_hold_and_are_those_of_a_plain_loop(runs):
    snapshots, folder = trained(0), runs["eval"]
    checks, drawn = found(folder), open_run(folder)["a"].path
    directions = raw_directions(folder, "a")
    kept = checks["10"].numbers["path"]
    assert {"epoch 1", "epoch 6"} <= set(kept)
    for place, epoch in enumerate(snapshots):
        at = [float(drawn.coordinates[axis][place]) for axis in ("alpha", "beta")]
        moved = {
            name: each + sum(c * torch.tensor(d[name]) for c, d in zip(at, directions, strict=True) if name in d)
            for name, each in snapshots[6].items()
        }
        truth = {
            "loss": plain_loss(snapshots[epoch], renew=False),
            "plane": plain_loss(moved, renew=False),
            "renewed": plain_loss(moved, renew=True),
        }
        assert kept[f"epoch {epoch}"] == pytest.approx(truth, rel=1e-4)
    name = max(kept, key=lambda each: abs(kept[each]["plane"] - kept[each]["loss"]))
    worst = kept[name]
    assert worst["plane"] > 2 * worst["loss"] > worst["renewed"]
    assert kept["epoch 2"]["plane"] > kept["epoch 1"]["plane"], "the training is drawn as going uphill"
    assert checks["10"].state == checks["11"].state == "fails"
    assert checks["10"].remedy.startswith("batch_norm: recalibrate takes them anew")
    assert "batch_norm: recalibrate" in checks["11"].remedy
    assert f"at {name} the loss is {worst['loss']:.3g}, the plane has {worst['plane']:.3g} there" in checks["11"].text
    assert checks["11"].numbers["snapshot"] == name
    assert checks["11"].numbers["plane"] == pytest.approx(worst["plane"], rel=1e-6)


def test_statistics_taken_anew_mend_it(runs):
    checks = found(runs["recalibrate"])
    assert checks["10"].state == checks["11"].state == "holds", checks["11"].text
    assert "path" not in checks["10"].numbers


def test_a_path_whose_statistics_do_not_move_has_nothing_against_it(tmp_path):
    last = trained(0)[6]
    moves = torch.randn(2, *last["last.weight"].shape, generator=torch.Generator().manual_seed(1))
    snapshots = {
        epoch: {**last, "last.weight": last["last.weight"] + 0.5**epoch * moves[0] + 0.8**epoch * moves[1]}
        for epoch in range(1, 9)
    }
    write_trajectory(tmp_path, snapshots)
    run(job(tmp_path))
    checks = found(tmp_path)
    assert checks["10"].state == checks["11"].state == "holds", checks["10"].text + checks["11"].text
    assert "along the path at most 0 % of its range of losses" in checks["10"].text
    assert not any("each snapshot its own" in part for part in prepare_figure(open_run(tmp_path)["a"], "loss").caption)


@pytest.mark.parametrize("axes", [1, 3])
def test_paths_on_one_axis_and_on_three_are_judged_too(tmp_path, axes):
    write_trajectory(tmp_path, trained(0))
    run(job(tmp_path, {**PATH, "axes": axes, "size": 3}))
    checks = found(tmp_path)
    assert checks["10"].state == "fails"
    assert "batch_norm: recalibrate" in checks["10"].remedy
    assert ("third axis" in checks["11"].remedy) is False


def test_the_paths_of_several_runs_are_judged_together(tmp_path):
    folders = {name: tmp_path / name for name in ("slow", "fast")}
    write_trajectory(folders["slow"], trained(0, shrink=0.98))
    write_trajectory(folders["fast"], trained(0))
    spec = {"name": "a", "paths": [str(folder) for folder in folders.values()], "size": 5}
    run(job(tmp_path / "both", spec))
    check = found(tmp_path / "both")["10"]
    assert check.state == "fails"
    assert {name.rpartition(" of ")[2] for name in check.numbers["path"]} == {"slow", "fast"}
    assert len(check.numbers["path"]) <= 8, "of all paths together"


# -- a line between networks ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Check]]:
    """From a network to the same function with its first layer and statistics scaled: no barrier but a stale one."""
    checks, ends = {}, scaled_ends()
    for mode in ("eval", "recalibrate"):
        folder = tmp_path_factory.mktemp(mode)
        write_trajectory(folder, ends)
        spec = {"name": "a", "directions": [{"kind": "towards", "target": 1}], "size": 15}
        run(job(folder, spec, batch_norm=mode))
        checks[mode] = {**found(folder), "folder": folder}
    return checks


def scaled_ends(factor: float = 30.0) -> dict[int, State]:
    """A network, and the same function with its first layer and statistics scaled."""
    ends = {1: trained(0)[1], 2: trained(0)[1]}
    ends[2] = {
        **ends[2],
        "first.weight": factor * ends[2]["first.weight"],
        "first.bias": factor * ends[2]["first.bias"],
    }
    ends[2] |= {
        "norm.running_mean": factor * ends[2]["norm.running_mean"],
        "norm.running_var": factor**2 * ends[2]["norm.running_var"],
    }
    return ends


def test_a_barrier_of_mixed_statistics_does_not_hold(line):
    check = line["eval"]["10"]
    assert check.state == "fails", check.text
    assert ", between the origin and epoch 1, the loss is" in check.text
    assert check.remedy.startswith("batch_norm: recalibrate")
    (barrier,) = check.numbers["between"].values()
    assert barrier["plane"] > 0.05
    assert barrier["renewed"] == pytest.approx(0, abs=1e-4), "all points of the line are one function"
    assert line["recalibrate"]["10"].state == line["recalibrate"]["15"].state == "holds"
    for number in ("8", "8b"):
        assert line["eval"][number].state == "unjudged"
        assert line["eval"][number].text.endswith("an axis moves what has no derivative, such as a buffer")
    beyond = line["eval"]["15"]  # where the running variances are negative
    assert beyond.state != "holds"
    assert "is finite with the statistics of its own weights: batch_norm: recalibrate" in beyond.remedy
    assert "between" not in line["recalibrate"]["10"].numbers


def test_where_the_barrier_is_not_known_the_highest_known_point_is_told(tmp_path):
    """1 is no point, and behind it nothing is finite: what is told is a point's own loss, and is called no barrier."""
    ends = scaled_ends()
    ends[1]["last.bias"] = ends[1]["last.bias"] + torch.tensor([0.5, 0.0, 0.0])  # so that there is a barrier anew
    write_trajectory(tmp_path, ends)
    spec = {"name": "a", "directions": [{"kind": "towards", "target": 1}], "size": 13, "range": [-0.2, 1.2]}
    run(job(tmp_path, spec, batch_norm="eval"))
    surface, check = open_run(tmp_path)["a"], found(tmp_path)["10"]
    assert surface.find_barrier() is None
    assert np.isnan(surface.loss[surface.alpha > 1]).any()

    def above(at: float, *, renew: bool) -> float:
        mixed = {
            name: each + at * (ends[1][name] - each) if each.is_floating_point() else each
            for name, each in ends[2].items()
        }
        first, last = (plain_loss(ends[k], renew=renew) for k in (2, 1))
        return plain_loss(mixed, renew=renew) - (1 - at) * first - at * last

    inside = [float(at) for at in surface.alpha if 0 < at < 1]
    highest = max(inside, key=lambda at: above(at, renew=False))
    truth = {"plane": above(highest, renew=False), "renewed": above(highest, renew=True)}
    assert truth["plane"] > above(0.5, renew=False) + 0.01
    (told,) = check.numbers["between"].values()
    assert told == pytest.approx(truth, rel=1e-3, abs=1e-5)
    place = f"at alpha {highest:.3g}, between the origin and epoch 1, the loss is {truth['plane']:.3g} above the"
    assert place in check.text
    assert "barrier" not in check.text
    sentences = ". ".join(prepare_figure(surface, "loss").caption)
    assert sentences.count("barrier") == 1
    assert "Entezari's barrier: not known, as 1 is no point of the grid; `size: 15` has one there" in sentences


def test_half_way_between_networks_of_a_plane_is_called_so(tmp_path):
    ends = scaled_ends()
    write_trajectory(tmp_path, {**ends, 3: trained(1)[6]})
    directions = [{"kind": "towards", "target": 1}, {"kind": "towards", "target": 2}]
    run(job(tmp_path, {"name": "a", "origin": 3, "directions": directions, "size": 3, "range": [0, 1]}))
    check = found(tmp_path)["10"]
    assert "half-way between the origin and epoch" in check.text
    assert "barrier" not in check.text


def test_a_caption_says_what_may_raise_a_barrier(line):
    said = {mode: " ".join(prepare_figure(open_run(line[mode]["folder"])["a"], "loss").caption) for mode in line}
    assert "batch norm's statistics are mixed" in said["eval"]
    assert "batch norm's statistics" not in said["recalibrate"]


# -- what is said beforehand, and in pictures -------------------------------------------------------------------


def test_plan_and_run_say_beforehand_whose_statistics_a_plane_has(runs, tmp_path, caplog):
    def warnings(spec: Mapping[str, object], **fields: object) -> str:
        return " ".join(prepare(job(runs["eval"], spec, **fields)).warnings)

    path = {**PATH, "name": "b"}
    line = {"name": "b", "directions": [{"kind": "towards", "target": 1}], "size": 5}
    for mode in ({}, {"batch_norm": "eval"}):
        assert "keeps the origin's statistics at every point of b" in warnings(path, **mode)
        assert "mixes the statistics of both ends along the line of b" in warnings(line, **mode)
    assert not warnings(path, batch_norm="recalibrate")
    assert not warnings(line, batch_norm="recalibrate")
    assert "statistics" not in warnings({"name": "b", "size": 5})
    run(job(runs["eval"], path))
    assert "batch_norm: recalibrate takes them anew" in caplog.text


def test_a_caption_names_the_statistics_below_a_path_and_the_report_both_losses(runs):
    surfaces = {mode: open_run(folder)["a"] for mode, folder in runs.items()}
    said = {mode: " ".join(prepare_figure(surface, "loss").caption) for mode, surface in surfaces.items()}
    assert "Batch norm has the origin's statistics on the whole plane" in said["eval"]
    assert "origin's statistics" not in said["recalibrate"]
    rows = dict(landscape_rows(surfaces["eval"]))
    path = surfaces["eval"].path
    k = int(np.argmax(np.abs(path.loss - path.projected_loss)))
    assert rows["path, own loss and the plane's where furthest apart"] == (
        f"{path.loss[k]:.4g} and {path.projected_loss[k]:.4g} at epoch {k + 1}"
    )


def test_a_caption_repeats_what_the_check_found_of_batch_norm_or_is_silent(runs):
    surface = open_run(runs["eval"])["a"]
    checks = check_landscape(runs["eval"], "a", problem=problem)

    def caption(state: str | None = None) -> str:
        """The sentences, with check 10 as it was found or with another state."""
        results = [replace(each, state=state or each.state) if each.number == "10" else each for each in checks.results]
        record = surface.record.changed(checks=replace(checks, results=tuple(results)))
        return ". ".join(prepare_figure(replace(surface, attributes=record.attributes), "loss").caption)

    unchecked = ". ".join(prepare_figure(surface, "loss").caption)
    assert "The loss of the path is not that of the plane" in unchecked
    assert "and each snapshot its own; batch_norm: recalibrate" in unchecked, "that losses differ is said already"
    (found,) = (each for each in checks.results if each.number == "10")
    told = f"at {found.numbers['snapshot']} the loss is"
    assert caption().count(told) == 1
    assert caption().count("batch_norm: recalibrate") == 1
    assert "Batch norm has the origin's statistics" not in caption()
    assert "is not that of the plane" not in caption(), "the check says it, with the same two losses"
    assert "each snapshot its own" not in caption("holds")
    assert "The loss of the path is not that of the plane" in caption("holds")
    assert caption("unjudged") == unchecked


# -- rules on plain numbers -------------------------------------------------------------------------------------


def on_path(own: float, plane: float, renewed: float, stderr: float = 0.01, height: float = 2.0) -> str:
    place = OnPath("epoch 3", own, plane, renewed, stderr, height)
    return judge_statistics(LossesByStatistics((1.0, 1.0), {}, 0.1, "eval", [place])).state


def test_what_statistics_taken_anew_do_not_mend_is_not_stale():
    assert on_path(1.72, 3.55, 1.80) == "fails"
    assert on_path(1.72, math.inf, 1.80) == "fails"
    assert on_path(1.72, 1.90, 1.75) == "fails"  # 7.5 % of the path's range of losses
    assert on_path(1.72, 3.55, 3.50) == "fails"  # 2.5 %: the rest lies off the plane
    assert on_path(1.72, 1.73, 1.90) == "holds"  # they would make it worse
    assert on_path(1.72, 3.55, 1.80, stderr=0.7) == "holds"  # within the noise
    assert on_path(1.72, 3.55, 1.80, stderr=math.nan) == "fails"  # whose noise is not known
    assert on_path(1.72, 3.55, 1.80, height=math.nan) == "holds"


def test_a_barrier_that_is_there_with_either_statistics_is_no_stale_one():
    def state(plane: float, renewed: float, stderr: float = 0.01) -> str:
        return judged(plane, renewed, stderr).state

    def judged(plane: float, renewed: float, stderr: float = 0.01) -> Check:
        way = Between("a and b", "half-way between a and b", plane, renewed, stderr, 2.0)
        return judge_statistics(LossesByStatistics((1.0, 1.0), {}, 0.1, "eval", between=[way]))

    mixed = "the straight line between their losses with statistics that are mixed from theirs"
    start = "batch norm: half-way between a and b the loss is"
    assert judged(1.0, 0.1).text == f"{start} 1 above {mixed}, and 0.1 with statistics taken anew"
    assert judged(1.0, -0.1).text == f"{start} 1 above {mixed}, and not above it with statistics taken anew"
    assert judged(math.inf, 0.1).text.startswith(f"{start} not finite, and so above {mixed}, and 0.1 with")
    assert state(1.0, 0.1) == state(math.inf, 0.1) == "fails"
    assert state(1.0, 0.7) == "reservation"
    assert state(1.0, 0.95) == state(1.0, 0.1, stderr=0.4) == state(0.01, 0.0, stderr=0.0) == "holds"


def of_path(
    losses: list[float], plane: list[float], noise: float = 0.0, relief: float = 10.0, off: float = 0.1, **fields
) -> Check:
    names = [f"epoch {k}" for k in range(len(losses))]
    along = Along(names, np.array(losses), np.array(plane), relief, np.full(len(losses), noise))
    return judge_path(OnPlane(along, np.full(len(losses) - 1, off), math.nan, math.nan, **fields))


def test_a_path_is_judged_by_its_largest_difference_from_the_plane():
    losses = [4.39, 2.0, 1.5, 1.2, 1.1, 1.05, 1.0]
    check = of_path(losses, [3.19, *losses[1:]])  # of which the median is 0
    assert check.state == "reservation"
    assert check.text.startswith("path: at epoch 0 the loss is 4.39, the plane has 3.19 there, apart by 35 % of the")
    assert (check.numbers["loss"], check.numbers["plane"], check.numbers["snapshot"]) == (4.39, 3.19, "epoch 0")
    assert of_path(losses, [2.0, *losses[1:]]).state == "fails"
    assert of_path(losses, [4.2, *losses[1:]]).state == "holds"
    assert of_path(losses, [3.19, *losses[1:]], relief=1.3).state == "reservation"  # of its own losses, as documented
    far = of_path(losses, losses, off=0.9)
    assert (far.state, "up to 90 % of its reach off the plane" in far.text) == ("reservation", True)  # alone no failure
    within = of_path(losses, [3.19, *losses[1:]], noise=0.5)
    assert (within.state, "by the noise of sampling" in within.text) == ("holds", True)
    overflow = of_path(losses, [math.inf, *losses[1:]])
    assert (overflow.state, "the plane's is not finite there" in overflow.text) == ("fails", True)
    assert of_path(losses, [math.nan, *losses[1:]]).state == "holds"  # not computed yet


def test_a_remedy_for_stale_statistics_is_not_a_further_axis():
    far = ([4.0, 2.0, 1.0], [9.0, 2.0, 1.0])
    assert "a third axis or fewer snapshots fit better" in of_path(*far).remedy
    assert "a second axis" in of_path(*far, axes=1).remedy
    assert "axis" not in of_path(*far, axes=3).remedy
    assert "batch_norm: recalibrate" in of_path(*far, renewed={0: 4.5}).remedy
    assert "batch_norm" not in of_path(*far, renewed={0: 8.5}).remedy


def test_no_range_is_proposed_that_cuts_off_what_the_picture_shows():
    dead = Range(10.0, 0.1, 0.9, 2.3, within=2.5)
    assert judge_range(dead).remedy.endswith("take range: [-2.5, 2.5]")
    path = Range(10.0, 0.1, 0.9, 2.3, within=2.5, shown="the path", reach=10.4)
    assert "cut the path off" in judge_range(path).remedy
    assert "take range" not in judge_range(path).remedy
    stale = Range(10.0, 0.1, 0.9, 2.3, within=2.5, shown="the path", reach=10.4, renewed=1.0)
    assert "batch_norm: recalibrate" in judge_range(stale).remedy
    inside = Range(10.0, 0.1, 0.9, 2.3, within=2.5, shown="the path", reach=2.0)
    assert judge_range(inside).remedy.endswith("take range: [-2.5, 2.5]")
    assert judge_holes(100, {"not finite": 20}, "the path").remedy == (
        "clamp what the loss takes a logarithm or exponential of; a smaller range would cut the path off"
    )


def test_a_lower_cell_by_stale_statistics_alone_is_no_sign_of_other_samples():
    cell = Lowest(0.05, 0.01, "alpha 0, beta -0.63", 1.61, 0.02, stretches=())
    assert "the samples are others" in judge_lowest(cell).text
    stale = judge_lowest(replace(cell, renewed=(1.547, 1.546)))
    assert "by batch norm's statistics alone: taken anew it has 1.55, and the centre 1.55" in stale.text
    assert "batch_norm: recalibrate" in stale.remedy
    assert "the samples are others" in judge_lowest(replace(cell, renewed=(1.6, 1.5))).text
