"""The attributes of a landscape, checked: what values are believed by is refused, what only tells of it is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from landscape.digests import digest
from landscape.store.metadata import BadMetadataError

ESSENTIAL = ("identity", "digest", "plan", "job")  # without these a landscape is read, and not gone on with

Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Share = Annotated[FiniteFloat, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Worker(_Record):
    name: str
    host: str
    device: str
    tasks: Count
    points: Count
    seconds: Share


class _Progress(_Record):
    state: str | None = None
    seconds: Share = 0.0
    rate: Share | None = None
    workers: Count | None = None
    by_worker: list[_Worker] = []
    retries: Count = 0
    reduced_batches: dict[str, Count] = {}
    updated: str | None = None


class _Failure(_Record):
    task: str
    attempts: Count
    worker: str
    cause: str
    traceback: str = ""
    host: str = ""
    node: str = ""


class _PrecisionError(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    max_rel_error: float | None = None


# What is malformed among these is left out: nobody's values depend on it, and the driver writes it anew.
TELLING: dict[str, TypeAdapter[Any]] = {
    "progress": TypeAdapter(_Progress),
    "precision_error": TypeAdapter(_PrecisionError | None),
    "provenance": TypeAdapter(dict[str, Any]),
    "name": TypeAdapter(str),
    "precision": TypeAdapter(str),
    "batch_norm": TypeAdapter(str),
    "origin": TypeAdapter(str | None),
    "origin_step": TypeAdapter(int | None),
    "num_samples": TypeAdapter(int),
    "defaults": TypeAdapter(int),
    "position": TypeAdapter(Count),
    "origin_loss": TypeAdapter(float | None),
    "origin_loss_stderr": TypeAdapter(float | None),
    "cosine": TypeAdapter(list[list[float]]),
}
DESCRIBING: dict[str, TypeAdapter[Any]] = {
    "kind": TypeAdapter(str),
    "label": TypeAdapter(str),
    "digest": TypeAdapter(str),
    "norm": TypeAdapter(float | None),
    "explained_variance": TypeAdapter(float | None),
    "random_walk_variance": TypeAdapter(float | None),
}


def checked_attributes(found: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The attributes of a landscape, and the names of those that were malformed and left out.

    Raises:
        BadMetadataError: it cannot be told what the values are.
    """
    _check_observables(found)
    for name, kind in (("identity", dict), ("plan", dict), ("job", dict), ("digest", str)):
        if name in found and not isinstance(found[name], kind):
            raise BadMetadataError(f"{name}: must be a {'JSON object' if kind is dict else 'text'}")
    if "identity" in found and "digest" in found and _digest(found["identity"]) != found["digest"]:
        raise BadMetadataError("digest: does not match the recorded identity")
    clean, left_out = _sound(found, TELLING)
    if "failures" in clean:
        clean["failures"], all_there = _failures(clean["failures"])
        left_out += () if all_there else ("failures",)
    return clean, left_out


def axis_attributes(axis: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an axis, without those that are malformed."""
    return _sound(axis, DESCRIBING)[0]


def checked_layout(attributes: Mapping[str, Any], axes: int, size: int) -> None:
    """Refuse where the places of the parameters in the stored directions do not fill them.

    Raises:
        BadMetadataError: names the field.
    """
    stored, places, end = attributes.get("stored"), attributes.get("layout"), 0
    if not isinstance(stored, list) or len(stored) != axes or not all(isinstance(each, bool) for each in stored):
        raise BadMetadataError(f"stored: must be {axes} times true or false")
    if not isinstance(places, list):
        raise BadMetadataError("layout: must be a list of places")
    for place in places:
        shape = place.get("shape") if isinstance(place, dict) else None
        if not isinstance(shape, list) or not all(type(each) is int and 0 <= each < 1 << 48 for each in shape):
            raise BadMetadataError("layout: every place must have a shape of whole numbers")
        if not isinstance(place.get("name"), str) or place.get("offset") != end:
            raise BadMetadataError("layout: every place must have a name, and begin where the one before ends")
        end += math.prod(shape)
    if end != size:
        raise BadMetadataError(f"layout: must fill {size} numbers, not {end}")


def _check_observables(found: Mapping[str, Any]) -> None:
    names = found.get("observables")
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise BadMetadataError("observables: must be a list of names")
    usable = all(each and "/" not in each and "\\" not in each and not each.startswith(".") for each in names)
    if "loss" not in names or len(set(names)) != len(names) or len(names) > 1000 or not usable:
        raise BadMetadataError("observables: must be different names, `loss` among them")
    identity = found.get("identity")
    if isinstance(identity, dict) and identity.get("observables", names) != names:
        raise BadMetadataError("observables: do not match the recorded identity")


def _digest(identity: Any) -> str:
    try:
        return digest(identity)
    except (ValueError, TypeError):
        return ""


def _sound(found: Mapping[str, Any], kinds: Mapping[str, TypeAdapter[Any]]) -> tuple[dict[str, Any], tuple[str, ...]]:
    bad = tuple(name for name, kind in kinds.items() if name in found and not _fits(kind, found[name]))
    return {name: value for name, value in found.items() if name not in bad}, bad


def _fits(kind: TypeAdapter[Any], value: Any) -> bool:
    try:
        kind.validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _failures(value: Any) -> tuple[list[dict[str, Any]], bool]:
    """Those that are whole, without fields of later versions, and whether all of them are."""
    entries = value if isinstance(value, list) else []
    sound = []
    for each in entries:
        try:
            sound.append(_Failure.model_validate(each).model_dump())
        except ValidationError:
            continue
    return sound, isinstance(value, list) and len(sound) == len(entries)
