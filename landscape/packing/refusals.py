"""What is said where a model does not export: which operation, where in the source, and what to do."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from landscape.errors import JobError
from landscape.problem.user_code import INSTALLED, OURS, STANDARD, in_words, place_of

DATA_DEPENDENT = re.compile(r"data-dependent|Data dependent|GuardOnDataDependent|aten::_local_scalar_dense|unbacked")
SPECIALISED = re.compile(r"specialized it to be a constant|Constraints violated|your code specialized")
LINE = re.compile(r'File "([^"\n]+)", line (\d+)')
ELSEWHERE = "; or run the job from its source"


def refusal(error: Exception, run: Callable[[], Any]) -> JobError:
    """The error of a function that does not export.

    Args:
        error: what exporting it raised.
        run: calls the function as it is.
    """
    if isinstance(error, JobError):
        return error
    if SPECIALISED.search(f"{type(error).__name__} {error}"):
        where = _place_of_length(run)
        taken = f" by len() of a tensor ({where}); write tensor.shape[0]" if where else "; take it from tensor.shape[0]"
        return JobError(
            "model: must take any number of samples to be packed, and the batch size becomes a constant"
            f"{taken}{ELSEWHERE}"
        )
    where = place_of(error)
    if decides(error):
        return JobError(
            f"model: must do the same operations whatever the data are to be packed, and a value decides"
            f"{f' at {where}' if where else ''}; write it with tensors alone: torch.where for if, no .item(), "
            f"float() or bool(){ELSEWHERE}"
        )
    return JobError(f"model: cannot be exported by torch to be packed: it {in_words(error)[:300]}{ELSEWHERE}")


def decides(error: Exception) -> bool:
    """Whether exporting failed as a value or the batch size decides what is done, which tracing would not see."""
    text = f"{type(error).__name__} {error}"
    return bool(SPECIALISED.search(text) or DATA_DEPENDENT.search(text))


def place_of_node(node: fx.Node) -> str:
    """The line of the user's that an operation comes from, in brackets; empty where torch has not kept it."""
    lines = LINE.findall(str(node.meta.get("stack_trace") or ""))
    users = [(file, line) for file, line in lines if not file.startswith(("<", *OURS, *INSTALLED, *STANDARD))]
    return f" ({_short(users[-1][0])}:{users[-1][1]})" if users else ""


def _short(file: str) -> str:
    """A file's path from the working directory, where it lies below it."""
    with contextlib.suppress(OSError, ValueError):
        return str(Path(file).resolve().relative_to(Path.cwd()))
    return file


class _Lengths(TorchFunctionMode):
    """Notes where the length of a tensor is asked for, which is a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.place = ""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__len__ and not self.place:
            frames = [each for each in traceback.extract_stack() if not each.filename.startswith(("<", *OURS))]
            users = [each for each in frames if not each.filename.startswith((*INSTALLED, *STANDARD))]
            self.place = f"{_short(users[-1].filename)}:{users[-1].lineno}" if users else ""
        return func(*args, **(kwargs or {}))


def _place_of_length(run: Callable[[], Any]) -> str:
    noticing = _Lengths()
    try:
        with torch.no_grad(), noticing:
            run()
    except Exception:
        return ""
    return noticing.place
