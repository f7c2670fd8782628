"""The entries of a landscape's documents, checked.

A malformed entry that the meaning of the values depends on is refused; any other one is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from landscape.core.digests import digest
from landscape.store.format import LAYOUT, STORED
from landscape.store.metadata import BadMetadataError
from landscape.surface.record import Record, parse, parse_axis, plain

Essential = Literal["identity", "digest", "plan", "job"]
ESSENTIAL: tuple[Essential, ...] = get_args(Essential)  # without these a landscape is read, and not gone on with
# What is malformed among these is left out: nobody's values depend on it, and the driver writes it anew.
TELLING = (
    "progress", "precision_error", "provenance", "name", "precision", "batch_norm", "origin", "origin_step",
    "num_samples", "defaults", "position", "origin_loss", "origin_loss_stderr", "cosine", "failures", "checks",
    "connection", "compared", "snapshots", "guessing", "went_on_to", "own_model",
)  # fmt: skip


def checked_record(attributes: Mapping[str, Any]) -> tuple[Record, tuple[str, ...]]:
    """The record that the attributes of a landscape hold, and the names of those that were malformed and left out.

    Raises:
        BadMetadataError: it cannot be told what the values are.
    """
    record, malformed = parse(attributes)
    _check_observables(attributes.get("observables"), record)
    for name in ESSENTIAL:
        if name in malformed:
            raise BadMetadataError(f"{name}: must be {'text' if name == 'digest' else 'a JSON object'}")
    if "moment_rows" in malformed:
        raise BadMetadataError("moment_rows: must be a list of text")
    if "level" in malformed:
        raise BadMetadataError("level: must say which blocks it holds")
    if "keep_samples" in malformed:
        raise BadMetadataError("keep_samples: must be true or false")
    if record.identity is not None and record.digest is not None and _digest(record.identity.whole) != record.digest:
        raise BadMetadataError("digest: does not match the recorded identity")
    left_out = tuple(name for name in TELLING if name in malformed)
    kept = {name: value for name, value in attributes.items() if name not in left_out}
    if record.states("failures"):  # those of them that are whole
        kept["failures"] = plain(record.failures)
    return replace(record, attributes=kept), left_out


def missing_essentials(record: Record) -> list[Essential]:
    """What the landscape cannot be gone on with for, as its document has no such entry."""
    return [name for name in ESSENTIAL if not record.states(name)]


def axis_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an axis, without those that are malformed."""
    malformed = parse_axis(attributes)[1]
    return {name: value for name, value in attributes.items() if name not in malformed}


def checked_layout(attributes: Mapping[str, Any], axes: int, size: int) -> None:
    """Refuse where the places of the parameters in the stored directions do not fill them.

    Raises:
        BadMetadataError: names the field.
    """
    stored, places, end = attributes.get(STORED), attributes.get(LAYOUT), 0
    if not isinstance(stored, list) or len(stored) != axes or not all(isinstance(written, bool) for written in stored):
        raise BadMetadataError(f"stored: must be {axes} times true or false")
    if not isinstance(places, list):
        raise BadMetadataError("layout: must be a list of places")
    for place in places:
        shape = place.get("shape") if isinstance(place, dict) else None
        if not isinstance(shape, list) or not all(type(length) is int and 0 <= length < 1 << 48 for length in shape):
            raise BadMetadataError("layout: every place must have a shape of whole numbers")
        if not isinstance(place.get("name"), str) or place.get("offset") != end:
            raise BadMetadataError("layout: every place must have a name, and begin where the one before ends")
        end += math.prod(shape)
    if end != size:
        raise BadMetadataError(f"layout: must fill {size} numbers, not {end}")


def _check_observables(names: Any, record: Record) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadMetadataError("observables: must be a list of names")
    usable = all(name and "/" not in name and "\\" not in name and not name.startswith(".") for name in names)
    if "loss" not in names or len(set(names)) != len(names) or len(names) > 1000 or not usable:
        raise BadMetadataError("observables: must be different names, `loss` among them")
    if record.identity is not None and record.identity.whole.get("observables", names) != names:
        raise BadMetadataError("observables: do not match the recorded identity")


def _digest(identity: Any) -> str:
    try:
        return digest(identity)
    except (ValueError, TypeError):
        return ""


def is_same(one: Any, other: Any) -> bool:
    """Whether the attributes in two documents are of one landscape, at whatever progress."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    return all(one.get(name) == other.get(name) for name in (*ESSENTIAL, "imported")) and _created(one) == _created(
        other
    )


def _created(attributes: Mapping[str, Any]) -> Any:
    provenance = attributes.get("provenance")
    return provenance.get("created") if isinstance(provenance, dict) else None
