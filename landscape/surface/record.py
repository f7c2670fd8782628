"""The document of a landscape on disk as one typed value, and the axes and paths that surfaces are drawn over.

The document is a JSON object, the attributes of the landscape's Zarr group. It is read and written through `Record`,
which has a field for each of its names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Annotated, Any, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from landscape.core.grid import Floats
from landscape.core.quantisation import Quantisation
from landscape.surface.derived import RISE
from landscape.surface.record_entries import (
    Checks,
    ComparedRecord,
    ConnectionRecord,
    ConvexityRecord,
    FoundRange,
    LayersRecord,
    PathRecord,
)
from landscape.surface.record_parts import (
    OMITTED,
    AccuracyRecord,
    AxisRecord,
    CheckRecord,
    Count,
    Failure,
    Flag,
    IdentityRecord,
    ImportRecord,
    JobRecord,
    LevelRecord,
    OwnModelRecord,
    PackedCopyRecord,
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

CHANCE = 0.95  # of the loss of guessing: a network that learned nothing reaches that loss within a few percent
NULLABLE = ("origin", "origin_step", "precision_error", "origin_loss", "origin_loss_stderr", "guessing")  # may be null


@dataclass(frozen=True, kw_only=True)
class Record:
    """The document of a landscape. A field that the document lacks, or that is malformed, has its default.

    Make one by `Record.of` from a document or by `changed` from another record, never by its fields alone: `attributes`
    is the document that is written, with entries of later versions, in the order in which they were first written.
    """

    schema_version: Whole | None = None
    name: Text | None = None
    job: Annotated[JobRecord, with_whole()] | None = None
    defaults: Whole | None = None  # the version of the defaults of fields that the job leaves out
    position: Count | None = None  # of the landscape in its job
    identity: Annotated[IdentityRecord, with_whole()] | None = None
    digest: Text | None = None
    num_samples: Whole | None = None
    sample_set: Text | None = None  # the digest of the samples and their numbers, in whatever order they were drawn
    weighted: Flag = False  # whether samples count differently
    terms: dict[Text, TermRecord] = field(default_factory=dict)  # of a loss that is a sum of means
    precision: Text | None = None
    batch_norm: Text | None = None
    seed: Whole | None = None
    observables: tuple[Text, ...] = ()
    moment_rows: tuple[Text, ...] = ()  # the rows of the stored moments; none if no job computed the landscape
    keep_samples: Flag = False  # whether the losses of single samples are stored
    rounded: tuple[Text, ...] = ()  # names of the weights that are rounded at every point
    moving_weights: dict[Text, Real] = field(default_factory=dict)  # by axis, the share that bfloat16 lets move a step
    derived: dict[Text, Text] = field(default_factory=dict)  # surfaces computed from these when they are read
    convexity: ConvexityRecord | None = None  # of a convexity map
    layers: LayersRecord | None = None  # if every point names the layer that breaks
    cosine: tuple[tuple[Real, ...], ...] | None = None  # between the axes
    origin: Text | None = None
    origin_step: Whole | None = None
    went_on_to: Text | None = None  # the end of training at that time, if it is beyond the origin: `epoch 12`
    snapshots: dict[Text, Count] = field(default_factory=dict)  # the numbers that `last`, `runs/sgd@last` … stood for
    plan: Annotated[PlanRecord, with_whole()] | None = None
    provenance: Annotated[Provenance, with_others(Provenance)] = field(default_factory=Provenance)
    failures: tuple[Failure, ...] = ()
    random_data: RandomData | None = None
    precision_error: Annotated[PrecisionError, with_others(PrecisionError)] | None = None
    check: CheckRecord | None = None
    own_model: OwnModelRecord | None = None  # None before the comparison
    found_range: FoundRange | None = None  # None if the job or its axes give the range
    accuracy: AccuracyRecord | None = None  # None if the landscape is a fixed grid
    level: LevelRecord | None = None  # of a refinement; None for a landscape itself
    imported: ImportRecord | None = None  # of a landscape that no job computed
    computed_tile: tuple[Count, ...] = ()  # points per dimension of a tile, if the stored ones have become larger
    packed: PackedCopyRecord | None = None  # of the problem, in the run; None if the run keeps none
    origin_loss: Real | None = None
    origin_loss_stderr: Real | None = None
    guessing: Real | None = None  # the loss of the best constant guess; None if unknown
    progress: ProgressRecord = field(default_factory=ProgressRecord)
    # The results of check, connect and compare --keep, which are no part of the identity.
    checks: Checks | None = None
    connection: ConnectionRecord | None = None
    compared: ComparedRecord | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Record:
        """The record in a document; malformed entries have their defaults."""
        return parse(attributes)[0]

    def changed(self, **changes: Any) -> Record:
        """A copy of the record with other fields, given as values of their types or as their JSON values.

        Raises:
            TypeError: there is no such field, or the field has another type.
        """
        unknown = sorted(set(changes) - set(_adapters(Record)))
        written = {name: plain(value) for name, value in changes.items()}
        typed = {name for name, value in changes.items() if is_dataclass(value)}
        values, malformed = _parse(Record, {**written, **{name: changes[name] for name in typed}})
        if unknown or typed & set(malformed):
            raise TypeError(f"Record: has no field {[*unknown, *malformed][0]!r} of this type")
        return replace(self, **values, attributes={**self.attributes, **written})

    @property
    def guessing_in_words(self) -> str:
        """', no better than guessing (2.303)', if that holds for the loss at the origin; else empty."""
        if self.guessing is None or self.origin_loss is None or not math.isfinite(self.guessing):
            return ""
        if self.origin_loss < CHANCE * self.guessing:
            return ""
        return f", no better than guessing ({self.guessing:.4g})"

    @property
    def origin_name(self) -> str:
        """The weights that are the origin: `epoch 10`, a file, `the model as given`; empty if not recorded."""
        return "the model as given" if self.origin == "problem" else self.origin or ""

    @property
    def origin_in_words(self) -> str:
        """The origin, and the end of its training: `epoch 10 (training went on to epoch 12)`."""
        return f"{self.origin_name} (training went on to {self.went_on_to})" if self.went_on_to else self.origin_name

    @property
    def is_at_end(self) -> bool:
        """Whether the origin is the last snapshot of its training, as far as that was known."""
        return self.origin_step is not None and self.went_on_to is None

    @property
    def has_linear_error(self) -> bool:
        """Whether the picture has an accuracy that is not one of logarithms: small losses may be off by a multiple."""
        return self.accuracy is not None and self.accuracy.scale == "linear"

    @property
    def surfaces(self) -> tuple[str, ...]:
        """The names of all surfaces that are shown: the observables, and those derived from them."""
        rise = () if self.origin_loss is None or "loss" not in self.observables else (RISE,)
        errors = () if self.accuracy is None else ("loss_rise_stderr", "loss_interpolation_error")
        return tuple(dict.fromkeys([*self.observables, *self.derived, *rise, *errors]))

    @property
    def of_points(self) -> tuple[str, ...]:
        """The observables of the points of the grid that the snapshots of the path do not have."""
        of_layers = () if self.layers is None else self.layers.observables
        return (*(() if self.convexity is None else self.convexity.observables), *of_layers)

    def categories(self, observable: str) -> tuple[str, ...] | None:
        """The meaning of the values 0, 1, 2, … of an observable; None if they are plain numbers."""
        parts = (part.categories(observable) for part in (self.layers, self.convexity) if part is not None)
        return next(filter(None, parts), None)

    @property
    def samples_in_words(self) -> str:
        """The number of samples of the means: '512', '512, weighted', or '700 of interior, 90 of boundary'."""
        if self.terms:
            return ", ".join(f"{_known(term.samples)} of {name}" for name, term in self.terms.items())
        return _known(self.num_samples) + (", weighted" if self.weighted else "")

    def has_samples_of(self, other: Record) -> bool:
        """Whether both are known to be means over the same samples, drawn in the same order or in another one."""
        known = [record.identity.samples for record in (self, other) if record.identity and record.identity.samples]
        in_order = len(known) == 2 and known[0] == known[1]
        return in_order or (self.sample_set is not None and self.sample_set == other.sample_set)

    @property
    def quantisation(self) -> Quantisation | None:
        """How weights and activations are rounded at every point; None if they are not."""
        recorded = None if self.identity is None else self.identity.whole.get("quantise")
        try:
            return None if recorded is None else Quantisation.from_record(recorded)
        except (TypeError, ValueError):  # a later version's
            return None

    @property
    def accepted_in_words(self) -> str:
        """The accepted difference between the landscape and the user's own model; empty if there is none."""
        return self.own_model.text if self.own_model is not None and self.own_model.state == "accepted" else ""

    @property
    def not_compared_in_words(self) -> str:
        """'not compared with your own model', if that is recorded; else empty."""
        if self.own_model is None or self.own_model.state != "not compared":
            return ""
        return "not compared with your own model"

    @property
    def points_found_wrong(self) -> tuple[str, ...]:
        """The texts of failed checks that compare points with the user's model, without an accepted difference."""
        failed = () if self.checks is None else self.checks.of("fails")
        names = {"centre", "spot check", "repetition"} - ({"centre"} if self.accepted_in_words else set())
        return tuple(check.text for check in failed if check.name in names)

    @property
    def rounding_in_words(self) -> str:
        """Such as `weights rounded to 4 bits per channel`; empty if nothing is rounded."""
        return "" if self.quantisation is None else str(self.quantisation)

    @property
    def is_imported(self) -> bool:
        """Whether other software computed the landscape, and no job."""
        return self.imported is not None and not any(self.states(name) for name in ("job", "identity", "plan"))

    @property
    def has_check(self) -> bool:
        """Whether the document has values that a process must reproduce; malformed ones count too."""
        return self.states("check")

    def states(self, name: str) -> bool:
        """Whether the document has an entry of this name, well formed or not."""
        return name in self.attributes


def _known(count: int | None) -> str:
    return "not recorded" if count is None else str(count)


def parse(attributes: Mapping[str, Any]) -> tuple[Record, tuple[str, ...]]:
    """The record in a document, and the names of malformed entries."""
    values, malformed = _parse(Record, attributes)
    return Record(**values, attributes=dict(attributes)), malformed


def parse_axis(attributes: Mapping[str, Any]) -> tuple[AxisRecord, tuple[str, ...]]:
    """The record in the document of an axis, and the names of malformed entries."""
    values, malformed = _parse(AxisRecord, attributes)
    return AxisRecord(**values), malformed


def _parse(kind: Any, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of `kind` that a document has, and the names of malformed entries."""
    values: dict[str, Any] = {}
    malformed = []
    for name, adapter in _adapters(kind).items():
        if name not in attributes:
            continue
        entry = attributes[name]
        try:
            if entry is None and kind is Record and name not in NULLABLE:
                raise TypeError
            values[name] = adapter.validate_python(entry)
        except (ValidationError, TypeError):
            malformed.append(name)
            values[name] = tuple(sound_entries(Failure, entry)) if name == "failures" else getattr(kind(), name)
    return values, tuple(malformed)


@cache
def _adapters(kind: Any) -> dict[str, TypeAdapter[Any]]:
    """The adapter that checks each entry of a document, by the entry's name."""
    hints = get_type_hints(kind, include_extras=True)
    return {entry.name: TypeAdapter(hints[entry.name]) for entry in fields(kind) if entry.name != "attributes"}


def plain(value: Any) -> Any:
    """A value in the types of JSON: objects and lists of text, numbers, true, false and null."""
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
    """The fields of a part that are not written if they are None."""
    return frozenset(entry.name for entry in fields(kind) if entry.metadata == OMITTED)


# ----------------------------------------------------------------------------------------------------
# Axes with their coordinates, and paths of trajectories with their losses.

NOT_COMPUTED, OK, NOT_FINITE, QUARANTINED = 0, 1, 2, 3  # the status of a point, and of a snapshot
CLEARLY = 3.0  # standard errors of the rise: losses further apart than this differ by more than the noise
SEEN = 0.01  # of `Along.height`: smaller gaps are not visible in a picture


@dataclass(frozen=True)
class Axis:
    """A direction with the `coordinates` [n] of the grid along it, ascending.

    `attributes` describe the direction: kind, label, norm, explained variance.
    """

    name: str
    coordinates: Floats
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def record(self) -> AxisRecord:
        """The attributes as a typed value; malformed ones count as absent."""
        return parse_axis(self.attributes)[0]

    @property
    def label(self) -> str:
        """The axis in words; its name if it has no label."""
        return self.record.label or self.name


@dataclass(frozen=True)
class ProjectedPath:
    """The trajectory projected on the axes: arrays over its snapshots in the order of training.

    `step` counts in `unit`, "step" or "epoch", and `coordinates` hold one array per axis. `loss` is the loss at the
    snapshot itself and `projected_loss` the loss at its projection on the axes, both NaN where not computed yet;
    `distance` is the Euclidean distance between the two in weight space. `status` is coded as in a surface.

    For a plane through networks, the networks stand for snapshots, in the order of the plane, and `unit` is "network".
    For several runs, their paths follow one another: `run` holds the index in `runs` of each snapshot, `unit` is
    "mixed" if some runs count steps and others epochs, and `parts` are the single paths.
    """

    unit: str
    step: NDArray[np.int64]
    coordinates: Mapping[str, Floats]
    loss: Floats
    projected_loss: Floats
    distance: Floats
    status: NDArray[np.uint8]
    run: NDArray[np.int64] | None = None
    runs: tuple[PathRecord, ...] = ()

    @property
    def label(self) -> str:
        """The name of the path's run in figures; empty for the run that the landscape lies in, and for several runs."""
        return self.runs[0].label if len(self.runs) == 1 else ""

    @property
    def losses(self) -> tuple[Floats, Floats]:
        """The losses at the snapshots and at their projections, infinite where one was computed and is not finite."""
        overflows = self.status == NOT_FINITE
        own, projected = (
            np.where(overflows & ~np.isfinite(loss), np.inf, loss) for loss in (self.loss, self.projected_loss)
        )
        return own, projected

    def parts(self) -> tuple[ProjectedPath, ...]:
        """The paths of the single runs, in the order of the job; a path of one run is its only part."""
        if self.run is None:
            return (self,)
        return tuple(
            self._at(self.run == k, unit=record.unit, run=None, runs=(record,))
            for k, record in enumerate(self.runs)
            if bool((self.run == k).any())
        )

    @property
    def of_own_run(self) -> ProjectedPath | None:
        """The path of the run that the landscape lies in; None if only other runs are drawn."""
        return next((path for path in self.parts() if not path.runs or path.runs[0].own), None)

    def without(self, unit: str) -> ProjectedPath | None:
        """The paths that do not count in `unit`; None if all do."""
        if self.run is None:
            return None if self.unit == unit else self
        others = [k for k, record in enumerate(self.runs) if record.unit != unit]
        rows = np.isin(self.run, others)
        run = np.searchsorted(others, self.run[rows]).astype(np.int64)
        return self._at(rows, run=run, runs=tuple(self.runs[k] for k in others)) if rows.any() else None

    def variables(self) -> dict[str, tuple[str, Any]]:
        """The arrays as variables of an xarray Dataset, over the dimension `snapshot`."""
        arrays = {name: getattr(self, name) for name in ("step", "loss", "projected_loss", "distance", "status")}
        arrays |= self.coordinates
        if self.run is not None:
            arrays["run"] = np.array([self.runs[k].label for k in self.run])
        return {f"path_{name}": ("snapshot", values) for name, values in arrays.items()}

    def _at(self, rows: NDArray[np.bool_], **changes: Any) -> ProjectedPath:
        """The snapshots that a mask selects."""
        arrays = {name: getattr(self, name)[rows] for name in ("step", "loss", "projected_loss", "distance", "status")}
        places = {axis: values[rows] for axis, values in self.coordinates.items()}
        return replace(self, coordinates=places, **arrays, **changes)


@dataclass(frozen=True)
class Along:
    """The losses along a path and at its projections, from `Surface.along`.

    Attributes:
        names: of all snapshots, such as 'epoch 3'.
        losses, plane: L(θᵢ) and L(projection) of all snapshots; NaN if unknown, infinite if not finite.
        relief: of the surface; NaN if unknown.
        noise: the standard error of the rise at the projections; NaN if unknown.
    """

    names: Sequence[str]
    losses: Floats
    plane: Floats
    relief: float
    noise: Floats

    @property
    def gaps(self) -> Floats:
        """|L(θᵢ) − L(projection)|, 0 where either is unknown or both are infinite."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.abs(self.losses - self.plane), nan=0.0, posinf=np.inf)

    @property
    def clear(self) -> Floats:
        """The gaps beyond 3 standard errors of the rise; 0 in place of the others."""
        return np.where(self.gaps > CLEARLY * np.nan_to_num(self.noise), self.gaps, 0.0)

    @property
    def ranked(self) -> Floats:
        """The gaps among which the largest is searched: the clear ones, or all if none is clear."""
        clear = self.clear
        return clear if clear.any() else self.gaps

    @property
    def furthest(self) -> int:
        """The snapshot with the largest gap, which checks, tables and captions name.

        It is among those where both losses are known, and the first of them if no losses differ.
        """
        return int(np.argmax(np.where(np.isnan(self.losses + self.plane), -1.0, self.ranked)))

    @property
    def span(self) -> float:
        """The range of the path's own losses; 0 if fewer than two are known."""
        finite = self.losses[np.isfinite(self.losses)]
        return float(np.ptp(finite)) if finite.size else 0.0

    @property
    def height(self) -> float:
        """The scale by which gaps are judged: the range of the path's own losses, else the relief; NaN without both."""
        return next((scale for scale in (self.span, self.relief) if scale > 0), math.nan)  # NaN > 0 is false
