"""What the fastest engine depends on, as a key: machine, versions, arithmetic, model structure, shapes of the samples.

The key does not depend on weights, on the values of the samples or on the number of workers: none of these changes
which engine is the fastest.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from landscape import __version__
from landscape.core.devices import cores, processor_name
from landscape.core.digests import digest
from landscape.core.plan import Plan
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.tuning.questions import Freedom
from landscape.problem.batches import dense_tensors_in, tensors_of
from landscape.problem.samples import Samples

FEW = 8  # samples
SCHEME = 1  # to be raised when the search itself would choose otherwise
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # of a function that a module shows: it differs from process to process


def key_of(evaluator: Evaluator, plan: Plan, freedom: Freedom) -> str:
    """The key of a choice, in hexadecimal.

    Args:
        plan: as planned at first, before batches were made to fit.
    """
    arithmetic = plan.record() | {
        "seed": None,
        "batch_size": None if freedom.may_choose_batch_size else plan.batch_size,
    }
    return digest(
        {
            "scheme": SCHEME,
            "versions": [__version__, torch.__version__],
            "machine": machine(evaluator.device),
            "arithmetic": arithmetic,
            "row": freedom.row,
            "model": structure_of(evaluator.model),
            "observe": getattr(evaluator.observe, "__qualname__", type(evaluator.observe).__qualname__),
            "samples": shapes_of(evaluator.held_samples),
            "moved": [sorted(each) for each in evaluator.directions],
        }
    )


def machine(device: torch.device) -> dict[str, Any]:
    """The processor, its cores that this process may use, and the GPU where it computes there."""
    parts: dict[str, Any] = {"processor": processor_name(torch.device("cpu")), "cores": cores()}
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        parts["gpu"] = [gpu.name, gpu.total_memory]
    return parts


def structure_of(model: nn.Module) -> list[Any]:
    """The model's modules in order: name, type, what it shows of itself, and the shapes of its own tensors."""
    return [
        [
            name,
            type(module).__qualname__,
            _shown(module),
            *(_own(each) for each in (module._parameters, module._buffers)),
        ]
        for name, module in model.named_modules()
    ]


def _own(tensors: dict[str, Any]) -> list[Any]:
    return [[name, list(each.shape), str(each.dtype)] for name, each in tensors.items() if each is not None]


def _shown(module: nn.Module) -> str:
    try:
        return _ADDRESS.sub("", str(module.extra_repr()))
    except Exception:  # it is user code, and the key works without it
        return ""


def shapes_of(samples: Samples) -> list[Any]:
    """The shape and type of every tensor of the samples, in their order; of other samples those of a small batch."""
    if samples.rows is None:
        small = samples.few(FEW)
        tensors = dense_tensors_in(small.batch(*small.edges(FEW)[0]))
        return [samples.length, [[list(each.shape), str(each.dtype)] for each in tensors]]
    # The type in which floating-point samples are held depends on free memory; they are computed in the plan's.
    return [
        [list(each.shape), "float" if each.is_floating_point() else str(each.dtype)]
        for each in tensors_of(samples.rows)
    ]
