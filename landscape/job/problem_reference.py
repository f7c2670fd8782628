"""How a job names its problem: a callback, the file of a portable problem, or a model in ONNX's format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from landscape.core.errors import shown
from landscape.model.packed_file import SUFFIX, WRITTEN, names_a_file, names_onnx, onnx_files, reference_of

MODULE_FUNCTION = re.compile(r"(?!\S*\.py:)[^\W\d][\w-]*(\.[^\W\d][\w-]*)*:[^\W\d]\w*")


def problem_reference(value: Any) -> Any:
    """What a user wrote, checked: a function, or a text that names what the problem is made from.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, Mapping):
        value = reference_of(value)
    if names_a_file(value) or (names_onnx(value) and onnx_files(value)):
        return value
    if names_onnx(value):
        raise ValueError(f"must be written {WRITTEN}, not {shown(value)}; a model alone has no samples and no loss")
    if isinstance(value, str) and not MODULE_FUNCTION.fullmatch(value):
        raise ValueError(f"must be 'module:function' or a file {SUFFIX}, not {shown(value)}{_remedy(value)}")
    if not isinstance(value, str) and not callable(value):
        raise ValueError(f"must be 'module:function' or a function, not {shown(value)}")
    return value


def _remedy(reference: str) -> str:
    """What ends the refusal of a callback's name: how it is written, where that can be told."""
    if ".py:" in reference:
        return "; leave out '.py'"
    module, _, function = reference.rpartition(".")
    written = f"{module}:{function}"
    return f"; write {shown(written)}" if function != "py" and MODULE_FUNCTION.fullmatch(written) else ""
