"""The choice of an engine: what it may cost, that it agrees, that it is kept, and that a wrong one is refused."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pooled import POINTS, evaluator, pooled_problem
from small_models import conv_problem, make_job, plan_on_disk
from torch import nn

from landscape import JobError, Problem, open_run, run
from landscape.compute.plans import tuning_scope
from landscape.compute.prepare import prepare
from landscape.core.grid import Grid, axis_coordinates
from landscape.core.plan import Engine
from landscape.evaluation.engines import cpu_kernels
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.choices import Candidate, KeptChoices, Limits, TuningScope
from landscape.evaluation.tuning.local_search import tune
from landscape.evaluation.tuning.search import Search
from landscape.evaluation.tuning.trials import Trials
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import plain
from landscape.views.prepare.words import precision_text

MANY = 10_000_000  # points: the budget is then the longest
SHORT = {"limits": Limits(longest=9.0), "load_processes": 0}  # not enough for a compiler


def grid(size=9):
    return Grid(("alpha", "beta"), (axis_coordinates(size, -1.0, 1.0),) * 2)


@pytest.fixture
def patient(monkeypatch):
    """The time of a search does not run out, however slow the machine is."""
    monkeypatch.setattr("landscape.evaluation.tuning.local_search.Search", partial(Search, clock=lambda: 0.0))


@pytest.mark.long
@pytest.mark.usefixtures("patient")
def test_every_rewrite_is_tried_and_the_choice_agrees():
    problem, samples = pooled_problem()
    expected = evaluator(problem, samples).evaluate(POINTS).mean["loss"]
    made = evaluator(problem, samples)
    found = tune(made, grid(), TuningScope(points=MANY), **SHORT)
    tried = {str(each.engine) for each in found.trials}
    for option in ("channels_last", "maxima", "folded", "fused", "superposed"):
        assert {option in engine for engine in tried} == {True, False}, option
    assert all(each.samples_per_second or each.refused for each in found.trials)
    assert made.plan == found.plan
    np.testing.assert_allclose(made.evaluate(POINTS).mean["loss"], expected, rtol=1e-5)
    json.dumps(plain(found.record()))


@pytest.mark.usefixtures("patient")
def test_only_rewrites_that_change_something_are_tried():
    model = nn.Sequential(nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 3))
    samples = (torch.randn(40, 18), torch.randint(0, 3, (40,)))
    found = tune(evaluator(Problem.supervised(model, samples), samples), grid(), TuningScope(points=MANY), **SHORT)
    tried = {str(each.engine) for each in found.trials}
    assert {"eager", "vmap:32"} <= tried, "one by one, and several at once as the rules have it"
    assert not any(option in engine for engine in tried for option in ("channels_last", "maxima", "folded"))


@pytest.mark.usefixtures("patient")
def test_what_batch_norms_keep_apart_is_folded_and_fused():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()).eval()
    samples = (torch.randn(40, 1, 6, 6), torch.randint(0, 64, (40,)))
    found = tune(evaluator(Problem.supervised(model, samples), samples), grid(), TuningScope(points=MANY), **SHORT)
    fused = [each for each in found.trials if {"folded", "fused"} <= each.engine.options]
    assert any(each.samples_per_second for each in fused)


def test_nothing_is_searched_for_a_job_that_is_over_sooner():
    problem, samples = pooled_problem()
    found = tune(evaluator(problem, samples), grid(), TuningScope(points=81))
    assert (str(found.plan.engine), found.trials) == ("eager+channels_last+folded+fused", ())
    assert Limits().share * found.seconds_per_point * 81 < Limits().shortest


def test_a_rewrite_that_is_off_is_refused(monkeypatch):
    problem, samples = pooled_problem()
    right = cpu_kernels.pool_by_maxima
    monkeypatch.setattr(cpu_kernels, "pool_by_maxima", lambda *args, **options: right(*args, **options) + 1e-3)
    off, other = Candidate(Engine.parse("eager+maxima"), 8), Candidate(Engine.parse("eager+channels_last"), 8)
    trials = Trials(evaluator(problem, samples), grid(), KeptChoices(None))
    (refused,), _ = trials.check(Candidate(Engine(), 8), (off, other))
    assert "is off by" in refused
    forced = tune(evaluator(problem, samples), grid(), TuningScope(Engine.parse("eager+maxima")))
    assert forced.plan.engine == Engine()
    assert "is off by" in forced.trials[0].refused
    assert "eager+maxima is not used, as it is off by" in forced.warning


def test_an_engine_that_cannot_run_here_gives_way_with_one_line():
    problem, samples = pooled_problem()
    found = tune(evaluator(problem, samples), grid(), TuningScope(Engine("cudagraph")))
    assert found.plan.engine == Engine()
    assert found.warning.startswith("engine: cudagraph is not used, as it fails: ")
    assert "\n" not in found.warning


@pytest.mark.long
def test_the_engine_of_the_job_is_kept_and_taken_up_again(tmp_path):
    problem, _ = pooled_problem()
    directions = [{"kind": "random", "seed": k} for k in (1, 2)]
    first = {"name": "plane", "directions": directions, "size": [5, 4]}
    second = {"name": "other", "directions": directions[::-1], "size": 3}
    options = {"num_samples": 21, "engine": "eager+channels_last+folded", "batch_size": 8}
    run(make_job(tmp_path / "run", lambda: problem, [first], **options))
    plan, attributes = plan_on_disk(tmp_path / "run")
    assert plan["engine"] == attributes["provenance"]["engine"]["engine"] == "eager+channels_last+folded"
    found = open_run(tmp_path / "run")["plane"].loss
    plain = run(make_job(tmp_path / "plain", lambda: problem, [first], num_samples=21, batch_size=8))["plane"].loss
    np.testing.assert_allclose(found, plain, rtol=1e-5)
    assert not np.array_equal(found, plain)
    # Left open, it stays what it was, for the landscapes that are new as well; asked to be another, it is refused.
    free = {name: value for name, value in options.items() if name != "engine"}
    run(make_job(tmp_path / "run", lambda: problem, [first, second], **free))
    assert plan_on_disk(tmp_path / "run", "other")[0]["engine"] == "eager+channels_last+folded"
    with pytest.raises(JobError, match="engine eager\\+channels_last\\+folded to eager"):
        run(make_job(tmp_path / "run", lambda: problem, [first], **{**options, "engine": "eager"}))


def test_interrupted_and_resumed_it_has_the_bits_of_the_engine_it_began_with(tmp_path):
    problem, _ = pooled_problem()
    landscape = {"name": "plane", "size": [6, 5]}
    options = {"num_samples": 21, "engine": "vmap:4+maxima", "tile": (2, 2)}
    whole = run(make_job(tmp_path / "whole", lambda: problem, [landscape], **options))["plane"].loss
    run(make_job(tmp_path / "run", lambda: problem, [landscape], **options))
    store = LandscapeStore.open(str(tmp_path / "run"), "plane", write=True)
    store.quarantine_tile(store.tile((1, 1)))
    again = run(make_job(tmp_path / "run", lambda: problem, [landscape], num_samples=21, tile=(2, 2)))["plane"].loss
    assert again.tobytes() == whole.tobytes()


def test_an_unknown_engine_is_refused_in_one_line(tmp_path):
    with pytest.raises(JobError, match="engine: must be auto, or one of eager, compile"):
        make_job(tmp_path, pooled_problem, [{"name": "a"}], engine="fastest")


def test_what_a_lower_precision_costs_is_recorded(tmp_path):
    problem, _ = pooled_problem()
    job = make_job(tmp_path, lambda: problem, [{"name": "plane", "size": 3}], num_samples=21, precision="bfloat16")
    found = run(job)["plane"]
    exact = run(job.replace(run=str(tmp_path / "exact"), precision="float32", engine="eager"))["plane"]
    places = [(1, 1), (0, 0), (2, 2)]
    errors = [abs(found.loss[place] - exact.loss[place]) for place in places]
    recorded = found.attributes["precision_error"]
    assert recorded["points"] == 3
    assert recorded["max_abs_error"] == pytest.approx(max(errors), rel=1e-6)
    assert recorded["max_rel_error"] == pytest.approx(
        max(e / exact.loss[p] for e, p in zip(errors, places, strict=True)), rel=1e-5
    )
    assert exact.attributes["precision_error"] is None
    assert precision_text(found).startswith("bfloat16 (up to ")
    assert precision_text(found).endswith("% off float32)")
    assert precision_text(exact) == "float32"


def test_a_device_without_room_for_weights_in_float32_leaves_the_error_unknown(tmp_path, monkeypatch, caplog):
    def problem():
        made = conv_problem()
        made.model.bfloat16()
        return made

    def computed(folder):
        fields = {"num_samples": 8, "precision": "bfloat16", "engine": "eager"}
        return run(make_job(tmp_path / folder, problem, [{"name": "a", "size": 3}], **fields))["a"]

    def no_room(*_):
        raise torch.OutOfMemoryError("out of memory")

    expected = computed("whole")
    assert expected.attributes["precision_error"]["max_abs_error"] > 0
    monkeypatch.setattr(Evaluator, "twin", no_room)
    with caplog.at_level("INFO", "landscape"):
        found = computed("small")
    assert found.attributes["precision_error"] is None
    assert "what bfloat16 costs is not known" in caplog.text
    assert np.array_equal(found.loss, expected.loss)


def test_a_job_left_open_is_free_and_one_that_is_not_is_not(tmp_path):
    problem, _ = pooled_problem()
    job = make_job(tmp_path, lambda: problem, [{"name": "plane", "size": 3}], num_samples=21)
    assert tuning_scope(prepare(job)) == (TuningScope(None, True, 9), None)
    fixed = prepare(job.replace(batch_size=4, engine="compile"))
    assert tuning_scope(fixed) == (TuningScope(Engine("compile"), False, 9), None)


def test_the_cost_of_a_point_is_that_of_its_share_of_a_stack(monkeypatch):
    """A pass of 50 ms for 32 points: 1.6 ms each, where three probe points in one stack would make it 17 ms."""
    problem, samples = pooled_problem()
    now = 0.0
    monkeypatch.setattr("landscape.evaluation.evaluator.time", SimpleNamespace(perf_counter=lambda: now))

    def observe(model, batch):
        nonlocal now
        if len(batch[0]) > 2:
            now += 0.05
        return problem.observe(model, batch)

    made = evaluator(Problem(problem.model, samples, observe), samples)
    found = tune(made, grid(), TuningScope(Engine.parse("vmap:32"), points=81))
    assert found.plan.engine == Engine.parse("vmap:32")
    assert 0.05 / 32 <= found.seconds_per_point < 0.05 / 6
