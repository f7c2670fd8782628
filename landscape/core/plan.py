"""How a landscape is computed: engine, batches, precision, threads. With the job, all that decides its bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from landscape.core import quantisation as suiting
from landscape.core.errors import quoted
from landscape.core.quantisation import Quantisation

# ----------------------------------------------------------------------------------------------------
# The modes of batch normalisation: which statistics the layers use while a landscape is evaluated.

BatchNorm = Literal["eval", "batch", "recalibrate"]
RECALIBRATE = "batch_norm: recalibrate takes them anew at every point"  # the remedy for statistics of other weights


@dataclass(frozen=True)
class BatchNormMode:
    """Which statistics the layers use in one mode.

    To add a mode: its name in `BatchNorm`, and its line in `STATISTICS`. The layers themselves are changed in
    `landscape/evaluation/running_model.py`.

    Args:
        of_each_batch: whether a layer uses the mean and variance of its current batch.
        recalibrated: whether running statistics are computed anew at every point, in a pass over all samples.
    """

    of_each_batch: bool = False
    recalibrated: bool = False

    @property
    def fixed(self) -> bool:
        """Whether the layers use the running statistics of training, which depend neither on point nor on batch.

        A batch normalisation is then an affine map: it can be folded into the layer before it, its outputs before the
        first moved layer are the same at every point, and the batch size changes values by rounding only.
        """
        return not self.of_each_batch and not self.recalibrated


STATISTICS: dict[BatchNorm, BatchNormMode] = {
    "eval": BatchNormMode(),
    "batch": BatchNormMode(of_each_batch=True),
    "recalibrate": BatchNormMode(recalibrated=True),
}


# ----------------------------------------------------------------------------------------------------

Precision = Literal["float32", "tf32", "bfloat16", "float64"]

# Where a large model's weights at the origin are kept while points are set from them: a copy in the memory of the
# device, a copy in that of the host, or the file that they are read from. It changes no value.
OriginIn = Literal["device", "host", "file"]

DEFAULT_POINTS = 8
POINTS_AT_ONCE = re.compile("[2-9]|[1-9][0-9]{1,4}")

# What a base does for the rewrites that are installed in a model:
# refresh: sets the weights of every point in the model itself, and calls the rewrites' `refresh` afterwards
# mode: runs `observe` inside the rewrites' `mode`, or compiles the model with their `compiler_passes`
# calls: calls the model's modules in Python for every batch of every point, and the rewrites' `begin` before
Hook = Literal["refresh", "mode", "calls"]


@dataclass(frozen=True)
class EngineBase:
    """The rules of one way to run a model. To add one: its class, a subclass of `Forward`, and a line in `BASES`.

    Args:
        implementation: the class, `FILE:CLASS` of `landscape/evaluation/engines`.
        hooks: what it does for rewrites; an option that needs another hook is refused.
        stacks: whether it computes several points at once, `NAME:N` for N of them.
        needs_gpu: whether it runs on a CUDA device alone.
        needs_resident: whether all samples have to stay on the device.
        tried_on: kinds of device on which a search for the fastest engine tries it.
        setup_seconds: about how long every process takes to set it up, beside `setup_seconds_per_module` for each
            module of the model; 0: no longer than a few points take.
    """

    implementation: str
    hooks: frozenset[Hook]
    stacks: bool = False
    needs_gpu: bool = False
    needs_resident: bool = False
    tried_on: frozenset[str] = frozenset()
    setup_seconds: float = 0.0
    setup_seconds_per_module: float = 0.0


BASES: dict[str, EngineBase] = {
    # Operation by operation: the reference.
    "eager": EngineBase("base:Forward", frozenset({"refresh", "mode", "calls"})),
    # `torch.compile`.
    "compile": EngineBase(
        "base:Compiled", frozenset({"refresh", "mode"}), tried_on=frozenset({"cpu", "cuda"}),
        setup_seconds=8.0, setup_seconds_per_module=0.4,
    ),
    # A CUDA graph per batch, which reads the weights from where they lie.
    "cudagraph": EngineBase(
        "base:Graphed", frozenset({"refresh", "mode"}), needs_gpu=True, needs_resident=True,
        tried_on=frozenset({"cuda"}),
    ),
    # N points at once, their weights stacked outside the model.
    "vmap": EngineBase("base:Stacked", frozenset({"mode"}), stacks=True, tried_on=frozenset({"cuda"})),
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """The rules of one option of an engine. To add one: its class, a subclass of `Rewrite`, and a line in `OPTIONS`.

    Args:
        implementation: the class, `FILE:CLASS` of `landscape/evaluation/engines`.
        turn: options are installed in ascending order of it: 0 takes over whole layers, 1 changes the graph of the
            model's operations, 2 depends on no other option; equal ones are installed in the order of `OPTIONS`.
        needs: the hooks that its base must have.
        refusal: the error on a base without them, `must …`; default: lists the bases that have them.
        shares_rows: whether points that differ in their last coordinate alone are computed together.
        combined: whether a search tries it in every combination with other such options; an option that is not
            combined is tried by itself on the best engine so far.
        along: options that a search sets together with this one where the model allows them.
        suits: what may be rounded to a few bits under it.
        without: options that contradict it.
    """

    implementation: str
    needs: frozenset[Hook] = frozenset()
    refusal: str = ""
    turn: int = 1
    shares_rows: bool = False
    combined: bool = True
    along: tuple[str, ...] = ()
    suits: suiting.Suiting = suiting.ANYTHING
    without: tuple[str, ...] = ()

    @property
    def bases(self) -> tuple[str, ...]:
        """The names of the bases that have the hooks for it."""
        return tuple(name for name, base in BASES.items() if self.needs <= base.hooks)


EAGER: frozenset[Hook] = frozenset({"refresh", "calls"})
# In the order in which they stand in an engine's name.
OPTIONS: dict[str, Option] = {
    # Convolution weights, and so activations, have the channel as their innermost dimension.
    "channels_last": Option("base:ChannelsLast", turn=2),
    # Max-pooling by elementwise maxima: the same bits.
    "maxima": Option("cpu_kernels:Maxima", frozenset({"mode"}), turn=2),
    # Batch normalisation in eval mode is folded into the convolution before it.
    "folded": Option(
        "base:Folded", frozenset({"refresh"}),
        refusal="must not fold under vmap, which stacks the weights as they are",
    ),
    # One CPU kernel for a layer with the addition and ReLU after it. It is called from Python: the compiler has kernels
    # of its own, and `vmap` has no rule for it. A batch norm between a convolution and its ReLU is folded first.
    "fused": Option(
        "cpu_kernels:Fused", frozenset({"calls"}), combined=False, along=("folded",), suits=suiting.WEIGHTS
    ),
    # The first moved layers by sums of outputs that are computed once per batch of samples.
    "superposed": Option(
        "reuse:Superposition", EAGER, turn=0, combined=False, shares_rows=True, suits=suiting.NOTHING
    ),
    # Layers whose weights and inputs have 8 bits are computed in integers; these kernels are called from Python too.
    "int8": Option(
        "cpu_kernels:Integers", EAGER, combined=False, suits=suiting.INTEGERS, without=("fused", "superposed")
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """A base, see `BASES`, and the rewrites of the model, see `OPTIONS`.

    As text: `eager`, `eager+channels_last+folded`, `vmap:8`, …

    >>> str(Engine.parse("eager+maxima+channels_last"))
    'eager+channels_last+maxima'
    >>> Engine.parse("vmap").points
    8
    """

    base: str = "eager"
    options: frozenset[str] = frozenset()
    points: int = 1

    def __str__(self) -> str:
        base = f"{self.base}:{self.points}" if self.stacks else self.base
        return "+".join([base, *(name for name in OPTIONS if name in self.options)])

    @classmethod
    def parse(cls, text: str) -> Engine:
        """The engine with this name.

        Raises:
            ValueError: the text is no engine's name, or names options that exclude each other.
        """
        word, *options = text.split("+")
        base, _, points = word.partition(":")
        unknown = [name for name in options if name not in OPTIONS]
        stacks = base in BASES and BASES[base].stacks
        if base not in BASES or unknown or (points and not (stacks and POINTS_AT_ONCE.fullmatch(points))):
            counted = ", ".join(f"{name}:N" for name, rules in BASES.items() if rules.stacks)
            raise ValueError(
                f"must be auto, or one of {', '.join(BASES)} ({counted} for N points at once), followed by any of "
                f"{', '.join('+' + name for name in OPTIONS)}, not {quoted(text)}"
            )
        engine = cls(base, frozenset(options), int(points) if points else (DEFAULT_POINTS if stacks else 1))
        engine.refuse_combination(text)
        return engine

    def refuse_combination(self, text: str = "") -> None:
        """Refuse options that exclude each other, or need a hook that the base lacks.

        Args:
            text: the engine as the user wrote it, for the message; default: its name.

        Raises:
            ValueError: with the rule and the engine.
        """
        for name, option in OPTIONS.items():
            if name in self.options and (excluded := self.options.intersection(option.without)):
                others = " or ".join(sorted(excluded))
                raise ValueError(f"must not be {name} and {others}, not {quoted(text or str(self))}")
            if name in self.options and self.base not in option.bases:
                rule = option.refusal or f"must be {' or '.join(option.bases)} to be {name}"
                raise ValueError(f"{rule}, not {quoted(text or str(self))}")

    @property
    def stacks(self) -> bool:
        """Whether `points` points are computed at once, their weights stacked."""
        return BASES[self.base].stacks

    @property
    def needs_gpu(self) -> bool:
        """Whether it runs on a CUDA device alone."""
        return BASES[self.base].needs_gpu

    @property
    def shares_rows(self) -> bool:
        """Whether points that differ in their last coordinate alone are computed together, batch by batch."""
        return any(OPTIONS[name].shares_rows for name in self.options)

    def adding(self, *names: str) -> Engine:
        """This engine with these options too."""
        return replace(self, options=self.options | set(names))

    def without(self, *names: str) -> Engine:
        """This engine without these options."""
        return replace(self, options=self.options.difference(names))

    def on(self, base: str, points: int = 1) -> Engine:
        """Another base with those of this engine's options that it has the hooks for."""
        return Engine(base, frozenset(name for name in self.options if base in OPTIONS[name].bases), points)

    def against(self, quantise: Quantisation | None) -> tuple[str, ...]:
        """The names of its options that the quantisation rules out."""
        return tuple(name for name in OPTIONS if name in self.options and not OPTIONS[name].suits.allows(quantise))

    def suiting(self, quantise: Quantisation | None) -> Engine:
        """This engine without the options that the quantisation rules out."""
        return replace(self, options=self.options.difference(self.against(quantise)))

    def variants(self, names: tuple[str, ...]) -> Iterator[Engine]:
        """This engine with every combination of the named options, without any first."""
        others = self.options.difference(names)
        for bits in range(1 << len(names)):
            yield replace(self, options=others | {name for k, name in enumerate(names) if bits >> k & 1})


@dataclass(frozen=True)
class Plan:
    """The arithmetic of a landscape: with the job, all that decides its bits. Recorded, and reused on resume.

    Args:
        bfloat16_weights: with precision bfloat16, whether tensors that the model holds in bfloat16 stay in it; else
            they are converted to float32.
        quantise: how weights and activations are rounded to a few bits; None: they are not.
    """

    batch_size: int
    threads: int
    device: Literal["cpu", "cuda"]
    precision: Precision = "float32"
    batch_norm: BatchNorm = "eval"
    seed: int = 0
    engine: Engine = Engine()
    bfloat16_weights: bool = False
    # From samples to means: of planned batches, merged in order; or of growing blocks, each by itself, where
    # points know different numbers of samples.
    reduction: Literal["blocks", "growing"] = "blocks"
    quantise: Quantisation | None = None

    @property
    def statistics(self) -> BatchNormMode:
        """What batch normalisation uses, in the plan's mode."""
        return STATISTICS[self.batch_norm]

    @property
    def rounds_weights(self) -> bool:
        """Whether weights that the model holds in bfloat16 stay in it, rounded once per point."""
        return self.bfloat16_weights and self.precision == "bfloat16"

    def rounding(self, quantise: Quantisation | None) -> Plan:
        """This plan for a landscape with this quantisation, or none."""
        return replace(self, quantise=quantise, engine=self.engine.suiting(quantise))

    def record(self) -> dict[str, Any]:
        """The fields as they are recorded with a landscape, the engine as text."""
        fields = {**vars(self), "engine": str(self.engine), "quantise": self.quantise and self.quantise.record()}
        if self.quantise is None:
            del fields["quantise"]  # most plans have none
        if not self.bfloat16_weights:
            del fields["bfloat16_weights"]  # older plans were recorded without it
        return fields

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Plan:
        """The plan that was recorded; the types and ranges of most fields are not checked.

        Raises:
            TypeError: a field is missing or unknown, or the engine is no text.
            ValueError: the text names no engine of this version.
        """
        engine = record.get("engine", str(cls.engine))
        if not isinstance(engine, str):
            raise TypeError("engine: must be text")
        quantise = record.get("quantise")
        rounding = None if quantise is None else Quantisation.from_record(quantise)
        return cls(**{**record, "engine": Engine.parse(engine), "quantise": rounding})


def in_float32(plan: Plan) -> Plan:
    """The plan for values that those of a lower precision are compared with: eager, everything in float32."""
    return replace(plan, precision="float32", engine=Engine(), bfloat16_weights=False)


def for_derivatives(plan: Plan) -> Plan:
    """The plan for derivatives: eager, in float64 if `plan` has that precision, else in float32.

    They are those of the network before quantisation: the derivatives of a rounded one are zero where they exist.
    """
    plan = replace(plan, quantise=None)
    return in_float32(plan) if plan.precision != "float64" else replace(plan, engine=Engine(), bfloat16_weights=False)


def default_plan(
    num_samples: int, device: str, precision: Precision, batch_norm: BatchNorm, seed: int,
    batch_size: int | None, threads: int | None, bfloat16_weights: bool = False,
) -> Plan:  # fmt: skip
    """The default plan: a function of the job and the kind of device, not of the machine."""
    preferred = 2048 if device == "cuda" else 256
    kind: Literal["cpu", "cuda"] = "cuda" if device == "cuda" else "cpu"
    size, count = min(batch_size or preferred, num_samples), threads or 1
    return Plan(size, count, kind, precision, batch_norm, seed, bfloat16_weights=bfloat16_weights)
