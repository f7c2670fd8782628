"""The random draws of torch, numpy and `random`: seeded, put back as they were, and noticed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def seed_draws(seed: int) -> None:
    """Have torch, numpy and `random` draw from this seed, as `torch.manual_seed` does on the CPU and the GPUs in use.

    That one writes down a stack trace for every kind of device that is not in use, which costs several times what a
    point of a small model does.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % SEEDS_OF_NUMPY)  # noqa: NPY002 - users draw from the global generator


SEEDS_OF_NUMPY = 1 << 32


@contextlib.contextmanager
def fixed_seeds(seed: int) -> Iterator[None]:
    """Code of the user's draws from this seed, with torch, numpy or `random`; the process is left as it was found."""
    first, before = not torch.cuda.is_initialized(), torch.initial_seed()  # type: ignore[no-untyped-call]
    first = first and torch.cuda.is_available()  # the code may be the first to use the GPU: seeded when it does
    with kept_draws():
        seed_draws(seed)
        if first:
            torch.cuda.manual_seed_all(seed)
        try:
            yield
        finally:
            if first:
                torch.cuda.manual_seed_all(before)


@contextlib.contextmanager
def kept_draws() -> Iterator[None]:
    """What the generators of torch, numpy and `random` draw next is afterwards what it was before."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices, device_type="cuda"):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@dataclass
class Draws:
    """Whether any generator of torch, numpy or `random` was drawn from."""

    happened: bool = False


@contextlib.contextmanager
def noticed_draws() -> Iterator[Draws]:
    """Tell afterwards whether anything inside drew random numbers from the generators of the process."""
    found, before = Draws(), _generators()
    yield found
    found.happened = _generators() != before


def _generators() -> list[Any]:
    array = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    torchs = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if used else [])]
    return [random.getstate(), array["pos"], array["key"].tobytes(), *(each.numpy().tobytes() for each in torchs)]
