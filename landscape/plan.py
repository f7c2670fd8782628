"""How a landscape is computed: engine, batches, precision, threads. With the job, all that decides its bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from landscape.errors import shown

Precision = Literal["float32", "tf32", "bfloat16", "float64"]
BatchNorm = Literal["eval", "batch", "recalibrate"]

Base = Literal["eager", "compile", "cudagraph", "vmap"]
BASES: tuple[Base, ...] = get_args(Base)
STACKING: Base = "vmap"  # the base that computes several points at once, `vmap:N`
DEFAULT_POINTS = 8
POINTS_AT_ONCE = re.compile("[2-9]|[1-9][0-9]{1,4}")


@dataclass(frozen=True)
class Option:
    """The rules of one option of an engine. What it does to a model is in `landscape/evaluation/engines`.

    Args:
        bases: the bases that it goes with.
        refusal: the error for any other base, `must …`.
        shares_rows: whether points that differ in their last coordinate alone are computed together.
        combined: whether a search tries it with every combination of the other such options; the others are tried
            one after the other on the best engine so far.
        along: options that a search sets together with this one where the model allows them.
    """

    bases: tuple[Base, ...] = BASES
    refusal: str = ""
    shares_rows: bool = False
    combined: bool = True
    along: tuple[str, ...] = ()


EAGER_ALONE = "must be eager to be fused or superposed"
# In the order in which they stand in an engine's name. The classes that do them are in engines/table.py.
OPTIONS: dict[str, Option] = {
    "channels_last": Option(),
    "maxima": Option(),
    "folded": Option(
        ("eager", "compile", "cudagraph"), "must not fold under vmap, which stacks the weights as they are"
    ),
    # A batch normalisation between a convolution and its ReLU would keep them apart, so it is folded first.
    "fused": Option(("eager",), EAGER_ALONE, combined=False, along=("folded",)),
    "superposed": Option(("eager",), EAGER_ALONE, combined=False, shares_rows=True),
}


@dataclass(frozen=True)
class Engine:
    """A base and what is done to the model before it.

    eager: operation by operation · compile: `torch.compile` · cudagraph: a CUDA graph per batch, its weights in
    static buffers · vmap: `points` points at once, their weights stacked. channels_last: convolution weights (and so
    activations) with the channel as their innermost dimension · maxima: max-pooling by elementwise maxima, the same
    bits · folded: batch normalisation in eval mode folded into the convolution before it · fused: a layer and the
    addition and ReLU after it by one kernel of the CPU · superposed: the first moved layers by sums of outputs that are
    computed once per batch of samples. The last two are for eager.

    As text: `eager`, `eager+channels_last+folded`, `vmap:8`, …

    >>> str(Engine.parse("eager+maxima+channels_last"))
    'eager+channels_last+maxima'
    >>> Engine.parse("vmap").points
    8
    """

    base: Base = "eager"
    options: frozenset[str] = frozenset()
    points: int = 1

    def __str__(self) -> str:
        base = f"{self.base}:{self.points}" if self.stacks else self.base
        return "+".join([base, *(name for name in OPTIONS if name in self.options)])

    @classmethod
    def parse(cls, text: str) -> Engine:
        """The engine with this name.

        Raises:
            ValueError: it is no engine's name, or names options that do not go together; with the rule and the value.
        """
        word, *options = text.split("+")
        base, _, points = word.partition(":")
        unknown = [name for name in options if name not in OPTIONS]
        counted = base == STACKING and POINTS_AT_ONCE.fullmatch(points)
        if base not in BASES or unknown or (points and not counted):
            raise ValueError(
                f"must be auto, or one of {', '.join(BASES)} ({STACKING}:N for N points at once), followed by any of "
                f"{', '.join('+' + name for name in OPTIONS)}, not {shown(text)}"
            )
        for name in sorted(options, key=list(OPTIONS).index):
            if base not in OPTIONS[name].bases:
                raise ValueError(f"{OPTIONS[name].refusal}, not {shown(text)}")
        at_once = int(points) if points else (DEFAULT_POINTS if base == STACKING else 1)
        return cls(base, frozenset(options), at_once)

    @property
    def stacks(self) -> bool:
        """Whether `points` points are computed at once, their weights stacked."""
        return self.base == STACKING

    @property
    def shares_rows(self) -> bool:
        """Whether points that differ in their last coordinate alone are computed together, batch by batch."""
        return any(OPTIONS[name].shares_rows for name in self.options)

    def adding(self, *names: str) -> Engine:
        """This engine with these options too."""
        return replace(self, options=self.options | set(names))

    def on(self, base: Base, points: int = 1) -> Engine:
        """Another base with those of this engine's options that go with it."""
        return Engine(base, frozenset(name for name in self.options if base in OPTIONS[name].bases), points)

    def variants(self, names: tuple[str, ...]) -> Iterator[Engine]:
        """This engine with every combination of the named options, without any first."""
        others = self.options.difference(names)
        for bits in range(1 << len(names)):
            yield replace(self, options=others | {name for k, name in enumerate(names) if bits >> k & 1})


@dataclass(frozen=True)
class Plan:
    """The arithmetic of a landscape: with the job, all that decides its bits. Recorded, and reused on resume."""

    batch_size: int
    threads: int
    device: Literal["cpu", "cuda"]
    precision: Precision = "float32"
    batch_norm: BatchNorm = "eval"
    seed: int = 0
    engine: Engine = Engine()

    def record(self) -> dict[str, Any]:
        """The fields as they are recorded with a landscape, the engine as text."""
        return {**vars(self), "engine": str(self.engine)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Plan:
        """The plan that `record` was made of; the types and ranges of the other fields are not checked.

        Raises:
            TypeError: a field is missing or unknown, or the engine is no text.
            ValueError: the text names no engine of this version.
        """
        engine = record.get("engine", str(cls.engine))
        if not isinstance(engine, str):
            raise TypeError("engine: must be text")
        return cls(**{**record, "engine": Engine.parse(engine)})


def default_plan(
    num_samples: int, device: str, precision: Precision, batch_norm: BatchNorm, seed: int,
    batch_size: int | None, threads: int | None,
) -> Plan:  # fmt: skip
    """The plan where the job leaves it open: a function of the job and the kind of device, not of the machine."""
    preferred = 2048 if device == "cuda" else 256
    kind: Literal["cpu", "cuda"] = "cuda" if device == "cuda" else "cpu"
    return Plan(min(batch_size or preferred, num_samples), threads or 1, kind, precision, batch_norm, seed)
