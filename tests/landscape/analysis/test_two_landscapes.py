"""Comparisons of landscapes against plain loops over the samples of models that are rounded by hand."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from small_models import conv_problem, make_job
from torch import nn

from landscape import JobError, NotFoundError, Problem, open_run, run
from landscape.analysis.quantised import (
    Compare,
    Steps,
    asked_bits,
    compare_landscapes,
    fine_enough,
    length_with_changes,
    sides_of,
)
from landscape.analysis.quantised_report import document, line_of_steps, lines_of, pictures_of, tables_of
from landscape.compute.executor import AtPoints, LocalExecutor, setting_of
from landscape.compute.prepare import prepare
from landscape.compute.recorded_job import recorded_job
from landscape.core.quantisation import Quantisation
from landscape.model.parameters import describe_parameters, filter_unview, filter_view, state_of
from landscape.surface.record_entries import BitsRecord, ComparedRecord, StepsRecord
from landscape.surface.surface import Surface, paired_stderr, stored_stderr
from landscape.views.draw.comparison import compare, compare_figures
from landscape.views.prepare.quantisation import compared_rows, drawn_bits, drawn_steps

FLOAT = {"name": "float", "size": 5, "range": [-0.5, 0.5]}
SMALL = {"name": "small", "like": "float", "quantise": {"bits": 3}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Both landscapes in one run, with the losses of the samples in a second one."""
    folder = tmp_path_factory.mktemp("compared")
    for name, fields in (("plain", {}), ("kept", {"keep_samples": True})):
        run(make_job(folder / name, conv_problem, [FLOAT, SMALL], num_samples=29, **fields))
    return SimpleNamespace(plain=str(folder / "plain"), kept=str(folder / "kept"))


def sides(place: str, first: str = "float", second: str = "small"):
    found = sides_of(f"{place}:{first}", f"{place}:{second}")
    assert found is not None
    return found


def given(problem=conv_problem):
    return {"problem": problem}


def losses(problem: Problem, bits: int | None) -> np.ndarray:
    """The loss of every sample at the origin, of the network as it is or rounded by torch's own operator."""
    model, state = copy.deepcopy(problem.model).eval(), state_of(problem.model)
    for info in describe_parameters(problem.model):
        if bits is not None and bits > 1 and info.role == "weight" and len(info.shape) > 1:
            rows, most = filter_view(state[info.name], info), 2 ** (bits - 1) - 1
            scales, zeros = rows.abs().amax(1) / most, torch.zeros(len(rows), dtype=torch.int32)
            rows = torch.fake_quantize_per_channel_affine(rows, scales, zeros, 0, -most, most)
            state[info.name] = filter_unview(rows, info)
    model.load_state_dict(state)
    with torch.no_grad():
        return problem.observe(model, problem.data)["loss"].double().numpy()


def test_the_difference_at_the_origin_has_the_error_of_the_pairs(runs):
    found = compare_landscapes(*sides(runs.plain), Compare(points=0, bits=(), steps=0), **given())
    one, two = losses(conv_problem(), None), losses(conv_problem(), 3)
    assert found.origin.difference[0] == pytest.approx((two - one).mean(), rel=1e-5)
    assert found.origin.stderr[0] == pytest.approx((two - one).std(ddof=1) / np.sqrt(29), rel=1e-5)
    assert found.origin.unpaired[0] == pytest.approx(np.hypot(one.std(ddof=1), two.std(ddof=1)) / np.sqrt(29), rel=1e-5)
    np.testing.assert_array_equal(found.difference, found.second.surface.loss - found.first.surface.loss)
    assert not np.isfinite(found.stderr).any()
    assert found.evaluations == 2


def test_stored_losses_give_the_errors_that_evaluating_gives(runs):
    kept = compare_landscapes(*sides(runs.kept), Compare(bits=(), steps=0), **given())
    assert kept.stored
    evaluated = compare_landscapes(*sides(runs.plain), Compare(points=25, bits=(), steps=0), **given())
    assert not evaluated.stored
    np.testing.assert_allclose(evaluated.stderr, kept.stderr, rtol=1e-5)
    assert np.isfinite(kept.stderr).all()
    assert kept.ratio == pytest.approx(evaluated.ratio, rel=1e-5)
    few = compare_landscapes(*sides(runs.plain), Compare(points=9, bits=(), steps=0), **given())
    there = np.isfinite(few.stderr)
    assert there.sum() == 9
    assert there[0, 0]
    assert there[2, 2]
    np.testing.assert_array_equal(few.stderr[there], evaluated.stderr[there])
    assert (kept.evaluations, few.evaluations) == (2, 20)


def test_the_curve_over_bits_is_that_of_rounded_networks(runs):
    found = compare_landscapes(*sides(runs.plain), Compare(points=0, bits=(1, 2, 4, 8, 16), steps=0), **given())
    one = losses(conv_problem(), None)
    assert found.plain["loss"] == pytest.approx(one.mean(), rel=1e-6)
    for each in found.bits[1:]:
        two = losses(conv_problem(), each.bits)
        assert each.values["loss"] == pytest.approx(two.mean(), rel=2e-6)
        assert each.difference == pytest.approx((two - one).mean(), abs=2e-6)
        assert each.stderr == pytest.approx((two - one).std(ddof=1) / np.sqrt(29), abs=1e-6)
    assert [each.bits for each in found.bits] == [1, 2, 4, 8, 16]
    assert abs(found.bits[-1].difference) < abs(found.bits[1].difference)
    # Either order: the curve is that of the one which is rounded.
    turned = compare_landscapes(*sides(runs.plain, "small", "float"), Compare(points=0, bits=(4,), steps=0), **given())
    assert turned.bits[0].values == found.bits[2].values
    assert turned.origin.difference[0] == -found.origin.difference[0]


class Line(nn.Module):
    """One matrix, whose loss is what it gives: a sum of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 16, generator=torch.Generator().manual_seed(1)))

    def forward(self, x):
        return x @ self.weight.T


def line_problem() -> Problem:
    def observe(model, batch):
        return {"loss": model(batch).sum(1)}

    return Problem(Line(), torch.ones(3, 16), observe)


def test_the_short_line_shows_about_as_many_steps_as_were_asked_for(tmp_path):
    axis = {"kind": "random", "seed": 1, "ignore": []}
    asked = {"bits": 3, "scale": "origin"}
    landscapes = [{"name": "float", "directions": [axis], "size": 3}, {**SMALL, "quantise": asked}]
    job = make_job(tmp_path / "run", line_problem, landscapes, num_samples=3)
    run(job)
    found = compare_landscapes(*sides(str(tmp_path / "run")), Compare(0, (), 301), **given(line_problem))
    assert found.steps is not None
    levels = np.abs(np.diff(found.steps.rounded)) > 1e-9
    # Scales of the origin: the loss changes only where a weight goes to another level. It is a sum of all of them.
    assert 12 <= levels.sum() <= 36
    np.testing.assert_allclose(np.diff(found.steps.plain), np.diff(found.steps.plain)[0], rtol=1e-6)
    landscape = prepare(job).landscapes[0]
    length = length_with_changes(
        line_problem(), landscape.origin, landscape.directions[0].tensors, Quantisation(3, scale="origin"), 48
    )
    assert length == pytest.approx(4 * found.steps.at[-1], rel=1e-9)


def rounded_by_hand(weights: torch.Tensor, scales: torch.Tensor, most: int) -> torch.Tensor:
    return (weights * (1 / scales)).round().clamp(-most, most) * scales


@pytest.mark.parametrize("scale", ["origin", "point"])
def test_the_patch_has_the_losses_of_weights_that_are_rounded_by_hand(tmp_path, scale):
    asked = {"bits": 3, "scale": scale}
    axes = [{"kind": "random", "seed": seed, "ignore": []} for seed in (1, 2)]
    landscapes = [{"name": "float", "directions": axes, "size": 3}, {**SMALL, "quantise": asked}]
    job = make_job(tmp_path / "run", line_problem, landscapes, num_samples=3, precision="float64")
    run(job)
    told: list[str] = []
    found = compare_landscapes(
        *sides(str(tmp_path / "run")), Compare(0, (), 0, 9), **given(line_problem), tell=told.append
    ).patch
    assert found is not None
    landscape = prepare(job).landscapes[0]
    start, *moves = (
        tensors["weight"].double() for tensors in (landscape.origin, *(each.tensors for each in landscape.directions))
    )
    expected = np.empty((2, 9, 9))
    for row, beta in enumerate(found.at[1]):
        for column, alpha in enumerate(found.at[0]):
            weights = start + alpha * moves[0] + beta * moves[1]
            scales = (start if scale == "origin" else weights).abs().amax(1, keepdim=True) / 3
            for k, values in enumerate((weights, rounded_by_hand(weights, scales, 3))):
                expected[k, row, column] = float(values.sum())
    np.testing.assert_allclose(found.plain, expected[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.rounded, expected[1], rtol=0, atol=1e-12)
    assert found.origin == (found.plain[4, 4], found.rounded[4, 4])
    if scale == "origin":  # the loss changes by whole steps only, and about ten weights change along a side
        assert 4 <= (np.abs(np.diff(found.rounded[4])) > 1e-9).sum() <= 8
    assert told[0] == "patch: 9 × 9 points in float64, 164 evaluations of all 3 samples"
    assert "left" in told[1]


def test_the_patch_is_computed_in_float32_where_that_tells_its_points_apart(runs):
    found = compare_landscapes(*sides(runs.plain), Compare(0, (), 0, 4), **given())
    assert found.patch is not None
    assert found.patch.precision == "float32"
    assert found.evaluations == 2 + 2 * 16 + 2
    prepared = prepare(recorded_job(runs.plain, sides(runs.plain)[1].store, conv_problem, None))
    setting = setting_of(prepared.landscapes[0])
    alone = [
        LocalExecutor(prepared, prepared.landscapes[0]).ask(setting, [AtPoints(np.array([[alpha, beta]]))])
        for beta in found.patch.at[1]
        for alpha in found.patch.at[0]
    ]
    losses = np.array([values.mean["loss"][0] for (values,) in alone])
    np.testing.assert_array_equal(found.patch.rounded.ravel(), losses)
    # Of more weights, or points that lie closer, float32 would place the cuts anywhere.
    near = tuple(places / 1e6 for places in found.patch.at)
    quantise = setting.plan.quantise
    assert fine_enough(prepared.problem, setting, quantise, found.patch.at) is setting
    assert fine_enough(prepared.problem, setting, quantise, near).plan.precision == "float64"


def test_a_patch_without_a_plane_or_without_rounding_is_refused(runs, tmp_path):
    with pytest.raises(JobError, match="patch: must be of landscapes one of which has its weights rounded"):
        compare_landscapes(*sides(runs.plain, "float", "float"), Compare(0, (), 0, 4), **given())
    axis = {"kind": "random", "seed": 1, "ignore": []}
    run(make_job(tmp_path / "run", line_problem, [{**FLOAT, "directions": [axis]}, SMALL], num_samples=3))
    with pytest.raises(JobError, match="patch: must lie in a plane, and these landscapes have one axis"):
        compare_landscapes(*sides(str(tmp_path / "run")), Compare(0, (), 0, 4), **given(line_problem))


def test_a_line_that_moves_nothing_rounded_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(JobError, match="steps: the first axis must move weights that are rounded"):
        length_with_changes(conv_problem(), state_of(conv_problem().model), {}, Quantisation(4))
    with pytest.raises(JobError, match=r"patch: the second axis must move weights .* leave patch out"):
        length_with_changes(
            conv_problem(), state_of(conv_problem().model), {}, Quantisation(4), option="patch", which="second"
        )


def test_the_whole_is_told_as_a_document_as_lines_and_as_figures(runs):
    found = compare_landscapes(*sides(runs.plain), Compare(4, (2, 8), 5, 3), **given())
    told = document(found)
    assert told["bits"][0]["bits"] == 2
    assert told["difference_stderr"][2][2] is None
    assert len(told["steps"]["rounded"]) == 5
    assert told["evaluations"] == found.evaluations
    text = "\n".join(lines_of(found))
    assert "weights rounded to 3 bits per channel" in text
    assert f"difference {found.origin.difference[0]:.3g}"[:14] in text
    figures = pictures_of(found)
    assert list(figures) == ["difference", "bits", "steps", "patch", "patch-surface"]
    assert figures["bits"].data[1].x == (2, 8)
    assert figures["steps"].data[1].line.shape == "hvh"
    assert [each.y[2] for each in figures["steps"].data] == [0.0, 0.0]
    assert found.patch is not None
    rises = found.patch.rounded - found.patch.origin[1]
    np.testing.assert_allclose(figures["patch"].data[1].z, rises, rtol=1e-6)
    assert figures["patch"].data[0].zmax == figures["patch"].data[1].zmax >= rises.max()
    np.testing.assert_array_equal(figures["patch-surface"].data[1].z[::2, 1::2], figures["patch"].data[1].z)
    assert told["patch"]["axes"]["alpha"] == found.patch.at[0].tolist()
    assert "patch of 3 × 3 points" in text
    tables = tables_of(found)
    assert [len(columns) for columns in tables.values()] == [6, 5, 3, 4]
    np.testing.assert_array_equal(tables["patch"]["alpha"][1], found.patch.at[0])
    np.testing.assert_array_equal(tables["patch"]["beta"][1], found.patch.at[1][1])


def test_points_are_as_few_as_asked_for_and_what_is_not_known_is_not_told(runs):
    asked = Compare(points=1, bits=(), steps=0)
    found = compare_landscapes(*sides(runs.plain, second="float"), asked, **given())
    assert np.argwhere(np.isfinite(found.stderr)).tolist() == [[2, 2]]
    assert (
        "at 1 point (evaluated; keep_samples: true of the job would store them for all): 0 differ by more than 2 s.e.\n"
        in ("\n".join(lines_of(found)))
    )
    difference = found.difference.copy()
    difference[0, :3] = np.nan
    text = "\n".join(lines_of(replace(found, difference=difference)))
    assert "over the grid, at the 22 of 25 points where both have a finite loss: difference from 0 to 0" in text


def test_figures_take_the_error_of_the_pairs_where_the_losses_are_kept(runs):
    captions = {}
    for place in (runs.plain, runs.kept):
        opened = open_run(place)
        pair = [opened["float"], opened["small"]]
        drawn = compare(pair, "difference", rise=False)
        captions[place] = str(drawn.to_dict()).replace("<br>", " ")
        rises = str(compare(pair, "difference").to_dict()).replace("<br>", " ")
        assert ("of the pairs of the same samples" if place == runs.kept else "an upper bound") in rises
    assert "of the pairs of the same samples" in captions[runs.kept]
    # Of another rounding the origin is another network: errors of rises over it are no bound.
    assert "of both combined" in captions[runs.plain]
    assert "ounding differs: nothing rounded, weights rounded to 3 bits per channel" in captions[runs.plain]


def test_the_error_of_a_difference_of_rises_is_that_of_the_pairs(runs):
    opened = open_run(runs.kept)
    first, other = opened["float"], opened["small"]
    a, b = (np.asarray(one.loss_samples, np.float64) for one in (first, other))
    apart = (b - other.loss_samples.origin) - (a - first.loss_samples.origin)
    expected = apart.std(axis=-1, ddof=1) / np.sqrt(apart.shape[-1])
    np.testing.assert_allclose(stored_stderr(first, other, rises=True), expected, rtol=1e-9, atol=1e-12)


def test_what_was_kept_over_other_samples_is_not_shown():
    compared = ComparedRecord(
        samples=7, unrounded={"loss": 0.5}, bits=tuple(BitsRecord(bits=bits, values={"loss": 1.0}) for bits in (2, 4)),
        steps=StepsRecord(axis="alpha", at=(-1.0, 0.0, 1.0), unrounded=(1.0, 2.0, 3.0), rounded=(4.0, 4.5, None)),
    )  # fmt: skip
    shown, other = (
        cast("Surface", SimpleNamespace(record=SimpleNamespace(compared=compared, num_samples=samples)))
        for samples in (7, 8)
    )
    assert compared_rows(shown) == [("loss at the origin by bits", "2: 1, 4: 1, none: 0.5")]
    assert compared_rows(other) == drawn_steps(other) == drawn_bits(other)[0] == []
    _, rounded = drawn_steps(shown)
    assert list(rounded.t) == [0.0, 0.25, 0.25, 0.75, 0.75, 1.0]
    assert list(rounded.values) == [-0.5, -0.5, 0.0, 0.0, None, None]
    lines, log = drawn_bits(shown)
    assert ([line.values[0] for line in lines], log) == ([0.5, 1.0], False)
    compared = replace(compared, unrounded={"loss": 0.01})
    shown = cast("Surface", SimpleNamespace(record=SimpleNamespace(compared=compared, num_samples=7)))
    lines, log = drawn_bits(shown)
    assert ([line.values[0] for line in lines], log) == ([-2.0, 0.0], True)
    damaged = replace(compared, bits=(compared.bits[0],) * 2)
    assert (
        drawn_bits(cast("Surface", SimpleNamespace(record=SimpleNamespace(compared=damaged, num_samples=7))))[0] == []
    )


def test_steps_without_finite_losses_are_told_and_not_drawn():
    lost = StepsRecord(axis="alpha", at=(-1.0, 0.0, 1.0), unrounded=(1.0, 2.0, 3.0), rounded=(4.0, None, 4.0))
    compared = ComparedRecord(samples=7, unrounded={}, bits=(), steps=lost)
    assert drawn_steps(cast("Surface", SimpleNamespace(record=SimpleNamespace(compared=compared, num_samples=7)))) == []
    steps = Steps("alpha", np.array([-1.0, 0.0, 1.0]), np.ones(3), np.array([4.0, np.nan, 4.0]))
    assert line_of_steps(steps) == "steps along alpha, 3 points within ±1: no two neighbours have finite losses"


def test_each_field_that_differs_has_its_own_remedy(runs, tmp_path):
    def other_network():
        problem = conv_problem()
        with torch.no_grad():
            for each in problem.model.parameters():
                each.mul_(1.5)
        return problem

    def refusal(fields, problem=conv_problem, landscape=FLOAT):
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        run(make_job(folder, problem, [landscape], num_samples=29, **fields))
        with pytest.raises(JobError) as caught:
            compare_landscapes(*sides_of(f"{runs.plain}:float", f"{folder}:float"), **given())
        return str(caught.value).partition("; they differ in ")[2]

    said = refusal({"batch_norm": "recalibrate"})
    assert said.startswith("batch_norm (eval and recalibrate); give both jobs the same batch_norm; or `landscape.views")
    assert "like" not in said
    said = refusal({}, other_network)
    assert "; these are two networks, and `landscape.views.compare`, a report of both runs or the comparison" in said
    assert "like" not in said
    said = refusal({}, landscape=FLOAT | {"range": [-0.2, 0.2]})
    assert f"coordinates (other points); compute the second one with `like: float`, in the run {runs.plain}; or" in said


def test_other_planes_and_samples_are_refused_with_what_differs(runs, tmp_path):
    other = [{"name": "other", "size": 7, "directions": [{"kind": "random", "seed": 5}, {"kind": "random", "seed": 6}]}]
    run(make_job(tmp_path / "run", conv_problem, other, num_samples=20, seed=2))
    pair = sides_of(f"{runs.plain}:float", f"{tmp_path / 'run'}:other")
    words = "num_samples .29 and 20., seed .0 and 2., directions .other axes., coordinates .other points."
    with pytest.raises(JobError, match=f"differ in samples .other data., {words}; take the same data, num_samples"):
        compare_landscapes(*pair, **given())
    assert sides_of(runs.plain, runs.kept) is None
    with pytest.raises(NotFoundError, match=r"landscape 'flaot' is not in run .*; did you mean 'float'"):
        sides_of(f"{runs.plain}:float", f"{runs.plain}:flaot")
    with pytest.raises(JobError, match="must be two landscapes or two sets of weights"):
        sides_of(f"{runs.plain}:float", f"{tmp_path / 'none'}:epoch-3")


def test_the_same_samples_under_another_seed_are_paired_sample_by_sample(runs, tmp_path):
    kept = {"num_samples": 29, "keep_samples": True}
    run(make_job(tmp_path / "seed", conv_problem, [FLOAT, SMALL], seed=5, **kept))
    first, other = sides(runs.kept)[0], sides(str(tmp_path / "seed"))[1]
    assert first.surface.sample_index.tolist() != other.surface.sample_index.tolist()
    found = compare_landscapes(first, other, Compare(bits=(), steps=0), **given())
    expected = compare_landscapes(*sides(runs.kept), Compare(bits=(), steps=0), **given())
    assert found.stored
    np.testing.assert_allclose(found.stderr, expected.stderr, rtol=1e-5)
    assert found.origin.stderr[0] == pytest.approx(expected.origin.stderr[0], rel=1e-5)
    (figure,) = compare_figures([first.surface, other.surface], "difference")
    assert "Standard error of the pairs of the same samples" in figure.caption
    assert "other samples" not in figure.caption
    fewer = make_job(tmp_path / "fewer", conv_problem, [FLOAT, SMALL], seed=5, num_samples=20, keep_samples=True)
    run(fewer)
    (figure,) = compare_figures([first.surface, sides(str(tmp_path / "fewer"))[1].surface], "difference")
    assert "The landscapes have other samples" in figure.caption


def test_other_seeds_are_told_apart_where_batches_share_statistics_and_where_no_set_is_recorded(runs, tmp_path):
    for name, seed in (("one", 0), ("other", 5)):
        fields = {"num_samples": 29, "seed": seed, "batch_norm": "recalibrate"}
        run(make_job(tmp_path / name, conv_problem, [FLOAT, SMALL], **fields))
    pair = sides(str(tmp_path / "one"))[0], sides(str(tmp_path / "other"))[1]
    with pytest.raises(JobError, match=r"differ in seed .0 and 5.; take the same data"):
        compare_landscapes(*pair, **given())
    run(make_job(tmp_path / "seed", conv_problem, [FLOAT, SMALL], num_samples=29, seed=5))
    second = sides(str(tmp_path / "seed"))[1]
    document = Path(second.path, "landscapes.zarr", "small", "zarr.json")
    written = json.loads(document.read_text())
    del written["attributes"]["sample_set"]
    document.write_text(json.dumps(written))
    with pytest.raises(JobError, match=r"differ in samples .other data., seed .0 and 5."):
        compare_landscapes(sides(runs.plain)[0], sides(str(tmp_path / "seed"))[1], **given())


def test_weighted_pairs_have_the_error_of_their_weighted_mean():
    generator = np.random.default_rng(0)
    differences, weights = generator.normal(size=40), generator.uniform(0.5, 2, 40)
    mean = np.average(differences, weights=weights)
    expected = np.sqrt((weights**2 * (differences - mean) ** 2).sum() * 40 / 39) / weights.sum()
    assert paired_stderr(differences, weights) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(paired_stderr(differences[:1], weights[:1]))


def test_bits_are_read_as_ranges_and_lists():
    assert asked_bits("1-3,8") == (1, 2, 3, 8)
    assert asked_bits("none") == ()
    for wrong in ("0-4", "3-40", "5-2", "x", "1--2", "2.5", ""):
        with pytest.raises(JobError, match="bits: must be"):
            asked_bits(wrong)
