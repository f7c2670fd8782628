"""What clients ask for, parsed once: points, a line, a patch, a place; each with its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cluster.serving.described import Described, ServedAxis
from cluster.serving.refusals import BAD_REQUEST, TOO_LARGE, Refusal
from landscape.core.errors import message_of, nearest, shown
from landscape.core.grid import axis_coordinates
from landscape.core.validation import RepeatedKey, parse_json, refuse_too_far
from landscape.evaluation.values import Floats

BYTES_OF_NUMBER = 32  # of JSON, at most
BYTES_BESIDE = 1 << 16
LARGEST_MESSAGE = (1 << 31) - 1  # bytes, as gRPC counts them
ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    Attributes:
        points: how many points.
        body_seconds: for which its body may take to come.
    """

    points: int = 100_000
    body_seconds: float = 60.0

    def body(self, axes: int = 3) -> int:
        """Bytes that a request may have."""
        return BYTES_BESIDE + self.points * axes * BYTES_OF_NUMBER

    def refuse_many(self, what: str, points: int) -> None:
        """Refuse a request for more points than one may ask for.

        Raises:
            Refusal: it does.
        """
        if points > self.points:
            raise Refusal(
                TOO_LARGE,
                f"{what}: must be at most {self.points} points of one request, not {shown(points)}; ask in several, or "
                "compute a grid by `landscape run`",
            )


@dataclass(frozen=True)
class AskedPoints:
    """Points [P, axes], and whether the error of the rise is wanted with their values."""

    points: Floats
    rise: bool = False


@dataclass(frozen=True)
class AskedPatch:
    """A patch: the coordinates along each axis, and whether rows are sent as they are ready."""

    coordinates: tuple[Floats, ...]
    rise: bool = False
    stream: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Points per dimension, the last axis first."""
        return tuple(len(each) for each in reversed(self.coordinates))

    def points(self) -> Floats:
        """All of them [P, axes], the first axis moving fastest."""
        tables = np.meshgrid(*reversed(self.coordinates), indexing="ij")
        return np.stack([table.reshape(-1) for table in reversed(tables)], axis=1)


def fields_of(body: bytes, known: Sequence[str]) -> Mapping[str, Any]:
    """The fields of a JSON body.

    Raises:
        Refusal: it is not JSON, no object, or has a field that is none of the request.
    """
    try:
        parsed = parse_json(body)
    except RepeatedKey as error:
        raise Refusal(BAD_REQUEST, f"{shown(error.key)[1:-1]}: must stand once in the body; keep one") from None
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else message_of(error)
        raise Refusal(BAD_REQUEST, f"body: must be JSON, and is not: {what}") from None
    if not isinstance(parsed, dict):
        raise Refusal(BAD_REQUEST, f"body: must be a JSON object with {', '.join(known)}, not {shown(parsed)}")
    for key in parsed:
        if key not in known:
            raise Refusal(BAD_REQUEST, f"{shown(key)[1:-1]}: is no field of this request; {nearest(key, known)}")
    return parsed


def points_of_json(body: bytes, described: Described, limits: Limits) -> AskedPoints:
    """The request {"points": [[a, b], …], "rise": false}."""
    fields = fields_of(body, ("points", "rise"))
    return AskedPoints(checked_points(fields.get("points"), described, limits), _flag(fields, "rise"))


def checked_points(given: Any, described: Described, limits: Limits) -> Floats:
    """A list of points, each a list of coordinates.

    Raises:
        Refusal: it is none, or longer than a request may be.
    """
    if not isinstance(given, list) or not given:
        raise Refusal(BAD_REQUEST, f"points: must be a list of points [{_names(described)}], not {shown(given)}")
    limits.refuse_many("points", len(given))
    # Looked at one by one first: of a long text among them NumPy would make an array of as long texts throughout.
    axes = len(described.axes)
    for place, point in enumerate(given):
        plain = isinstance(point, (list, tuple)) and len(point) == axes
        if not plain or not all(_fits_float(number) for number in point):
            checked_point(f"points[{place}]", point, described)
    return checked_table(np.asarray(given, np.float64), described)


def points_of_bytes(body: bytes, described: Described, limits: Limits) -> Floats:
    """Points as float64, the least byte first, one point after the other."""
    axes = len(described.axes)
    if not body or len(body) % (8 * axes):
        raise Refusal(
            BAD_REQUEST,
            f"points: must be float64 of {axes} coordinates each, {8 * axes} bytes a point, not {len(body)} bytes",
        )
    limits.refuse_many("points", len(body) // (8 * axes))
    return checked_table(np.frombuffer(body, "<f8").reshape(-1, axes).astype(np.float64), described)


def checked_table(points: Floats, described: Described) -> Floats:
    """Points [P, axes] of finite numbers; −0 becomes 0, which is the same point.

    Raises:
        Refusal: a number is not finite, or there are more or fewer axes.
    """
    if points.ndim != 2 or points.shape[1] != len(described.axes) or not len(points):
        raise Refusal(BAD_REQUEST, f"points: must be points [{_names(described)}], not an array {points.shape}")
    bad = np.flatnonzero(~np.isfinite(points).all(1))
    if len(bad):
        raise Refusal(
            BAD_REQUEST,
            f"points[{bad[0]}]: must be finite numbers, not {shown(points[bad[0]].tolist())}; leave it out",
        )
    refuse_too_far("points", points, described.precision)
    return np.ascontiguousarray(points + 0.0)


def checked_point(what: str, given: Any, described: Described) -> list[float]:
    """One point.

    Raises:
        Refusal: it has more or fewer axes, or what is no finite number.
    """
    numbers = given if isinstance(given, (list, tuple)) else ()
    if len(numbers) != len(described.axes) or not all(_is_number(each) for each in numbers):
        axes = len(described.axes)
        raise Refusal(
            BAD_REQUEST,
            f"{what}: must be {axes} finite number{'s' if axes > 1 else ''} [{_names(described)}], not {shown(given)}",
        )
    refuse_too_far(what, numbers, described.precision)
    return [float(each) + 0.0 for each in numbers]


def asked_place(fields: Mapping[str, Any], described: Described) -> list[float]:
    """The request {"point": [a, b]}."""
    return checked_point("point", fields.get("point"), described)


def asked_line(fields: Mapping[str, Any], described: Described, limits: Limits) -> AskedPoints:
    """The request {"from": [a, b], "to": [a, b], "count": 101}: points at even steps that hit both ends exactly."""
    first, last = (checked_point(name, fields.get(name), described) for name in ("from", "to"))
    count = _count("count", fields.get("count", 101), 2)
    limits.refuse_many("count", count)
    columns = [even_steps(*each, count) for each in zip(described.axes, first, last, strict=True)]
    return AskedPoints(checked_table(np.stack(columns, axis=1), described), _flag(fields, "rise"))


def asked_patch(fields: Mapping[str, Any], described: Described, limits: Limits) -> AskedPatch:
    """The request {"low": [a, b], "high": [a, b], "shape": [W, H], "stream": false}: as many points along each axis."""
    low, high = (checked_point(name, fields.get(name), described) for name in ("low", "high"))
    shape = fields.get("shape")
    if not isinstance(shape, (list, tuple)) or len(shape) != len(described.axes):
        raise Refusal(BAD_REQUEST, f"shape: must be points along each axis, [{_names(described)}], not {shown(shape)}")
    sizes = [_count(f"shape[{place}]", size, 1) for place, size in enumerate(shape)]
    limits.refuse_many("shape", math.prod(sizes))
    for axis, size, one, other in zip(described.axes, sizes, low, high, strict=True):
        if size == 1 and one != other:
            raise Refusal(BAD_REQUEST, f"shape: one point along {axis.name} needs low equal to high; ask for 2 or more")
    coordinates = tuple(
        np.array([one]) if size == 1 else even_steps(axis, one, other, size)
        for axis, one, other, size in zip(described.axes, low, high, sizes, strict=True)
    )
    return AskedPatch(coordinates, _flag(fields, "rise"), _flag(fields, "stream"))


def even_steps(axis: ServedAxis, first: float, last: float, count: int) -> Floats:
    """Even steps from one coordinate to another; one that is off a point of the grid by rounding alone is that point.

    Where the grid was fitted to a path, its ends and its size do not tell its coordinates to the bit.
    """
    steps, grid = axis_coordinates(count, first, last) + 0.0, axis.coordinates
    after = np.searchsorted(grid, steps).clip(1, len(grid) - 1)
    nearest = np.where(steps - grid[after - 1] < grid[after] - steps, grid[after - 1], grid[after])
    return np.where(np.abs(steps - nearest) <= ROUNDING * np.abs(grid).max(), nearest, steps)


def _names(described: Described) -> str:
    return ", ".join(axis.name for axis in described.axes)


def _fits_float(value: Any) -> bool:
    return type(value) is float or (type(value) is int and value.bit_length() < 1024)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(BAD_REQUEST, f"{name}: must be true or false, not {shown(value)}")
    return value


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Refusal(BAD_REQUEST, f"{name}: must be a whole number from {least} on, not {shown(value)}")
    return value
