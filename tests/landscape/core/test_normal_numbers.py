"""Normal numbers by counter: against another program's words, the normal distribution, and themselves in parts."""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from landscape.core.normal_numbers import TABLE_DIGEST, key_of, normal_numbers, normal_rectangle, quantiles

MASK = (1 << 64) - 1


def split_mix(state: int, count: int) -> list[int]:
    """The words of SplitMix64 after this state, in plain integers."""
    words = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        word = state
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
        words.append(word ^ (word >> 31))
    return words


def test_the_words_are_those_of_splitmix64():
    # The first words of the reference implementation after state 1234567.
    assert split_mix(1234567, 2) == [6457827717110365317, 3203168211198807973]
    for key in (1234567, -1, 0, key_of(3, "layer.weight")):
        table = quantiles()
        lanes = [(word >> (16 * lane)) & 0xFFFF for word in split_mix(key & MASK, 50) for lane in range(4)]
        assert normal_numbers(key, 0, 200).tolist() == table[torch.tensor(lanes)].tolist()


def test_the_table_holds_the_quantiles_of_the_normal_distribution_on_every_machine():
    table = quantiles()
    assert hashlib.sha256(table.numpy().astype("<f4").tobytes()).hexdigest() == TABLE_DIGEST
    exact = np.array([NormalDist().inv_cdf((u + 0.5) / 65536) for u in range(65536)])
    np.testing.assert_allclose(table.numpy(), exact, rtol=6e-8)
    assert torch.equal(table, -table.flip(0))
    # How near an exact quantile comes to the middle between two float32: no library is off by as much.
    rounded = table.numpy().astype(np.float64)
    middles = [(rounded + np.nextafter(table.numpy(), np.float32(end)).astype(np.float64)) / 2 for end in (-9, 9)]
    assert min(np.abs(exact / middle - 1).min() for middle in middles) > 1e-12


def test_the_key_is_the_beginning_of_a_digest():
    digest = hashlib.sha256(b"7 layer.weight").digest()
    assert key_of(7, "layer.weight") == int.from_bytes(digest[:8], "little", signed=True)
    assert len({key_of(seed, name) for seed in range(30) for name in ("a", "b", "1 a")}) == 90


@pytest.mark.parametrize("start, count", [(0, 0), (0, 1), (3, 2), (4, 4), (5, 1000), (999, 3), (1 << 40, 9)])
def test_any_part_has_the_bits_of_the_whole(start, count):
    first = start - start % 8
    whole = normal_numbers(5, first, start - first + count + 11)
    assert torch.equal(normal_numbers(5, start, count), whole[start - first : start - first + count])


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 64, 129])
def test_any_rectangle_has_the_bits_of_the_whole(width):
    height = 23
    whole = normal_numbers(11, 0, height * width).view(height, width)
    for rows in (range(height), range(5, 6), range(3, 20)):
        for columns in (range(width), range(width // 2, width), range(width // 3, width // 3 + 1)):
            found = normal_rectangle(11, width, rows, columns)
            assert torch.equal(found, whole[rows.start : rows.stop, columns.start : columns.stop])


COUNT = 1 << 20


def test_moments_and_tails_are_those_of_the_table():
    numbers = normal_numbers(key_of(0, "w"), 0, COUNT).double().numpy()
    table = quantiles().double().numpy()
    assert table.mean() == 0
    assert (table**2).mean() == pytest.approx(0.99998, abs=1e-6)
    assert (table**4).mean() / (table**2).mean() ** 2 == pytest.approx(2.9992, abs=1e-4)
    assert table.max() == pytest.approx(4.32492, abs=1e-5)
    for power in range(1, 7):
        error = math.sqrt(((table**power).var()) / COUNT)
        assert abs((numbers**power).mean() - (table**power).mean()) < 4 * error
    for bound in (2.0, 3.0, 4.0):
        share = (np.abs(table) > bound).mean()
        assert abs((np.abs(numbers) > bound).mean() - share) < 4 * math.sqrt(share / COUNT)
        assert share == pytest.approx(2 * NormalDist().cdf(-bound), rel=0.05)
    assert np.abs(numbers).max() <= table.max()


def test_every_entry_of_the_table_is_as_likely_as_any_other():
    places = torch.searchsorted(quantiles(), normal_numbers(key_of(1, "w"), 0, 64 << 16))
    counts = np.bincount(places.numpy(), minlength=65536)
    chi = ((counts - 64) ** 2 / 64).sum()
    assert abs(chi - 65535) < 4 * math.sqrt(2 * 65535)


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 5, 64, 576, 4096])
def test_numbers_at_a_distance_are_independent(distance):
    numbers = normal_numbers(key_of(2, "w"), 0, COUNT).double().numpy()
    first, second = numbers[:-distance], numbers[distance:]
    for transform in (lambda x: x, np.abs, np.sign):
        one, two = (transform(part) - transform(part).mean() for part in (first, second))
        assert abs((one * two).mean()) < 4 * one.std() * two.std() / math.sqrt(len(one))


def test_seeds_and_names_give_independent_numbers():
    keys = [key_of(seed, name) for seed in (0, 1, 2, 1 << 40) for name in ("a", "b", "layers.0.weight")]
    drawn = np.stack([normal_numbers(key, 0, 1 << 17).double().numpy() for key in keys])
    between = np.corrcoef(drawn) - np.eye(len(keys))
    assert np.abs(between).max() < 4.5 / math.sqrt(1 << 17)
