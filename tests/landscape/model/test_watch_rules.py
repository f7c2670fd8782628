"""Statistics against plain ones, in any parts; and which rules fire at which values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from landscape.core.errors import JobError
from landscape.model.layer_rules import DEFAULTS, RULES, Tensors, asked_rules, findings
from landscape.model.layer_statistics import ValueStatistics, change_of, merge_statistics, statistics_of

NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(st.lists(NUMBERS, max_size=6), max_size=4))
def test_parts_in_turn_have_the_statistics_of_the_whole(parts):
    known = merge_statistics(statistics_of(torch.tensor(part, dtype=torch.float32)) for part in parts)
    values = np.array([value for part in parts for value in part], np.float64)
    finite = values[np.isfinite(values)]
    assert known.count == len(values)
    assert (known.nans, known.infinite) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert known.zeros == (values == 0).sum()
    if len(finite):
        scale = np.abs(finite).max()
        assert (known.low, known.high) == (finite.min(), finite.max())
        assert known.mean == pytest.approx(finite.mean(), abs=1e-12 * scale)
        assert known.spread == pytest.approx(finite.std(), rel=1e-6, abs=1e-9 * scale)
        assert known.magnitude == pytest.approx(np.abs(finite).mean(), rel=1e-12)
    else:
        assert math.isnan(known.low)
        assert math.isnan(known.mean)


def test_a_large_offset_leaves_the_spread_exact():
    values = torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    known = merge_statistics(statistics_of(part + 1e8) for part in values.split(100))
    assert known.spread == pytest.approx(values.std(correction=0).item(), rel=1e-6)


VALUES = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
KINDS = {
    "sparse": lambda: VALUES.to_sparse(),
    "compressed": lambda: VALUES.to_sparse_csr(),
    "complex": lambda: torch.tensor([0j, 2 + 0j]),
    "quantised": lambda: torch.quantize_per_tensor(VALUES, 0.5, 0, torch.qint8),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:torch.quantize_per_tensor")
def test_tensors_of_other_kinds_count_as_the_values_they_stand_for(kind):
    known = statistics_of(KINDS[kind]())
    assert (known.count, known.zeros, known.low, known.high, known.mean) == (4, 3, 0.0, 2.0, 0.5)
    assert known.spread == pytest.approx(math.sqrt(0.75))


def test_no_values_have_no_statistics_and_no_findings():
    # By their texts: NaN equals no NaN, and from Python 3.13 on a dataclass compares field by field.
    assert repr(statistics_of(torch.zeros(0, 3))) == repr(ValueStatistics())
    for target in ("weights", "outputs", "gradients"):
        assert findings(target, [Tensors("empty", ValueStatistics())]) == []


def test_zeros_beside_what_is_not_finite_are_not_called_vanishing():
    """A ReLU of ±Inf gives zeros and Inf: what broke is the layer before it."""
    known = statistics_of(torch.tensor([[0.0, math.inf], [0.0, math.nan]]))
    fired = {finding.rule for finding in findings("outputs", [Tensors("relu()", known, from_infinite=True)])}
    assert fired == {"tensor_overflow"}


def weights(ratio: float) -> tuple[torch.Tensor, torch.Tensor]:
    before = torch.full((3, 4), 2.0, dtype=torch.float64)
    return before, before * (1 + ratio)


@pytest.mark.parametrize(
    ("ratio", "rules"),
    [
        (0.0, ["weight_not_changed", "weight_change_too_small"]),
        (0.9e-5, ["weight_not_changed", "weight_change_too_small"]),
        (0.9e-4, ["weight_change_too_small"]),
        (1.1e-4, []),
        (0.09, []),
        (0.11, ["weight_change_too_large"]),
    ],
)
def test_changes_fire_at_the_thresholds_of_mindinsight(ratio, rules):
    change = change_of(*weights(ratio))
    found = findings("changes", [Tensors("fc.weight", ValueStatistics(), change=change)])
    assert [each.rule for each in found] == rules
    assert change.ratio == pytest.approx(ratio, rel=1e-9, abs=1e-15)


def test_weights_that_moved_within_both_tolerances_are_unchanged_as_allclose_says():
    generator = torch.Generator().manual_seed(3)
    for scale in (1e-9, 1e-7, 1e-5, 3e-5):
        before = torch.randn(5, 4, generator=generator, dtype=torch.float64)
        after = before + scale * torch.rand(5, 4, generator=generator, dtype=torch.float64)
        close = torch.allclose(after, before, rtol=1e-5, atol=1e-8)
        assert (change_of(before, after).largest <= 1e-5) == close


def test_asked_rules_are_names_groups_and_thresholds_in_the_order_of_the_table():
    assert asked_rules("watch", True) == DEFAULTS
    assert asked_rules("watch", None) == {}
    assert next(iter(asked_rules("watch", ["changes", "weight_overflow"]))) == "weight_overflow"
    assert asked_rules("watch", {"relu_zeros": 0.5, "gradients": None}) == {
        "relu_zeros": 0.5,
        **{name: rule.threshold for name, rule in RULES.items() if rule.target == "gradients"},
    }


@pytest.mark.parametrize(
    "value",
    [
        3,
        {"relu_zeros": "many"},
        {"relu_zeros": True},
        ["relu"],
        [3],
        {"all": 1.0},
        [["weights"]],
        [{"relu_zeros": 0.5}],
        {"relu_zeros": -0.5},
        "relu_zeros=-1",
    ],
)
def test_what_names_no_rules_is_refused(value):
    with pytest.raises(JobError, match=r"^watch") as caught:
        asked_rules("watch", value)
    assert "\n" not in str(caught.value)
