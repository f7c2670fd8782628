"""A plan as it is recorded with a landscape: plain data, the engine as text, and back again."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from landscape.core.plan import STATISTICS, BatchNorm, Engine, Plan

PLAN = Plan(16, 2, "cpu", "bfloat16", "batch", 3, Engine.parse("vmap:4+maxima"))
RECORD = {
    "batch_size": 16, "threads": 2, "device": "cpu", "precision": "bfloat16", "batch_norm": "batch", "seed": 3,
    "engine": "vmap:4+maxima", "reduction": "blocks",
}  # fmt: skip


def test_the_record_is_plain_data_in_the_order_of_the_fields():
    assert json.dumps(PLAN.record()) == json.dumps(RECORD)
    assert Plan.from_record(json.loads(json.dumps(RECORD))) == PLAN
    assert Plan(16, 2, "cpu").record()["engine"] == "eager"


@pytest.mark.parametrize(
    ("change", "kind"),
    [({"engine": "warp"}, ValueError), ({"engine": None}, TypeError), ({"unknown": 1}, TypeError)],
)
def test_what_is_no_record_of_a_plan_is_refused(change, kind):
    with pytest.raises(kind):
        Plan.from_record(RECORD | change)


def test_every_mode_of_batch_norm_has_its_statistics():
    assert tuple(STATISTICS) == get_args(BatchNorm)
    assert [mode for mode, statistics in STATISTICS.items() if statistics.fixed] == ["eval"]
    assert PLAN.statistics.of_each_batch
    assert not PLAN.statistics.recalibrated
