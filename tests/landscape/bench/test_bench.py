"""The measurement: its figures belong together, its rows agree with eager float32. No test asserts a speed."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from small_models import ConvNet, conv_problem, image_samples, make_job, quadratic_problem
from torch import nn

from landscape import JobError, Problem
from landscape.bench.__main__ import bench_text, main
from landscape.bench.measure import bench
from landscape.bench.options import BenchOptions, options_for
from landscape.bench.problems import SYNTHETIC_MODELS, synthetic_job, synthetic_problem
from landscape.bench.yardsticks import (
    Bare,
    Contestant,
    LiveStorages,
    SameEngine,
    SettingWeights,
    distance,
    peak_of,
    quotient,
    race,
    typical,
    work_of,
)
from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.core.errors import LandscapeError
from landscape.core.plan import Engine, Plan
from landscape.evaluation.running_model import make_forward
from landscape.evaluation.tuning.choices import Limits
from landscape.evaluation.tuning.local_search import tune
from landscape.evaluation.tuning.search import Search, budget_of

CPU = torch.device("cpu")
BRIEF = BenchOptions(rounds=2, slice_seconds=0.002, search_seconds=0.0, memory=False, ceilings=False)
LANDSCAPE = {"name": "plane", "size": [7, 5]}


@pytest.fixture
def job(tmp_path):
    return make_job(tmp_path / "run", conv_problem, [LANDSCAPE], num_samples=29, batch_size=16, device="cpu")


@pytest.mark.long
def test_the_figures_of_a_row_belong_together_and_its_values_agree_with_eager_float32(job, tmp_path):
    """Nothing is written, and the model is left alone."""
    engines = ("eager+channels_last+folded", "vmap:4")
    problem = conv_problem()
    before = {name: each.clone() for name, each in problem.model.state_dict().items()}
    found = bench(job.replace(problem=lambda: problem), replace(BRIEF, engines=tuple(map(Engine.parse, engines))))
    assert not (tmp_path / "run").exists()
    assert all(torch.equal(each, before[name]) for name, each in problem.model.state_dict().items())
    assert [each["precision"] for each in found["precisions"]] == ["float32", "bfloat16"]
    for precision, tolerance in zip(found["precisions"], (1e-5, 0.05), strict=True):
        assert [row["engine"] for row in precision["engines"]] == ["eager", *engines]
        assert not any("failed" in row for row in precision["engines"])
        for row in precision["engines"]:
            assert row["points_per_second"] == pytest.approx(1 / row["seconds_per_point"])
            assert row["samples_per_second"] == pytest.approx(29 * row["points_per_second"])
            for name in ("efficiency", "efficiency_same_engine", "over_eager"):
                assert row[name]["low"] <= row[name]["median"] <= row[name]["high"]
            assert row["agreement"]["loss"]["max_rel"] <= tolerance, row
            assert set(row["agreement"]) == {"loss", "accuracy"}
        assert precision["engines"][0]["over_eager"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        bare = precision["bare"]["16"]
        assert bare["samples_per_second"] == pytest.approx(29 / bare["seconds_per_point"])
        assert sum(row["chosen"] for row in precision["engines"]) == 1
    exact = found["precisions"][0]["engines"][0]["agreement"]["loss"]
    assert exact == {"max_abs": 0.0, "max_rel": 0.0}


@pytest.mark.slow
def test_compiled_rows_agree_and_count_no_memory_on_a_cpu(job):
    found = bench(job.replace(engine="compile"), replace(BRIEF, precisions=("float32",), memory=True))
    [precision] = found["precisions"]
    assert [(row["engine"], row["chosen"]) for row in precision["engines"]] == [("eager", False), ("compile", True)]
    assert precision["engines"][1]["agreement"]["loss"]["max_rel"] <= 1e-5
    assert [each["engine"] for each in precision["memory"]] == ["eager"]


def test_what_cannot_be_run_is_a_row_that_says_so(tmp_path):
    job = make_job(tmp_path / "run", quadratic_problem, [LANDSCAPE], num_samples=23, device="cpu")
    found = bench(job, replace(BRIEF, precisions=("float32",), engines=(Engine.parse("eager+folded"),)))
    eager, folded = found["precisions"][0]["engines"]
    assert "failed" not in eager
    assert "no convolution" in folded["failed"]
    assert "fails" in bench_text(found)
    assert found["bare"].startswith("observe(model, batch)")  # its `observe` is its own, and is not taken apart


@pytest.mark.long
def test_every_engine_that_the_search_measured_has_a_row(tmp_path, monkeypatch):
    # Its time does not run out, however slow the machine is.
    monkeypatch.setattr("landscape.evaluation.tuning.local_search.Search", partial(Search, clock=lambda: 0.0))
    job = make_job(tmp_path / "run", conv_problem, [LANDSCAPE], num_samples=29, device="cpu")
    found = bench(job, replace(BRIEF, precisions=("float32",), search_seconds=9.0))
    names = [row["engine"] for row in found["precisions"][0]["engines"]]
    assert names[0] == "eager"
    assert {"eager+channels_last+folded+fused", "eager+channels_last+fused"} <= set(names)
    chosen = [row for row in found["precisions"][0]["engines"] if row["chosen"]]
    assert [(row["engine"], row["batch_size"]) for row in chosen] == [
        tuple(found["precisions"][0]["chosen"][name] for name in ("engine", "batch_size"))
    ]


def test_a_search_takes_the_time_that_is_asked_for_though_the_point_was_slow_when_first_measured(tmp_path, monkeypatch):
    budgets = []

    def tuned(evaluator, grid, scope, limits):
        budgets.append(budget_of(1e-6, scope.points, limits))
        return tune(evaluator, grid, replace(scope, points=0), limits=Limits())

    monkeypatch.setattr("landscape.bench.measure.tune", tuned)
    job = make_job(tmp_path / "run", quadratic_problem, [LANDSCAPE], num_samples=23, device="cpu")
    for seconds in (9.0, 0.0):
        bench(job, replace(BRIEF, precisions=("float32",), search_seconds=seconds))
    assert budgets == [9.0, 0.0]


def test_the_whole_grid_is_evaluated_when_asked(job):
    found = bench(job, replace(BRIEF, precisions=("float32",), engines=(Engine(),), full=True))
    full = found["precisions"][0]["full"]
    assert full["points"] == 35
    assert full["points_per_second"] == pytest.approx(35 / full["seconds"])
    assert "whole grid" in bench_text(found)


@pytest.mark.parametrize(
    "words, message",
    [
        ({"precisions": ["half"], "engines": []}, "precision: must be one of"),
        ({"precisions": [], "engines": ["warp"]}, "engine: must be auto, or one of"),
        ({"precisions": [], "engines": [], "rounds": 0}, "rounds: must be at least 1"),
    ],
)
def test_unknown_words_are_refused(words, message):
    with pytest.raises(JobError, match=message):
        options_for(**words)


# -- timing ----------------------------------------------------------------------------------------------------


def test_everybody_runs_in_every_round_and_every_other_round_goes_back():
    order: list[str] = []
    names = ["a", "b", "c"]
    contestants = [Contestant(name, lambda count, name=name: order.append(name)) for name in names]
    rounds = race(contestants, 4, 0.0)
    assert [set(each) for each in rounds] == [set(names)] * 4
    assert "".join(order[-12:]) == "abccbaabccba"


def test_counts_are_multiples_of_what_suits_a_contestant():
    counts: list[int] = []
    race([Contestant("vmap", counts.append, step=8)], 3, 1e-4)
    assert counts
    assert all(count > 0 and count % 8 == 0 for count in counts)


def test_ratios_are_taken_within_a_round():
    rounds = [{"a": 1.0, "b": 2.0}, {"a": 30.0, "b": 20.0}, {"a": 2.0, "b": 2.0}]
    assert quotient(rounds, "a", "b") == {"median": 1.0, "low": 0.5, "high": 1.5}
    assert typical(rounds, "a") == 2.0


# -- yardsticks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["eager", "eager+channels_last", "eager+folded", "vmap:3"])
def test_the_forward_pass_of_an_engine_is_the_models(engine, monkeypatch):
    """What is timed as 'the same engine' returns what the model returns."""
    import landscape.bench.yardsticks as yardsticks

    problem, made = conv_problem(), []
    monkeypatch.setattr(
        yardsticks, "make_forward", lambda *given, **more: made.append(make_forward(*given, **more)) or made[-1]
    )
    seen: list[torch.Tensor] = []
    plan = Plan(16, 1, "cpu", engine=Engine.parse(engine))
    directions = [{name: torch.ones_like(each) for name, each in problem.model.named_parameters()}]
    samples = image_samples()
    forward = SameEngine(problem, samples, plan, CPU, directions)
    name = "observe_points" if engine.startswith("vmap") else "observe"
    original = getattr(made[0], name)
    setattr(made[0], name, lambda *given: seen.append(original(*given)) or seen[-1])
    forward.run(3)
    with torch.no_grad():
        expected = problem.model.eval()(samples[0])
    passes = 1 if engine.startswith("vmap") else 3
    assert len(seen) == 2 * passes
    got = torch.cat(seen[:2], dim=-2)
    torch.testing.assert_close(got, expected.expand_as(got), rtol=1e-4, atol=1e-5)


def test_the_bare_pass_calls_the_model_on_every_sample_once():
    lengths: list[int] = []

    class Model(ConvNet):
        def forward(self, x):
            lengths.append(len(x))
            return super().forward(x)

    problem = Problem.supervised(Model(), image_samples())
    bare = Bare(problem, image_samples(), Plan(10, 1, "cpu"), CPU)
    bare.run(2)
    assert lengths == [9, 10, 10] * 2


def test_setting_alone_sets_the_points_weights(job):
    prepared = prepare(job)
    landscape = prepared.landscapes[0]
    axes = [each.tensors for each in landscape.directions]
    points = landscape.grid.tile_points(_whole(landscape.grid))
    setting = SettingWeights(prepared.problem, landscape.plan, CPU, landscape.origin, axes, points)
    setting.run(len(points))
    last = points[-1]  # the largest coordinates come last, row by row
    for name, moved in setting.weights.stacked([tuple(last)]).items():
        expected = landscape.origin[name] + sum(c * axis[name] for c, axis in zip(last, axes, strict=True))
        torch.testing.assert_close(moved[0], expected)


def _whole(grid):
    from landscape.core.grid import Tile

    return Tile((0,) * len(grid.shape), (0,) * len(grid.shape), grid.shape)


# -- memory ----------------------------------------------------------------------------------------------------


def test_live_storages_counts_what_is_alive_and_nothing_twice():
    before = torch.ones(100)
    with LiveStorages() as storages:
        first = before + 1  # 400 bytes
        view = first.view(10, 10)
        second = first * 2  # 800
        assert storages.live == 800
        del first
        assert storages.live == 800  # the view keeps it
        del view
        assert storages.live == 400
        before.add_(1)
        before.view(10, 10)
        assert storages.live == 400
        del second
        assert storages.live == 0
    assert storages.peak == 800


def test_the_peak_of_a_pass_is_its_largest_pair_of_activations():
    model = nn.Sequential(nn.Linear(8, 1000), nn.ReLU(), nn.Linear(1000, 1)).eval()
    with peak_of(CPU) as peak, torch.no_grad():
        model(torch.ones(4, 8))
    # The inputs, and around the ReLU two activations of [4, 1000]; transposed weights are views.
    assert 2 * 16000 <= peak.bytes <= 2 * 16000 + 1000


@pytest.mark.long
def test_memory_of_an_evaluation_is_told_beside_that_of_a_bare_batch(job):
    options = replace(BRIEF, precisions=("float32",), engines=(Engine(),), rounds=1, memory=True)
    found = bench(job, options)
    [memory] = found["precisions"][0]["memory"]
    assert 0 < memory["kept_bytes"] < memory["evaluation_bytes"] <= memory["first_bytes"]
    assert memory["ratio"] == pytest.approx(memory["evaluation_bytes"] / memory["bare_batch_bytes"])
    # The convolution's output, [14, 4, 4, 4] floats, and what is made of it.
    assert memory["bare_batch_bytes"] >= 2 * 14 * 64 * 4
    assert bench(job, options)["precisions"][0]["memory"] == [memory]


# -- ceilings --------------------------------------------------------------------------------------------------


def test_the_work_of_a_pass_is_counted():
    problem = synthetic_problem("mlp", 10)
    bare = Bare(problem, problem.data, Plan(4, 1, "cpu"), CPU)
    work = work_of(bare)
    weights = 784 * 1888 + 1888 * 1888 + 1888 * 10
    assert work["flops"] == 2 * 10 * weights
    assert work["bytes"] == 4 * (weights + 2 * 1888 + 10) + 10 * (784 * 4 + 8)


def test_the_distance_to_the_ceilings():
    found = distance({"flops": 100.0, "bytes": 10.0}, seconds=2.0, flops=200.0, bandwidth=5.0)
    assert found["share_of_flops"] == 0.25
    assert found["share_of_bandwidth"] == 1.0
    assert found["bound"] == "bandwidth"


# -- synthetic models and the command --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(SYNTHETIC_MODELS) - {"resnet50", "resnet56"}))
def test_every_synthetic_model_is_a_job_that_evaluates(name, tmp_path):
    job = synthetic_job(name, str(tmp_path / "run"), samples=3, size=3, device="cpu")
    prepared = prepare(job)
    landscape = prepared.landscapes[0]
    values = make_evaluator(prepared, landscape).evaluate(landscape.grid.tile_points(_whole(landscape.grid))[:1])
    assert values.mean["loss"][0] > 0
    assert not (tmp_path / "run").exists()


def test_synthetic_models_are_the_models_they_are_named_after():
    count = {
        name: sum(each.numel() for each in SYNTHETIC_MODELS[name].model().parameters())
        for name in ("resnet50", "lenet", "mlp")
    }
    assert count["resnet50"] == 25_557_032  # as torchvision's
    assert count["lenet"] == 61_706
    assert 5_000_000 <= count["mlp"] <= 5_100_000


def test_an_unknown_synthetic_model_is_refused():
    with pytest.raises(LandscapeError, match="did you mean"):
        synthetic_job("resnet21", "run")


@pytest.mark.long
def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    place = tmp_path / "bench.json"
    brief = ["--size", "5", "--rounds", "1", "--slice", "0.002", "--device", "cpu", "--precision", "float32"]
    main(["--recipe", "tiny", "--engine", "vmap:4", *brief, "--json", str(place)])
    text = capsys.readouterr().out
    found = json.loads(place.read_text())
    assert "synthetic" in text
    assert bench_text(found) + "\n" == text
    assert [row["engine"] for row in found["precisions"][0]["engines"]] == ["eager", "vmap:4"]


@pytest.mark.parametrize("words", [[], ["job.yaml", "--recipe", "tiny"], ["job.yaml", "--size", "9"], ["absent.yaml"]])
def test_bad_usage_is_one_line(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (2, 3)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


# -- on a GPU --------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured_with_its_own_engines_and_memory(tmp_path):
    job = synthetic_job("lenet", str(tmp_path / "run"), samples=256, size=5, device="cuda")
    options = replace(BRIEF, engines=(Engine("cudagraph"), Engine.parse("vmap:4")), memory=True, ceilings=True)
    found = bench(job, options)
    assert [each["precision"] for each in found["precisions"]] == ["float32", "tf32", "bfloat16"]
    for precision in found["precisions"]:
        assert not any("failed" in row for row in precision["engines"])
        assert all(row["agreement"]["loss"]["max_rel"] < 0.05 for row in precision["engines"])
        assert all(each["how"] == "allocator" for each in precision["memory"])
        assert 0 < precision["ceilings"]["bare"]["share_of_flops"] < 1
