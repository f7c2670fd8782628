"""The barriers of a line between two networks in words, each by the definition that it has."""

from __future__ import annotations

from landscape.surface.barriers import STABLE, Barrier
from landscape.surface.surface import Surface
from landscape.views.prepare import words
from landscape.views.prepare.levels import number

ENTEZARI, GIT_RE_BASIN, FRANKLE = (
    "barrier between 0 and 1, Entezari et al. 2022",
    "over the mean of the ends, Git Re-Basin",
    "of the error over that mean, Frankle et al. 2020",
)


def barrier_rows(surface: Surface) -> list[tuple[str, str]]:
    """A row per definition of the barrier of a line; none for any other landscape.

    The number after ± is two standard errors, resampled where the losses of the samples were kept, else an upper
    bound.
    """
    text = words.barrier_text(surface)
    if not text:
        return []
    barriers = surface.find_barriers()
    if barriers is None:
        return [(ENTEZARI, text)]
    above = "" if barriers.entezari.alpha in (0.0, 1.0) else _rise(barriers.entezari)
    rows = [(ENTEZARI, above or text), (GIT_RE_BASIN, _rise(barriers.git_re_basin))]
    if barriers.frankle is None and "accuracy" in surface.observables:
        rows.append((FRANKLE, "not known, as 0 is no point of the grid"))
    if barriers.frankle is not None:
        side = "below" if barriers.frankle.height < STABLE else "at least"
        rows.append((FRANKLE, f"{_rise(barriers.frankle)}, {side} {words.percent(STABLE)}"))
    return rows


def _rise(barrier: Barrier) -> str:
    """Such as '0.43 ± 0.02 at alpha 0.5'."""
    if barrier.height == 0:
        return "0"
    return f"{words.value_with_error(barrier.height, barrier.stderr)} at alpha {number(barrier.alpha, 3)}"
