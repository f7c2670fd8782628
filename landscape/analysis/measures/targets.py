"""What is compared: the measures of some weights of a run, found by `RUN` or `RUN:ORIGIN`, and what keeps two apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from landscape.analysis.measures.document import Entry, Measures, read, read_samples
from landscape.core.errors import JobError, NotFoundError, shown
from landscape.core.folders import open_folder
from landscape.store.results import open_run

NUMBERED = re.compile(r"(?:(epoch|step)[- ])?([0-9]+)")
# Settings that must agree, and what they are called; batches decide values where layers use their statistics.
NAMES = {
    "samples": "the samples",
    "num_samples": "num_samples",
    "precision": "precision",
    "batch_norm": "batch_norm",
    "normalise": "how directions are normalised",
    "ignore": "what directions leave still",
    "direction_seeds": "the seeds of directions",
    "distances": "the distances",
    "rho": "ρ",
}


@dataclass(frozen=True)
class Target:
    """The measures of one set of weights.

    Attributes:
        samples: the losses of single samples; empty where there are none.
    """

    run: str
    entry: Entry
    settings: Mapping[str, Any]
    samples: Mapping[str, NDArray[Any]] = field(repr=False)

    @property
    def label(self) -> str:
        """What tables call it."""
        return f"{self.run} {self.entry.label}"


def targets_of(text: str) -> list[Target]:
    """The measures that `RUN`, `RUN:ORIGIN` or several of them, separated by commas, name.

    Raises:
        NotFoundError: there is no such run, or nothing was measured of it.
        JobError: these weights of it were not measured.
    """
    whole = open_folder(text).exists()
    return [_target(part.strip()) for part in ([text] if whole else text.split(","))]


def _target(text: str) -> Target:
    run, origin = text, ""
    if not open_folder(text).exists() and ":" in text:
        run, _, origin = text.rpartition(":")
        if not run or "//" in origin:  # the colon of a URL
            run, origin = text, ""
    path = open_run(run).path
    measures = read(path)
    if measures is None or not measures.entries:
        raise NotFoundError(f"run {shown(run)} holds no measures; make them by landscape measure {run}")
    entry = _entry(run, measures, origin)
    return Target(run, entry, measures.settings, read_samples(path, entry))


def _entry(run: str, measures: Measures, origin: str) -> Entry:
    """The entry of an origin; default: the last snapshot, or the only weights."""
    entries = measures.entries
    numbered = {entry.number: entry for entry in entries.values() if entry.number is not None}
    if origin in ("", "last") and numbered:
        return numbered[max(numbered)]
    if not origin and len(entries) == 1:
        return next(iter(entries.values()))
    match = NUMBERED.fullmatch(origin)
    if match and (known := numbered.get(int(match[2]))) is not None and match[1] in (None, known.unit):
        return known
    if origin in entries:
        return entries[origin]
    asked = f"{shown(origin)} was not measured" if origin else "several weights were measured, and none is the last"
    raise JobError(f"compare: of run {shown(run)} {asked}; name one of {', '.join(entries)}, as {run}:ORIGIN")


def refuse_incomparable(targets: Sequence[Target]) -> None:
    """Refuse measures that are not of the same samples, lines and arithmetic.

    Raises:
        JobError: lists what differs.
    """
    first, *others = targets
    for other in others:
        names = dict(NAMES)
        if first.settings.get("batch_norm") != "eval":
            names["batch_size"] = "batch_size"
        differing = [name for name in names if first.settings.get(name) != other.settings.get(name)]
        if "samples" in differing and "num_samples" in differing:
            differing.remove("samples")  # other numbers of samples are other samples
        if differing:
            parts = "; ".join(_difference(name, names[name], first, other) for name in differing)
            raise JobError(
                f"compare: {shown(first.label)} and {shown(other.label)} are not comparable: {parts}; measure both "
                "with the same settings"
            )


def _difference(name: str, title: str, first: Target, other: Target) -> str:
    if name == "samples":
        return f"{title} are different ones"
    return f"{title} {shown(first.settings.get(name))} and {shown(other.settings.get(name))}"
