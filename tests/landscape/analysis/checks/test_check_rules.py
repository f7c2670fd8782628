"""Rules of the checks on plain numbers: what they find at their edges."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from landscape.analysis.checks.curvature import OfGrid
from landscape.analysis.checks.directions import LINES, QUANTILE, OtherLines, judge_lines
from landscape.analysis.checks.table import CHECKS
from landscape.analysis.checks.values import judge_sampling

ROOT = Path(__file__).parents[4]


def test_the_documentation_has_a_row_for_each_check():
    page = (ROOT / "docs/howto/trust.md").read_text()
    assert re.findall(r"^\| (\d+b?) \| \*\*", page, re.M) == list(CHECKS)


@pytest.mark.parametrize(("samples", "state"), [(8, "reservation"), (29, "reservation"), (30, "holds"), (0, "holds")])
def test_few_samples_do_not_tell_their_noise(samples, state):
    """Eight samples without a hard one among them have a small error, and the wrong picture."""
    found = judge_sampling(relief=1.0, noise=0.01, samples=samples)
    assert found.state == state
    assert (f"as far as {samples} samples tell" in found.text) == (state == "reservation")


@pytest.mark.parametrize(
    ("step", "low_precision", "stands"), [(0.025, False, True), (5e-5, False, False), (0.025, True, False)]
)
def test_a_cell_that_rises_by_less_than_rounding_says_nothing_of_the_bowl(step, low_precision, stands):
    assert OfGrid("alpha", 1.0, 1.0, step).stands_out(0.04, low_precision) == stands


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
