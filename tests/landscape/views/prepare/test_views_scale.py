"""The scale: ranges, levels, logarithm, what cannot be drawn."""

from __future__ import annotations

import numpy as np
import pytest

from landscape.core.errors import JobError
from landscape.core.text import number_text
from landscape.views.prepare.scale import (
    NO_LOGARITHM,
    choose_scale,
    drawn_values,
    even_levels,
    nice_ticks,
    point_states,
    spanned_decades,
)


def test_states_tell_apart_why_a_point_has_nothing_to_draw() -> None:
    values = np.array([1.0, np.nan, np.inf, np.nan, 0.0, -1.0, np.nan])
    status = np.array([1, 0, 2, 3, 1, 1, 1], np.uint8)
    assert point_states(values, status, log=False).tolist() == [1, 0, 2, 3, 1, 1, 2]
    assert point_states(values, status, log=True).tolist() == [1, 0, 2, 3, NO_LOGARITHM, NO_LOGARITHM, 2]


def test_drawn_values_are_the_values_or_their_logarithm_and_nan_elsewhere() -> None:
    values, states = np.array([100.0, 0.0, 5.0]), np.array([1, NO_LOGARITHM, 0], np.uint8)
    np.testing.assert_array_equal(drawn_values(values, states, log=True), [2.0, np.nan, np.nan])
    np.testing.assert_array_equal(drawn_values(values, np.ones(3, np.uint8), log=False), values)


def test_ordinary_values_use_their_whole_range_without_a_note() -> None:
    x = np.linspace(-1, 1, 41)
    scale = choose_scale(x[None] ** 2 + x[:, None] ** 2, log=False)
    assert (scale.low, scale.high) == (0.0, 2.0)
    assert scale.notes == ()
    assert 8 <= len(scale.ticks) <= 20


def test_a_diverging_rim_does_not_flatten_the_rest_and_is_said() -> None:
    values = np.concatenate([np.linspace(0.1, 2, 90), np.full(10, 1e10)])
    before = values.copy()
    scale = choose_scale(values, log=False)
    assert scale.low == 0.1
    assert scale.high < 25
    assert any("highest 1e10" in note for note in scale.notes)
    assert any("logarithmic" in note for note in scale.notes)
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("levels", [1, 2, 7, 40, 100])
def test_exact_levels_are_as_many_as_asked_for_and_evenly_spaced(log: bool, levels: int) -> None:
    scale = choose_scale(np.linspace(0.5, 3, 50), log=log, levels=levels, exact_levels=True)
    assert len(scale.ticks) == levels
    assert np.ptp(np.diff([scale.low, *scale.ticks, scale.high])) == pytest.approx(0)
    assert scale.levels_note == f"{levels} contour line{'s' * (levels > 1)}, evenly spaced"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("levels", [1, 2, 7, 12, 40, 100])
@pytest.mark.parametrize(("low", "high"), [(0.5, 3), (1e-9, 1e9), (0.02, 700), (3.0, 3.001), (1, 10)])
def test_the_number_of_levels_leads_to_the_nearest_round_ones(low: float, high: float, log: bool, levels: int) -> None:
    values = np.geomspace(low, high, 50)
    scale = choose_scale(np.log10(values) if log else values, log=log, zmin=low, zmax=high, levels=levels)
    assert scale.low < min(scale.ticks)
    assert max(scale.ticks) < scale.high
    assert levels / 2.6 <= len(scale.ticks) <= levels * 2.6
    assert str(len(scale.ticks)) in scale.levels_note
    assert ("nearest to" in scale.levels_note) == (len(scale.ticks) != levels)
    real = [scale.real(tick) for tick in scale.ticks]
    for value, label in zip(real, scale.texts, strict=True):
        assert float(label) == pytest.approx(value, rel=1e-9)
    assert len(set(scale.texts)) == len(scale.texts)


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.02, 700, "0.05 0.1 0.2 0.5 1 2 5 10 20 50 100 200 500"),
        (0.9, 60, "1 1.5 2 3 5 7 10 15 20 30 50"),
        (0.5, 3, "0.6 0.8 1 1.2 1.5 2 2.5"),
        (5e-3, 2e9, "0.01 0.1 1 10 100 1000 1e4 1e5 1e6 1e7 1e8 1e9"),
        (2.0, 3.1, "2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9 3"),
    ],
)
def test_levels_on_a_logarithmic_scale_have_round_values(low: float, high: float, texts: str) -> None:
    scale = choose_scale(np.log10(np.geomspace(low, high, 99)), log=True)
    assert list(scale.texts) == texts.split()


def test_uneven_levels_become_whole_numbers_and_values_between_them_stay_between() -> None:
    ticks = [np.log10(level) for level in (1, 2, 5, 10)]
    even = even_levels(ticks)
    assert (even.start, even.stop, even.step) == (0.0, 3.0, 1.0)
    np.testing.assert_allclose(even.values(np.array(ticks)), [0, 1, 2, 3], atol=1e-12)
    drawn = np.linspace(-3, 4, 200)
    assert (np.diff(even.values(drawn)) > 0).all()
    assert np.isnan(even.values(np.array([np.nan])))
    assert even.value(0.0 - np.log10(2)) == pytest.approx(-1)
    same = even_levels([0.0, 1.0, 2.0])
    assert same.values(drawn) is drawn


def test_decades_are_counted_only_where_all_values_have_a_logarithm() -> None:
    values = np.array([0.01, 1.0, 100.0, np.nan])
    assert spanned_decades(values) == pytest.approx(4)
    assert spanned_decades(values, zmin=0.1, zmax=10) == pytest.approx(2)
    assert spanned_decades(np.append(values, 0.0)) == 0
    assert spanned_decades(values, zmin=0) == 0
    assert spanned_decades(np.array([np.nan])) == 0


def test_clip_ends_the_range_at_a_percentile_and_says_so() -> None:
    scale = choose_scale(np.linspace(0, 100, 101), log=False, clip=90)
    assert scale.high == 90
    assert scale.notes[0] == "range drawn ends at percentile 90 of the values"
    assert "10 points above the range drawn, highest 100" in scale.notes
    assert choose_scale(np.full(3, np.nan), log=False, clip=90).high == 1


def test_every_contour_line_has_a_text_since_an_empty_one_hangs_the_browser() -> None:
    for log in (False, True):
        for levels in (None, 3, 77):
            assert all(choose_scale(np.linspace(1, 9, 30), log=log, levels=levels).texts)


def test_log_ticks_say_the_real_values() -> None:
    scale = choose_scale(np.log10(np.array([0.01, 1e4])), log=True)
    for tick, label in zip(scale.ticks, scale.texts, strict=True):
        assert float(label) == pytest.approx(10**tick, rel=5e-3)


def test_given_ends_are_kept_so_that_figures_can_be_compared() -> None:
    one = choose_scale(np.linspace(0, 1, 9), log=False, zmin=0, zmax=10)
    other = choose_scale(np.linspace(3, 30, 9), log=False, zmin=0, zmax=10)
    assert (one.low, one.high, one.ticks) == (other.low, other.high, other.ticks)
    assert one.notes == ()
    assert "above the range drawn, highest 30" in other.notes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zmin": 2, "zmax": 1}, "zmin: must be below zmax"),
        ({"zmin": 0, "log": True}, "zmin: must be above 0 on a logarithmic scale"),
        ({"zmax": float("inf")}, "zmax: must be a finite number"),
        ({"levels": 0}, "levels: must be a whole number of contour lines from 1 to 100, not 0"),
        ({"levels": True}, "levels"),
        ({"clip": 101}, "clip: must be a percentile from 50 to 100, not 101"),
        ({"clip": 90, "zmax": 3}, "clip: must not be given with zmax"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(JobError, match=message):
        choose_scale(np.linspace(1, 2, 5), **({"log": False} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values", [np.full(9, np.nan), np.full(9, 3.0), np.zeros(9), np.full(9, -2.0), np.array([1e300, 1.0])]
)
def test_degenerate_values_still_give_a_range(values: np.ndarray) -> None:
    scale = choose_scale(values, log=False)
    assert scale.low < scale.high
    assert len(scale.ticks) >= 1


def test_nice_ticks_are_round_and_inside() -> None:
    ticks, texts = nice_ticks(-1.3, 1.1, log=True)
    assert texts == ["0.1", "0.2", "0.5", "1", "2", "5", "10"] or {"0.1", "1", "10"} <= set(texts)
    assert all(-1.3 <= tick <= 1.1 for tick in ticks)
    ticks, texts = nice_ticks(0.07, 3.4, log=False)
    assert [float(label) for label in texts] == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("value", "text"), [(0.025, "0.025"), (3.2e10, "3.2e10"), (1e-7, "1e-7"), (12.5, "12.5"), (0.0, "0")]
)
def test_number(value: float, text: str) -> None:
    assert number_text(value) == text
