"""The rules of the checks on numbers of their own: what each says where a scene of a network hardly leads to it."""

from __future__ import annotations

import numpy as np
import pytest

from landscape.checks.rules.again import Repetition, Spot, repetition, spot

# -- 3 and 4 ------------------------------------------------------------------------------------------------


def spotted(differences: list[float], relief: float, *, low: bool = False, loss: float = 1.0) -> Spot:
    stored = loss + np.linspace(0, relief, len(differences))
    places = [f"place {k}" for k in range(len(differences))]
    return Spot(stored, stored + differences, places, relief, float("nan"), low, "plain")


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
    judged = spot(found)
    assert judged.state == state
    assert ("which rounding makes" in judged.text) == (state == "reservation")
    assert bool(judged.remedy) == (state != "holds")


def test_rounding_of_a_loss_far_above_the_relief_does_not_show():
    stored = np.array([1.0, 2.0, 1e9])  # the relief is that between percentiles
    found = Spot(stored, stored + [0.0, 0.0, 100.0], ["a", "b", "c"], 1.0, float("nan"), False, "plain")
    assert spot(found).state == "holds"


def test_the_largest_difference_is_told_also_where_another_is_nearer_to_its_bound():
    found = Spot(np.array([1.0, 1e6]), np.array([1.0 + 9e-6, 1e6 + 1.0]), ["a", "b"], 1e5, 1e-7, False, "plain")
    assert "off by at most 0.001 % of the relief" in spot(found).text


def test_where_there_is_no_relief_differences_are_told_by_themselves():
    assert spot(spotted([0.0, 1e-8], 0.0)).text.endswith("off by at most 1e-08")
    assert repetition(Repetition([1.0, 1.5], 1, 0.0)).text.endswith("varies by 0.5")
