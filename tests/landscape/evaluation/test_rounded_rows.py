"""Rounding against loops of plain numbers, torch's own operators, and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from landscape.core.quantisation import Quantisation
from landscape.evaluation.model_rounding import AffineRange, fake_quantise, levels_of, round_rows, scales_of

BITS = range(1, 17)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def looped(rows: np.ndarray, bits: int) -> np.ndarray:
    """Row by row and weight by weight, in float32 as torch does it; `round` of Python takes ties to even."""
    found = np.empty_like(rows)
    for i, row in enumerate(rows):
        if bits == 1:
            scale = np.float32(math.fsum(abs(float(w)) for w in row) / len(row))
            found[i] = [scale if w >= 0 else -scale for w in row]
            continue
        n = 2 ** (bits - 1) - 1
        scale = np.float32(max(abs(w) for w in row)) / np.float32(n)
        inverse = np.float32(1) / scale if scale else np.float32(0)
        for j, w in enumerate(row):
            found[i, j] = np.float32(max(-n, min(n, round(float(w * inverse))))) * scale
    return found


@pytest.mark.parametrize("bits", BITS)
def test_rows_are_rounded_as_a_loop_rounds_them(bits):
    rows = drawn(5, 37)
    rows[3] = 0
    found = round_rows(rows, scales_of(rows, bits), bits)
    np.testing.assert_array_equal(found.numpy(), looped(rows.numpy(), bits))


@pytest.mark.parametrize("bits", BITS[1:])
def test_rows_are_those_of_torch(bits):
    rows, n = drawn(6, 50, seed=bits), levels_of(bits)
    scales = scales_of(rows, bits)
    zeros = torch.zeros(6, dtype=torch.int32)
    expected = torch.fake_quantize_per_channel_affine(rows, scales[:, 0], zeros, 0, -n, n)
    assert torch.equal(round_rows(rows, scales, bits), expected)
    whole = rows.reshape(1, -1)
    expected = torch.fake_quantize_per_tensor_affine(whole, float(scales_of(whole, bits)), 0, -n, n)
    assert torch.equal(round_rows(whole, scales_of(whole, bits), bits), expected)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # deprecated, and the kernel to compare with
def test_eight_bits_are_torchs_int8():
    rows = drawn(4, 33)
    scales = scales_of(rows, 8)
    held = torch.quantize_per_channel(rows, scales[:, 0].double(), torch.zeros(4, dtype=torch.int64), 0, torch.qint8)
    assert int(held.int_repr().abs().max()) == 127
    assert torch.equal(round_rows(rows, scales, 8), held.dequantize())


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_no_weight_is_off_by_more_than_half_a_step(bits):
    rows = drawn(7, 200).double()
    scales = scales_of(rows, bits)
    rounded = round_rows(rows, scales, bits)
    assert bool(((rounded - rows).abs() <= scales / 2 * (1 + 1e-12)).all())
    assert torch.equal(round_rows(rounded, scales, bits), rounded)  # rounding twice is rounding once
    assert torch.equal(rounded.abs().amax(1), scales[:, 0] * levels_of(bits))


def test_ties_go_to_even():
    rows = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 7.0]])  # four bits, of which the step is 1
    assert round_rows(rows, scales_of(rows, 4), 4).tolist() == [[0, 2, 2, 0, -2, -2, 7]]


def test_one_bit_is_the_nearest_of_all_rows_of_two_values():
    rows = torch.tensor([[3.0, -1.0, 0.0, 2.0]])
    rounded = round_rows(rows, scales_of(rows, 1), 1)
    assert rounded.tolist() == [[1.5, -1.5, 1.5, 1.5]]
    sizes = np.linspace(0, 4, 401)
    distances = [float((size * torch.where(rows < 0, -1.0, 1.0) - rows).norm()) for size in sizes]
    assert sizes[int(np.argmin(distances))] == 1.5


@pytest.mark.parametrize("bits", [1, 2, 8])
def test_what_has_no_scale_stays_zero_and_what_is_not_finite_stays_so(bits):
    rows = torch.tensor([[0.0, 0.0], [1e-44, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
    rounded = round_rows(rows, scales_of(rows, bits), bits)
    assert rounded[0].tolist() == [0, 0]
    assert bool(rounded[1].isfinite().all())
    assert bool(rounded[2].isnan().all())
    assert not bool(rounded[3].isfinite().all())
    assert scales_of(torch.empty(3, 0), bits).tolist() == [[0], [0], [0]]


def test_scales_of_elsewhere_cut_weights_off():
    scales = torch.tensor([[1.0]])
    assert round_rows(torch.tensor([[-9.0, 0.4, 3.2, 9.0]]), scales, 3).tolist() == [[-3, 0, 3, 3]]


@pytest.mark.parametrize("bits", [1, 2, 8, 16])
@pytest.mark.parametrize("shift", [0.0, 1.5, -4.0])
def test_activations_are_rounded_as_torch_does(bits, shift):
    values = drawn(40, 3) + shift
    over = AffineRange.of(values.min(), values.max(), bits)
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    assert float(over.scale) == pytest.approx((high - low) / (2**bits - 1), rel=1e-6)
    given = torch.cat([values.reshape(-1), torch.tensor([100.0, -100.0, 0.0])])
    expected = torch.fake_quantize_per_tensor_affine(given, over.scale, over.zero_point.int(), 0, 2**bits - 1)
    found = fake_quantise(given, over)
    torch.testing.assert_close(found, expected, rtol=0, atol=float(over.scale) * 1e-6)
    assert found[-1] == 0


def test_activations_that_are_all_zero_stay_so():
    over = AffineRange.of(torch.tensor(0.0), torch.tensor(0.0), 8)
    assert fake_quantise(torch.tensor([0.0, 1.0]), over).tolist() == [0, 0]
    assert fake_quantise(torch.ones(2, dtype=torch.bfloat16), over).dtype is torch.bfloat16


def test_a_quantisation_is_read_from_its_record_and_says_what_it_is():
    asked = Quantisation(4, "per-tensor", activations=True, scale="origin")
    assert Quantisation.from_record(asked.record()) == asked
    assert str(asked) == "weights rounded to 4 bits per tensor and activations per tensor, scales of the origin"
    assert str(Quantisation(1)) == "weights rounded to 1 bit per channel"
    assert str(Quantisation(8, weights=False, activations=True)) == "activations rounded to 8 bits per tensor"
    for wrong in ({**asked.record(), "bits": 17}, {**asked.record(), "scheme": "x"}, {"bits": True}, 8):
        with pytest.raises((TypeError, ValueError), match="quantise: must be"):
            Quantisation.from_record(wrong)
