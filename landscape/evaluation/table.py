"""The class behind each base and each option of an engine, and how they are put together."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module

import torch
from torch import fx, nn

from landscape.core.plan import BASES, OPTIONS, Engine
from landscape.core.quantisation import Quantisation
from landscape.evaluation.engines.base import Forward
from landscape.evaluation.engines.batch_norm_folding import Folded
from landscape.evaluation.engines.cpu_kernels import Fused
from landscape.evaluation.engines.integers import Integers
from landscape.evaluation.engines.layout import ChannelsLast
from landscape.evaluation.engines.pooling import Maxima
from landscape.evaluation.engines.reuse import Reuse
from landscape.evaluation.engines.rewrite import Rewrite, Target, applies, tidy
from landscape.evaluation.engines.superposition import Superposition

# By the names in `landscape.core.plan.OPTIONS`, in the order in which they are installed. Rewrites that take over whole
# layers come first. Those that change the graph follow; one whose result another one looks for comes before that one,
# as folding does before fusion.
REWRITES: dict[str, type[Rewrite]] = {
    "superposed": Superposition,
    "folded": Folded,
    "fused": Fused,
    "int8": Integers,
    "maxima": Maxima,
    "channels_last": ChannelsLast,
}
# Installed without being asked for, wherever they apply and the base calls the modules: they change no bit.
ALWAYS: dict[str, type[Rewrite]] = {"reuse": Reuse}


def class_of(base: str) -> type[Forward]:
    """The class of a base, by its name in `landscape.core.plan.BASES`."""
    file, _, name = BASES[base].implementation.partition(":")
    base_class: type[Forward] = getattr(import_module(f"landscape.evaluation.engines.{file}"), name)
    return base_class


def layouts_of(engine: Engine) -> dict[int, torch.memory_format]:
    """The memory formats of parameters that the engine asks for, by their number of dimensions."""
    return {
        dimensions: layout
        for name, rewrite in REWRITES.items()
        if name in engine.options
        for dimensions, layout in rewrite.layouts.items()
    }


def possible_options(target: Target) -> tuple[str, ...]:
    """The names of the options that would change how this model is computed, in the order of `OPTIONS`."""
    suiting = (name for name, option in OPTIONS.items() if option.suits.allows(target.plan.quantise))
    return tuple(name for name in suiting if applies(REWRITES[name], target))


def refuse_unrounded(engine: Engine, quantise: Quantisation | None) -> None:
    """Refuse an engine that does not go with what is quantised.

    Raises:
        ValueError: one of its options does not; names it and says where.
    """
    for name in engine.against(quantise):
        raise ValueError(f"must do without {name} {OPTIONS[name].suits.against}, not {engine}")


def make_forward(target: Target, engine: Engine, *, remembering: bool = True) -> Forward:
    """Install an engine in a model.

    Args:
        remembering: whether rewrites that keep outputs from point to point are among what is installed.

    Raises:
        ValueError: a rewrite finds nothing that it could change, or cannot stand on this base.
        JobError: the engine needs something that this machine or these samples do not have.
        Exception: whatever tracing the model raises, such as for control flow that depends on the data.
    """
    engine.refuse_combination()
    refuse_unrounded(engine, target.plan.quantise)
    base, calls_modules = class_of(engine.base), "calls" in BASES[engine.base].hooks
    base.check(target)
    rewrites: dict[str, Rewrite] = {}
    taken: frozenset[nn.Module] = frozenset()
    graph: fx.GraphModule | None = None
    with ExitStack() as undoing:
        for name, rewrite in REWRITES.items():
            if name not in engine.options or (rewrite.remembers and not remembering):
                continue
            rewrite.check(target)
            if rewrite.traces and graph is None:
                graph = fx.symbolic_trace(target.model)
            rewrites[name] = rewrite.install(target, graph, taken)
            undoing.callback(rewrites[name].close)
            taken |= rewrites[name].layers
        if graph is not None:
            tidy(graph)
        for name, rewrite in ALWAYS.items() if calls_modules and graph is None and remembering else ():
            if rewrite.applies(target):
                rewrites[name] = rewrite.install(target, None, taken)
                undoing.callback(rewrites[name].close)
        forward = base(target.model if graph is None else graph, target.observe, rewrites)
        undoing.pop_all()
    return forward
