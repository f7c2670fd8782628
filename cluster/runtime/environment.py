"""Variables of the environment, changed for a while."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def in_environment(name: str, value: str) -> Iterator[None]:
    """Within the block a variable of the environment has this value, and afterwards its own."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
