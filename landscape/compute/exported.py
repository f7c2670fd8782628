"""Functions of a model and a batch as graphs: exported by torch, or traced where they take derivatives themselves."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from landscape.compute.pack_graph import Exported
from landscape.compute.refusals import Noticing, decides, is_users, refusal, sizes_of
from landscape.core.errors import JobError
from landscape.evaluation.derivatives import without_reentrant_checkpoints
from landscape.model.packed_model import filled, leaves_of, structure_of

Function = Callable[[nn.Module, Any], Any]
FILTERING = "_filter_traceback_frames"  # of newer versions of torch
LEAST = 3  # samples of an example: torch takes sizes of 0 and 1 for constants


def exported(
    function: Function, model: nn.Module, batch: Any, what: str = "observe", free: Sequence[int] = (0,)
) -> tuple[Exported, Any, Any]:
    """A function as a graph, and the structures of what it takes and returns.

    Args:
        function: of the model and a batch.
        model: in eval mode, whose parameters require no gradients.
        batch: a few samples, see `example_of`.
        what: how messages call the function.
        free: the dimensions of the batch's tensors that differ from batch to batch.

    Raises:
        JobError: it does not export; says why, where, and what to do.
    """
    try:
        takes = structure_of(batch)
    except TypeError as error:
        raise JobError(f"data: batches must be tensors in tuples, lists and dicts to be packed, not {error}") from None
    calling = _Calling(function, model, takes, what)
    leaves = tuple(leaves_of(takes, batch))

    def again(noticing: Noticing) -> None:
        calling.noticing = noticing
        _by_export(calling, leaves, free)

    with _settled():
        try:
            found = _by_export(calling, leaves, free)
        except JobError:
            raise
        except Exception as error:
            if decides(error):
                raise refusal(error, again) from error
            try:
                found = _by_tracing(calling, leaves)
            except Exception:
                raise refusal(error, again) from error
    return found, takes, calling.returns_of()


def example_of(batch: Any) -> Any:
    """The first samples of a batch of rows, repeated where there are few: as many as nothing else of it counts."""
    leaves = leaves_of(structure_of(batch), batch)
    sizes = {size for leaf in leaves for size in leaf.shape[1:]}
    count = next(count for count in (5, 7, 11, 13, 17, 19, 23, *range(25, 10_000)) if count not in sizes)
    rows = torch.arange(count) % leaves[0].shape[0]
    return filled(structure_of(batch), iter([leaf[rows] for leaf in leaves]))


class _Calling(nn.Module):
    """The function as a module that takes and returns tensors, the model below it."""

    def __init__(self, function: Function, model: nn.Module, takes: Any, what: str) -> None:
        super().__init__()
        self.model = model
        self.noticing: Noticing | None = None
        # Behind a function: torch restores attributes of modules, and would take a criterion for a part of the model.
        self._observe, self.returns_of = _noting(function, takes, what)

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        if self.noticing is None:
            return self._observe(self.model, leaves)
        self.noticing.sizes = sizes_of(leaves)
        with self.noticing:
            return self._observe(self.model, leaves)


def _noting(
    function: Function, takes: Any, what: str
) -> tuple[Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]], Callable[[], Any]]:
    """The function of leaves, and a function that says of which structure its value was."""
    noted: list[Any] = []

    def observe(model: nn.Module, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        value = function(model, filled(takes, iter(leaves)))
        try:
            noted[:] = [structure_of(value)]
        except TypeError as error:
            raise JobError(
                f"{what}: must return tensors in tuples, lists and dicts to be packed, not {error}"
            ) from None
        return tuple(leaves_of(noted[0], value))

    return observe, lambda: noted[0]


@contextlib.contextmanager
def _settled() -> Iterator[None]:
    """Without what does not export, kernels of whole attention layers, a look at masks, checkpoints; and quietly.

    Of each operation torch keeps the lines of the user's, which without this are those of `forward` alone.
    """
    filtering: Any = getattr(fx.proxy.TracerBase, FILTERING, None)
    fast, disabled = torch.backends.mha.get_fastpath_enabled(), logging.root.manager.disable
    detect = transformer._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    # Torch looks at a mask's values to take a kernel for causal ones; any mask is right without, but for rounding.
    transformer._detect_is_causal_mask = _is_said_to_be_causal
    try:
        if filtering is not None:
            setattr(fx.proxy.TracerBase, FILTERING, _users_frames)
        # torch prints the graph as far as it came, beside what it raises.
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            logging.disable(logging.CRITICAL)
            with without_reentrant_checkpoints():
                yield
    finally:
        if filtering is not None:
            setattr(fx.proxy.TracerBase, FILTERING, filtering)
        logging.disable(disabled)
        transformer._detect_is_causal_mask = detect
        torch.backends.mha.set_fastpath_enabled(fast)


def _users_frames(self: Any, frames: traceback.StackSummary) -> traceback.StackSummary:
    return traceback.StackSummary.from_list([frame for frame in frames if is_users(frame.filename)])


def _is_said_to_be_causal(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


def _by_export(calling: _Calling, leaves: tuple[Tensor, ...], free: Sequence[int]) -> Exported:
    dynamic = (tuple(dict.fromkeys(free, torch.export.Dim.DYNAMIC) for _ in leaves),)
    program = torch.export.export(calling, leaves, dynamic_shapes=dynamic, strict=False)
    changed = program.graph_signature.buffers_to_mutate
    if changed:
        raise JobError(
            f"model: must not change its buffers in eval mode to be packed, as it does {next(iter(changed.values()))}"
        )
    tensors: dict[str, str | Tensor] = {}
    held = (calling.model.named_parameters(remove_duplicate=False), calling.model.named_buffers(remove_duplicate=False))
    named = {f"model.{name}" for each in held for name, _ in each}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            target = str(spec.target)
            known: Mapping[str, Any] = {**program.constants, **program.state_dict}
            tensors[spec.arg.name] = target.removeprefix("model.") if target in named else known[target]
    return Exported(program.graph, tensors, program.graph_module)


def _by_tracing(calling: _Calling, leaves: tuple[Tensor, ...]) -> Exported:
    """By the operations that run, those of derivatives among them; sizes stay symbols."""
    with _CuttingByCopies():
        traced = make_fx(calling, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*leaves)
    _mend_cuts(traced.graph)
    named = (*calling.model.named_parameters(), *calling.model.named_buffers())
    paths = {id(tensor): name for name, tensor in named}
    for node in list(traced.graph.nodes):
        value = getattr(traced, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(value, Tensor) and id(value) in paths:
            node.meta["stands_for"] = paths[id(value)]
    return Exported(traced.graph, {}, traced)


class _CuttingByCopies(TorchFunctionMode):
    """While it is active, what the user detaches is a copy, which tells it from what autograd detaches to save it.

    A trace of derivatives has both, and with the latter it would have no second derivatives by the weights.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return torch.detach_copy(result) if func in (Tensor.detach, torch.detach) else result


def _mend_cuts(graph: fx.Graph) -> None:
    """Leave out what autograd detached, and detach what the user did."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.target is torch.ops.aten.detach_copy.default:
            node.target = torch.ops.aten.detach.default
