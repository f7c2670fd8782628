"""Whether two sets of weights, or two ways of training, differ in their measures: a difference with its interval."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from landscape.analysis.measures.document import Entry, MeasureRow, Measures, read, read_samples
from landscape.analysis.measures.measure import LOSS, RADIUS
from landscape.analysis.measures.worst import CURVATURE_NAMES, PROBED
from landscape.compute.auto_range import LEAST_RISE
from landscape.core.errors import JobError, NotFoundError, quoted
from landscape.core.folders import open_folder
from landscape.core.grid import Floats
from landscape.core.statistics import ConfidenceInterval, interval_of, t_quantile
from landscape.core.text import finite_or_none
from landscape.store.results import open_run
from landscape.surface.surface import SAMPLE_INDEX, places_of_same

# ----------------------------------------------------------------------------------------------------
# Intervals of a difference: by resampling lines and samples, from two standard errors, over several runs.

REPEATS = 2000  # the ends of a 95 % interval are then the 50th values from below and above
AT_ONCE = 1 << 22  # numbers of a stretch of repeats in memory
SEED = 0
TAIL = 0.975


def resampled(table: Floats, weights: Floats, seed: int = SEED, repeats: int = REPEATS) -> ConfidenceInterval:
    """The weighted mean of a table [lines, samples], with percentiles from resampling lines and samples.

    m = Σₖᵢ wᵢxₖᵢ/(KΣwᵢ). Lines and samples are drawn independently, with replacement (Owen 2007, "The pigeonhole
    bootstrap"); for a single line only samples are drawn.
    """
    lines, samples = table.shape
    generator = np.random.default_rng(seed)
    weighted, found = table * weights, []
    together = max(1, AT_ONCE // samples)
    for start in range(0, repeats, together):
        count = min(together, repeats - start)
        of_lines = generator.multinomial(lines, np.full(lines, 1 / lines), count)
        of_samples = generator.multinomial(samples, np.full(samples, 1 / samples), count)
        sums = ((of_lines @ weighted) * of_samples).sum(1)
        found.append(sums / (lines * (of_samples * weights).sum(1)))
    means = np.concatenate(found)
    low, high = np.quantile(means, [1 - TAIL, TAIL]).tolist()
    mean = float(weighted.sum() / (lines * weights.sum()))
    return ConfidenceInterval(mean, low, high, float(means.std(ddof=1)))


def resampled_apart(first: Floats, other: Floats, weights: Floats, seed: int = SEED) -> ConfidenceInterval:
    """The difference of the means of two tables over the same samples; their lines are drawn separately."""
    samples = first.shape[1]
    generator = np.random.default_rng(seed)
    drawn = []
    together = max(1, AT_ONCE // samples)
    for start in range(0, REPEATS, together):
        count = min(together, REPEATS - start)
        of_samples = generator.multinomial(samples, np.full(samples, 1 / samples), count)
        means = []
        for table in (first, other):
            of_lines = generator.multinomial(len(table), np.full(len(table), 1 / len(table)), count)
            sums = ((of_lines @ (table * weights)) * of_samples).sum(1)
            means.append(sums / (len(table) * (of_samples * weights).sum(1)))
        drawn.append(means[1] - means[0])
    differences = np.concatenate(drawn)
    low, high = np.quantile(differences, [1 - TAIL, TAIL]).tolist()
    mean = float(((other.mean(0) - first.mean(0)) * weights).sum() / weights.sum())
    return ConfidenceInterval(mean, low, high, float(differences.std(ddof=1)))


def of_errors(difference: float, first: float, other: float, freedom: tuple[int, int]) -> ConfidenceInterval:
    """d ± t·√(SE₁² + SE₂²) of two estimates with these standard errors, assumed independent.

    Args:
        freedom: the degrees of freedom of each; for the difference by Welch and Satterthwaite, which need not be whole.
    """
    stderr = math.hypot(first, other)
    if stderr == 0:
        return ConfidenceInterval(difference, difference, difference, 0.0)
    shares = [(error / stderr) ** 4 / count for error, count in zip((first, other), freedom, strict=True)]
    quantile = t_quantile(TAIL, 1 / sum(shares))
    return ConfidenceInterval(difference, difference - quantile * stderr, difference + quantile * stderr, stderr)


def welch(first: Sequence[float], other: Sequence[float]) -> ConfidenceInterval:
    """mean(other) − mean(first) by Welch's t, for draws of different spread (Welch 1947).

    >>> found = welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    >>> found.mean, round(found.low, 3), round(found.high, 3)
    (3.0, 0.733, 5.267)
    """
    means = [math.fsum(draws) / len(draws) for draws in (first, other)]
    errors = [
        math.sqrt(math.fsum((draw - mean) ** 2 for draw in draws) / (len(draws) - 1) / len(draws))
        for draws, mean in zip((first, other), means, strict=True)
    ]
    return of_errors(means[1] - means[0], errors[0], errors[1], (len(first) - 1, len(other) - 1))


# ----------------------------------------------------------------------------------------------------
# The compared measures: of some weights of a run, named by `RUN` or `RUN:ORIGIN`; and when they are incomparable.

NUMBERED = re.compile(r"(?:(epoch|step)[- ])?([0-9]+)")
# Settings that must agree, with their names; batches decide values if layers use batch statistics.
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
class ComparisonTarget:
    """The measures of one set of weights.

    Attributes:
        samples: the losses of single samples; empty if there are none.
    """

    run: str
    entry: Entry
    settings: Mapping[str, Any]
    samples: Mapping[str, NDArray[Any]] = field(repr=False)

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{self.run} {self.entry.label}"


def targets_of(text: str) -> list[ComparisonTarget]:
    """The measures that `RUN`, `RUN:ORIGIN` or a comma-separated list of these names.

    Raises:
        NotFoundError: there is no such run, or it has no measures.
        JobError: these weights were not measured.
    """
    whole = open_folder(text).exists()
    return [_target(part.strip()) for part in ([text] if whole else text.split(","))]


def _target(text: str) -> ComparisonTarget:
    run, origin = text, ""
    if not open_folder(text).exists() and ":" in text:
        run, _, origin = text.rpartition(":")
        if not run or "//" in origin:  # the colon of a URL
            run, origin = text, ""
    path = open_run(run).path
    measures = read(path)
    if measures is None or not measures.entries:
        raise NotFoundError(f"run {quoted(run)} holds no measures; make them by landscape measure {run}")
    entry = _entry(run, measures, origin)
    return ComparisonTarget(run, entry, measures.settings, read_samples(path, entry))


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
    asked = f"{quoted(origin)} was not measured" if origin else "several weights were measured, and none is the last"
    raise JobError(f"compare: of run {quoted(run)} {asked}; name one of {', '.join(entries)}, as {run}:ORIGIN")


def refuse_incomparable(targets: Sequence[ComparisonTarget]) -> None:
    """Raises JobError for measures over different samples, lines or arithmetic; the message lists the differences."""
    first, *others = targets
    for other in others:
        names = dict(NAMES)
        if first.settings.get("batch_norm") != "eval":
            names["batch_size"] = "batch_size"
        differing = [name for name in names if first.settings.get(name) != other.settings.get(name)]
        if "samples" in differing and "batch_size" not in names and _same_set(first, other):
            differing.remove("samples")
        if "samples" in differing and "num_samples" in differing:
            differing.remove("samples")  # follows from the different numbers of samples
        if differing:
            parts = "; ".join(_target_difference(name, names[name], first, other) for name in differing)
            raise JobError(
                f"compare: {quoted(first.label)} and {quoted(other.label)} are not comparable: {parts}; measure both "
                "with the same settings"
            )


def _same_set(one: ComparisonTarget, other: ComparisonTarget) -> bool:
    """Whether both are known to be over the same samples, in whatever order these were drawn."""
    return one.entry.sample_set != "" and one.entry.sample_set == other.entry.sample_set


def _in_order_of(one: ComparisonTarget, other: ComparisonTarget) -> ComparisonTarget:
    """`other` with its samples in the order of those of `one`; without their losses if their numbers are not known."""
    if one.settings.get("samples") == other.settings.get("samples"):
        return other
    numbers = [target.samples.get(SAMPLE_INDEX) for target in (one, other)]
    places = None if numbers[0] is None or numbers[1] is None else places_of_same(numbers[0], numbers[1])
    probed = {name: values for name, values in other.samples.items() if name == PROBED}
    ordered = (
        {}
        if places is None
        else {name: values[..., places] for name, values in other.samples.items() if name not in probed}
    )
    return replace(other, samples=ordered | probed)


def _target_difference(name: str, title: str, first: ComparisonTarget, other: ComparisonTarget) -> str:
    if name == "samples":
        return f"{title} are different ones"
    return f"{title} {quoted(first.settings.get(name))} and {quoted(other.settings.get(name))}"


# ----------------------------------------------------------------------------------------------------

LEAST_RUNS = 3  # per way of training: two runs estimate a spread by a single difference
BETWEEN_WEIGHTS = (
    "Between these two sets of weights, not between two ways of training: for that, give at least three runs of each."
)
TOO_FEW = "some of the lines have no value"
TRACE = CURVATURE_NAMES[2]
SAME_RISE = 1.02  # a ratio of rises: 2 % of a rise is about 1 % of a radius, its root, less than lines differ by
MANY = 1000  # degrees of freedom of a well-known error
BETWEEN_TRAININGS = "Over runs, by Welch's t: between two ways of training, as far as {} and {} runs show it."


@dataclass(frozen=True)
class Difference:
    """One measure of both sides.

    Attributes:
        difference: second minus first.
        low, high: the ends of its 95 % interval; None without one.
        how: what the interval is over, or why there is none.
        bounds: `above` and `below` of a side with bounds instead of a value, by `first` and `second`.
    """

    first: float | None
    second: float | None
    difference: float | None
    low: float | None
    high: float | None
    how: str
    bounds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        if self.difference is None or self.low is None or self.high is None:
            return "not judged"
        if self.low <= 0 <= self.high:
            return "no difference shown"
        return "the second is larger" if self.difference > 0 else "the second is smaller"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "verdict": self.verdict}


@dataclass(frozen=True)
class Lacking:
    """Measures that one set of weights lacks, so they are not compared.

    Attributes:
        of: the name of the weights in tables.
        command: the command that measures them.
    """

    of: str
    rows: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sides.

    Attributes:
        paired: whether the lines of both are the same directions; None if runs are compared.
        rho: the radii of the worst cases, from the settings.
        says: what is compared, in words.
        lacking: measures that are left out, as not all sides have them.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    paired: bool | None
    rows: dict[str, Difference]
    says: str
    rho: Mapping[str, Any]
    lacking: tuple[Lacking, ...] = ()

    def document(self) -> dict[str, Any]:
        """As JSON."""
        rows = {name: row.document() for name, row in self.rows.items()}
        return {**vars(self), "rows": rows, "lacking": [vars(layer) for layer in self.lacking]}


def compare(first: Sequence[ComparisonTarget], second: Sequence[ComparisonTarget]) -> Comparison:
    """The differences of two sets of weights, or of two ways of training with at least three runs each.

    Only measures that all have are compared, and no single layers.

    Two sets are paired: over the same samples, and over the same lines if the architecture is the same.

    Raises:
        JobError: they are not comparable; the message lists why. Or a side has two runs.
    """
    refuse_incomparable([*first, *second])
    lacking = _lacking([*first, *second])
    labels = tuple(target.label for target in first), tuple(target.label for target in second)
    counts, rho = (len(first), len(second)), first[0].settings["rho"]
    if min(counts) >= LEAST_RUNS:
        _refuse_one_training([*first, *second])
        return Comparison(*labels, None, _over_runs(first, second), BETWEEN_TRAININGS.format(*counts), rho, lacking)
    if max(counts) > 1:
        raise JobError(
            f"compare: needs one set of weights on each side, or at least {LEAST_RUNS} runs, not {counts[0]} and "
            f"{counts[1]}; give more, separated by commas"
        )
    one, other = first[0], _in_order_of(first[0], second[0])
    paired = one.settings.get("architecture") == other.settings.get("architecture")
    return Comparison(*labels, paired, _of_two(one, other, paired), BETWEEN_WEIGHTS, rho, lacking)


def _refuse_one_training(targets: Sequence[ComparisonTarget]) -> None:
    """Raises JobError for weights that are named twice or come from one training: their spread is not that of runs."""
    weights: dict[str, ComparisonTarget] = {}
    runs: dict[str, ComparisonTarget] = {}
    for target in targets:
        same = weights.setdefault(target.entry.weights, target)
        if target.entry.number is not None and same is target:
            same = runs.setdefault(target.run, target)
        if same is not target:
            raise JobError(
                f"compare: each run must be another training, but {quoted(same.label)} and {quoted(target.label)} are "
                "not; name each once, by its last snapshot"
            )


def _over_runs(first: Sequence[ComparisonTarget], second: Sequence[ComparisonTarget]) -> dict[str, Difference]:
    differences = {}
    for name in _shared_names([*first, *second]):
        sides = [[target.entry.rows[name].value for target in side] for side in (first, second)]
        known = [[value for value in side if value is not None] for side in sides]
        if sides != known:
            bound = any(target.entry.rows[name].is_bound for target in [*first, *second])
            how = "of some of the runs only a bound is known" if bound else "some of the runs have no value"
            differences[name] = Difference(None, None, None, None, None, how)
            continue
        means = [math.fsum(values) / len(values) for values in known]
        if name == RADIUS and (rises := _other_rises(first, second)):
            differences[name] = _difference(means[0], means[1], None, rises)
            continue
        differences[name] = _difference(means[0], means[1], welch(*known), "over runs")
    return differences


def _of_two(one: ComparisonTarget, other: ComparisonTarget, paired: bool) -> dict[str, Difference]:
    differences = {}
    for name in _shared_names([one, other]):
        rows = one.entry.rows[name], other.entry.rows[name]
        bounds = {side: _bounds(row) for side, row in zip(("first", "second"), rows, strict=True) if row.is_bound}
        if bounds:
            how = f"of the {' and the '.join(bounds)} only a bound is known"
            differences[name] = Difference(rows[0].value, rows[1].value, None, None, None, how, bounds)
            continue
        interval, how = _interval(name, rows, one, other, paired)
        differences[name] = _difference(rows[0].value, rows[1].value, interval, how)
    return differences


def _bounds(row: MeasureRow) -> dict[str, float]:
    return {name: bound for name, bound in (("above", row.above), ("below", row.below)) if bound is not None}


def _shared_names(targets: Sequence[ComparisonTarget]) -> list[str]:
    first, *others = targets
    return [name for name in first.entry.rows if all(name in target.entry.rows for target in others)]


def _lacking(targets: Sequence[ComparisonTarget]) -> tuple[Lacking, ...]:
    known = dict.fromkeys(name for target in targets for name in target.entry.rows)
    lacking = []
    for target in targets:
        if rows := tuple(name for name in known if name not in target.entry.rows):
            origin = target.entry.label.replace(" ", "-") if target.entry.number is not None else target.entry.label
            # `--all`: no other option adds rows.
            command = shlex.join(["landscape", "measure", target.run, "--origins", origin, "--all"])
            lacking.append(Lacking(target.label, rows, command))
    return tuple(lacking)


def _difference(first: float | None, second: float | None, interval: ConfidenceInterval | None, how: str) -> Difference:
    if first is None or second is None:
        return Difference(first, second, None, None, None, "one of them has no value")
    low, high = (None, None) if interval is None else (finite_or_none(interval.low), finite_or_none(interval.high))
    return Difference(first, second, second - first, low, high, how)


def _interval(
    name: str, rows: tuple[MeasureRow, MeasureRow], one: ComparisonTarget, other: ComparisonTarget, paired: bool
) -> tuple[ConfidenceInterval | None, str]:
    """The interval of one measure's difference, and a description of it."""
    if name == RADIUS:
        if rises := _other_rises([one], [other]):
            return None, rises
        return _of_radii(one.entry.radii, other.entry.radii, paired)
    if name.startswith("rise "):
        distances = [f"rise {distance:g}" for distance in one.settings["distances"]]
        return _of_rises(distances.index(name), one, other, paired)
    if name == TRACE and paired and PROBED in one.samples and PROBED in other.samples:
        probes = (target.samples[PROBED].astype(np.float64) for target in (one, other))
        differences = np.subtract(*reversed(list(probes))).tolist()
        return interval_of(differences), f"over {len(differences)} probes, paired; the samples are held fixed"
    if name in one.samples and name in other.samples:
        difference = other.samples[name].astype(np.float64) - one.samples[name]
        return resampled(difference[None], _weights(one)), "over samples, paired"
    return _of_estimates(*rows)


def _of_rises(
    number: int, one: ComparisonTarget, other: ComparisonTarget, paired: bool
) -> tuple[ConfidenceInterval | None, str]:
    if "rises" not in one.samples or "rises" not in other.samples:  # such as for a loss of several terms
        sides = [[values[number] for values in target.entry.means] for target in (one, other)]
        return _of_lines(sides[0], sides[1], paired)
    first, second = (target.samples["rises"][:, number].astype(np.float64) for target in (one, other))
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return None, "the loss is not finite on some lines"
    if paired:
        return resampled(second - first, _weights(one)), "over lines and samples, paired"
    return resampled_apart(first, second, _weights(one)), "over lines and samples; other lines, as the networks differ"


def _of_lines(
    first: Sequence[float | None], second: Sequence[float | None], paired: bool
) -> tuple[ConfidenceInterval | None, str]:
    """From one value per line; without an interval if some lines have none, as the others are a biased selection."""
    known = [[value for value in side if value is not None] for side in (first, second)]
    if known != [first, second] or min(map(len, known)) < 2:
        return None, TOO_FEW
    if paired:
        both = [b - a for a, b in zip(*known, strict=True)]
        return interval_of(both), f"over {len(both)} lines, paired"
    return welch(*known), "over lines, unpaired"


def _other_rises(first: Sequence[ComparisonTarget], second: Sequence[ComparisonTarget]) -> str:
    """The rises to which the radii of both sides were measured, if they differ; else empty."""
    losses = [
        [target.entry.rows[LOSS].value for target in side if LOSS in target.entry.rows] for side in (first, second)
    ]
    rises = [[max(loss, LEAST_RISE) for loss in side if loss is not None] for side in losses]
    if not all(rises) or max(map(max, rises)) <= SAME_RISE * min(map(min, rises)):
        return ""
    return "to rises of {} and {}".format(*(_span(side) for side in rises))


def _span(numbers: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{end:.3g}" for end in (min(numbers), max(numbers)))
    return " to ".join(ends)


def _of_radii(
    first: Sequence[float | None], second: Sequence[float | None], paired: bool
) -> tuple[ConfidenceInterval | None, str]:
    """From the ratio of the geometric means, expressed as a difference from the first one."""
    logarithms = [[None if value is None else math.log(value) for value in side] for side in (first, second)]
    ratio, how = _of_lines(logarithms[0], logarithms[1], paired)
    if ratio is None:
        return None, how
    mean = math.exp(math.fsum(value for value in logarithms[0] if value is not None) / len(first))
    middle, low, high = (mean * math.expm1(exponent) for exponent in (ratio.mean, ratio.low, ratio.high))
    return ConfidenceInterval(middle, low, high, math.nan), how


def _of_estimates(first: MeasureRow, second: MeasureRow) -> tuple[ConfidenceInterval | None, str]:
    """From the separate errors of both: over the same samples the interval is rather too wide than too narrow."""
    errors = _error(first), _error(second)
    if first.value is None or second.value is None or errors[0] is None or errors[1] is None:
        return None, "it has no error"
    freedom = tuple(MANY if row.draws is None else row.draws - 1 for row in (first, second))
    return of_errors(
        second.value - first.value, errors[0], errors[1], (freedom[0], freedom[1])
    ), "from the error of each, unpaired"


def _error(row: MeasureRow) -> float | None:
    """The combined standard error over samples and over draws; None if neither is known."""
    parts = [] if row.stderr is None else [row.stderr]
    if row.low is not None and row.high is not None and row.draws is not None:
        parts.append((row.high - row.low) / 2 / t_quantile(TAIL, row.draws - 1))
    return math.hypot(*parts) if parts else None


def _weights(target: ComparisonTarget) -> Floats:
    return np.asarray(target.samples["weights"], np.float64)
