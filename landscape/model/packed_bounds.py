"""The memory and work of a packed graph, bounded before any of it is computed.

The graph is run once for every shape of a batch on tensors with shapes but without memory (`FakeTensorMode`). On the
way, the numbers and sizes of each operation are checked, the memory that is alive is summed, and the work is counted. A
graph that does not fit the free memory, or takes more work than a file of this size can justify, is refused in a
sentence, instead of by the allocator, by a killed process, or never.

How many values a mask picks depends on its values, not on shapes. The graph is followed up to such an operation, with
as many values as the mask has places; once the operation has run, it is followed further with the actual sizes.

Derivatives, and engines that compute several points at once, take a multiple of this; how many points and samples are
computed at once is chosen here, not by the file.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.flop_counter import flop_registry

from landscape.core.devices import free_bytes
from landscape.core.errors import JobError, message_of
from landscape.model.packed_operations import BY_DIMENSION, proxy_in
from landscape.model.packed_rules import RULES, refuse_numbers

SHARE = 0.9  # of the free memory: the rest is for other needs of kernels
# Multiplications and additions that a call may take: a constant; per operation; and per pair of a number in the file
# and one in the batch. A network uses each weight a few times per input: the largest honest ones need a thousandth.
WORK, WORK_OF_NODE, WORK_OF_PAIR = 2_000_000_000, 10_000_000, 10_000
HELD_AT_LEAST = 100  # numbers, for graphs without weights, such as criteria
LARGEST = 1 << 53  # numbers in a tensor, or in an expanded view
UNKNOWN = object()  # the result of an operation that has not run yet
MOST_SEEN = 10_000  # shapes of batches that are known to be within bounds
MOST_PARTS = 100_000  # tensors that one operation returns
LARGEST_NUMBER = 1 << 62  # in arithmetic of sizes
# Operations that take more than one step per number: about how many. They also take memory beside their results.
SLOW = {
    **dict.fromkeys(
        ("sort", "topk", "kthvalue", "median", "nanmedian", "argsort", "isin", "_fft_c2c", "_fft_c2r", "_fft_r2c"), 40
    ),
    **dict.fromkeys(
        ("upsample_bicubic2d", "upsample_bilinear2d", "upsample_trilinear3d", "grid_sampler_2d", "grid_sampler_3d",
         "searchsorted", "bucketize", "cumprod", "cumsum", "logcumsumexp", "cummax", "cummin", "index_put", "index",
         "gather", "scatter", "scatter_add", "scatter_reduce", "index_add", "col2im", "im2col", "pow", "polygamma",
         "lgamma",
         "digamma", "erfinv", "special_erfcx", "special_ndtri", "special_log_ndtr", "i0", "special_i0e", "special_i1",
         "special_i1e", "rand", "randn", "rand_like", "randn_like", "embedding", "renorm"),
        10,
    ),
}  # fmt: skip


# Operations whose number of results depends on values.
BY_VALUES = {
    "index.Tensor", "argwhere.default", "masked_select.default", "nonzero.default", "nonzero_numpy.default",
    "where.default",
}  # fmt: skip


class TensorLayout(NamedTuple):
    """The properties of a tensor without its values."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> TensorLayout:
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def report_sizes(operation: Any) -> Callable[..., Any]:
    """Wrap an operation of `BY_VALUES` so that it reports the sizes of its result; traced, it stays one call."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        proxy = proxy_in((args, *kwargs.values()))
        if proxy is not None:
            return proxy.tracer.create_proxy("call_function", computed, args, kwargs)
        result = operation(*args, **kwargs)
        if _is_by_values(computed._checked, args):  # type: ignore[attr-defined]
            computed._tell(result)  # type: ignore[attr-defined]
        return result

    computed.__name__ = operation.__name__.replace(".", "_")
    computed._schema = operation._schema  # type: ignore[attr-defined]  # where graphs look up names of arguments
    computed._checked = getattr(operation, "_checked", operation)  # type: ignore[attr-defined]
    computed._tell = lambda result: None  # type: ignore[attr-defined]  # replaced by `bounds_of`
    return computed


def _is_by_values(operation: Any, args: Sequence[Any]) -> bool:
    """Whether the number of results of this call depends on values; with an index, only if it is a mask."""
    if operation.__name__ != "index.Tensor":
        return operation.__name__ in BY_VALUES
    return len(args) > 1 and isinstance(args[1], (list, tuple)) and any(map(_is_mask, args[1]))


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def bounds_of(name: str, graph: fx.Graph) -> Callable[[nn.Module, Sequence[Tensor]], None]:
    """A function to call before a graph, with the model and the inputs of the graph.

    It checks the graph once for every combination of shapes: of the inputs, and of the values that masks pick. It
    raises JobError, which names the operation and the bound, if the graph exceeds a bound.
    """
    seen: set[tuple[Any, ...]] = set()
    now = threading.local()  # the running call: its model, its inputs, the sizes that masks have picked, its `_Call`
    reporting = [node.target for node in graph.nodes if hasattr(node.target, "_tell")]

    def look(model: nn.Module, leaves: Sequence[Tensor]) -> None:
        now.model = None
        if all(map(_has_memory, leaves)):  # otherwise the graph is traced, or computed without values
            now.model, now.leaves, now.picked, now.call = model, tuple(map(TensorLayout.of, leaves)), [], None
            go_on()

    def tell(result: Any) -> None:
        parts = result if isinstance(result, (list, tuple)) else (result,)
        if getattr(now, "model", None) is not None and all(map(_has_memory, parts)):
            now.picked.append(tuple(map(TensorLayout.of, parts)))
            go_on()

    def go_on() -> None:
        key = (now.leaves, *now.picked)
        if key not in seen:
            with _apart():
                if now.call is None:
                    now.call = _Call(now.model, name, graph, now.leaves)
                now.call.follow(now.picked)
            if len(seen) >= MOST_SEEN:
                seen.clear()
            seen.add(key)
            if now.call.is_done:
                now.call = None
        if not reporting:
            now.model = None

    for operation in reporting:
        operation._tell = torch.compiler.disable(tell)  # type: ignore[no-untyped-call]
    outside: Callable[[nn.Module, Sequence[Tensor]], None] = torch.compiler.disable(look)  # type: ignore[no-untyped-call]
    return outside


def _has_memory(leaf: Tensor) -> bool:
    """Whether a tensor is a real one, not a placeholder of tracing."""
    sizes = all(type(size) is int for size in leaf.shape)
    return sizes and not isinstance(leaf, FakeTensor) and leaf.device.type != "meta"


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Leave all transforms and modes of the caller; and silence torch, which prints what it refuses."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        plain = torch._C.DisableTorchFunction(), _disable_current_modes(), temporarily_clear_interpreter_stack()
        with torch.no_grad(), plain[0], plain[1], plain[2]:
            yield
    finally:
        logger.disabled = before


class _Call:
    """One run of a graph on tensors without memory."""

    def __init__(self, model: nn.Module, name: str, graph: fx.Graph, leaves: Sequence[TensorLayout]) -> None:
        self._model, self._name, self._graph, self._leaves = model, name, graph, leaves
        self._mode = FakeTensorMode(allow_fallback_kernels=False)
        tensors = (*model.parameters(), *model.buffers(), *getattr(model, "constants", ()))
        held = sum(tensor.numel() for tensor in tensors) + HELD_AT_LEAST
        batch = sum(math.prod(tensor.shape) for tensor in leaves)
        work = WORK + WORK_OF_NODE * len(graph.nodes) + WORK_OF_PAIR * held * batch
        self._counting = _Counting(int(SHARE * free_bytes(leaves[0].device)), work)
        self._fakes: dict[int, Tensor] = {}
        self._kept: list[tuple[Tensor, torch.Size]] = []
        self._given, self._values = iter(leaves), dict[fx.Node, Any]()
        self._nodes, self._last = list(graph.nodes), _last_uses(graph)
        self._place, self._picked = 0, 0
        self.is_done = False

    def follow(self, picked: Sequence[tuple[TensorLayout, ...]]) -> None:
        """Follow the graph from the last place to its end, or to the next mask whose number of values is unknown.

        Args:
            picked: the layouts of the results of earlier masks.
        """
        while not self.is_done:
            node = self._nodes[self._place]
            if node.op == "output":
                self.is_done = True
                break
            try:
                value = self._computed(node, picked)
            except JobError:
                raise
            except Exception as error:
                raise self._refused(node, self._place, message_of(error)) from None
            if value is UNKNOWN:
                break
            self._values[node] = value
            for used in self._last.get(node, ()):
                self._values.pop(used, None)
            self._place += 1
        if any(fake.shape != shape for fake, shape in self._kept):
            raise JobError(
                f"model: the packed graph {self._name!r} is refused: it changes the shape of what it is given"
            )

    def _refused(self, node: fx.Node, place: int, why: str) -> JobError:
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        if "INTERNAL ASSERT" in why:
            why = "torch is not made for what it is given"
        return JobError(
            f"model: the packed graph {self._name!r} is refused at {called!r}, operation {place}: "
            f"{' '.join(why.split())[:200]}; have it packed anew, or run the job from its source"
        )

    def _computed(self, node: fx.Node, picked: Sequence[tuple[TensorLayout, ...]]) -> Any:
        if node.op == "placeholder":
            return self._fake(next(self._given))
        if node.op == "get_attr":
            value = _attribute(self._model, str(node.target))
            return self._fake(value) if isinstance(value, Tensor) else value
        args = fx.map_arg(node.args, self._values.__getitem__)
        kwargs = fx.map_arg(node.kwargs, self._values.__getitem__)
        if node.op == "call_module":
            with self._mode, self._counting:
                return self._layer(self._model.get_submodule(str(node.target)))(*args)
        target: Any = node.target
        if isinstance(getattr(target, "_schema", None), torch._C.FunctionSchema) or _is_torchs(target):
            operation = getattr(target, "_checked", target)
            refuse_numbers(operation, args, kwargs)
            with self._mode:
                if (rule := RULES.get(operation.__name__.partition(".")[0])) is not None and (
                    why := rule(*args, **kwargs)
                ):
                    raise ValueError(why)
                if hasattr(target, "_tell") and _is_by_values(operation, args):
                    return self._by_values(operation, args, kwargs, picked)
                with self._counting:
                    return target(*args, **kwargs)
        if target is getattr:
            return getattr(*args)
        if getattr(target, "__module__", "") == "landscape.model.packed_graph":
            return self._fake(target(*args))
        return _number(target, args)

    def _by_values(self, operation: Any, args: Any, kwargs: Any, picked: Sequence[tuple[TensorLayout, ...]]) -> Any:
        """The result of an operation whose sizes depend on values; `UNKNOWN` if it has not run yet."""
        if self._picked == len(picked):
            self._counting.add_most_of(operation, args, kwargs)
            return UNKNOWN
        layouts, self._picked = picked[self._picked], self._picked + 1
        fakes = [
            torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=layout.device)
            for layout in layouts
        ]
        self._counting.add_memory(fakes, 0)
        return fakes[0] if operation._schema.returns[0].type.kind() == "TensorType" else fakes

    def _fake(self, tensor: Tensor | TensorLayout) -> Tensor:
        """A tensor of the same layout without memory; always the same one for the same tensor."""
        if id(tensor) not in self._fakes:
            shape, strides, dtype, device = tensor if isinstance(tensor, TensorLayout) else TensorLayout.of(tensor)
            with self._mode:
                fake = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            self._fakes[id(tensor)] = fake
            self._kept.append((fake, fake.shape))
        return self._fakes[id(tensor)]

    def _layer(self, module: nn.Module) -> Callable[..., Any]:
        """The forward of the layer's class on tensors without memory, without the hooks of the layer."""
        twin = object.__new__(type(module))
        twin.__dict__.update(module.__dict__)
        for kind in ("_parameters", "_buffers"):
            tensors = getattr(module, kind)
            twin.__dict__[kind] = {
                name: None if tensor is None else self._fake(tensor) for name, tensor in tensors.items()
            }
        return lambda *args: type(module).forward(twin, *args)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums memory and work of the operations that run within it.

    Args:
        memory: bytes that may be alive at once.
        work: multiplications and additions.
    """

    def __init__(self, memory: int, work: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most_memory, self._most_work, self._work = memory, work, 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func._schema.name.removeprefix("aten::")
        _refuse_many_parts(packet, args)
        result = func(*args, **kwargs)
        inputs, results = list(_tensors((args, kwargs))), list(_tensors(result))
        memories = {tensor.untyped_storage()._cdata for tensor in inputs}
        news = [tensor for tensor in results if tensor.untyped_storage()._cdata not in memories]
        for tensor in results:
            if math.prod(tensor.shape) > LARGEST:
                raise ValueError(f"its result has {math.prod(tensor.shape):,} numbers")
        if not news and not func._schema.is_mutable:
            return result  # a view
        slow = SLOW.get(packet, 1)
        numbers = sum(math.prod(tensor.shape) for tensor in (*inputs, *results))
        self._add_work(slow * numbers + _work_of(func, packet, args, kwargs, result, results))
        besides = sum(_excess(tensor) for tensor in inputs)
        besides += (
            2 * sum(tensor.nbytes for tensor in inputs) if slow > 1 or packet.startswith(("_linalg", "linalg")) else 0
        )
        self.add_memory(news, besides + _besides(packet, args, results))
        return result

    def add_most_of(self, operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Add the most that an operation can make whose sizes depend on values: one value for every place."""
        tensors = list(_tensors((args, kwargs)))
        masks = (
            [tensor for tensor in _tensors(args[1]) if _is_mask(tensor)]
            if operation.__name__ == "index.Tensor"
            else tensors
        )
        places = sum(_places(tensor) for tensor in masks)
        if operation.__name__ == "masked_select.default":
            shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))  # type: ignore[no-untyped-call]
            places += 2 * math.prod(shape)
        self._add_work(SLOW["index"] * places)
        self.add_memory([], 16 * places)
        if operation.__name__ == "index.Tensor":
            longest = max(math.prod(tensor.shape) for tensor in masks)
            others = [math.prod(tensor.shape) for tensor in _tensors(args[1]) if not _is_mask(tensor)]
            longest = longest if max(others, default=1) == 1 else 1  # a mask can only broadcast if it picks one
            picks: list[Any] = []
            for tensor in args[1]:
                zeros = tensor.new_zeros([longest], dtype=torch.int64) if _is_mask(tensor) else tensor
                picks += [zeros] * (tensor.dim() if _is_mask(tensor) else 1)
            with self:
                operation(args[0], picks)

    def _add_work(self, work: int) -> None:
        self._work += work
        if self._work > self._most_work:
            raise ValueError(
                f"it would take {self._work:.2g} steps of work, more than {self._most_work:.2g} for what the file holds"
            )

    def add_memory(self, news: Sequence[Tensor], besides: int) -> None:
        for tensor in news:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._alive or _is_gone(self._alive[storage._cdata][0]):
                self._bytes += storage.nbytes()
                entry = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._alive[storage._cdata] = entry, storage.nbytes()
        if self._bytes + besides > self._most_memory:
            self._alive = {place: entry for place, entry in self._alive.items() if not _is_gone(entry[0])}
            self._bytes = sum(size for _, size in self._alive.values())
        if self._bytes + besides > self._most_memory:
            raise ValueError(
                f"it would take {(self._bytes + besides) / 1e9:,.3g} GB, and {self._most_memory / 1e9:,.3g} GB are free"
            )


def _is_gone(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]


def _work_of(func: Any, packet: str, args: Any, kwargs: Any, result: Any, results: Sequence[Tensor]) -> int:
    """The steps of an operation beyond one per number."""
    formula = flop_registry.get(func._overloadpacket)
    numbers = sum(math.prod(tensor.shape) for tensor in results)
    if formula is not None:
        # The kernel of transposed convolutions loops over its stride for every result.
        strides = max(args[3], default=1) if packet == "convolution" and args[6] else 0
        return int(formula(*args, **kwargs, out_val=result)) + numbers * strides
    if "pool" in packet and len(args) > 1 and isinstance(args[1], (list, tuple)) and not packet.startswith("_adaptive"):
        return numbers * int(math.prod(args[1]))
    if packet.startswith("_scaled_dot_product"):
        query, key = args[0], args[1]
        return 4 * int(math.prod(query.shape)) * int(key.shape[-2])
    if "linalg" in packet or packet in ("cholesky_solve", "triangular_solve", "cholesky"):
        return 20 * sum(
            int(math.prod(tensor.shape) * min(tensor.shape[-2:])) for tensor in _tensors(args) if tensor.dim() > 1
        )
    if packet == "_cdist_forward":
        return numbers * int(args[0].shape[-1])
    if packet == "_trilinear":
        return int(math.prod(_trilinear_sizes(args)))
    if packet == "mkldnn_rnn_layer" or "rnn" in packet:
        weights = sum(math.prod(tensor.shape) for tensor in _tensors(args[1:]))
        return int(math.prod(args[0].shape[:2])) * weights
    return 0


def _places(mask: Tensor) -> int:
    """The numbers of the places of a mask that picks everything."""
    return math.prod(mask.shape) * max(1, mask.dim())


def _besides(packet: str, args: Any, results: Sequence[Tensor]) -> int:
    """The bytes of a kernel beside its results."""
    if packet in BY_DIMENSION:
        return 16 * sum(_places(tensor) for tensor in _tensors(args[1]) if _is_mask(tensor))
    if packet in ("convolution", "_convolution", "convolution_backward"):
        weight = args[2] if packet == "convolution_backward" else args[1]
        inputs = args[1] if packet == "convolution_backward" else args[0]
        places = math.prod((results[0] if packet != "convolution_backward" else args[0]).shape[2:])
        columns = math.prod(weight.shape[1:]) * max(places, math.prod(inputs.shape[2:]))
        return int(2 * (columns + math.prod(inputs.shape)) * weight.element_size())
    if packet == "_trilinear":
        return int(math.prod(_trilinear_sizes(args)) * args[0].element_size())
    return 0


def _trilinear_sizes(args: Any) -> list[int]:
    sizes = []
    for tensor, expanded in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for place in sorted(expanded):
            shape.insert(place, 1)
        sizes.append(shape)
    return [max(lengths) for lengths in zip(*sizes, strict=True)]


def _excess(tensor: Tensor) -> int:
    """The bytes of a copy of an expanded tensor beyond those of its memory."""
    return max(0, math.prod(tensor.shape) * tensor.element_size() - tensor.untyped_storage().nbytes())


def _refuse_many_parts(packet: str, args: Sequence[Any]) -> None:
    """Refuse an operation that returns more tensors than a graph may make."""
    parts = 0
    if packet in ("unbind", "split", "unsafe_split") and isinstance(args[0], Tensor) and args[0].dim():
        dim = args[1 if packet == "unbind" else 2] if len(args) > (1 if packet == "unbind" else 2) else 0
        size = args[0].shape[dim]
        parts = size if packet == "unbind" else size // max(1, args[1])
    if parts > MOST_PARTS:
        raise ValueError(f"it would make {parts:,} tensors, more than {MOST_PARTS:,}")


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the nodes whose values are used for the last time there."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for used in node.all_input_nodes:
            last[used] = node
    ends: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        ends.setdefault(node, []).append(used)
    return ends


def _number(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Arithmetic of sizes, with bounded results: products of products would grow without end."""
    if function.__name__ == "getitem":
        values, place = args
        if not isinstance(values, (list, tuple)) or type(place) is not int:
            raise ValueError("a part of something else than a list")
        return values[place]
    if not all(type(argument) in (bool, int, float) for argument in args):
        raise ValueError("arithmetic with something else than numbers")
    result = function(*args)
    if type(result) is int and abs(result) > LARGEST_NUMBER:
        raise ValueError(f"its result is a number of {result.bit_length()} bits")
    return result


def _is_torchs(function: Any) -> bool:
    return isinstance(function, torch._ops.OpOverload) or function in (
        torch.add, torch.mul, torch.relu, torch.relu_, torch.max_pool2d, Tensor.to,
    )  # fmt: skip


def _attribute(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name)
    return owner
