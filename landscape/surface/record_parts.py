"""The parts of a landscape's document as typed values, and the rules by which pydantic checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, TypeAdapter, ValidationError, WrapValidator

from landscape.core.text import count_text, number_text
from landscape.surface.barriers import Curve

# JSON values of one type each; strict, since a file on disk may hold anything.
Text = Annotated[str, Strict()]
Whole = Annotated[int, Strict()]
Real = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, lt=1 << 53)]
Share = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Object = dict[Text, Any]


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """The pydantic adapter of a type, which checks JSON values and turns them into values of that type."""
    return TypeAdapter(kind)


def sound_entries(kind: Any, value: Any) -> Iterator[Any]:
    """The well-formed entries of a list; nothing if `value` is no list."""
    for entry in value if isinstance(value, list) else ():
        try:
            yield adapter_of(kind).validate_python(entry)
        except ValidationError:
            continue


def _default(default: Any) -> WrapValidator:
    """Replace a malformed entry by `default` instead of refusing the object that holds it."""

    def validate(value: Any, check: Callable[[Any], Any]) -> Any:
        try:
            return check(value)
        except ValidationError:
            return default

    return WrapValidator(validate)


def each_sound(kind: Any) -> WrapValidator:
    """Keep the well-formed entries of a list."""

    def validate(value: Any, check: Callable[[Any], Any]) -> Any:
        return tuple(sound_entries(kind, value))

    return WrapValidator(validate)


AnyText = Annotated[Text | None, _default(None)]
AnyWhole = Annotated[Whole | None, _default(None)]
AnyReal = Annotated[Real | None, _default(None)]


@dataclass(frozen=True)
class Failure:
    """A task that was given up: its name, how often it was tried, where it was tried last, and why it failed."""

    task: Text
    attempts: Count
    worker: Text
    cause: Text
    traceback: Text = ""
    host: Text = ""
    node: Text = ""


@dataclass(frozen=True, kw_only=True)
class WorkerRecord:
    """A worker, and how much it computed for a landscape; None for entries that the document lacks."""

    name: Text
    host: Text | None = None
    node: AnyText = None
    pid: AnyWhole = None
    device: Text | None = None
    tasks: Count | None = None
    points: Count | None = None
    seconds: Share | None = None


@dataclass(frozen=True, kw_only=True)
class ProgressRecord:
    """How far a landscape was when its driver last recorded it.

    `reduced_batches` is the batch size of each task that needed a smaller one than planned; `rate` is in points per
    second; `updated` is a time in ISO format.
    """

    state: Text | None = None
    tiles_done: Count = 0
    tiles: Count = 0
    points_done: Count = 0
    points: Count = 0
    seconds: Share | None = None
    rate: Share | None = None
    workers: Count | None = None
    by_worker: tuple[WorkerRecord, ...] = ()
    retries: Count = 0
    reduced_batches: dict[Text, Count] = field(default_factory=dict)
    updated: Text | None = None


@dataclass(frozen=True, kw_only=True)
class LevelRecord:
    """A level of a refined landscape: a finer grid, of which only some blocks are computed.

    Every `stride`-th of its points along each axis is a point of the landscape itself. `blocks` are its tiles, numbered
    in C order, as stretches [first, end). `eta` is the error of interpolation for which each block was chosen, in their
    order; empty if a box chose them. `chosen_by` is the digest of the values that chose them.
    """

    number: Annotated[int, Strict(), Field(ge=1, le=16)]
    stride: Annotated[int, Strict(), Field(ge=2, le=1 << 16)]
    blocks: tuple[tuple[Count, Count], ...] = ()
    eta: tuple[Real, ...] = ()
    rule: Object = field(default_factory=dict)
    chosen_by: Text = ""


MOST_EVALUATIONS = (1 << 53) - 1  # that are foretold, the most that a record holds


@dataclass(frozen=True, kw_only=True)
class AccuracyRecord:
    """The accuracy that a landscape is computed to, and what is reached.

    `error` is what was asked for: a share of the relief if `relative`, else in units of the loss, or of its decimal
    logarithm if `scale` is `log`; `reached` is what is reached, in the same units. `sampling` and `interpolation` are
    its two parts, each alone, and `relief` its scale, in units of the loss or its logarithm. `evaluations` of single
    samples at single points were spent, at `points` points, the best known of which has `most_samples` of `population`
    samples; about `rest` more reach what was asked for. `stopped` is `reached`, `budget`, `exhausted` if nothing is
    left to evaluate, `given up` if items were, or empty while it is computed.
    """

    error: Real
    relative: Flag = False
    scale: Literal["linear", "log"] = "linear"
    budget: dict[Text, float] = field(default_factory=dict)
    population: Whole = 0
    width: Whole = 0
    reached: Real | None = None
    sampling: Real | None = None
    interpolation: Real | None = None
    relief: Real | None = None
    evaluations: Count = 0
    points: Count = 0
    most_samples: Count = 0
    rounds: Count = 0
    rest: Count = 0
    stopped: Text = ""

    @property
    def expected_rest(self) -> int:
        """About how many more evaluations reach `error`, as errors fall with the root of the cost."""
        if self.reached is None or self.is_reached:
            return 0
        return int(min(self.evaluations * ((self.reached / self.error) ** 2 - 1.0), MOST_EVALUATIONS))

    def amount(self, error: float | None) -> str:
        """An error in words: of the relief, or in units of the loss or of its decimal logarithm.

        >>> AccuracyRecord(error=0.05).amount(0.0513), AccuracyRecord(error=0.05, scale="log").amount(0.05)
        ('0.051 in loss', '0.05 in log10 of the loss')
        """
        if error is None:
            return "unknown"
        unit = "log10 of the loss" if self.scale == "log" else "loss"
        if self.relative:
            return f"{number_text(100 * error, 2)}\u00a0% of the relief" + (f" in {unit}" * (self.scale == "log"))
        return f"{number_text(error, 2)} in {unit}"

    @property
    def absolute(self) -> float | None:
        """What is reached, in units of the loss or of its decimal logarithm."""
        known = None if self.reached is None or self.relief is None else self.reached * self.relief
        return known if self.relative else self.reached

    @property
    def is_reached(self) -> bool:
        """Whether the picture is as true as was asked."""
        return self.reached is not None and self.reached <= self.error

    @property
    def text(self) -> str:
        """What is reached, and with what: the sentence of captions."""
        if not self.rounds:
            return f"begun, {self.amount(self.error)} asked"
        asked = "" if self.is_reached else f", {self.amount(self.error)} asked"
        return f"true to {self.in_words} on 95\u00a0% of the area{asked}; {self.cost}"

    @property
    def in_words(self) -> str:
        """What is reached: as a share of the relief, if that was asked, with what that is in units of the loss."""
        both = "" if self.absolute is None or not self.relative else f" ({number_text(self.absolute, 2)})"
        return self.amount(self.reached) + both

    @property
    def cost(self) -> str:
        """What was evaluated: points, and samples of the best known of them."""
        return (
            f"{count_text(self.points)} points evaluated on up to {count_text(self.most_samples)} of "
            f"{count_text(self.population)} samples, {count_text(self.evaluations)} evaluations in all"
        )

    @property
    def ending(self) -> str:
        """Why the rounds ended and what the rest would cost; '' if they go on, or it is reached."""
        rest = f"about {number_text(float(self.rest), 2)} more evaluations would reach {self.amount(self.error)}"
        if self.is_reached:
            rest = "the edge of what is not finite would become narrower"
        if self.stopped == "budget":
            return f"ended by its budget; {rest}"
        if self.stopped == "exhausted" and self.reached is None:
            return "less than two points of the first pass have a finite loss; choose a smaller range"
        if self.stopped == "exhausted":
            return "every point of the finest grid that matters knows all samples; a finer grid would be truer"
        return f"ended as parts were given up; {rest}" if self.stopped == "given up" else ""


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """An engine that was tried: its speed relative to the best engine, or the reason why it was refused."""

    engine: AnyText = None
    batch_size: AnyWhole = None
    samples_per_second: AnyReal = None
    refused: AnyText = ""
    over_best: AnyReal = None
    spread: AnyReal = None


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """How the engine was chosen; `since` is the time of the choice, if it was taken from an earlier job.

    `by` says what chose it for the job: `given` (the job itself, or another run), `rule`, `search`, or `kept` (the
    search of an earlier job).
    """

    engine: AnyText = None
    by: AnyText = None
    batch_size: AnyWhole = None
    seconds_per_point: AnyReal = None
    trials: Annotated[tuple[TrialRecord, ...], each_sound(TrialRecord)] = ()
    processes: AnyWhole = None
    cached: Annotated[Flag, _default(False)] = False
    since: AnyText = None


OMITTED = {"omitted": True}  # metadata of a field that is not written if it is None


def with_others(kind: Any) -> BeforeValidator:
    """Collect entries that are no fields of `kind`, such as those of later versions, in its field `others`."""
    names = {entry.name for entry in fields(kind)}

    def collect(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        own = {name: entry for name, entry in value.items() if name in names}
        return {**own, "others": {name: entry for name, entry in value.items() if name not in names}}

    return BeforeValidator(collect)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a landscape was computed, for which model, and with which versions."""

    created: AnyText = None
    host: AnyText = None
    platform: AnyText = None
    versions: Annotated[Object, _default({})] = field(default_factory=dict)
    model: AnyText = None
    parameters: AnyWhole = None
    folder: AnyText = field(default=None, metadata=OMITTED)  # in which the callback is looked up
    sent_from: AnyText = field(default=None, metadata=OMITTED)  # the folder of a job that `landscape submit` sent
    sent_host: AnyText = field(default=None, metadata=OMITTED)  # the machine of that folder
    batch_norm_layers: AnyWhole = field(default=None, metadata=OMITTED)
    engine: Annotated[EngineChoice | None, _default(None)] = field(default=None, metadata=OMITTED)
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PrecisionError:
    """The largest errors of the mean loss against float32, over `points` probe points."""

    max_abs_error: AnyReal = None
    max_rel_error: Real | None = None
    points: AnyWhole = None
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RandomData:
    """Which fields of the samples are random: samples were read twice and compared.

    Attributes:
        fields: those that differ under another seed, so that the job's seed decides them.
        unseeded: those that differ under the same seed too: they come from a generator that no job seeds.
        checked: how many samples were compared.
        unchecked: the reason why samples could not be compared; empty if they were.
    """

    fields: tuple[Text, ...]
    unseeded: tuple[Text, ...]
    checked: Whole
    unchecked: Text


@dataclass(frozen=True, kw_only=True)
class ImportRecord:
    """The file that a landscape was imported from: its name, its format in words, the SHA-256 of its bytes.

    `notes` are sentences for the caption about what the other software did otherwise.
    """

    file: AnyText = None
    format: AnyText = None
    digest: AnyText = None
    notes: Annotated[tuple[Text, ...], each_sound(Text)] = ()


@dataclass(frozen=True, kw_only=True)
class PackedCopyRecord:
    """The packed copy of the landscape's problem that its run keeps.

    `file` is its path in the run, `digest` the SHA-256 of its manifest, which has those of all else in it. `files` and
    `runs` say what the files and runs that the job names are called in it. `difference` is the largest one between its
    values and those of the source where both were compared, relative to the value; 0 if they were equal to the bit.
    """

    file: Text
    digest: Text
    files: dict[Text, Text] = field(default_factory=dict)
    runs: dict[Text, Text] = field(default_factory=dict)
    difference: Share = 0.0


@dataclass(frozen=True, kw_only=True)
class TermRecord:
    """A term of a loss that is Σ λ·mean: its λ, and the number of samples of its mean; None if unknown."""

    weight: AnyReal = None
    samples: AnyWhole = None


@dataclass(frozen=True, kw_only=True)
class CheckRecord:
    """The reference point: its values in hexadecimal, which every process must reproduce, and their processor."""

    point: tuple[Real, ...]
    values: dict[Text, Text]
    processor: Annotated[Text, _default("")] = ""
    repeatable: Annotated[Flag, _default(True)] = True


@dataclass(frozen=True, kw_only=True)
class OwnModelRecord:
    """Whether the landscape agrees with forward passes of the user's own model over the same samples.

    `state` is `agrees`, `accepted` if the user accepted a difference, or `not compared`; `text` describes the
    difference, or the reason why nothing was compared. `losses` holds, for the origin and the point beside it, the loss
    of the landscape and that of the model, in hexadecimal.
    """

    state: Text
    text: Text = ""
    point: tuple[Real, ...] = ()
    losses: dict[Text, tuple[Text, Text]] = field(default_factory=dict)


# Other types write the parts below as a whole; their fields are only the entries that are read.


def with_whole() -> BeforeValidator:
    """Keep the object itself, entries of later versions included, in the field `whole`."""
    return BeforeValidator(lambda value: {**value, "whole": value} if isinstance(value, dict) else value)


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """The job that began the landscape; its `landscapes` hold this one alone."""

    engine: AnyText = None
    batch_size: AnyWhole = None
    threads: AnyWhole = None
    landscapes: Annotated[tuple[Object, ...], _default(())] = ()
    whole: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlanRecord:
    """The plan of the landscape, a `plan.Plan`."""

    engine: AnyText = None
    batch_size: AnyWhole = None
    device: AnyText = None
    precision: AnyText = None
    whole: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class IdentityRecord:
    """All that decides the values of the landscape; `origin` and `samples` are digests."""

    origin: AnyText = None
    samples: AnyText = None
    num_samples: AnyWhole = None
    seed: AnyWhole = None
    precision: AnyText = None
    batch_norm: AnyText = None
    whole: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class NetworkRecord:
    """A network near or on an axis, and its coordinate along the axis."""

    name: Text
    at: Real


@dataclass(frozen=True, kw_only=True)
class AxisRecord:
    """The document of an axis, without the entries of single kinds.

    The variances are shares: that which a principal component explains, and that which it would explain of a random
    walk of the same length. `curve` is drawn between the first two networks, with the third as its bend.
    """

    kind: Text = ""
    norm: Real | None = None
    label: Text = ""
    digest: Text = ""
    explained_variance: Real | None = field(default=None, metadata=OMITTED)
    random_walk_variance: Real | None = field(default=None, metadata=OMITTED)
    networks: Annotated[tuple[NetworkRecord, ...] | None, _default(None)] = field(default=None, metadata=OMITTED)
    curve: Annotated[Curve | None, _default(None)] = field(default=None, metadata=OMITTED)
