"""The global random number generators of torch, numpy and `random`: seeded, restored, and watched for use."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

SEEDS_OF_NUMPY = 1 << 32  # numpy's global generator takes seeds below this


def seed_draws(seed: int) -> None:
    """Seed the global generators of torch, on the CPU and the GPUs in use, of numpy and of `random`.

    It is called for every point. `torch.manual_seed` would do the same, but it records a stack trace for every kind of
    device that is not in use, which takes several times as long as a point of a small model.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % SEEDS_OF_NUMPY)  # noqa: NPY002 - users draw from the global generator


@contextlib.contextmanager
def fixed_seeds(seed: int) -> Iterator[None]:
    """Seed the global generators for the block, and restore them afterwards.

    Example:
        >>> with fixed_seeds(1):
        ...     first = random.random()
        >>> with fixed_seeds(1):
        ...     random.random() == first
        True
    """
    unused, before = not torch.cuda.is_initialized(), torch.initial_seed()  # type: ignore[no-untyped-call]
    # The block may be the first to use the GPU, whose generators then start from the seed that is set here.
    unused = unused and torch.cuda.is_available()
    with kept_draws():
        seed_draws(seed)
        if unused:
            torch.cuda.manual_seed_all(seed)
        try:
            yield
        finally:
            if unused:
                torch.cuda.manual_seed_all(before)


@contextlib.contextmanager
def kept_draws() -> Iterator[None]:
    """Restore the global generators after the block: what is drawn next does not depend on it."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices, device_type="cuda"):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@dataclass
class NoticedDraws:
    """Whether random numbers were drawn from a global generator; known once the block of `noticed_draws` has ended."""

    happened: bool = False


@contextlib.contextmanager
def noticed_draws() -> Iterator[NoticedDraws]:
    """Notice whether the block draws random numbers from a global generator.

    Example:
        >>> with noticed_draws() as draws:
        ...     number = random.random()
        >>> draws.happened
        True
    """
    draws, before = NoticedDraws(), _generator_states()
    yield draws
    draws.happened = _generator_states() != before


def _generator_states() -> list[Any]:
    array = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if used else [])]
    return [random.getstate(), array["pos"], array["key"].tobytes(), *(state.numpy().tobytes() for state in states)]
