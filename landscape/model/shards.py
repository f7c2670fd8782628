"""Models whose tensors are cut over several processes: the part that this process holds, and the whole again.

A tensor may be a `DTensor`, as `fully_shard` (FSDP2), `parallelize_module` (tensor parallel) and the `tp_plan` of
transformers make them. Every other tensor is whole in every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from landscape.core.errors import JobError, quoted


@dataclass(frozen=True)
class Box:
    """The part of a tensor that a process holds: its first place and its size in every dimension."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def cut(self, tensor: Tensor) -> Tensor:
        """The part, as a view of the whole tensor."""
        for dimension, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
            tensor = tensor.narrow(dimension, start, size)
        return tensor


def is_cut(tensor: Tensor) -> bool:
    """Whether this is a `DTensor`."""
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def is_sharded(model: nn.Module) -> bool:
    """Whether a parameter of the model is cut over processes."""
    return bool(gathering_modules(model)) or any(map(is_cut, model.parameters()))


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor; it shares the memory."""
    if not is_cut(tensor):
        return tensor
    part: Any = tensor
    with torch.no_grad():  # else it is a view of autograd's, and writing to it ends the process
        local: Tensor = part.to_local()
    return local


def box_of(tensor: Tensor) -> Box | None:
    """Which part of a tensor this process holds; None: all of it."""
    if not is_cut(tensor):
        return None
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    cut: Any = tensor
    sizes, starts = compute_local_shape_and_global_offset(tensor.shape, cut.device_mesh, cut.placements)
    # A process without a part has an offset at the end of the tensor.
    return Box(tuple(min(start, whole) for start, whole in zip(starts, tensor.shape, strict=True)), tuple(sizes))


def cut_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """A whole tensor that all processes hold, cut as a parameter of the same shape is."""
    box, cut = box_of(parameter), cast(Any, parameter)
    if box is None:
        return whole
    from torch.distributed.tensor import DTensor

    part = box.cut(whole).contiguous()
    found: Tensor = DTensor.from_local(
        part, cut.device_mesh, cut.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
    return found


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole of a tensor, gathered from all processes that hold a part; all of them must call this."""
    cut: Any = tensor
    return cut.full_tensor() if is_cut(tensor) else tensor


def gathering_modules(model: nn.Module) -> list[Any]:
    """The modules of FSDP2, which gather their parameters for every forward pass."""
    return [module for module in model.modules() if hasattr(module, "unshard") and hasattr(module, "reshard")]


def reshard(modules: Sequence[Any]) -> None:
    """Let modules of FSDP2 drop the whole parameters that they keep after a pass: they do not follow the parts.

    From then on the parameters of the model are the parts again.
    """
    for module in modules:
        module.reshard()


@dataclass(frozen=True)
class MatrixBlock:
    """A part of a tensor seen as a matrix [rows, columns], and where it is in the part that this process holds."""

    rows: range
    columns: range
    local: tuple[slice, ...]


def blocks_of(shape: tuple[int, ...], leading: int, box: Box | None, name: str) -> Iterator[MatrixBlock]:
    """The part of a tensor as rectangles of the matrix whose rows are the first `leading` dimensions.

    Args:
        name: of the tensor, for the error.

    Raises:
        JobError: a dimension is cut whose parts are no rectangle.
    """
    everything = (slice(None),) * len(shape)
    if box is None or not shape:
        yield MatrixBlock(range(prod(shape[:leading])), range(prod(shape[leading:])), everything)
        return
    starts, sizes = box.starts, box.sizes
    if sizes[leading + 1 :] != shape[leading + 1 :]:
        raise JobError(
            f"model: {quoted(name)} must be cut along one of its first {leading + 1} dimensions, not along a later one"
        )
    across = range(1)
    if len(shape) > leading:
        width = prod(shape[leading + 1 :])
        across = range(starts[leading] * width, (starts[leading] + sizes[leading]) * width)
    if leading < 2 or sizes[1] == shape[1]:
        height = prod(shape[1:leading])
        yield MatrixBlock(range(starts[0] * height, (starts[0] + sizes[0]) * height), across, everything)
        return
    for place in range(sizes[0]):
        first = (starts[0] + place) * shape[1] + starts[1]
        yield MatrixBlock(range(first, first + sizes[1]), across, (slice(place, place + 1),))


def refuse_other_type(model: nn.Module, dtype: torch.dtype, *, rounds: bool) -> None:
    """Refuse a sharded model whose parameters the job's precision would convert, which its user has to do.

    Args:
        rounds: whether parameters in bfloat16 stay in it.
    """
    for name, parameter in model.named_parameters():
        fits = parameter.dtype is dtype or (rounds and parameter.dtype is torch.bfloat16)
        if parameter.is_floating_point() and not fits:
            half = parameter.dtype is torch.bfloat16 and dtype is torch.float32
            remedy = ", or take precision: bfloat16" if half else ""
            raise JobError(
                f"precision: {quoted(name)} of a model over several processes is {_short(parameter.dtype)}, and this "
                f"needs {_short(dtype)}; call model.{'double' if dtype is torch.float64 else 'float'}() before it is "
                f"cut{remedy}"
            )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
