"""What a Ray session asks of whatever runs on it: a job of landscapes, or a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Shipped(Protocol):
    """What has a callback of the user's.

    Attributes:
        folder: where its module lies, and travels from.
        run_path: the run, which does not travel.
        problem: the callback, 'module:function' or itself.
    """

    @property
    def folder(self) -> Path: ...
    @property
    def run_path(self) -> str: ...
    @property
    def problem(self) -> Any: ...


class Asking(Shipped, Protocol):
    """What runs on a session.

    Attributes:
        device: auto, cpu or cuda.
        device_ids: which GPUs of this machine a private Ray may use.
        num_gpus, threads: what one worker takes.
        workers: how many; None for as many as find a place.
    """

    @property
    def device(self) -> str: ...
    @property
    def device_ids(self) -> tuple[int, ...] | None: ...
    @property
    def num_gpus(self) -> float | None: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def workers(self) -> int | None: ...
