"""The learning rates against their formulas, at the ends and between."""

import math

import pytest
import torch

from landscape.training import schedules


def test_cosine_is_the_one_of_torch():
    parameter = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([parameter], 0.3)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    rate = schedules.cosine(0.3, 4)
    for step in range(21):
        assert rate(step / 5) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6, abs=1e-12)
        optimizer.step()
        torchs.step()
    falling = schedules.cosine(0.3, 4, final=0.2)
    assert [falling(epoch) for epoch in (4, 5, 8)] == pytest.approx([0.06] * 3)


def test_constant_steps_and_polynomial():
    assert [schedules.constant(0.1)(epoch) for epoch in (0, 7.5)] == [0.1, 0.1]
    falling = schedules.steps(1.0, (2, 3.5), 0.1)
    assert [falling(epoch) for epoch in (0, 1.99, 2, 3.4, 3.5, 9)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    curve = schedules.polynomial(0.05803, 53, 4.0839)
    assert [curve(epoch) for epoch in (0, 20, 53, 60)] == pytest.approx([0.05803, 0.05803 * (33 / 53) ** 4.0839, 0, 0])
    assert schedules.polynomial(1.0, 10, 1, final=0.2)(5) == pytest.approx(0.6)


def test_warm_up_rises_along_a_line_to_the_schedule():
    rate = schedules.warmed_up(schedules.cosine(0.8, 10), 2, start=0.1)
    assert rate(0) == 0.1
    assert rate(1) == pytest.approx((0.1 + 0.4 * (1 + math.cos(math.pi / 10))) / 2)
    assert [rate(epoch) for epoch in (2, 5)] == [schedules.cosine(0.8, 10)(epoch) for epoch in (2, 5)]
    assert rate(2 - 1e-9) == pytest.approx(rate(2))


def test_the_rate_scales_with_the_batch():
    assert schedules.scaled(0.1, 256, 64) == pytest.approx(0.4)
    assert schedules.scaled(0.1, 256, None) == 0.1
