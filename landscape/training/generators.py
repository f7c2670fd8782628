"""The states of the random generators of a rank: torch's on the CPU and its GPU, numpy's, and Python's."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch

from landscape.core.errors import JobError
from landscape.core.validation import LARGEST_SEED, between

States = dict[str, Any]


def checked_seed(seed: int) -> int:
    """A seed that every generator takes.

    Raises:
        JobError: it is none.
    """
    try:
        return between(0, LARGEST_SEED)(seed)
    except ValueError as error:
        raise JobError(f"seed: {error}") from None


def generator_states(device: torch.device) -> States:
    """The states of the global generators, as tensors and plain values.

    Args:
        device: the one that the rank computes on; of other GPUs nothing is taken.
    """
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002  # the global one
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(gauss)],
        "random": _lists(random.getstate()),
    }


def set_generator_states(states: States, device: torch.device) -> None:
    """Put the global generators into these states; that of a GPU stays as it is where the states have none."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, internal, next_gauss = states["random"]
    random.setstate((version, tuple(internal), next_gauss))


def seed_generators(seed: int, rank: int = 0) -> None:
    """Seed the global generators of a rank: each rank draws other numbers than the others, the same in every run."""
    number = int.from_bytes(hashlib.sha256(f"{seed}/{rank}".encode()).digest()[:8], "little")
    torch.manual_seed(number >> 1)  # all GPUs too; it takes 63 bits
    np.random.seed(number % 2**32)  # noqa: NPY002
    random.seed(number)


def _lists(value: Any) -> Any:
    return [_lists(element) for element in value] if isinstance(value, tuple) else value
