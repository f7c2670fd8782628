"""The two landscapes that are compared, found by `RUN:NAME`, and what keeps them apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from landscape.core.errors import JobError, LandscapeError, NotFoundError, nearest, shown
from landscape.core.folders import open_folder
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import landscape_names
from landscape.surface.surface import Surface


@dataclass(frozen=True)
class Side:
    """One landscape of a run, `run` as it was written and `path` where it lies."""

    run: str
    path: str
    store: LandscapeStore

    @property
    def name(self) -> str:
        """The name of the landscape."""
        return self.store.name

    @property
    def label(self) -> str:
        """What texts call it: RUN:NAME."""
        return f"{self.run}:{self.name}"

    @cached_property
    def surface(self) -> Surface:
        """Its values, without its levels."""
        return self.store.read_surface()

    @property
    def rounding(self) -> str:
        """What is rounded there, in words."""
        return self.store.record.rounding_in_words or "nothing rounded"


def sides_of(first: str, second: str) -> tuple[Side, Side] | None:
    """Both landscapes; None where neither text names one, as it may name the measures of weights.

    Raises:
        JobError, NotFoundError: one of them names a landscape, and the other one does not.
    """
    found = [_side_of(text) for text in (first, second)]
    if found[0] is None and found[1] is None:
        return None
    for text, side in zip((first, second), found, strict=True):
        if side is None:
            raise _missing(text)
    assert found[0] is not None
    assert found[1] is not None
    return found[0], found[1]


def _side_of(text: str) -> Side | None:
    run, colon, name = text.rpartition(":")
    if not colon or not run or not open_folder(run).exists() or name not in landscape_names(open_folder(run).name):
        return None
    path = open_folder(run).name
    return Side(run, path, LandscapeStore.open(path, name))


def _missing(text: str) -> LandscapeError:
    """What a text that names no landscape is told, beside one that does."""
    run, colon, name = text.rpartition(":")
    known = landscape_names(open_folder(run).name) if colon and run and open_folder(run).exists() else []
    if known:
        return NotFoundError(f"landscape {shown(name)} is not in run {shown(run)}; {nearest(name, known)}")
    return JobError(f"compare: must be two landscapes or two sets of weights, RUN:NAME each, not {shown(text)}")


def refuse_apart(first: Side, second: Side) -> None:
    """Refuse landscapes that are not of one plane and the same samples.

    Raises:
        JobError: says everything in which they differ.
        LandscapeError: the coordinates of one are damaged.
    """
    records = [side.store.record for side in (first, second)]
    for side, record in zip((first, second), records, strict=True):
        if record.is_imported or record.identity is None:
            raise JobError(f"landscape {shown(side.name)} was computed by no job, and what it is of is not known")
    one, two = (record.identity for record in records if record.identity is not None)
    like = f"compute the second one with `like: {first.name}`"
    like += "" if first.path == second.path else f", in the run {first.run}"
    both = "" if first.path == second.path else ", a report of both runs"
    shows = f"`landscape.views.compare`{both} or the comparison on the page of `landscape view` shows them as they are"
    samples = "take the same data, num_samples and seed in both jobs"
    differ = [
        (f"{name} ({other})", remedy)
        for name, other, remedy, same in (
            ("origin", "other weights", "", one.origin == two.origin),
            ("samples", "other data", samples, one.samples == two.samples),
            ("num_samples", f"{one.num_samples} and {two.num_samples}", samples, one.num_samples == two.num_samples),
            ("seed", f"{one.seed} and {two.seed}", samples, one.seed == two.seed),
            ("batch_norm", f"{one.batch_norm} and {two.batch_norm}", "give both jobs the same batch_norm",
             one.batch_norm == two.batch_norm),
            ("directions", "other axes", like, first.store.direction_digests() == second.store.direction_digests()),
            ("coordinates", "other points", like, _same_points(first, second)),
        )
        if not same
    ]  # fmt: skip
    if differ:
        fields, remedies = ", ".join(field for field, _ in differ), dict.fromkeys(remedy for _, remedy in differ)
        # No job makes two networks one; they can be shown, and not subtracted sample by sample.
        way = "these are two networks, and" if one.origin != two.origin else f"{' and '.join(remedies)}; or"
        raise JobError(
            f"compare: {first.label} and {second.label} must have one plane and the same samples; they differ in "
            f"{fields}; {way} {shows}"
        )


def _same_points(first: Side, second: Side) -> bool:
    grids = []
    for side in (first, second):
        grid = side.store.grid()
        if grid is None:
            raise LandscapeError(f"landscape {shown(side.name)}: its coordinates are damaged; its job mends them")
        grids.append(grid.coordinates)
    return len(grids[0]) == len(grids[1]) and all(map(np.array_equal, *grids))
