"""Whether a landscape can be extended to what a job asks for, and what is then taken over from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from landscape.compute.extension import Extension
from landscape.compute.identity import changes
from landscape.compute.recorded import recorded_plan
from landscape.core.errors import JobError, shown
from landscape.core.grid import Grid, Index
from landscape.core.plan import Plan
from landscape.evaluation.feed import batching_of
from landscape.problem.samples import Samples
from landscape.store.landscape import LandscapeStore

EXTENDED = ("num_samples", "samples", "observables", "coordinates")  # what of an identity an extension may change


def extension_of(
    store: LandscapeStore, identity: Mapping[str, Any], grid: Grid, samples: Samples, plan: Plan, adds: Sequence[str],
    begun: str,
) -> Extension:  # fmt: skip
    """What a landscape of this identity takes over from `store`.

    Args:
        plan: of it; where it is on disk already, the one that is recorded there.
        adds: observables that it is to have besides those of `store`.
        begun: its name.

    Raises:
        JobError: it differs in more than what can be extended.
    """
    count, name = store.identity.num_samples or 0, shown(store.name)
    _refuse_another_job(store, identity)
    if samples.length < count or samples.few(count).digest() != store.identity.samples:
        raise JobError(
            f"landscape {name} cannot be extended: its {count} samples are not the first of those that are there now; "
            "bring back the data of then"
        )
    before, now = store.identity.whole["observables"], list(identity["observables"])
    _refuse_other_observables(name, before, now, adds)
    if plan != recorded_plan(store):
        raise JobError(
            f"extend: landscape {name} was computed anew by another plan since {shown(begun)} was begun; drop that by "
            f"landscape rm RUN {begun}"
        )
    old = store.grid()
    if old is None:
        raise JobError(f"landscape {name} cannot be extended: its coordinates are damaged; run its job again first")
    offset, more_observables = _offset(name, old, grid), before != now
    if samples.length == count:
        return Extension(store, offset, old.shape, plan, None, more_observables)
    blocks, known = _complete_blocks(samples, count, plan)
    return Extension(store, offset, old.shape, plan, blocks, more_observables, known)


def _refuse_another_job(store: LandscapeStore, identity: Mapping[str, Any]) -> None:
    other = changes(store.identity.whole, {key: value for key, value in identity.items() if key not in EXTENDED})
    if other:
        raise JobError(
            f"landscape {shown(store.name)} cannot be extended: it was computed with another job; changed: "
            f"{'; '.join(other)}: change it back"
        )


def _refuse_other_observables(name: str, before: Sequence[str], now: Sequence[str], adds: Sequence[str]) -> None:
    """Refuse observables that are gone, those to be added that are not there, and those that nobody asked for."""
    if gone := sorted(set(before) - set(now)):
        raise JobError(
            f"landscape {name} cannot be extended: observe returns no {', '.join(gone)} any more; return it again"
        )
    if absent := sorted(set(adds) - set(now)):
        raise JobError(
            f"observables: observe returns no {', '.join(absent)}, only {', '.join(now)}; have it return them"
        )
    if unasked := sorted(set(now) - set(before) - set(adds)):
        raise JobError(
            f"landscape {name} cannot be extended: observe returns {', '.join(unasked)} by now, which it does not "
            f"hold; extend it by --observable {' --observable '.join(unasked)} too"
        )


def _complete_blocks(samples: Samples, count: int, plan: Plan) -> tuple[int, int]:
    """How many blocks of the first `count` samples stay what they are when more follow, and how many samples they have.

    These are the blocks that such moments were kept of when there were only so many samples.
    """
    cuts = samples.cuts and [edge for edge in samples.cuts if edge[1] <= count]
    batching = batching_of(count, plan, plan.batch_size, cuts)
    return batching.complete, batching.edges[batching.complete - 1][1] if batching.complete else 0


def _offset(name: str, old: Grid, grid: Grid) -> Index:
    """Where the first point of the old grid lies in the new one.

    Raises:
        JobError: a coordinate of the old grid is not one of the new, to the bit.
    """
    offset = []
    for axis, before, now in zip(grid.names, old.coordinates, grid.coordinates, strict=True):
        start = int(np.searchsorted(now, before[0]))
        if not np.array_equal(now[start : start + len(before)], before):
            raise JobError(
                f"ranges: landscape {name} cannot be extended along {axis}: its coordinates would not be those of the "
                "wider range; compute the wider range under another name"
            )
        offset.append(start)
    return tuple(reversed(offset))
