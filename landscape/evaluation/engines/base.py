"""The base `eager`, which runs `observe(model, batch)` operation by operation, and the interface of all others."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import max_pool2d
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from landscape.core.plan import Plan
from landscape.core.random_state import kept_draws
from landscape.core.rounding import AffineRange, fake_quantise
from landscape.evaluation.feed import Counts
from landscape.evaluation.model_state import ModuleState
from landscape.evaluation.weights import MovingWeights
from landscape.problem.batches import Batch, exchanged
from landscape.problem.supervised import Observe
from landscape.problem.user_code import kept_alive

# ----------------------------------------------------------------------------------------------------
# The inputs of linear layers and convolutions rounded to a few bits, over ranges that are taken at the origin.


class ActivationRounding:
    """Rounds the inputs of a model's linear layers and convolutions, once their ranges are known.

    A layer that the model does not call as a module, as attention calls its output projection by its weight alone, has
    no input that could be seen: it is left as it is.

    Args:
        model: gets a hook before each of these layers, for good.
    """

    def __init__(self, model: nn.Module, bits: int) -> None:
        self._bits, self._watching = bits, False
        self._seen: dict[str, tuple[Tensor, Tensor]] = {}
        self._ranges: dict[str, AffineRange] | None = None
        self.left: frozenset[str] = frozenset()  # layers that round their inputs themselves
        for name, module in rounded_layers(model).items():
            self._hook(name, module)

    def _hook(self, name: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            # Layers derived from torch's may call it by another name.
            by = next((key for key, value in kwargs.items() if isinstance(value, Tensor)), "input")
            if self._watching:
                self._see(name, args[0] if args else kwargs[by])
                return None
            over = None if name in self.left else self.range_of(name)
            if over is None:
                return None
            if args:
                return (fake_quantise(args[0], over), *args[1:]), kwargs
            return args, {**kwargs, by: fake_quantise(kwargs[by], over)}

        module.register_forward_pre_hook(before, with_kwargs=True)

    def _see(self, name: str, values: Tensor) -> None:
        if not values.numel():
            return
        given = values.detach()
        low, high = torch.aminmax(given if given.dtype is torch.float64 else given.float())
        before = self._seen.get(name, (low, high))
        # Not Python's min and max, which would lose a NaN.
        self._seen[name] = torch.minimum(before[0], low), torch.maximum(before[1], high)

    def range_of(self, name: str) -> AffineRange | None:
        """The range of the input of a layer; None where it is not known."""
        return None if self._ranges is None else self._ranges.get(name)

    @property
    def knows_ranges(self) -> bool:
        """Whether the ranges were taken."""
        return self._ranges is not None

    def forget(self) -> None:
        """Round nothing until the ranges are taken again, as the origin is another."""
        self._ranges = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Take the ranges from what the layers get meanwhile, unrounded; none where the block raises."""
        self._seen, self._ranges, self._watching = {}, None, True
        try:
            yield
        finally:
            self._watching = False
        self._ranges = {name: AffineRange.of(low, high, self._bits) for name, (low, high) in self._seen.items()}


def rounded_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers whose inputs are rounded, by name: linear ones, convolutions, and the `Conv1D` of transformers."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, _ConvNd)) or type(module).__name__ == "Conv1D"
    }


# ----------------------------------------------------------------------------------------------------
# The interface of a rewrite of a model: whether it applies, how it is installed, its hooks, how it is taken out.


@dataclass(frozen=True)
class RewriteTarget:
    """The model that rewrites are installed in, and what they may look at.

    Args:
        model: a private copy in eval mode on the device.
        state: what the model holds beside its tensors.
        weights: the moved tensors of the model.
        plan: the arithmetic of the values.
        first_batch: returns the first batch of samples.
        resident: whether the batches stay on the device, where they are.
        hides_writes: whether user code writes to the model past torch's version counters.
        counts: how many values `observe` returns for a batch; None: one for each row.
        same_shapes: whether the batches have so few shapes that code can be compiled for each.
        activations: what rounds the inputs of layers; None where nothing does.
    """

    model: nn.Module
    state: ModuleState
    weights: MovingWeights
    observe: Observe
    plan: Plan
    device: torch.device
    first_batch: Callable[[], Batch]
    resident: bool = True
    hides_writes: bool = False
    counts: Counts | None = None
    same_shapes: bool = True
    activations: ActivationRounding | None = None

    def restore(self) -> None:
        """Put back what user code has changed: the value of a point depends on the point alone."""
        self.state.restore()
        self.weights.restore()


class Rewrite(ABC):
    """A change to how a model is computed, which keeps its values to the bit or up to rounding.

    An object of it is the change installed in one model. Its hooks are called when weights are set and batches begin,
    and it is closed when the engine or the batches change. Not every base calls every hook: what a rewrite needs stands
    in its line of `landscape.core.plan.OPTIONS`, and on other bases it is refused. To add one: a file with a subclass,
    a line in `table.REWRITES`, and that line.
    """

    layouts: ClassVar[Mapping[int, torch.memory_format]] = {}  # of parameters, by their number of dimensions
    traces: ClassVar[bool] = False  # whether it changes the graph of the model's operations
    remembers: ClassVar[bool] = False  # whether it keeps outputs from one point to another
    trusts_counters: ClassVar[bool] = False  # whether it is wrong where writes pass torch's version counters
    compiler_passes: ClassVar[tuple[Callable[[fx.GraphModule], None], ...]] = ()  # of the graph that a compiler gets

    mode: AbstractContextManager[object] | None = None  # is active during every call of `observe`
    layers: frozenset[nn.Module] = frozenset()  # whose calls it has taken over; other rewrites leave them alone

    @classmethod
    @abstractmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether it would change anything; it may raise any error, which counts as no."""

    @classmethod  # noqa: B027
    def check(cls, target: RewriteTarget) -> None:
        """Raises ValueError where the plan rules it out, such as by its mode of batch normalisation."""

    @classmethod
    @abstractmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Change how the model is computed.

        Args:
            graph: of the model's operations, to be changed in place, where a rewrite of the engine traces.
            taken: layers that other rewrites have taken over, to be left as they are.

        Raises:
            ValueError: there is nothing in this model that it could change.
        """

    def refresh(self, point: Sequence[float] | None) -> None:  # noqa: B027 - most have nothing to do
        """The weights were set anew: to this point, or to a whole set of weights, which is no point."""

    def begin(self, batch: int | None) -> None:  # noqa: B027
        """The call that follows is for the batch with this number; None: for weights that are no point."""

    def forget(self) -> None:  # noqa: B027
        """The calls that follow are for other samples or another row of points."""

    def close(self) -> None:  # noqa: B027
        """Leave the model as it was."""


def applies(rewrite: type[Rewrite], target: RewriteTarget) -> bool:
    """Whether a rewrite would change anything; not where asking raises, as for control flow that cannot be traced."""
    try:
        with kept_alive():
            return rewrite.applies(target)
    except Exception:
        return False


def tidy(graph: fx.GraphModule) -> None:
    """Make the graph ready to be called after it was changed."""
    graph.delete_all_unused_submodules()
    graph.graph.lint()
    graph.recompile()
    graph.eval().requires_grad_(False)


# ----------------------------------------------------------------------------------------------------


class Forward:
    """Operation by operation: the reference, and the class that every other base derives from.

    A base is a subclass in a file of this folder and a line with its rules in `landscape.core.plan.BASES`. That line
    names the hooks of rewrites which its methods call, and these alone decide which options go with it.

    Args:
        model: its tensors are set from outside, between calls.
        rewrites: installed in the model, by name; this object calls their hooks, and closes them.
    """

    def __init__(self, model: nn.Module, observe: Observe, rewrites: Mapping[str, Rewrite]) -> None:
        self.model, self._observe, self.rewrites = model, observe, dict(rewrites)
        self._collect_modes()

    @classmethod
    def check(cls, target: RewriteTarget) -> None:
        """Raises JobError or ValueError where the engine cannot run."""

    def refresh(self, point: Sequence[float] | None) -> None:
        """To be called when the model's tensors were set: to this point, or to a whole set of weights (None)."""
        for rewrite in self.rewrites.values():
            rewrite.refresh(point)

    def forget(self) -> None:
        """To be called before calls for other samples, or for another row of points."""
        for rewrite in self.rewrites.values():
            rewrite.forget()

    def begin(self, index: int | None) -> None:
        """To be called before the call for batch number `index`; None: for weights that are no point."""
        for rewrite in self.rewrites.values():
            rewrite.begin(index)

    def observe(self, index: int | None, batch: Batch) -> Any:
        """The observables of batch number `index`; None where the weights are not a point of the plane."""
        self.begin(index)
        with self.active():
            return self._observe(self.model, batch)

    def observe_points(self, stacked: Mapping[str, Tensor], batch: Batch) -> Any:
        """The observables [points, samples] of a batch at stacked weights [points, …], where the base stacks points.

        Raises:
            NotImplementedError: it computes one point after the other.
        """
        raise NotImplementedError(f"{type(self).__name__} computes one point after the other")

    def _collect_modes(self) -> None:
        self._modes = [rewrite.mode for rewrite in self.rewrites.values() if rewrite.mode is not None]

    def active(self) -> AbstractContextManager[object]:
        """The modes of the rewrites, around one call."""
        if not self._modes:
            return nullcontext()
        modes = ExitStack()
        for mode in self._modes:
            modes.enter_context(mode)
        return modes

    def captures(self, index: int | None) -> bool:
        """Whether this call for the batch is the only one in which Python has a part; the next ones replay it."""
        return False

    def distrust_counters(self) -> None:
        """Go on without the rewrites that rely on torch's version counters, as user code writes past them."""
        for name in [name for name, each in self.rewrites.items() if each.trusts_counters]:
            self.rewrites.pop(name).close()
        self._collect_modes()

    def close(self) -> None:
        """Leave the model as it was."""
        while self.rewrites:
            self.rewrites.popitem()[1].close()


class ObservedModel(nn.Module):
    """`observe` as a module around the model, so that it is compiled or called with other weights as a whole."""

    def __init__(self, model: nn.Module, observe: Observe) -> None:
        super().__init__()
        self.model, self._observe = model, observe

    def forward(self, batch: Batch) -> Mapping[str, Tensor]:
        """The observables of a batch at the model's weights."""
        return self._observe(self.model, batch)


# ----------------------------------------------------------------------------------------------------
# The arithmetic of a plan put into force: threads, precision, deterministic kernels.


def autocast(plan: Plan, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Lower precision in those operations that torch lowers, for a plan in bfloat16; else nothing."""
    # Its cache holds for one block only, and must not be filled while a CUDA graph is captured.
    return torch.autocast(device.type, torch.bfloat16, enabled=plan.precision == "bfloat16", cache_enabled=False)


@contextlib.contextmanager
def arithmetic(plan: Plan, device: torch.device) -> Iterator[None]:
    """The plan's threads and precision and deterministic kernels; afterwards the process has its own settings again."""
    tf32 = plan.precision == "tf32"
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32)
    with kept_draws(), flags:
        try:
            if threads != plan.threads:
                torch.set_num_threads(plan.threads)
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            if threads != plan.threads:
                torch.set_num_threads(threads)


def wait(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ----------------------------------------------------------------------------------------------------
# Max-pooling by elementwise maxima: the same bits by a faster kernel.

POOLING = (max_pool2d, torch.max_pool2d)


class PoolingByMaxima(TorchFunctionMode):
    """While active, 2-D max-pooling is `pool_by_maxima`. Where gradients are on it is not, as at ties they differ."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False  # whether a call to max-pooling was seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in POOLING and not torch.is_grad_enabled():
            self.met, func = True, pool_by_maxima
        return func(*args, **(kwargs or {}))


def pool_by_maxima(input: Tensor, *window: Any, **options: Any) -> Any:
    """`max_pool2d` by elementwise maxima of strided views: the same values to the bit, NaN included.

    torch's own kernel on the CPU walks window by window and is not vectorised over contiguous images, where this is
    several times faster. What has no such form (indices, ceil_mode, integers) is left to torch.
    """
    pooling = _Window.of(input, *window, **options)
    with torch._C.DisableTorchFunction():
        return max_pool2d(input, *window, **options) if pooling is None else pooling.pool(input)


def use_maxima(graph: fx.GraphModule) -> None:
    """Replace every max-pooling in a traced graph by `pool_by_maxima`."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in POOLING:
            node.target = pool_by_maxima
        elif node.op == "call_module" and type(module := graph.get_submodule(str(node.target))) is nn.MaxPool2d:
            options = (module.kernel_size, module.stride, module.padding, module.dilation)
            more = {"ceil_mode": module.ceil_mode, "return_indices": module.return_indices}
            with graph.graph.inserting_before(node):
                pooled = graph.graph.call_function(pool_by_maxima, (*node.args, *options), {**node.kwargs, **more})
            node.replace_all_uses_with(pooled)
            graph.graph.erase_node(node)
    graph.recompile()


class Maxima(Rewrite):
    """Max-pooling by elementwise maxima: changed once in a graph, else by a mode that is asked at every function."""

    compiler_passes = (use_maxima,)

    def __init__(self, mode: PoolingByMaxima | None) -> None:
        self.mode = mode

    @classmethod
    def applies(cls, target: RewriteTarget) -> bool:
        """Whether the device is a CPU and `observe` pools in two dimensions, seen with the first batch."""
        if target.device.type != "cpu":
            return False
        mode = PoolingByMaxima()
        with torch.no_grad(), mode:
            target.observe(target.model, exchanged(lambda tensor: tensor, target.first_batch()))
        return mode.met

    @classmethod
    def install(cls, target: RewriteTarget, graph: fx.GraphModule | None, taken: frozenset[nn.Module]) -> Self:
        """Change the pooling in the graph; without one by a mode that is active during every call."""
        if graph is None:
            return cls(PoolingByMaxima())
        use_maxima(graph)
        return cls(None)


@dataclass(frozen=True)
class _Window:
    """What to pool: size, step, padding and dilation, each as (rows, columns)."""

    size: tuple[int, int]
    step: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @classmethod
    def of(
        cls, input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> _Window | None:  # fmt: skip
        """The window of a call to `max_pool2d`; None where it is one to leave alone."""
        if ceil_mode or return_indices or not input.is_floating_point() or input.dim() < 3:
            return None
        size = _pair(kernel_size)
        return cls(size, size if stride in (None, [], ()) else _pair(stride), _pair(padding), _pair(dilation))

    def pool(self, images: Tensor) -> Tensor:
        """Rows first, whose views are contiguous, then columns."""
        if any(self.padding):
            rows, columns = self.padding
            images = nn.functional.pad(images, (columns, columns, rows, rows), value=float("-inf"))
        return self._along(self._along(images, 0), 1)

    def _along(self, images: Tensor, axis: int) -> Tensor:
        size, step, dilation = self.size[axis], self.step[axis], self.dilation[axis]
        place = images.dim() - 2 + axis
        count = (images.shape[place] - dilation * (size - 1) - 1) // step + 1
        views = [_every(images, place, tap * dilation, step, count) for tap in range(size)]
        maxima = views[0]
        for view in views[1:]:
            maxima = torch.maximum(maxima, view)
        return maxima


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, *rest = value
    return int(first), int(rest[0] if rest else first)


def _every(images: Tensor, dim: int, start: int, step: int, count: int) -> Tensor:
    index = [slice(None)] * images.dim()
    index[dim] = slice(start, start + (count - 1) * step + 1, step)
    return images[tuple(index)]
