"""Where the sign of a value matters: which observables have one, and the points where it is open."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from landscape.problem.derived import bases_of
from landscape.record import EIG_MAX, EIG_MIN, EIG_MIN_BOUND, EIG_NEGATIVE, UNDECIDED, YES, ZERO, is_negative
from landscape.surface import OK, Surface
from landscape.views.prepared.levels import number


def is_signed(surface: Surface, observable: str) -> bool:
    """Whether colours are centred on 0: of smallest eigenvalues, and of what but the loss has values on both sides.

    A loss of densities may be on both sides of 0, too, which is no special value of it.
    """
    if surface.record.convexity is not None and observable == EIG_MIN:
        return True
    values = np.asarray(surface[observable], np.float64)[surface.status == OK]
    finite = values[np.isfinite(values)]
    return observable != "loss" and bool(finite.size) and bool(finite.min() < 0 < finite.max())


def without_sign(surface: Surface, observable: str) -> NDArray[np.bool_]:
    """Per point whether the value is made of the smallest eigenvalue, and the sign of that is open."""
    bases = bases_of(surface.record.derived, observable)
    if surface.record.convexity is None or EIG_MIN not in bases:
        return np.zeros(surface.status.shape, bool)
    return np.isfinite(surface[observable]) & (_negative(surface) == UNDECIDED)


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
    loose = np.asarray(surface[f"{EIG_MIN}_residual"])[known] >= np.abs(np.asarray(surface[EIG_MIN])[known])
    unresolved = int((loose & (negative == YES)).sum())
    said += f"; at {unresolved} of the negative ones the residual is larger than the value" if unresolved else ""
    return [said]


def _negative(surface: Surface) -> NDArray[np.uint8]:
    """Whether there is a negative eigenvalue at each point; maps of earlier versions have no bound to say no by."""
    bound = surface[EIG_MIN_BOUND] if EIG_MIN_BOUND in surface.observables else np.full(surface.status.shape, np.nan)
    return is_negative(*(np.asarray(each, np.float64) for each in (surface[EIG_MAX], surface[EIG_MIN], bound)))
