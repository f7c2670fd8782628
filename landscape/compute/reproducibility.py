"""Whether a process reproduces the values of a landscape, and whether they are those of the user's own model.

Before the first value of a process is used, the process evaluates the origin and one point beside it. The values of
the first process are kept with the landscape, and every later process must compute the same bits. It fails to with
other code, another kind of processor, other versions, or a network that differs between processes.

For a new landscape, the first process also computes the losses of the user's own model at both places, by plain forward
passes: the landscape is computed with a copy whose weights are moved, and some models differ from their copies.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from landscape.compute.callback_place import is_of_memory
from landscape.compute.job_warnings import not_finite_warning
from landscape.compute.reused_values import Extension
from landscape.core.devices import is_out_of_memory, processor_name
from landscape.core.errors import Interrupted, JobError, NotRetried, quoted
from landscape.core.grid import Grid
from landscape.core.text import finite_or_none
from landscape.evaluation.evaluator import Evaluator
from landscape.evaluation.reduction import Before, Values
from landscape.evaluation.reference_loss import OwnLosses, Pair, own_losses
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record
from landscape.surface.record_parts import CheckRecord, OwnModelRecord

log = logging.getLogger("landscape")


ROUNDING = 1e-3  # relative: how much two calls of kernels without a fixed order of additions may differ
COARSE_ROUNDING = 3e-2  # the same in bfloat16
# Two landscapes of a run that share these must have the same loss at the origin, up to rounding.
SAME_ORIGIN = attrgetter("origin", "samples", "num_samples", "seed", "precision", "batch_norm")  # of the identities
SAME_PLAN = attrgetter("engine", "batch_size", "device")  # of the plans
Numbers = Mapping[str, float]  # `loss`, `loss_stderr`, …
UNKNOWN_ERROR = 1e-2  # relative: assumed for a lower precision if not measured; bfloat16 has 8 bits, tf32 11


@dataclass(frozen=True)
class ReferencePoint:
    """The values of one process at the origin and at `point`, and its processor.

    `repeatable` says that the process computed the same bits twice. Kernels without a fixed order of additions do not,
    and then no other process has to reproduce these bits.
    """

    point: tuple[float, ...]
    values: Numbers
    origin: Numbers
    processor: str = ""
    repeatable: bool = True

    def record(self) -> CheckRecord:
        """Its entry in a landscape's record.

        Values are hexadecimal, so no bit is lost, and NaN and infinity can be written.
        """
        values = {name: float(value).hex() for name, value in self.values.items()}
        return CheckRecord(point=self.point, values=values, processor=self.processor, repeatable=self.repeatable)

    def origin_value(self, name: str) -> float | None:
        """A value at the origin; None if it is not known or not finite."""
        return finite_or_none(self.origin.get(name))

    def differs_from(self, other: ReferencePoint) -> str:
        """A phrase about the first differing value; empty if all agree.

        If both processes are repeatable, bits are compared; otherwise values up to rounding.
        """
        exact = self.repeatable and other.repeatable
        for name, value in self.values.items():
            expected = other.values.get(name)
            if expected is None or value.hex() == expected.hex():
                continue
            if exact or not np.isclose(value, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True):
                return f"{name} {value:.9g}, not {expected:.9g}, at ({self.place})"
        return ""

    @property
    def place(self) -> str:
        """The point for messages, four digits per coordinate."""
        return ", ".join(f"{coordinate:.4g}" for coordinate in self.point)


def check_point(grid: Grid) -> tuple[float, ...]:
    """The grid's non-zero coordinates nearest to the origin: beside it along every axis, and likely finite."""

    def nearest(axis: np.ndarray) -> float:
        nonzero = (coordinate for coordinate in axis.tolist() if coordinate)
        return float(min(nonzero, key=lambda coordinate: (abs(coordinate), coordinate)))

    return tuple(nearest(axis) for axis in grid.coordinates)


def compute_reference_point(
    evaluator: Evaluator, point: Sequence[float], before: Before | None = None
) -> ReferencePoint | None:
    """Evaluate the origin and the point; None if user code raises there, or the planned batch does not fit.

    An exception of user code is not raised here: the tile that holds the point will raise and report it.

    Args:
        before: the extended landscape's moments at the point, which this process must reproduce.

    Raises:
        NotReproduced: this process computes other losses for these samples.
    """
    reference = _evaluate_point(evaluator, point)
    if reference is None or before is None:
        return reference
    added = _numbers(evaluator.within_memory(lambda: evaluator.evaluate(np.array([point], np.float64), before=before)))
    on_top = ReferencePoint(reference.point, added, {}, reference.processor, reference.repeatable)
    difference = on_top.differs_from(reference)
    if difference:
        raise NotReproduced(
            f"this landscape cannot be extended here: with its first samples {reference.processor} gives {difference}, "
            "as computed on all of them; the code or a version has changed: go back to those, or compute it again"
        )
    return reference


def _evaluate_point(evaluator: Evaluator, point: Sequence[float]) -> ReferencePoint | None:
    try:
        points, blocks = np.array([point], np.float64), evaluator.reference_blocks
        evaluated = evaluator.within_memory(lambda: evaluator.evaluate(points, blocks=blocks))
        if evaluator.batch_size != evaluator.plan.batch_size:
            return None  # a batch of another size gives other bits
        values, again = _numbers(evaluated), {}
        if evaluator.device.type != "cpu" or evaluator.plan.threads > 1:
            again = {name: value.hex() for name, value in _numbers(evaluator.evaluate(points, blocks=blocks)).items()}
        repeatable = all(again.get(name, value.hex()) == value.hex() for name, value in values.items())
        origin, processor = _numbers(evaluator.origin(blocks)), processor_name(evaluator.device)
        return ReferencePoint(tuple(point), values, origin, processor, repeatable)
    except Exception as error:
        if isinstance(error, Interrupted) or is_out_of_memory(error):
            raise
        return None


def _numbers(values: Values) -> dict[str, float]:
    """Means and standard errors of one point by name, without the error of the rise."""
    return {
        name: float(array[0])
        for key in values.mean
        for name, array in ((key, values.mean[key]), (f"{key}_stderr", values.stderr[key]))
    }


def recorded_reference_point(store: LandscapeStore, grid: Grid) -> ReferencePoint | None:
    """The values that a process must reproduce: the landscape's recorded ones, else those of a computed point.

    If the recorded ones are damaged, a computed point replaces them, but no point of a tile that needed smaller
    batches, since these give other bits.

    Returns:
        None if nothing is computed yet.
    """
    kept = _reference_point(store.record.check, len(grid.coordinates))
    if kept is not None:
        return kept
    reduced = store.record.progress.reduced_batches
    computed = store.computed_point(lambda tile: f"tile {tile}" not in reduced)
    if computed is None:
        return None
    index, values = computed
    point = tuple(float(axis[i]) for axis, i in zip(grid.coordinates, reversed(index), strict=True))
    return ReferencePoint(point, values, {})


def _reference_point(record: CheckRecord | None, axes: int) -> ReferencePoint | None:
    """The recorded reference point of a landscape; None if there is none, or it is damaged."""
    if record is None or len(record.point) != axes or not record.values:
        return None
    try:
        values = {name: float.fromhex(value) for name, value in record.values.items()}
    except (ValueError, OverflowError):
        return None
    return ReferencePoint(record.point, values, {}, record.processor, record.repeatable)


def keep_reference_point(store: LandscapeStore, reference: ReferencePoint) -> None:
    """Record the values that every process must reproduce, unless the document has an entry already, even a bad one.

    A loss at the origin that is not finite is warned of.
    """
    if store.record.has_check:
        return
    store.update_attributes(
        check=reference.record(),
        origin_loss=reference.origin_value("loss"),
        origin_loss_stderr=reference.origin_value("loss_stderr"),
    )
    if warning := not_finite_warning(store.name, reference.origin.get("loss", 0.0)):
        log.warning("%s", warning)


def difference_from_siblings(store: LandscapeStore, reference: ReferencePoint) -> str:
    """How the loss at the origin contradicts another landscape of the run with the same origin; empty if none.

    A contradiction shows that the code has changed since an earlier landscape of the run. All that have the same origin
    were compared with one another before, so one of them is enough. Problems in memory are not compared: their calls
    may keep landscapes of several losses in one run.
    """
    if is_of_memory(store):
        return ""
    here = reference.origin.get("loss", math.nan)
    plan = store.record.plan
    rounding = COARSE_ROUNDING if plan is not None and plan.precision == "bfloat16" else ROUNDING
    for name, record in store.siblings():
        recorded_loss = record.origin_loss
        if recorded_loss is None or not math.isfinite(here) or not _same_origin(store.record, record):
            continue
        if not np.isclose(here, recorded_loss, rtol=rounding, atol=0.0):
            return f"loss {here:.9g} at the origin, not {recorded_loss:.9g} as landscape {name!r} of this run"
        return ""
    return ""


def _same_origin(one: Record, other: Record) -> bool:
    """Whether two landscapes evaluate the same origin on the same samples in the same way.

    With an accuracy, the process evaluates few samples there, and the record holds the loss of all known ones.
    """
    if one.accuracy is not None or other.accuracy is not None:
        return False
    if one.identity is None or other.identity is None or one.plan is None or other.plan is None:
        return False
    rounded = [identity.whole.get("quantise") for identity in (one.identity, other.identity)]
    same = SAME_ORIGIN(one.identity) == SAME_ORIGIN(other.identity) and rounded[0] == rounded[1]
    return bool(same and SAME_PLAN(one.plan) == SAME_PLAN(other.plan))


class NotReproduced(JobError):
    """This process computes other values than the landscape holds, so it must not write to the landscape."""


def not_reproduced(
    name: str, expected: ReferencePoint | None, reference: ReferencePoint, difference: str
) -> NotReproduced:
    """The error of a process that computes other values than the landscape holds.

    Args:
        expected: the landscape's values; None if another landscape of the run contradicts.
    """
    if expected is None:
        return NotReproduced(
            f"landscape {name!r} would be of another network than the rest of this run: {reference.processor} gives "
            f"{difference}; the code or a version has changed: go back to those, or give another run"
        )
    if expected.processor == reference.processor:
        by = f"on this processor, {reference.processor}, by other code or with other versions"
    else:
        on = f"on {expected.processor} " if expected.processor else ""
        by = f"{on}by other code, on another processor or with other versions"
    return NotReproduced(
        f"landscape {name!r} was computed {by}: {reference.processor} gives {difference}; go back to those, or give it "
        "another name or run"
    )


def check_reproduction(
    store: LandscapeStore,
    grid: Grid,
    evaluator: Evaluator,
    extension: Extension | None = None,
    *,
    accept_origin: bool = False,
) -> None:
    """Check that this process reproduces the landscape's values before it adds to them.

    If the landscape holds no values yet, those of this process become the ones that every other must reproduce.

    Args:
        accept_origin: continue, with a warning, if the user's own model gives other losses.

    Raises:
        NotReproduced: this process computes other values.
        OtherModel: the user's own model gives other losses.
    """
    expected = recorded_reference_point(store, grid)
    point = expected.point if expected else check_point(grid)
    reference = compute_reference_point(
        evaluator, point, None if extension is None else extension.before_at(grid, point)
    )
    to_be_compared = is_to_be_compared(store.record, extends=extension is not None, begun=expected is not None)
    if reference is None:
        if to_be_compared:
            keep_not_compared(store, NO_LOSSES)
        return
    difference = reference.differs_from(expected) if expected else difference_from_siblings(store, reference)
    if difference:
        raise not_reproduced(store.name, expected, reference, difference)
    if to_be_compared:
        keep_comparison(store, losses_of_own_model(evaluator, reference), accept_origin=accept_origin)
    keep_why_not_compared(store, extension)
    keep_reference_point(store, reference)


def refuse_other_values(
    store: LandscapeStore, grid: Grid, evaluator: Evaluator, *, on_any_processor: bool = False
) -> None:
    """Refuse a landscape if this process computes other values than it holds. Writes nothing.

    Args:
        on_any_processor: compare up to rounding, not bits, with values of another kind of processor.

    Raises:
        NotReproduced: the values differ.
    """
    expected = recorded_reference_point(store, grid)
    if expected is None:
        return
    try:
        reference = compute_reference_point(evaluator, expected.point)
    except NotRetried as error:
        raise JobError(str(error)) from error
    if reference is None:
        raise JobError(
            f"landscape {quoted(store.name)}: the point ({expected.place}) that its record holds cannot be computed "
            "here; run `landscape check` to see why"
        )
    if on_any_processor and expected.processor != reference.processor:
        expected = replace(expected, repeatable=False)
    if difference := reference.differs_from(expected):
        raise not_reproduced(store.name, expected, reference, difference)


# -- the user's own model ------------------------------------------------------------------------------------------


NO_LOSSES = "the landscape's losses at the origin and beside it could not be computed"


class OtherModel(JobError):
    """The landscape would be of another network than the user's own model."""


def why_not_compared(record: Record, *, extends: bool) -> str:
    """Why the losses cannot be compared with those of the user's own model; empty if they can.

    Args:
        extends: whether the landscape takes over values of another one, or is a level of it.
    """
    if extends or record.level is not None:
        return "it goes on with another landscape"
    if record.quantisation is not None:
        return f"its network has {record.rounding_in_words}, and the model has not"
    if record.batch_norm != "eval" and record.provenance.batch_norm_layers:
        return f"batch_norm: {record.batch_norm} is meant to give other losses than the model in eval mode"
    return ""


def is_to_be_compared(record: Record, *, extends: bool, begun: bool) -> bool:
    """Whether the landscape can be compared with the user's own model, and was not yet.

    Args:
        begun: whether it holds values already, of a version that did not compare.
    """
    return not begun and not record.states("own_model") and not why_not_compared(record, extends=extends)


def losses_of_own_model(evaluator: Evaluator, reference: ReferencePoint) -> OwnLosses:
    """The losses of the user's own model at the origin and at the reference point, beside the process's own."""
    nothing = math.nan
    return own_losses(
        evaluator,
        reference.point,
        reference.origin.get("loss", nothing),
        reference.values.get("loss", nothing),
    )


def keep_why_not_compared(store: LandscapeStore, extension: Extension | None) -> None:
    """If the landscape cannot be compared with the user's own model, record why.

    An extension or a level gets the record of its landscape.
    """
    reason = why_not_compared(store.record, extends=extension is not None)
    if not reason or store.record.states("own_model"):
        return
    before = None if extension is None else extension.store.record.own_model
    if extension is not None and before is None:
        reason = f"{reason}, which was not compared either"
    store.update_attributes(own_model=before or OwnModelRecord(state="not compared", text=reason))


def keep_not_compared(store: LandscapeStore, reason: str) -> None:
    """Record, and warn, that the landscape could not be compared with the user's own model."""
    log.warning("landscape %r was not compared with your model: %s", store.name, reason)
    store.update_attributes(own_model=OwnModelRecord(state="not compared", text=reason))


def keep_comparison(store: LandscapeStore, found: OwnLosses, *, accept_origin: bool) -> None:
    """Record the losses of the user's own model.

    Raises:
        OtherModel: they differ, and that is not accepted; nothing is recorded.
    """
    if found.origin is None:
        keep_not_compared(store, found.why_not)
        return
    pairs = {name: pair for name, pair in (("origin", found.origin), ("point", found.beside)) if pair is not None}
    differs = {
        name: pair for name, pair in pairs.items() if not pair.agrees(_error_of_precision(store.record, pair))
    }  # fmt: skip
    losses = {name: (pair.evaluated.hex(), pair.own.hex()) for name, pair in pairs.items()}
    if not differs and found.beside is None:
        keep_not_compared(store, "its own forward pass was made at the origin only")
        return
    kept = OwnModelRecord(state="agrees", point=found.point, losses=losses)
    if differs:
        name, pair = next(iter(differs.items()))
        text = _difference(name, pair, found.point)
        if not accept_origin:
            engine = "eager" if store.record.plan is None else store.record.plan.engine
            by_engine = "" if engine == "eager" else "see whether it agrees with engine: eager, "
            raise OtherModel(f"landscape {store.name!r}: {text}; {CAUSES[name]} mend that, {by_engine}or {ACCEPT}")
        log.warning("landscape %r: %s; this was accepted, and stays in its record and captions", store.name, text)
        kept = OwnModelRecord(state="accepted", text=text, point=found.point, losses=losses)
    store.update_attributes(own_model=kept)


CAUSES = {
    "origin": (
        "does eval() merge weights, as LoRA's does, are values kept by the identity of a model, or does its "
        "__deepcopy__ leave something out?"
    ),
    "point": (
        "does a hook or observe read another layer or model than the one that it is given, does eval() merge weights, "
        "as LoRA's does, or are values kept by the identity of a model?"
    ),
}
ACCEPT = "go on as it is with --accept-origin (accept_origin=True)"


def _difference(name: str, pair: Pair, point: Sequence[float]) -> str:
    both = f"loss {pair.evaluated:.6g}, and {pair.own:.6g} by your model's own forward pass"
    if name == "origin":
        return f"the centre is not your model: {both} on the same samples"
    at = ", ".join(f"{coordinate:.4g}" for coordinate in point)
    return f"beside the centre it is not your model: {both} with the weights of ({at})"


def _error_of_precision(record: Record, pair: Pair) -> float:
    """How much a lower precision may change the loss, if that was measured."""
    if record.precision in ("float32", "float64", None):
        return 0.0
    found, size = record.precision_error, max(abs(pair.evaluated), abs(pair.own))
    if found is None or found.max_abs_error is None:
        return UNKNOWN_ERROR * size
    return max(found.max_abs_error, (found.max_rel_error or 0.0) * size)
