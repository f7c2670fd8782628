"""Landscapes of a quadratic for tests that extend them: what several tests begin with is computed once, and copied."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_models import Quadratic, make_job, quadratic_samples
from torch import Tensor, nn

from landscape import Problem, run

LANDSCAPE = {"name": "a", "size": [5, 4], "range": [[-1, 1], [-0.5, 1]]}
EVALUATED: list[int] = []  # the samples of every call of `observe`
Observe = Callable[..., dict[str, Tensor]]
_computed: dict[tuple[Observe, str], tempfile.TemporaryDirectory[str]] = {}


def observe(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    EVALUATED.append(len(batch))
    return {"loss": model(batch)}


def observe_more(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    return {**observe(model, batch), "root": model(batch).sqrt()}


def observe_weighted(model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    return {**observe(model, batch), "weight": 1.0 + batch[:, 0].abs()}


def problem_of(function: Observe = observe) -> Callable[[], Problem]:
    return lambda: Problem(Quadratic(), quadratic_samples(97), function)


def compute(
    folder: Path, samples: int = 20, spec: dict[str, Any] | None = None, function: Observe = observe, **fields: Any
) -> Path:
    """The run of a job with this landscape, in batches of 8 and tiles of 6, on a line of 3, unless told otherwise."""
    fields = {"batch_size": 8, "tile": 3 if spec and "directions" in spec else [3, 2], "seed": 3, **fields}
    run(make_job(folder, problem_of(function), [spec or LANDSCAPE], num_samples=samples, **fields))
    return folder


def computed(
    folder: Path, samples: int = 20, spec: dict[str, Any] | None = None, function: Observe = observe, **fields: Any
) -> Path:
    """The same, copied where a test of this process had it computed; `folder` holds no run."""
    key = function, json.dumps([samples, spec, fields])
    if key not in _computed:
        _computed[key] = tempfile.TemporaryDirectory(prefix="computed-")
        compute(Path(_computed[key].name), samples, spec, function, **fields)
    shutil.copytree(_computed[key].name, folder, dirs_exist_ok=True)
    return folder
