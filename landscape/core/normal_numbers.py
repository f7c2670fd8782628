"""Normal numbers by counter: number k of a tensor follows from a seed, the tensor's name and k, and from nothing else.

So any part of a tensor can be drawn by itself, on any device, in any order and by any number of processes: the bits are
those of the whole. A generator with a state, such as torch's, has to draw everything before a part.

1. The key of a tensor is the first 64 bits of SHA-256("seed name").
2. Word j = mix(key + (j + 1)·φ) modulo 2⁶⁴, with φ = 0x9E3779B97F4A7C15 and the finaliser of SplitMix64
   (Steele, Lea and Flood 2014): x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB;
   x ^= x >> 31.
3. Number k is entry u of a table, where u are the bits 16·(k mod 4) to 16·(k mod 4) + 15 of word k div 4.
4. Entry u of the table is the normal quantile Φ⁻¹((u + ½) / 65536), rounded to float32.

Only integers and a table are used, so that every processor gives the same bits. The quantiles have mean 0, variance
0.99998 and kurtosis 2.9992; the largest is 4.325, beyond which a true normal number lies once in 65,536 times.
"""

from __future__ import annotations

import hashlib
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

LEVELS = 1 << 16  # entries of the table
PER_WORD = 4  # numbers that a word of 64 bits gives
TABLE_DIGEST = "1cfbba1e07e34386a57626f82aeb43e6ed54ba70a3ea6b7d964dc66a841074a8"
STEP, FACTORS, SHIFTS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB), (30, 27, 31)


def key_of(seed: int, name: str) -> int:
    """The key of a tensor: the first 64 bits of SHA-256("seed name"), as a signed number."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little", signed=True)


def normal_numbers(key: int, start: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """The numbers `start` to `start + count` of the tensor with this key, float32 [count].

    >>> whole = normal_numbers(7, 0, 10)
    >>> torch.equal(normal_numbers(7, 3, 5), whole[3:8])
    True
    """
    first, last = start // PER_WORD, -(-(start + count) // PER_WORD)
    words = _steps(last - first, torch.device(device)) + _signed((first + 1) * STEP + key)
    numbers = _looked_up(_mixed(words))
    skipped = start - first * PER_WORD
    return numbers[skipped : skipped + count]


def normal_rectangle(
    key: int, width: int, rows: range, columns: range, device: torch.device | str = "cpu"
) -> Tensor:  # fmt: skip
    """A part of the tensor with this key, seen as a matrix of `width` columns: float32 [rows, columns].

    Number (r, c) of the matrix is number r·width + c of the tensor.
    """
    if len(columns) == width:
        return normal_numbers(key, rows.start * width, len(rows) * width, device).view(len(rows), width)
    starts = torch.arange(rows.start, rows.stop, device=device) * width + columns.start
    words = starts // PER_WORD
    count = len(columns) // PER_WORD + 2
    counted = (words[:, None] + torch.arange(1, count + 1, device=device)).mul_(_signed(STEP)).add_(key)
    numbers = _looked_up(_mixed(counted))
    places = (starts - words * PER_WORD)[:, None] + torch.arange(len(columns), device=device)
    return numbers.view(len(rows), -1).gather(1, places)


KEPT_STEPS = 1 << 20  # most parts have the same length, so that steps of up to so many words are kept


def _steps(count: int, device: torch.device) -> Tensor:
    """0, φ, 2φ, … modulo 2⁶⁴ [count]."""
    return _kept_steps(count, device) if count <= KEPT_STEPS else _make_steps(count, device)


def _make_steps(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device).mul_(_signed(STEP))


_kept_steps = lru_cache(maxsize=4)(_make_steps)


def _mixed(words: Tensor) -> Tensor:
    """The words after the finaliser, in place; int64 as bits."""
    shifted = torch.empty_like(words)
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        torch.bitwise_right_shift(words, shift, out=shifted)
        shifted.bitwise_and_((1 << (64 - shift)) - 1)  # torch's shift repeats the sign
        words.bitwise_xor_(shifted)
        if factor != 1:
            words.mul_(_signed(factor))
    return words


def _signed(word: int) -> int:
    """The same 64 bits as a signed number, which torch's integers are."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def _looked_up(words: Tensor) -> Tensor:
    """The four numbers of every word, float32, one after the other."""
    places = words.view(-1).view(torch.uint16).to(torch.int32)
    return torch.index_select(_table_on(words.device), 0, places)


@cache
def _table_on(device: torch.device) -> Tensor:
    return quantiles().to(device)


@cache
def quantiles() -> Tensor:
    """Φ⁻¹((u + ½) / 65536) for u from 0 to 65535, float32.

    Raises:
        RuntimeError: the mathematical library of this machine gives other quantiles.
    """
    normal = NormalDist()
    upper = np.array([normal.inv_cdf((u + 0.5) / LEVELS) for u in range(LEVELS // 2, LEVELS)])
    # No quantile is nearer than a part in 10¹² to where float32 rounds the other way, and libraries agree to 10⁻¹⁵.
    table = np.concatenate([-upper[::-1], upper]).astype("<f4")
    if hashlib.sha256(table.tobytes()).hexdigest() != TABLE_DIGEST:
        raise RuntimeError("the quantiles of the normal distribution are other numbers on this machine")
    return torch.from_numpy(table)
