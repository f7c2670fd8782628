"""The rules of the checks on numbers of their own: what each says where a scene of a network hardly leads to it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from landscape.analysis.checks.curvature import AlongAxis, CentreCurvature, Differences, judge_derivatives, judge_hidden
from landscape.analysis.checks.evidence import NotJudged
from landscape.analysis.checks.geometry import LINES, QUANTILE, OtherLines, Resolution, judge_lines, judge_resolution
from landscape.analysis.checks.network import (
    Spots,
    judge_centre,
    judge_expectation,
    judge_repetition,
    judge_spots,
)
from landscape.analysis.checks.paths import LossesByStatistics, judge_statistics
from landscape.analysis.checks.table import CHECKS
from landscape.analysis.checks.values import (
    Lowest,
    Range,
    judge_holes,
    judge_lowest,
    judge_range,
    judge_sampling,
    still_fell,
)
from landscape.model.history import LossStretch
from landscape.problem.supervised import loss_of_guessing
from landscape.surface.record_entries import Checks

ROOT = Path(__file__).parents[4]


def test_the_documentation_has_a_row_for_each_check():
    page = (ROOT / "docs/howto/trust.md").read_text()
    assert re.findall(r"^\| (\d+b?) \| \*\*", page, re.M) == list(CHECKS)


# -- 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_norm", ["eval", "recalibrate", "batch"])
@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_on_both_sides_does_not_tell_the_centre(loss, batch_norm):
    judge = partial(judge_centre, samples=1, plain=True, low_precision=False, batch_norm=batch_norm, stderr=math.nan)
    with pytest.raises(NotJudged, match="nor that of your model"):
        judge(loss, loss)
    assert judge(loss, 1.0).state != "holds"
    assert judge(1.0, loss).state != "holds"


# -- 8 and 8b ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", [{"curvature": math.nan}, {"slope": math.inf}])
def test_derivatives_that_are_not_finite_are_not_said_to_agree(unknown):
    sound = AlongAxis("alpha", Differences(1.0, 1.0, 0.5, 1e-9), 1.0, 0.5)
    found = judge_derivatives([sound], "derivatives", 32, 512)
    assert found.state == "holds"
    assert "at the centre, of the first 32 of 512 samples: 1 along alpha, by" in found.text
    assert "of all 20 samples: 1 along alpha, by" in judge_derivatives([sound], "derivatives", 20, 20).text
    with pytest.raises(NotJudged, match=r"not finite at the centre along beta$"):
        judge_derivatives([sound, replace(sound, axis="beta", **unknown)], "derivatives", 32, 512)
    with pytest.raises(NotJudged, match="not finite"):
        judge_derivatives(
            [replace(sound, differences=Differences.around([math.inf] * 4, 1.0, 0.1))], "derivatives", 32, 512
        )


def test_derivatives_are_the_measure_of_a_cell_where_differences_are_theirs_at_every_step():
    def reason(*second: float, curvature: float = 1.0, rounding: float = 1e-9, best: float = 1.0) -> str:
        at_steps = [Differences(each, each, 0.5, rounding) for each in second]
        return AlongAxis("alpha", Differences(best, best, 0.5, 1e-9), curvature, 0.5, at_steps).why_no_measure

    assert reason(1.0, 1.1, 0.9) == reason(-1.0, curvature=-1.0, best=-1.0) == ""
    assert "too many kinks" in reason(18.0, 6.6, 1.0)
    assert "too many kinks" in reason(1.0, -70.0)
    assert reason(1.0, 5.0, rounding=1.0) == "", "what rounding makes is no kink"
    assert reason(2.0, best=2.0) == "losses and derivatives are not of one function"


def test_a_kink_at_a_third_of_a_step_is_not_taken_for_curvature():
    kink, steps = 1e-4, (3e-4, 3e-6, 3e-7)

    def loss(x: float) -> float:
        return 1.0 + 0.3 * x + x**2 / 2 + 1e-4 * max(0.0, x - kink)

    at_steps = [
        Differences.around([loss(factor * step) for factor in (1.0, -1.0, 0.5, -0.5)], loss(0.0), step)
        for step in steps
    ]
    assert at_steps[0].coarse == pytest.approx(at_steps[0].fine, rel=1e-6)
    assert at_steps[0].extrapolated == pytest.approx(1.0 + 1e-4 * 2 / (9 * kink), rel=1e-6)
    best = Differences.best(at_steps)
    assert best == at_steps[1]
    assert judge_derivatives([AlongAxis("alpha", best, 1.0, 0.3, at_steps)], "derivatives", 8, 8).state == "holds"
    wrong = AlongAxis("alpha", best, 1.1, 0.3, at_steps)
    assert judge_derivatives([wrong], "derivatives", 8, 8).state == "fails"
    assert Differences.best([replace(one, rounding=1.0) for one in at_steps]) == replace(at_steps[0], rounding=1.0)


def test_rounding_whose_second_differences_agree_by_chance_is_not_taken_for_curvature():
    """Outputs that are large beside their errors, such as pressures in Pa, round a loss by more than its size tells."""
    centre, unit = 100.0, 2.0**-30
    sound = Differences.around([centre + x + x**2 for x in (1e-2, -1e-2, 5e-3, -5e-3)], centre, 1e-2)
    chance = Differences.around([centre + 4 * unit, centre, centre + unit, centre], centre, 1e-4)
    assert chance.coarse == chance.fine
    assert chance.rounding < 1e-3 * chance.fine
    assert Differences.best([sound, chance]) == sound


@pytest.mark.parametrize(
    ("step", "low_precision", "stands"), [(0.025, False, True), (5e-5, False, False), (0.025, True, False)]
)
def test_a_cell_that_rises_by_less_than_rounding_says_nothing_of_the_bowl(step, low_precision, stands):
    assert CentreCurvature("alpha", 1.0, 1.0, step).stands_out(0.04, low_precision) == stands


# -- 3 and 4 ------------------------------------------------------------------------------------------------


def spotted(differences: list[float], relief: float, *, low: bool = False, loss: float = 1.0) -> Spots:
    stored = loss + np.linspace(0, relief, len(differences))
    places = [f"place {k}" for k in range(len(differences))]
    return Spots(stored, stored + differences, places, relief, float("nan"), low, "plain")


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (spotted([0.0, 9e-4], 1.0), "holds"),
        (spotted([0.0, 2e-3], 1.0), "fails"),
        (spotted([0.0, 5e-6], 1e-4), "reservation"),  # rounding of float32 at a loss of 1, and visible in this relief
        (spotted([0.0, 2e-5], 1e-4), "fails"),
        (spotted([0.0, 5e-3], 0.1, low=True), "reservation"),
        (spotted([0.0, 5e-3], 1.0, low=True), "holds"),
        (spotted([0.0, np.nan], 1.0), "fails"),
        (spotted([0.0, 1e-8], 0.0), "holds"),
    ],
)
def test_rounding_that_shows_in_the_relief_is_a_reservation(found, state):
    judged = judge_spots(found)
    assert judged.state == state
    assert ("which rounding makes" in judged.text) == (state == "reservation")
    assert bool(judged.remedy) == (state != "holds")


def test_rounding_of_a_loss_far_above_the_relief_does_not_show():
    stored = np.array([1.0, 2.0, 1e9])  # the relief is that between percentiles
    found = Spots(stored, stored + np.array([0.0, 0.0, 100.0]), ["a", "b", "c"], 1.0, float("nan"), False, "plain")
    assert judge_spots(found).state == "holds"


def test_the_largest_difference_is_told_also_where_another_is_nearer_to_its_bound():
    found = Spots(np.array([1.0, 1e6]), np.array([1.0 + 9e-6, 1e6 + 1.0]), ["a", "b"], 1e5, 1e-7, False, "plain")
    assert "off by at most 0.001 % of the relief" in judge_spots(found).text


def test_where_there_is_no_relief_differences_are_told_by_themselves():
    assert judge_spots(spotted([0.0, 1e-8], 0.0)).text.endswith("off by at most 1e-08")
    assert judge_repetition([1.0, 1.5], 1, 0.0).text.endswith("varies by 0.5")


# -- 2 ------------------------------------------------------------------------------------------------------


def test_the_loss_of_guessing_is_known_where_there_are_several_labels_of_each_class():
    labels = torch.tensor([0] * 10 + [1] * 5 + [-100] * 5)
    assert loss_of_guessing(labels) == pytest.approx(math.log(3) - 2 / 3 * math.log(2))
    assert loss_of_guessing(labels * 10**12) == loss_of_guessing(labels)
    assert loss_of_guessing(torch.zeros(20, dtype=torch.long)) is None
    assert loss_of_guessing(torch.arange(20) % 5) is None


# -- 5, 12 and 13 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.1, math.nan])
def test_a_picture_without_relief_shows_nothing(noise):
    assert judge_sampling(0.0, noise, 100).state == "fails"
    with pytest.raises(NotJudged, match="the relief is 0"):  # a wider range is no remedy
        judge_range(Range(0.0, noise, None, math.nan))


def test_more_samples_are_named_as_long_as_there_can_be_so_many():
    assert "num_samples: 1600 makes" in judge_sampling(1.0, 0.2, 100).remedy
    assert judge_sampling(1e-9, 1.0, 100).remedy == "nothing rises: widen the range"
    assert "num_samples: 30 makes" in judge_sampling(1.0, 0.06, 8).remedy  # fewer are not enough to know the noise


def test_no_more_samples_are_asked_for_than_the_problem_has():
    judge = partial(judge_sampling, 1.0, 0.2, 100)
    assert judge(most=2000).remedy == "num_samples: 1600 makes it small enough"
    assert judge(most=400).remedy.startswith("num_samples: 400, all that the problem has")
    assert "no more than these 100 samples" in judge(most=100).remedy


@pytest.mark.parametrize(("samples", "state"), [(8, "reservation"), (29, "reservation"), (30, "holds"), (0, "holds")])
def test_few_samples_do_not_tell_their_noise(samples, state):
    """Eight samples without a hard one among them have a small error, and the wrong picture."""
    found = judge_sampling(relief=1.0, noise=0.01, samples=samples)
    assert found.state == state
    assert (f"as far as {samples} samples tell" in found.text) == (state == "reservation")


def test_the_way_to_a_lower_cell_tells_a_saddle_from_a_minimum():
    cell = Lowest(0.0015, 0.0002, "beta -0.07", 0.13, 0.02, slope=0.0)
    assert judge_lowest(replace(cell, curvature=-1.775 * 0.07**2)).text.endswith(
        "downwards there: the centre is no minimum"
    )
    assert judge_lowest(replace(cell, curvature=0.01)).text.endswith("a minimum, with a lower one beside it")
    for open_still in (math.nan, -1e-9):
        assert judge_lowest(replace(cell, curvature=open_still)).text.endswith("is nearly zero along the way")


def test_cells_that_are_far_worse_than_guessing_are_no_dead_network():
    found = Range(50.0, 0.1, 0.81, 2.29, within=0.4, typical=30.0)
    assert judge_range(found).remedy == "mostly far worse than guessing: take range: [-0.4, 0.4]"
    assert judge_range(replace(found, typical=2.4)).remedy.startswith("mostly a dead network")
    assert judge_range(replace(found, renewed=0.75)).remedy == (
        "stale statistics make most of them so: batch_norm: recalibrate takes them anew at every point"
    )


def test_a_smaller_step_is_for_a_training_that_diverged():
    judge = partial(judge_expectation, math.nan, math.nan, None, 0.0, "", None)
    assert "is a weight or a sample not finite?" in judge().remedy
    assert judge(diverged=True).remedy == "train with a smaller step"


def test_a_job_that_is_refused_is_not_to_be_run_again():
    judge = partial(judge_holes, 100, {"not computed": 100})
    assert judge().remedy.startswith("run the job again")
    assert judge(refused=True).remedy.startswith("the job cannot go on as it is")


def test_the_verdict_on_a_convexity_map_is_about_its_loss():
    assert "the eigenvalues are not judged" in Checks(eigenvalues=True).verdict
    assert "eigenvalues" not in Checks().verdict


def test_noise_that_is_not_known_is_no_reason_for_anything():
    unknown = "the standard error of the rise is not known"
    with pytest.raises(NotJudged, match=unknown):
        judge_sampling(1.0, math.nan, 1)
    with pytest.raises(NotJudged, match=unknown):
        judge_lines(OtherLines(np.ones(LINES), {"alpha": 1.0}, 0.5, math.nan, np.ones(1), np.ones((LINES, 1))))
    with pytest.raises(NotJudged, match=f"{unknown}, and the loss of guessing"):
        judge_range(Range(1.0, math.nan, None, math.nan))
    with pytest.raises(NotJudged, match=unknown):
        judge_lowest(Lowest(1.0, math.nan, "alpha 0"))


def test_the_lowest_cell_is_compared_with_a_centre_that_is_known():
    with pytest.raises(NotJudged, match="centre is not known"):
        judge_lowest(Lowest(math.nan, 0.1, "alpha 0"))


def epoch(mean: float) -> LossStretch:
    return LossStretch(mean, 0.0, 90, whole=True)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({}, "not trained to a minimum"),
        (
            {"ended": (0.3, 0.01), "ended_in_words": "your log ended at", "stretches": (epoch(0.5), epoch(0.3))},
            "rather the former: your log ended at 0.3, the centre has 0.8",
        ),
        (
            {"ended": (0.79, 0.01), "stretches": (epoch(1.1), epoch(0.8))},
            "rather the latter: your log still fell at its end, from 1.1 to 0.8",
        ),
        (
            {"ended": (0.79, 0.01), "stretches": (epoch(0.79), epoch(0.79)), "where": "at epoch 10"},
            "rather the former: your log no longer fell at epoch 10 (0.79, then 0.79)",
        ),
        (
            {"ended": (0.79, 0.01), "stretches": (epoch(0.9), epoch(1.1), epoch(0.8))},
            "whether your log still fell at its end, its noise does not tell (1.1, then 0.8)",
        ),
        ({"ended": (0.79, 0.0)}, "not trained to a minimum"),
        ({"slope": 0.4}, "gradient at the centre is not zero: rather the latter"),
        ({"slope": 0.01, "curvature": 0.1}, "a minimum, with a lower one beside it"),
        ({"slope": 0.05}, "not trained to a minimum"),
    ],
)
def test_of_two_causes_of_a_lower_cell_the_likelier_one_is_named_where_it_is_known(known, said):
    text = judge_lowest(Lowest(0.2, 0.01, "alpha 1", 0.8, 0.02, "your log", **known)).text
    assert "as when the samples are others than those of training, or the network is not trained to a minimum" in text
    assert said in text
    assert any(word in said for word in ("rather", "beside", "noise")) or text.endswith(said)


@pytest.mark.parametrize(
    ("means", "error", "whole", "fell"),
    [
        ((0.0034, 0.0017, 0.0013, 0.000842), 0.0004, True, True),  # by 35 %, within two standard errors of its batches
        ((0.0013, 0.000842), 0.0004, False, None),
        ((0.0013, 0.000842), 0.0001, False, True),
        ((0.5, 0.5, 0.496), 0.0, True, False),
        ((0.5, 0.4, 0.45), 0.0, True, False),
        ((0.4, 0.5, 0.45), 0.0, True, None),
        ((1.0, 0.9), 0.0, True, True),
    ],
)
def test_a_loss_still_fell_where_its_last_epochs_say_so(means, error, whole, fell):
    assert still_fell([LossStretch(mean, error, 90, whole) for mean in means]) is fell


def test_a_centre_that_is_no_end_of_its_training_is_not_said_to_be_one():
    ended = "the log ended at 0.1 (epoch 12)"
    found = judge_expectation(0.14, 0.01, 0.14, 0.0, "at epoch 10 your log had", 2.3, ended=ended)
    assert found.text == f"at epoch 10 your log had 0.14, the centre has 0.14; {ended}"


def test_dropout_and_decay_are_causes_of_a_log_above_the_centre_alone():
    above = judge_expectation(0.14, 0.01, 0.21, 0.0, "your log ended at", 2.3)
    below = judge_expectation(0.21, 0.01, 0.14, 0.0, "your log ended at", 2.3)
    assert (above.state, "dropout" in above.remedy) == ("reservation", True)
    assert (below.state, "dropout" in below.remedy) == ("reservation", False)


def test_what_rounding_does_is_no_fault_of_samples_or_training():
    rounded = "weights rounded to 2 bits per channel"
    assert "rounding moves the network by steps" in judge_lowest(Lowest(0.2, 0.01, "alpha 1", rounding=rounded)).text
    far = judge_expectation(0.9, 0.01, 0.1, 0.0, "your log ended at", 2.3, rounding=rounded)
    assert (far.state, far.remedy.partition(",")[0]) == ("information", rounded)
    dead = judge_expectation(2.4, 0.01, 0.1, 0.0, "your log ended at", 2.3, rounding=rounded)
    assert (dead.state, dead.remedy.partition(":")[0]) == ("reservation", rounded)


# -- 6 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "finer"), [((5,), "9"), ((5, 5), "9"), ((5, 9), "[9, 17]")])
def test_a_finer_size_is_finer_along_every_axis(size, finer):
    assert judge_resolution(Resolution(0.1, 0.4, None, size)).remedy.startswith(f"size: {finer} gives")


# -- 7 ------------------------------------------------------------------------------------------------------


def test_the_band_is_that_of_one_line_more():
    """Of eight lines that rise by 0, 1, ... 7 times x²: mean 3.5 x², deviation √6 x²."""
    at = np.array([-1.0, 1.0, 2.0])
    losses = np.arange(LINES)[:, None] * at**2
    found = judge_lines(OtherLines(losses[:, 1], {"alpha": 3.0}, 1.0, 0.0, at, losses))
    band = found.numbers["band"]
    reach = QUANTILE * np.sqrt(6) * np.sqrt(1 + 1 / LINES) * at**2
    np.testing.assert_allclose(band["mean"], 3.5 * at**2)
    np.testing.assert_allclose(band["low"], 3.5 * at**2 - reach)
    np.testing.assert_allclose(band["high"], 3.5 * at**2 + reach)


def test_a_band_that_is_not_finite_is_kept_as_json_holds_it():
    at = np.array([1.0, 2.0])
    losses = np.stack([np.ones(LINES), np.full(LINES, np.inf)], axis=1)
    found = judge_lines(OtherLines(np.linspace(1, 2, LINES), {}, 1.0, 0.0, at, losses))
    assert found.as_check("7", "other seeds").numbers["band"]["high"] == [1.0, None]


# -- 9 ------------------------------------------------------------------------------------------------------

HIDDEN = {
    "a minimum": ((1.0, 0.1, 0.0), (0.3, 0.1), "information", "curvature 1, 5 times that of these axes (0.2): a plane"),
    "a way down": ((1.0, -0.2, -0.3), (0.1, 0.1), "reservation", "leads down, which this plane does not show"),
    "along an axis": ((1.0, -0.2, -0.3), (1.0, -0.2), "information", "leads down, and so does an axis of this plane"),
    "a maximum": ((-1.0, -2.0, -2.0), (-1.5, -1.5), "information", "has curvature -1, these axes (-1.5): a plane"),
    "open": ((1.0, 0.1, -0.3), (0.3, 0.1), "information", "leads down is undecided: none has a curvature below -0.3"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_plane_hides_is_what_its_axes_do_not_show(name):
    ends, axes, state, text = HIDDEN[name]
    found = judge_hidden(*ends, axes, 40)
    assert found.state == state
    assert text in found.text
    assert ("a plane shows the average" in found.text) == (max(axes) < ends[0])


# -- 10 -----------------------------------------------------------------------------------------------------


def test_statistics_are_judged_by_what_is_known_of_them():
    for renewed, error, state in ((1.3, 0.11, "holds"), (1.3, 0.09, "reservation"), (1.01, 1e-6, "holds")):
        assert judge_statistics(LossesByStatistics((1.0, renewed), {}, error, "eval")).state == state
    found = LossesByStatistics((1.0, 1.2), {"corner": (2.0, 1.9)}, 0.1, "eval")
    assert judge_statistics(found).text.endswith("at most 10 % of the rise at a corner is stale statistics")
    lower = judge_statistics(replace(found, corners={"corner": (0.5, 0.4)}))  # it does not rise
    assert lower.state == "holds"
    assert lower.text.endswith("with those of these samples")
    with pytest.raises(NotJudged, match="standard error of the difference at the centre"):
        judge_statistics(replace(found, stderr=math.nan))
    assert judge_statistics(replace(found, stderr=math.nan, corners={"corner": (2.0, 1.1)})).state == "reservation"
