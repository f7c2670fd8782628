"""Second moments of patches beside those of patches that are written out."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from landscape.training.thor import factors
from landscape.training.thor.factors import Split


@pytest.mark.parametrize("held", [1, factors.MOST_UNFOLDED])  # images one by one, and all at once
@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "dilation", "width"),
    [
        (20, (3, 3), (1, 1), (1, 1), 128),  # blocks of more channels than they need, where there are more
        (9, (3, 3), (1, 1), (1, 1), 128),  # and where there are none
        (3, (3, 2), (1, 2), (2, 1), 7),  # blocks that end within a channel
        (3, (2, 3), (2, 1), (1, 2), 7),
        (5, (1, 1), (2, 1), (1, 1), 3),
        (2, (1, 3), (1, 1), (1, 2), 6),
        (2, (5, 6), (1, 1), (1, 1), 128),  # one patch
    ],
)
def test_moments_are_those_of_unfolded_patches(monkeypatch, channels, kernel, stride, dilation, width, held):
    torch.manual_seed(0)
    monkeypatch.setattr(factors, "MOST_UNFOLDED", held)
    images = torch.randn(3, channels, 5, 6, dtype=torch.float64)
    columns = F.unfold(images, kernel, dilation, 0, stride).transpose(0, 1).flatten(1)
    expected, split = columns @ columns.T, Split(len(columns), width)
    found = factors.patch_gram(images, kernel, stride, dilation, split)
    for blocks, (start, count, size) in zip(found, split.runs(), strict=True):
        for number in range(count):
            chosen = slice(start + number * size, start + (number + 1) * size)
            torch.testing.assert_close(blocks[number], expected[chosen, chosen], rtol=1e-12, atol=1e-12)
