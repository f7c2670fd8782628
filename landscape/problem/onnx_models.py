"""Models in ONNX's format, with samples and a criterion by name: a problem without a callback.

What onnx2torch carries becomes modules of torch. A file of ONNX holds operations and numbers, and no code.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, LandscapeError, NotFoundError, nearest, one_line, shown
from landscape.model.packed_file import REFERENCE, WRITTEN
from landscape.model.parameters import describe_parameters
from landscape.problem.problem import Problem

CRITERIA = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy_with_logits", "binary_cross_entropy", "soft_margin_loss", "kl_div", "poisson_nll_loss",
)  # fmt: skip
UNKNOWN_OPERATION = re.compile(r"operation_type='(\w+)'")


def onnx_problem(reference: str, folder: Path) -> Problem:
    """The problem of a model in ONNX's format.

    Args:
        reference: `MODEL.onnx with SAMPLES.npz and CRITERION`.
        folder: what the two files are relative to.

    Raises:
        NotFoundError: a file is not there.
        JobError: the model holds an operation that is not carried, or the samples are none.
        LandscapeError: onnx2torch is not installed.
    """
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise JobError(f"problem: must be written {WRITTEN}, not {shown(reference)}; a model alone has no loss")
    criterion = match["criterion"]
    if criterion not in CRITERIA:
        raise JobError(f"criterion: unknown criterion {shown(criterion)}; {nearest(criterion, CRITERIA)}")
    model = _converted(_there(folder / match["onnx"]))
    samples = _samples_of(_there(folder / match["data"]))
    return Problem.supervised(model, samples, getattr(nn.functional, criterion))


def _there(file: Path) -> Path:
    if not file.is_file():
        raise NotFoundError(f"problem: the file {shown(str(file))} does not exist")
    return file


def _samples_of(file: Path) -> tuple[Tensor, Tensor]:
    """The arrays `inputs` and `targets` of a file of NumPy, which is read without pickles."""
    try:
        with open(file, "rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["targets"])
    except Exception as error:  # of zipfile, of its decompressor, or of NumPy
        raise JobError(
            f"data: {shown(file.name)} must hold the arrays 'inputs' and 'targets', one row per sample: "
            f"{one_line(error)[:100]}; write it by numpy.savez"
        ) from None


def _converted(file: Path) -> nn.Module:
    with _without_torchvision():
        try:
            import onnx2torch
        except ImportError:
            raise LandscapeError(
                "onnx2torch is not installed, which makes a model of torch of an ONNX file: "
                "pip install 'loss-landscape-cluster[onnx]'"
            ) from None
        try:
            _refuse_newer_operations(file)
            model: nn.Module = onnx2torch.convert(str(file))
        except JobError:
            raise
        except NotImplementedError as error:
            operation = UNKNOWN_OPERATION.search(str(error))
            if operation is None:
                raise JobError(f"problem: {shown(file.name)} is not carried: {one_line(error)[:160]}") from None
            raise JobError(
                f"problem: {shown(file.name)} holds the operation {operation[1]}, which onnx2torch does not carry; "
                "export the model without it, or write a callback that builds it in torch"
            ) from None
        except Exception as error:  # of protobuf, of onnx's checks, or of a converter
            raise JobError(f"problem: {shown(file.name)} cannot be read as ONNX: {one_line(error)[:160]}") from None
    return _trained(model).eval()


def _refuse_newer_operations(file: Path) -> None:
    """Refuse operations of a version that the installed onnx does not know: they may mean something else.

    Raises:
        JobError: the file has such ones.
    """
    try:
        import onnx
    except ImportError:  # which onnx2torch needs, and says
        return

    newest = onnx.defs.onnx_opset_version()
    for each in onnx.load(str(file), load_external_data=False).opset_import:
        if each.domain in ("", "ai.onnx") and each.version > newest:
            raise JobError(
                f"problem: {shown(file.name)} has operations of version {each.version}, and the installed onnx knows "
                f"those up to {newest}; export it with an older opset_version, or install a newer onnx"
            )


def _trained(model: nn.Module) -> nn.Module:
    """The model, whose arrays that are operands become parameters: ONNX does not say which of them are trained.

    Single numbers stay what they are, such as an exponent. What a product takes on its right is a matrix [in, out].
    """
    rights = _right_operands(model)
    for module in list(model.modules()):
        for name, buffer in list(module.named_buffers(recurse=False)):
            if name.startswith("onnx_initializer") and buffer.is_floating_point() and buffer.numel() > 1:
                delattr(module, name)
                module.register_parameter(name, nn.Parameter(buffer))
    infos = describe_parameters(model)
    described = tuple(replace(info, transposed_groups=1) if info.name in rights else info for info in infos)
    model.described = described  # type: ignore[assignment]
    return model


def _right_operands(model: nn.Module) -> set[str]:
    """The paths of the matrices that are the right operands of products."""
    graph = getattr(model, "graph", None)
    found: set[str] = set()
    for node in graph.nodes if graph is not None else ():
        if node.op == "call_module" and type(model.get_submodule(str(node.target))).__name__ == "OnnxMatMul":
            right: Any = node.args[1] if len(node.args) > 1 else None
            if getattr(right, "op", "") == "get_attr":
                found.add(str(right.target))
    return found


@contextmanager
def _without_torchvision() -> Iterator[None]:
    """Let onnx2torch be imported where torchvision is not: it needs that for regions of interest and boxes alone."""
    names = ("torchvision", "torchvision.ops")
    if "onnx2torch" in sys.modules or find_spec("torchvision") is not None:
        yield
        return
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torchvision.ops"].roi_align = _no_torchvision  # type: ignore[attr-defined]
    sys.modules["torchvision"].ops = sys.modules["torchvision.ops"]  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)


def _no_torchvision(*_: Any, **__: Any) -> Any:
    raise LandscapeError("problem: the model takes regions of interest, which needs torchvision; install it")
