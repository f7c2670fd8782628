"""What the document of a landscape on disk says of it, as one typed value.

The document is a JSON object, the attributes of the landscape's Zarr group. Each of its names is a field of `Record`
and stands nowhere else: what writes the document and what reads it go through this type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from landscape.core.errors import Failure
from landscape.core.quantisation import Quantisation
from landscape.surface.compared import ComparedRecord
from landscape.surface.connection import ConnectionRecord
from landscape.surface.convexity import ConvexityRecord
from landscape.surface.layers import LayersRecord
from landscape.surface.ranges import FoundRange
from landscape.surface.record_entries import Checks
from landscape.surface.record_parts import (
    OMITTED,
    AxisRecord,
    CheckRecord,
    Count,
    Flag,
    IdentityRecord,
    ImportRecord,
    JobRecord,
    LevelRecord,
    OwnModelRecord,
    PlanRecord,
    PrecisionError,
    ProgressRecord,
    Provenance,
    RandomData,
    Real,
    TermRecord,
    Text,
    Whole,
    sound_entries,
    with_others,
    with_whole,
)

CHANCE = 0.95  # of the loss of guessing: a network that learned nothing comes within a few percent of it
NULLABLE = ("origin", "origin_step", "precision_error", "origin_loss", "origin_loss_stderr", "guessing")  # may be null


@dataclass(frozen=True, kw_only=True)
class Record:
    """The document of a landscape. A field has its default where the document lacks it, or has something malformed.

    Made by `Record.of` from a document and by `changed` from another record, never by its fields alone: `attributes`
    are what is written, with the names of later versions and in the order in which they were first written.
    """

    schema_version: Whole | None = None
    name: Text | None = None
    job: Annotated[JobRecord, with_whole()] | None = None
    defaults: Whole | None = None  # the version of the defaults of what the job leaves out; none in version 0.1.0
    position: Count | None = None  # of the landscape in its job
    identity: Annotated[IdentityRecord, with_whole()] | None = None
    digest: Text | None = None
    num_samples: Whole | None = None
    weighted: Flag = False  # whether samples count differently
    terms: dict[Text, TermRecord] = field(default_factory=dict)  # of a loss that is a sum of means
    precision: Text | None = None
    batch_norm: Text | None = None
    seed: Whole | None = None
    observables: tuple[Text, ...] = ()
    moment_rows: tuple[Text, ...] = ()  # what moments are kept of; none in landscapes of earlier versions
    keep_samples: Flag = False  # whether the losses of single samples are stored
    rounded: tuple[Text, ...] = ()  # names of the weights that are rounded at every point
    derived: dict[Text, Text] = field(default_factory=dict)  # surfaces computed from these when they are read
    convexity: ConvexityRecord | None = None  # of a convexity map
    layers: LayersRecord | None = None  # where it is told at every point which layer breaks
    cosine: tuple[tuple[Real, ...], ...] | None = None  # between the axes
    origin: Text | None = None
    origin_step: Whole | None = None
    went_on_to: Text | None = None  # how far the log of the origin's training went beyond it by then: `epoch 12`
    snapshots: dict[Text, Count] = field(default_factory=dict)  # what `last`, `first` and their like of runs stood for
    plan: Annotated[PlanRecord, with_whole()] | None = None
    provenance: Annotated[
        Provenance, with_others(tuple(entry.name for entry in fields(Provenance)))
    ] = field(default_factory=Provenance)  # fmt: skip
    failures: tuple[Failure, ...] = ()
    random_data: RandomData | None = None
    precision_error: Annotated[
        PrecisionError, with_others(tuple(entry.name for entry in fields(PrecisionError)))
    ] | None = None  # fmt: skip
    check: CheckRecord | None = None
    own_model: OwnModelRecord | None = None  # none where nobody has asked yet, as in landscapes of earlier versions
    found_range: FoundRange | None = None  # none where the job gives the range in numbers, or its axes their own
    level: LevelRecord | None = None  # of a refinement; none of a landscape itself
    imported: ImportRecord | None = None  # of a landscape that no job computed
    origin_loss: Real | None = None
    origin_loss_stderr: Real | None = None
    guessing: Real | None = None  # the loss of the best constant guess; none where it is not known
    progress: ProgressRecord = field(default_factory=ProgressRecord)
    checks: Checks | None = None  # what `landscape check` found; no part of the identity
    connection: ConnectionRecord | None = None  # what `landscape connect` found along the line and the curve; likewise
    compared: ComparedRecord | None = None  # what `landscape compare --keep` found of the rounding; likewise
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Record:
        """The record that a document holds; what is malformed has its default."""
        return parse(attributes)[0]

    def changed(self, **changes: Any) -> Record:
        """A copy of the record with other fields, given as values of their types or as their JSON values.

        Raises:
            TypeError: there is no such field, or it has another type.
        """
        unknown = sorted(set(changes) - set(_adapters(Record)))
        written = {name: plain(value) for name, value in changes.items()}
        typed = {name for name, value in changes.items() if is_dataclass(value)}
        values, malformed = _parsed(Record, {**written, **{name: changes[name] for name in typed}})
        if unknown or typed & set(malformed):
            raise TypeError(f"Record: has no field {[*unknown, *malformed][0]!r} of this type")
        return replace(self, **values, attributes={**self.attributes, **written})

    @property
    def guessing_in_words(self) -> str:
        """That the loss at the origin is no better than that of guessing: ', no better than guessing (2.303)'.

        Empty where it is better, or where one of both is not known.
        """
        if self.guessing is None or self.origin_loss is None or self.origin_loss < CHANCE * self.guessing:
            return ""
        return f", no better than guessing ({self.guessing:.4g})"

    @property
    def origin_name(self) -> str:
        """Which weights the origin is: `epoch 10`, a file, `the callback's weights`; empty where it is not recorded."""
        return "the callback's weights" if self.origin == "problem" else self.origin or ""

    @property
    def origin_in_words(self) -> str:
        """The same, and how far its training went on: `epoch 10 (training went on to epoch 12)`."""
        return f"{self.origin_name} (training went on to {self.went_on_to})" if self.went_on_to else self.origin_name

    @property
    def surfaces(self) -> tuple[str, ...]:
        """The names of all surfaces that are shown: the observables, and those derived from them."""
        return (*self.observables, *(name for name in self.derived if name not in self.observables))

    @property
    def of_points(self) -> tuple[str, ...]:
        """The observables that only the points of the grid have, and no snapshot of the path."""
        of_layers = () if self.layers is None else self.layers.observables
        return (*(() if self.convexity is None else self.convexity.observables), *of_layers)

    def categories(self, observable: str) -> tuple[str, ...] | None:
        """What the values 0, 1, 2, … of an observable stand for; None of one that holds plain numbers."""
        known = (each.categories(observable) for each in (self.layers, self.convexity) if each is not None)
        return next(filter(None, known), None)

    @property
    def samples_in_words(self) -> str:
        """Over how many samples the means are: '512', '512, weighted', or '700 of interior, 90 of boundary'."""
        if self.terms:
            return ", ".join(f"{_known(term.samples)} of {name}" for name, term in self.terms.items())
        return _known(self.num_samples) + (", weighted" if self.weighted else "")

    @property
    def quantisation(self) -> Quantisation | None:
        """How weights and activations are rounded at every point; None where they are not."""
        recorded = None if self.identity is None else self.identity.whole.get("quantise")
        try:
            return None if recorded is None else Quantisation.from_record(recorded)
        except (TypeError, ValueError):  # a later version's
            return None

    @property
    def accepted_in_words(self) -> str:
        """What differs between the landscape and the user's own model, and was accepted; empty where nothing does."""
        return self.own_model.text if self.own_model is not None and self.own_model.state == "accepted" else ""

    @property
    def not_compared_in_words(self) -> str:
        """That nobody compared the landscape with the user's own model, where that is recorded; else empty."""
        if self.own_model is None or self.own_model.state != "not compared":
            return ""
        return "not compared with your own model"

    @property
    def points_found_wrong(self) -> tuple[str, ...]:
        """What checks found of points that are not those of the user's model, unless that was accepted before."""
        found = () if self.checks is None else self.checks.of("fails")
        told = {"centre", "spot check", "repetition"} - ({"centre"} if self.accepted_in_words else set())
        return tuple(each.text for each in found if each.name in told)

    @property
    def rounding_in_words(self) -> str:
        """Such as `weights rounded to 4 bits per channel`; empty where nothing is rounded."""
        found = self.quantisation
        return "" if found is None else str(found)

    @property
    def is_imported(self) -> bool:
        """Whether other software computed the landscape, and no job."""
        return self.imported is not None and not any(self.states(name) for name in ("job", "identity", "plan"))

    @property
    def has_check(self) -> bool:
        """Whether the document has values that a process must reproduce; malformed ones count, as they are kept."""
        return self.states("check")

    def states(self, name: str) -> bool:
        """Whether the document has an entry of this name, well formed or not."""
        return name in self.attributes


def _known(count: int | None) -> str:
    return "not recorded" if count is None else str(count)


def parse(attributes: Mapping[str, Any]) -> tuple[Record, tuple[str, ...]]:
    """The record that a document holds, and the names of the entries that are malformed."""
    values, malformed = _parsed(Record, attributes)
    return Record(**values, attributes=dict(attributes)), malformed


def parse_axis(attributes: Mapping[str, Any]) -> tuple[AxisRecord, tuple[str, ...]]:
    """The record that the document of an axis holds, and the names of the entries that are malformed."""
    values, malformed = _parsed(AxisRecord, attributes)
    return AxisRecord(**values), malformed


def _parsed(kind: Any, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields that entries of a document fill, and the names of those that are malformed."""
    values: dict[str, Any] = {}
    malformed = []
    for name, adapter in _adapters(kind).items():
        if name not in attributes:
            continue
        given = attributes[name]
        try:
            if given is None and kind is Record and name not in NULLABLE:
                raise TypeError
            values[name] = adapter.validate_python(given)
        except (ValidationError, TypeError):
            malformed.append(name)
            values[name] = tuple(sound_entries(Failure, given)) if name == "failures" else getattr(kind(), name)
    return values, tuple(malformed)


@cache
def _adapters(kind: Any) -> dict[str, TypeAdapter[Any]]:
    """What checks each entry of a document, by its name."""
    hints = get_type_hints(kind, include_extras=True)
    names = [named.name for named in fields(kind) if named.name != "attributes"]
    return {name: TypeAdapter(hints[name]) for name in names}


def plain(value: Any) -> Any:
    """A value as JSON holds it: objects and lists, of text, numbers, true, false and null."""
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    entries = vars(value)
    if "whole" in entries:
        return plain(entries["whole"])
    kind: Any = type(value)
    omitted = _omitted(kind)
    written = {name: plain(entry) for name, entry in entries.items() if not (entry is None and name in omitted)}
    return written | written.pop("others", {})


@cache
def _omitted(kind: Any) -> frozenset[str]:
    """The fields of a part that are not written where they are None."""
    return frozenset(named.name for named in fields(kind) if named.metadata == OMITTED)
