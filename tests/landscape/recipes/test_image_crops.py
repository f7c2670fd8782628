"""Crops against the rule as it is written down, and colours against arithmetic."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from landscape.recipes.images import Crop, central_crop, crop_draws, normalise, random_crop

SIDES = st.integers(1, 3000)


@given(SIDES, SIDES, st.integers(0, 2**63), st.integers(0, 1000))
def test_a_random_crop_lies_inside_and_keeps_its_bounds(width, height, seed, epoch):
    crop = random_crop(width, height, crop_draws(seed, epoch, 7))
    assert 0 <= crop.left <= width - crop.width
    assert 0 <= crop.top <= height - crop.height
    assert crop.width >= 1
    assert crop.height >= 1
    if min(width, height) > 100:  # below, rounding to pixels is coarse
        assert 0.97 * 3 / 4 <= crop.width / crop.height <= 1.03 * 4 / 3
    if 1 / 3 < width / height < 3 and min(width, height) > 100:
        assert 0.07 <= crop.width * crop.height / (width * height) <= 1


def test_the_draws_of_a_crop_are_uniform_in_area_and_in_the_logarithm_of_the_ratio():
    """Of a wide square nothing is refused at small areas: shares of the range of both are uniform there."""
    crops = [random_crop(2000, 2000, crop_draws(0, 0, number)) for number in range(4000)]
    areas = torch.tensor([crop.width * crop.height / 2000**2 for crop in crops])
    ratios = torch.tensor([math.log(crop.width / crop.height) / math.log(4 / 3) for crop in crops])
    small = areas < 0.7  # every ratio fits below 3/4
    assert torch.histc(areas[small], 4, 0.08, 0.7).div(small.sum()).sub(0.25).abs().max() < 0.04
    assert torch.histc(ratios[small], 4, -1, 1).div(small.sum()).sub(0.25).abs().max() < 0.04
    places = torch.tensor([crop.left / (2000 - crop.width) for crop in crops if crop.width < 1000])
    assert torch.histc(places, 4, 0, 1).div(len(places)).sub(0.25).abs().max() < 0.05
    assert abs(sum(crop.mirrored for crop in crops) / len(crops) - 0.5) < 0.03


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1000, 10), (493, 0, 13, 10)), ((10, 1000), (0, 493, 10, 13)), ((1, 1), (0, 0, 1, 1)), ((50, 1), (24, 0, 1, 1))],
)
def test_where_no_try_fits_the_middle_is_taken_as_far_as_the_ratios_allow(size, expected):
    draws = iter([0.99, 0.5, 0.5, 0.5] * 10 + [0.9])
    crop = random_crop(*size, lambda: next(draws))
    assert (crop.left, crop.top, crop.width, crop.height) == expected


def test_the_draws_follow_from_seed_epoch_and_number_alone():
    def crop(*key: int) -> Crop:
        return random_crop(400, 300, crop_draws(*key))

    assert crop(1, 2, 3) == crop(1, 2, 3)
    assert len({crop(*key) for key in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3), (3, 2, 1))}) == 6


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [
        ((256, 256), 224, (16, 16, 224, 224)),
        ((512, 512), 224, (32, 32, 448, 448)),
        ((512, 256), 224, (144, 16, 224, 224)),
        ((73, 73), 64, (4, 4, 64, 64)),
    ],
)
def test_the_middle_of_an_image(size, side, expected):
    crop = central_crop(*size, side)
    assert (crop.left, crop.top, crop.width, crop.height) == pytest.approx(expected)
    assert not crop.mirrored


@given(SIDES, SIDES)
def test_the_middle_lies_inside(width, height):
    crop = central_crop(width, height)
    assert crop.left > 0
    assert crop.top > 0
    assert crop.left + crop.width < width + 1e-9
    assert crop.top + crop.height < height + 1e-9


def test_colours_are_normalised_each_by_its_own():
    image = torch.tensor([0, 128, 255], dtype=torch.uint8).view(3, 1, 1).expand(2, 3, 4, 5)
    values = normalise(image)
    assert values.dtype == torch.float32
    expected = [(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert values[1, :, 3, 4].tolist() == pytest.approx(expected)
    assert (values[:, :, :1, :1] == values).all()
