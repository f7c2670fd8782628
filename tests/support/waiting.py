"""Waiting for what other processes and threads do, as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str | Callable[[], str], seconds: float = 120.0) -> None:
    """Return as soon as the condition holds; fail, naming what was waited for, where it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what() if callable(what) else what}: not within {seconds:g} s"
        time.sleep(0.1)
