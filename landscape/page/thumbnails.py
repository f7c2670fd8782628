"""Small pictures of landscapes for the list: one number per pixel, which the page colours."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from landscape.page.answers import Answer, pack_json
from landscape.page.runs import RunReader
from landscape.surface.surface import NOT_COMPUTED, OK, QUARANTINED, Surface, check_observable
from landscape.views.prepare.figure import suggests_log
from landscape.views.prepare.scale import choose_scale, drawn_values, point_states

MOST_PIXELS = 65  # along each side; odd, as the grids of refined landscapes
HIGHEST = 250
GIVEN_UP, NOT_FINITE_PIXEL, MISSING = 253, 254, 255


def thumbnail_answer(run: RunReader, landscape: str, observable: str) -> Answer:
    """The answer of `api/thumbnail`.

    Raises:
        JobError: there is no such observable.
        NotFoundError: there is no such landscape.
        LandscapeError: it cannot be read.
    """
    check_observable(landscape, observable, run.reader(landscape).store().record.surfaces)
    return pack_json(thumbnail(run.view(landscape, (observable,), MOST_PIXELS).surface, observable))


def no_thumbnail(reason: str) -> Answer:
    """The answer of `api/thumbnail` for a landscape that cannot be read: one point that is missing, and why."""
    levels = base64.b64encode(bytes([MISSING])).decode()
    nothing = {"width": 1, "height": 1, "levels": levels, "low": None, "high": None, "log": False}
    return pack_json(nothing | {"problem": reason})


def thumbnail(surface: Surface, observable: str) -> dict[str, Any]:
    """The picture of an observable: rows from the lowest coordinate on; of three axes the middle plane of the third.

    Returns:
        `levels`, one byte per pixel, 0 to 250 for the drawn scale, or a code of a point that is missing.
    """
    log, values, status = suggests_log(surface, observable), surface[observable], surface.status
    if values.ndim == 3:
        values, status = values[len(values) // 2], status[len(status) // 2]
    values, status = np.atleast_2d(values), np.atleast_2d(status)
    states = point_states(values, status, log)
    drawn = drawn_values(values, states, log)
    scale = choose_scale(drawn, log)
    span = (scale.high - scale.low) or 1.0
    with np.errstate(invalid="ignore"):
        share = np.clip((drawn - scale.low) / span, 0.0, 1.0)
    levels = np.where(states == OK, np.round(HIGHEST * np.nan_to_num(share)), NOT_FINITE_PIXEL).astype(np.uint8)
    levels[states == NOT_COMPUTED] = MISSING
    levels[states == QUARANTINED] = GIVEN_UP
    known = values[np.isfinite(values)]
    return {
        "width": levels.shape[1],
        "height": levels.shape[0],
        "levels": base64.b64encode(levels.tobytes()).decode(),
        "low": float(known.min()) if known.size else None,
        "high": float(known.max()) if known.size else None,
        "log": log,
    }
