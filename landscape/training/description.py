"""What run.json says of a training: its model, optimiser, options and versions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor, nn

from landscape.job.job import CollectLandscape
from landscape.model.history import finite
from landscape.model.parameters import persistent_buffers
from landscape.model.run_files import NETWORK, PROBLEM
from landscape.model.snapshots import versions

# The keys in which two starts of one training may differ.
CHANGING = ("created", "steps_per_epoch", "versions")
UNRECORDED = object()  # stands for a value that JSON cannot hold


def describe_run(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    options: CollectLandscape,
    network: Mapping[str, Any],
    problem: str | None = None,
) -> dict[str, Any]:
    """The contents of run.json when collecting begins; `steps_per_epoch` is None until an epoch has ended.

    Args:
        network: the options that the model and the data were made with.
        problem: the callback of the run's landscapes, if it is known.
    """
    told = {NETWORK: _as_far_as_json(network), PROBLEM: problem}
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "buffers": sum(buffer.numel() for buffer in persistent_buffers(model).values()),
        "optimiser": None if optimizer is None else type(optimizer).__name__,
        "hyperparameters": [] if optimizer is None else [_hyperparameters(group) for group in optimizer.param_groups],
        "learning_rate": learning_rate(optimizer),
        "steps_per_epoch": None,
        "unit": options.unit,
        "collect_landscape": options.model_dump(mode="json"),
        "versions": versions(),
    } | {name: value for name, value in told.items() if value}


def kept_of(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What stays of the former run.json where a training goes on.

    With the same optimiser its settings are those that it began with: by now a schedule has changed some.
    """
    kept = ["created", "steps_per_epoch"]
    if before.get("optimiser") == now["optimiser"]:
        kept += ["learning_rate", "hyperparameters"]
    return {key: before[key] for key in kept if key in before}


def learning_rate(optimizer: torch.optim.Optimizer | None) -> float | None:
    """The learning rate of the first parameter group; None without an optimiser, or where it is not finite."""
    return None if optimizer is None else finite(float(optimizer.param_groups[0]["lr"]))


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters, as far as JSON can hold its values."""
    return _as_far_as_json({name: value for name, value in group.items() if name != "params"})


def _as_far_as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in values.items()}
    return {name: value for name, value in plain.items() if value is not UNRECORDED}


def _plain(value: Any) -> Any:
    """A value as JSON holds it, or `UNRECORDED`."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return finite(value)
    if isinstance(value, (tuple, list)):
        return [None if element is UNRECORDED else element for element in map(_plain, value)]
    return UNRECORDED
