"""The options with which a training made its network, for the callback that makes the network of the same run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_OPTIONS: ContextVar[Mapping[str, Any]] = ContextVar("network_options", default={})  # noqa: B039 (never changed)


def network_options() -> dict[str, Any]:
    """The options that the training of the job's run recorded, while the job's callback is called; empty elsewhere.

    A callback takes no arguments, but with these options it makes the network that was trained, of any depth or width:

        def problem():
            return make_problem(data, **network_options())
    """
    return dict(_OPTIONS.get())


@contextmanager
def telling_network(options: Mapping[str, Any]) -> Iterator[None]:
    """Let `network_options` return these within the block."""
    token = _OPTIONS.set(dict(options))
    try:
        yield
    finally:
        _OPTIONS.reset(token)
