"""Where the sign of a value matters: which observables have one, and the points where it is open."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.problem.derived import bases_of
from landscape.record import (
    EIG_MAX,
    EIG_MIN,
    EIG_MIN_BOUND,
    EIG_MIN_RESIDUAL,
    EIG_NEGATIVE,
    UNDECIDED,
    YES,
    ZERO,
    is_negative,
)
from landscape.surface import OK, Surface
from landscape.views.prepared.levels import number
from landscape.views.prepared.scale import NO_SIGN, UNRESOLVED


def is_signed(surface: Surface, observable: str) -> bool:
    """Whether colours are centred on 0: of smallest eigenvalues, and of what but the loss has values on both sides.

    A loss of densities may be on both sides of 0, too, which is no special value of it.
    """
    if surface.record.convexity is not None and observable == EIG_MIN:
        return True
    values = np.asarray(surface[observable], np.float64)[surface.status == OK]
    finite = values[np.isfinite(values)]
    return observable != "loss" and bool(finite.size) and bool(finite.min() < 0 < finite.max())


def with_unresolved(surface: Surface, observable: str, states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The states of the points, with those marked whose value is no number to draw.

    That is one made of a smallest eigenvalue whose sign is open, or whose residual is larger than itself.
    """
    if surface.record.convexity is None or EIG_MIN not in bases_of(surface.record.derived, observable):
        return states
    negative, known = _negative(surface), states == OK
    marked = np.where(known & (negative == YES) & _is_loose(surface), UNRESOLVED, states)
    return np.where(known & (negative == UNDECIDED), NO_SIGN, marked).astype(np.uint8)


def sign_notes(surface: Surface, observable: str) -> list[str]:
    """What the caption of a smallest eigenvalue says of its sign: at how many points which, and what that rests on."""
    record = surface.record.convexity
    bases = bases_of(surface.record.derived, observable)
    if record is None or not {EIG_MIN, EIG_NEGATIVE} & set(bases):
        return []
    known = (surface.status == OK) & np.isfinite(surface[EIG_MIN])
    negative = _negative(surface)[known]
    counts = [int((negative == YES).sum()), int((negative == UNDECIDED).sum())]
    total = int(known.sum())
    said = f"a negative eigenvalue at {counts[0]} of {total} points"
    said += f", undecided at {counts[1]}" if counts[1] else ""
    rest = total - sum(counts)
    said += f"; at {rest} none is below -{number(ZERO)} of the largest" if rest else ""
    unresolved = int((_is_loose(surface)[known] & (negative == YES)).sum())
    said += f"; at {unresolved} of the negative ones the residual is larger than the value" if unresolved else ""
    return [said]


def _is_loose(surface: Surface) -> NDArray[np.bool_]:
    value, residual = (np.asarray(surface[name], np.float64) for name in (EIG_MIN, EIG_MIN_RESIDUAL))
    return residual >= np.abs(value)


def _negative(surface: Surface) -> NDArray[np.uint8]:
    """Whether there is a negative eigenvalue at each point; maps of earlier versions have no bound to say no by."""
    bound = surface[EIG_MIN_BOUND] if EIG_MIN_BOUND in surface.observables else np.full(surface.status.shape, np.nan)
    largest, smallest, least = (np.asarray(each, np.float64) for each in (surface[EIG_MAX], surface[EIG_MIN], bound))
    record = surface.record
    differs = record.convexity is not None and record.convexity.second_derivatives == "differences"
    return is_negative(largest, smallest, least, in_float32=record.precision != "float64" and not differs)
