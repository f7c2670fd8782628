"""How a job names a model in ONNX's format, with the samples and the criterion that it needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from landscape.core.errors import shown

REFERENCE = re.compile(r"(?P<onnx>\S.*\.onnx) with (?P<data>\S.*\.npz) and (?P<criterion>\w+)")
WRITTEN = "MODEL.onnx with SAMPLES.npz and CRITERION"


def names_onnx(reference: object) -> bool:
    """Whether a job's `problem` names a model in ONNX's format, with or without what else it needs."""
    return isinstance(reference, str) and (reference.endswith(".onnx") or ".onnx with " in reference)


def onnx_files(reference: str) -> list[str]:
    """The files that such a reference names: the model and the samples.

    >>> onnx_files("model.onnx with samples.npz and cross_entropy")
    ['model.onnx', 'samples.npz']
    """
    match = REFERENCE.fullmatch(reference)
    return [] if match is None else [match["onnx"], match["data"]]


def reference_of(fields: Mapping[str, Any]) -> str:
    """The reference that a job's `{onnx: …, data: …, criterion: …}` stands for.

    Raises:
        ValueError: a key is missing, unknown or no text.

    >>> reference_of({"onnx": "m.onnx", "data": "s.npz", "criterion": "mse_loss"})
    'm.onnx with s.npz and mse_loss'
    """
    keys = ("onnx", "data", "criterion")
    if set(fields) != set(keys) or not all(isinstance(fields[key], str) and fields[key].strip() for key in keys):
        raise ValueError(f"must be {{onnx: MODEL.onnx, data: SAMPLES.npz, criterion: NAME}}, not {shown(dict(fields))}")
    return f"{fields['onnx']} with {fields['data']} and {fields['criterion']}"
