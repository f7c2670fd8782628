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
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.overrides import TorchFunctionMode

from landscape.core.errors import JobError, shown
from landscape.problem.user_code import INSTALLED, OURS, STANDARD, in_words, place_of

DATA_DEPENDENT = re.compile(r"data-dependent|Data dependent|GuardOnDataDependent|aten::_local_scalar_dense|unbacked")
SPECIALISED = re.compile(r"specialized it to be a constant|Constraints violated|your code specialized")
LINE = re.compile(r'File "([^"\n]+)", line (\d+)')
ELSEWHERE = "; or run the job from its source"


def refusal(error: Exception, export: Callable[[Noticing], Any]) -> JobError:
    """The error of a function that does not export.

    Args:
        error: what exporting it raised.
        export: exports the function again, and has the given one notice where the batch size becomes a constant.
    """
    if isinstance(error, JobError):
        return error
    if SPECIALISED.search(f"{type(error).__name__} {error}"):
        noticing = Noticing()
        with contextlib.suppress(Exception):
            export(noticing)
        by_length = noticing.name == "__len__"
        what = "len() of a tensor" if by_length else f"{shown(noticing.name)} of torch"
        taken = f" by {what} ({noticing.place})" if noticing.place else ""
        remedy = "write other operations" if taken and not by_length else "write tensor.shape[0]"
        return JobError(
            "model: must take any number of samples to be packed, and the batch size becomes a constant"
            f"{taken}; {remedy}{ELSEWHERE}"
        )
    where = place_of(error)
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        return JobError(
            f"model: must be made of operations that torch exports, not {shown(str(error.func))}"
            f"{f' ({where})' if where else ''}, which looks at values; write it with others of torch{ELSEWHERE}"
        )
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
    users = [(file, line) for file, line in lines if is_users(file)]
    return f" ({_short(users[-1][0])}:{users[-1][1]})" if users else ""


def is_users(file: str) -> bool:
    """Whether a file of a traceback is one of the user's own."""
    return not file.startswith(("<", *OURS, *INSTALLED, *STANDARD))


def _short(file: str) -> str:
    """A file's path from the working directory, where it lies below it."""
    with contextlib.suppress(OSError, ValueError):
        return str(Path(file).resolve().relative_to(Path.cwd()))
    return file


def sizes_of(tensors: Sequence[Tensor]) -> list[torch.SymInt]:
    """The sizes that are symbols while a function is exported."""
    sizes: list[Any] = [size for tensor in tensors for size in tensor.shape]
    return [size for size in sizes if isinstance(size, torch.SymInt)]


class Noticing(TorchFunctionMode):
    """Notices, while a function is exported, which call of torch takes a size of its tensors for a constant.

    Attributes:
        sizes: of the tensors that the function is given, as symbols; set by who calls it.
        place: the user's line; empty where no call did.
        name: of the call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[torch.SymInt] = []
        self.place, self.name, self._is_over = "", "", False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._is_over = self._is_over or self._is_constant()  # by something between two calls, which has no line here
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if not self._is_over and (func is Tensor.__len__ or self._is_constant()):
                users = [each for each in traceback.extract_stack() if is_users(each.filename)]
                self.place = f"{_short(users[-1].filename)}:{users[-1].lineno}" if users else ""
                self.name, self._is_over = getattr(func, "__name__", ""), True

    def _is_constant(self) -> bool:
        return any(size.node.expr.is_number for size in self.sizes)
