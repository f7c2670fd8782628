"""How a landscape is computed: engine, batches, precision, threads. With the job, all that decides its bits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from landscape.errors import shown

Precision = Literal["float32", "tf32", "bfloat16", "float64"]
BatchNorm = Literal["eval", "batch", "recalibrate"]

Base = Literal["eager", "compile", "cudagraph", "vmap"]
BASES: tuple[Base, ...] = ("eager", "compile", "cudagraph", "vmap")
OPTIONS = ("channels_last", "maxima", "folded", "fused", "superposed")
DEFAULT_POINTS = 8
POINTS_AT_ONCE = re.compile("[2-9]|[1-9][0-9]{1,4}")


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
    """

    base: Base = "eager"
    channels_last: bool = False
    maxima: bool = False
    folded: bool = False
    fused: bool = False
    superposed: bool = False
    points: int = 1

    def __str__(self) -> str:
        base = f"{self.base}:{self.points}" if self.base == "vmap" else self.base
        return "+".join([base, *(name for name in OPTIONS if getattr(self, name))])

    @classmethod
    def parse(cls, text: str) -> Engine:
        """Raises ValueError, with the rule and the value, for what is no engine's name."""
        word, *options = text.split("+")
        base, _, points = word.partition(":")
        unknown = [each for each in options if each not in OPTIONS]
        if base not in BASES or unknown or (points and not (base == "vmap" and POINTS_AT_ONCE.fullmatch(points))):
            raise ValueError(
                f"must be auto, or one of {', '.join(BASES)} (vmap:N for N points at once), followed by any of "
                f"{', '.join('+' + name for name in OPTIONS)}, not {shown(text)}"
            )
        if base == "vmap" and "folded" in options:
            raise ValueError(f"must not fold under vmap, which stacks the weights as they are, not {shown(text)}")
        if base != "eager" and {"fused", "superposed"} & set(options):
            raise ValueError(f"must be eager to be fused or superposed, not {shown(text)}")
        at_once = int(points) if points else (DEFAULT_POINTS if base == "vmap" else 1)
        return cls(base, points=at_once, **dict.fromkeys(options, True))

    @property
    def rewritten(self) -> bool:
        """Whether the model is traced and its graph rewritten."""
        return self.folded or self.fused

    def variants(self, names: tuple[str, ...]) -> Iterator[Engine]:
        """This engine with every combination of the named options, without any first."""
        for bits in range(1 << len(names)):
            yield replace(self, **{name: bool(bits >> k & 1) for k, name in enumerate(names)})  # type: ignore[arg-type]


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
