"""The judgement of a check, and all that is known of a landscape without evaluating anything.

That is its values, its noise, its axes, its paths, and the training of its origin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np

from landscape.compute.callback_place import recorded_folder
from landscape.core.folders import locate, run_labels
from landscape.core.grid import Floats, Index
from landscape.core.validation import OF_RUN
from landscape.job.reading import spec_as_computed
from landscape.model.history import (
    HistoryBytes,
    LogEnd,
    LossStretch,
    Until,
    last_stretches,
    log_end,
    read_history_bytes,
    went_on_to,
)
from landscape.model.snapshots import Trajectory, read_trajectory
from landscape.store.landscape import LandscapeStore
from landscape.store.state import finite
from landscape.surface.record import Record
from landscape.surface.record_entries import Check, CheckState
from landscape.surface.surface import NOT_COMPUTED, NOT_FINITE, OK, QUARANTINED, RISE_STDERR, Surface

# ----------------------------------------------------------------------------------------------------
# The judgement of a check, and numbers as its text writes them.

ORDER: tuple[CheckState, ...] = ("holds", "reservation", "fails")  # from the best to the worst


class NotJudged(Exception):
    """A check cannot be judged; the message says why."""


@dataclass(frozen=True)
class Judgement:
    """The judgement of a check, see `Check`; the table of checks adds its number and name.

    Attributes:
        value: the number that was judged; NaN if there is none.
        numbers: further numbers, by name.
    """

    state: CheckState
    text: str
    remedy: str = ""
    value: float = math.nan
    numbers: Mapping[str, object] = field(default_factory=dict)

    def as_check(self, number: str, name: str) -> Check:
        """The check, its numbers as JSON can hold them: None for each that is not finite."""
        kept = finite(dict(self.numbers))
        judged = float(self.value) if math.isfinite(self.value) else None
        return Check(
            number=number, name=name, state=self.state, text=self.text, remedy=self.remedy, value=judged, numbers=kept
        )


def number(value: float, digits: int = 3) -> str:
    """A number with this many significant digits; with an exponent only below 1e-4 and from 1e6 on.

    >>> number(0.08714), number(1234567.0), number(99.7, 2), number(2e-7)
    ('0.0871', '1.23e+06', '100', '2e-07')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e6 else text


def percent(share: float) -> str:
    """A share in percent with two digits; from 10 % on a whole number.

    >>> percent(0.0123), percent(0.4), percent(3e-6)
    ('1.2 %', '40 %', '0.0003 %')
    """
    size = abs(100 * share)
    if size >= 10 or size == 0:
        return f"{100 * share:.0f} %"
    places = max(1, -math.floor(math.log10(size)) + (size >= 0.1)) if size < 1 else 1
    return f"{100 * share:.{places}f} %"


# ----------------------------------------------------------------------------------------------------
# All that is known of a landscape on disk: its values, its noise, its axes, its paths, its training.


@dataclass(frozen=True)
class LoggedLoss:
    """A loss that a training logged, and its standard error.

    Attributes:
        words: what stands before the loss: `your training log ended at`, or `at epoch 10 your training log had`.
        ended: how a log that goes on ended, such as `the log ended at 0.00105 (epoch 12)`; else empty.
    """

    loss: float
    stderr: float
    words: str
    ended: str = ""


@dataclass(frozen=True)
class Evidence:
    """A landscape as it stands on disk.

    Attributes:
        run: the folder or URL of its run.
    """

    run: str
    store: LandscapeStore
    surface: Surface

    @classmethod
    def of(cls, run: str, name: str) -> Evidence:
        """Read a landscape.

        Raises:
            NotFoundError: the run has no landscape of this name.
            LandscapeError: the landscape cannot be read.
        """
        store = LandscapeStore.open(run, name)
        return cls(run, store, store.read_surface())

    @property
    def record(self) -> Record:
        """The record of the landscape."""
        return self.surface.record

    @cached_property
    def values(self) -> Floats:
        """The loss [gamma, beta, alpha]; NaN if not computed or not finite."""
        return np.where(self.surface.status == OK, self.surface.loss, np.nan)

    @property
    def relief(self) -> float:
        """The relief of the surface."""
        return self.surface.relief

    @cached_property
    def rise_errors(self) -> Floats | None:
        """The standard error of the rise at every point; None if it was not kept."""
        errors = self.surface.observables.get(RISE_STDERR)
        return None if errors is None else np.where(np.isfinite(self.values), errors, np.nan)

    @cached_property
    def noise(self) -> float:
        """The median standard error of the rise, without the origin; NaN if unknown."""
        if self.rise_errors is None:
            return math.nan
        counted = np.isfinite(self.rise_errors)
        if self.origin_index is not None:
            counted[self.origin_index] = False  # its rise is 0, and so is the error
        errors = self.rise_errors[counted]
        return float(np.median(errors)) if errors.size else math.nan

    @cached_property
    def origin_index(self) -> Index | None:
        """The index of the grid's point at the origin; None if no point is there."""
        places = [np.flatnonzero(axis.coordinates == 0) for axis in reversed(self.surface.axes)]
        return tuple(int(place[0]) for place in places) if all(len(place) for place in places) else None

    @property
    def origin_loss(self) -> float:
        """The loss at the origin; NaN if unknown."""
        loss = self.surface.origin_loss
        if not math.isfinite(loss) and self.origin_index is not None:
            loss = float(self.values[self.origin_index])
        return loss

    @property
    def origin_stderr(self) -> float:
        """The standard error of the loss at the origin; NaN if unknown."""
        return self.surface.origin_loss_stderr

    @property
    def points_done(self) -> int:
        """How many points are computed."""
        return int((self.surface.status != NOT_COMPUTED).sum())

    @property
    def missing(self) -> dict[str, int]:
        """How many cells have no finite loss, by the reason."""
        status = self.surface.status
        reasons = {"not computed": NOT_COMPUTED, "not finite": NOT_FINITE, "given up": QUARANTINED}
        counts = {reason: int((status == value).sum()) for reason, value in reasons.items()}
        counts["not finite"] += int((~np.isfinite(self.values) & (status == OK)).sum())
        return counts

    def place(self, index: Index) -> str:
        """The coordinates of a cell in words."""
        named = zip(self.surface.axes, reversed(index), strict=True)
        return ", ".join(f"{axis.name} {axis.coordinates[k]:.3g}" for axis, k in named)

    def point(self, index: Index) -> tuple[float, ...]:
        """The coordinates of a cell, the first axis first."""
        return tuple(float(axis.coordinates[k]) for axis, k in zip(self.surface.axes, reversed(index), strict=True))

    @property
    def cosines(self) -> dict[str, float]:
        """The cosine of every pair of axes, by its name, such as `alpha and beta`; empty if not recorded."""
        names, table = [axis.name for axis in self.surface.axes], self.record.cosine
        pairs = combinations(range(len(names)), 2)
        if table is None or len(table) < len(names) or any(len(row) < len(names) for row in table):
            return {}
        return {f"{names[i]} and {names[j]}": float(table[i][j]) for i, j in pairs}

    @property
    def gram(self) -> Floats | None:
        """The scalar products of the axes [axes, axes]; None if norms or cosines are not recorded."""
        norms = [axis.record.norm for axis in self.surface.axes]
        table = self.record.cosine
        if table is None or any(norm is None for norm in norms) or np.shape(table) != (len(norms), len(norms)):
            return None
        lengths = np.array(norms, np.float64)
        return np.asarray(table, np.float64) * np.outer(lengths, lengths)

    # -- training -------------------------------------------------------------------------------------------

    @cached_property
    def log_at_origin(self) -> LogEnd | None:
        """The end of the training log up to the origin; None if there is no log.

        It is None too if the origin is no snapshot, or the beginning of the training.
        """
        if self.origin_snapshot is None or self.origin_is_start:
            return None
        return log_end(self._log, self.until)

    @cached_property
    def _log(self) -> HistoryBytes:
        assert self.origin_snapshot is not None
        return read_history_bytes(self.origin_snapshot[0])

    @cached_property
    def _trajectory(self) -> Trajectory:
        assert self.origin_snapshot is not None
        return read_trajectory(self.origin_snapshot[0])

    @cached_property
    def logged(self) -> LoggedLoss | None:
        """The loss that the training log had at the origin; None if there is none, or it is not finite."""
        at_origin = self.log_at_origin
        if at_origin is None or at_origin.loss is None or not at_origin.is_finite:
            return None
        if not self.origin_went_on_to:
            return LoggedLoss(at_origin.loss, at_origin.stderr, f"{self.log_in_words} ended at")
        end, (unit, reached) = log_end(self._log), self.until
        ended = ""
        if end is not None and end.loss is not None and end.is_finite:
            ended = f"the log ended at {number(end.loss)} ({self.origin_went_on_to})"
        return LoggedLoss(at_origin.loss, at_origin.stderr, f"at {unit} {reached} {self.log_in_words} had", ended)

    @property
    def log_not_finite(self) -> str:
        """The words that the log has no finite loss at the origin, and which it had before; empty if that is not so."""
        at_origin = self.log_at_origin
        if at_origin is None or at_origin.is_finite:
            return ""
        unit, reached = self.until
        where = f"at {unit} {reached}" if self.origin_went_on_to else "at its end"
        before = "" if at_origin.loss is None else f", {number(at_origin.loss)} on average up to "
        return f"{self.log_in_words} has no finite loss {where}{before and before + (at_origin.loss_at or 'then')}"

    @cached_property
    def origin_went_on_to(self) -> str:
        """Where the training of the origin ended, such as `epoch 12`; empty if it ended with the origin, by its log."""
        if self.origin_snapshot is None:
            return ""
        snapshots = (kept for kept in self._trajectory.snapshots if kept.number == self.origin_snapshot[1])
        origin = next(snapshots, None)
        return "" if origin is None else went_on_to(log_end(self._log), origin)

    @cached_property
    def last_stretches(self) -> list[LossStretch]:
        """The last stretches of the log up to the origin, which show whether the loss still fell there."""
        at_origin = self.log_at_origin
        return [] if at_origin is None or not at_origin.is_finite else last_stretches(self._log, self.until)

    @cached_property
    def until(self) -> Until:
        """The unit and the number of the snapshot that is the origin."""
        assert self.origin_snapshot is not None
        return self._trajectory.unit, self.origin_snapshot[1]

    @property
    def origin_is_start(self) -> bool:
        """Whether the origin is the beginning of the training."""
        return self.origin_snapshot is not None and self.origin_snapshot[1] == 0

    @property
    def log_in_words(self) -> str:
        """The name of the training log, as the subject of a sentence."""
        run = self.run if self.origin_snapshot is None else self.origin_snapshot[0]
        return "your training log" if run == self.run else f"the training log of {run_labels([run])[0]}"

    @cached_property
    def origin_snapshot(self) -> tuple[str, int] | None:
        """The run and the number of the snapshot that is the origin; None if the origin is no snapshot."""
        if self.record.origin_step is not None:
            return self.run, self.record.origin_step
        if self.record.job is None or not self.record.job.landscapes:
            return None
        origin, path = spec_as_computed(self.record).get("origin"), next(iter(self.surface.paths), None)
        folder = recorded_folder(self.store)
        if origin is None and path is not None and path.label:  # by default the last snapshot of the first path
            first = path.runs[0]
            return self.run if first.own else locate(first.run, folder), int(path.step[-1])
        match = OF_RUN.fullmatch(origin) if isinstance(origin, str) else None
        return (locate(match[1], folder), int(match[2])) if match is not None and match[2].isdecimal() else None


@dataclass(frozen=True, eq=False)
class Way:
    """The straight line between two networks that lie on the axes of a landscape.

    Attributes:
        name: both networks, such as 'the origin and epoch 3'.
        start, end: their coordinates.
    """

    name: str
    start: Floats
    end: Floats

    def at(self, share: float) -> Floats:
        """The coordinates at a share of the way."""
        return (1 - share) * self.start + share * self.end


def ways_between(surface: Surface) -> list[Way]:
    """The ways between the networks of a landscape: `towards` axes, and the sides of a plane through networks."""
    origin, sides = np.zeros(len(surface.axes)), list[tuple[str, Floats, Floats]]()
    for k, axis in enumerate(surface.axes):
        if axis.record.kind == "towards":
            far = axis.record.label.removeprefix("towards ").removesuffix(" (at 1)")
            sides.append((f"the origin and {far}", origin, np.eye(len(surface.axes))[k]))
    by_axis = [axis.record.networks for axis in surface.axes]
    if by_axis and all(by_axis):
        names = [network.name for network in by_axis[0] or ()]
        corners = np.array([[network.at for network in networks or ()] for networks in by_axis]).T
        sides += [(f"{names[i]} and {names[j]}", corners[i], corners[j]) for i, j in combinations(range(len(names)), 2)]
    return [Way(name, start, end) for name, start, end in sides]


def highest_share(surface: Surface, way: Way, losses: tuple[float, float]) -> float | None:
    """The share of the way at the grid's highest point, above the straight line between the losses of its ends.

    None for a plane, since its points need not lie on the way, and for a line without a finite point between the ends.

    Args:
        losses: L(start) and L(end), which need not be points of the grid.
    """
    if len(surface.axes) != 1:
        return None
    shares = (surface.alpha - way.start[0]) / (way.end[0] - way.start[0])
    inside = (shares > 0) & (shares < 1) & (surface.status == OK) & np.isfinite(surface.loss)
    above = np.where(inside, surface.loss - (1 - shares) * losses[0] - shares * losses[1], -np.inf)
    return float(shares[np.argmax(above)]) if inside.any() else None


@dataclass(frozen=True)
class ShownFeatures:
    """Features of a landscape that a smaller range may cut off: its paths, or the networks on its axes.

    Attributes:
        name: such as 'the path'; '' if there is nothing but the surroundings of the origin.
        reach: their largest coordinate, by absolute value.
    """

    name: str = ""
    reach: float = 0.0


def shown_features(surface: Surface) -> ShownFeatures:
    """The paths of a landscape or the networks on its axes, whichever reach further."""
    ends = [end for way in ways_between(surface) for end in (way.start, way.end)]
    paths = [places for path in surface.paths for places in path.coordinates.values() if len(places)]
    features = (
        [ShownFeatures("the other network" if len(ends) == 2 else "the networks", float(np.abs(ends).max()))]
        if ends
        else []
    )
    if paths:
        reach = max(float(np.nanmax(np.abs(places), initial=0.0)) for places in paths)
        features.append(ShownFeatures("the path" if len(surface.paths) == 1 else "the paths", reach))
    return max(features, key=lambda feature: feature.reach, default=ShownFeatures())
