"""The description of a served landscape, the requests of clients, parsed once, and the reasons to refuse them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from landscape.compute.reproducibility import NotReproduced
from landscape.core.errors import (
    ClusterUnreachableError,
    Interrupted,
    JobError,
    LandscapeError,
    NotFoundError,
    StoreError,
    few_lines,
    message_of,
    nearest,
    one_line,
    quoted,
)
from landscape.core.grid import Floats, Grid, axis_coordinates
from landscape.core.http import Guard
from landscape.core.text import digest
from landscape.core.validation import RepeatedKey, check_whole, is_number, parse_json, refuse_too_far
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record
from landscape.surface.surface import RISE_STDERR

# ----------------------------------------------------------------------------------------------------
# The description of a served landscape: its axes, its observables, and how it is computed.


@dataclass(frozen=True)
class ServedAxis:
    """An axis of a grid, by its coordinates; clients may also ask for points beyond its ends."""

    name: str
    coordinates: Floats = field(repr=False, compare=False)

    def document(self) -> dict[str, Any]:
        """Where the axis begins and ends, and how many points it has."""
        ends = {"low": float(self.coordinates[0]), "high": float(self.coordinates[-1])}
        return {"name": self.name, **ends, "size": len(self.coordinates)}


@dataclass(frozen=True)
class LandscapeInfo:
    """The description of a served landscape.

    Attributes:
        observables: the names of the observables that are computed and kept.
        identity: the digest of all that decides its values to the bit, the plan included.
        derived: surfaces that are calculated from observables, each with its formula.
    """

    axes: tuple[ServedAxis, ...]
    observables: tuple[str, ...]
    num_samples: int
    precision: str
    engine: str
    identity: str
    derived: tuple[tuple[str, str], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values that are computed and kept of a point, in their order."""
        return (
            *(name for observable in self.observables for name in (observable, f"{observable}_stderr")),
            RISE_STDERR,
        )

    def document(self) -> dict[str, Any]:
        """Its entry in the list of models."""
        derived = [name for name, _ in self.derived if name not in self.observables]
        document = {
            **vars(self),
            "axes": [axis.document() for axis in self.axes],
            "observables": [*self.observables, *derived],
        }
        del document["derived"]  # their names are among the observables
        return document


def describe_landscape(
    grid: Grid, observables: Sequence[str], record: Record, plan: Mapping[str, Any]
) -> LandscapeInfo:
    """The description from a landscape's grid, its record and the record of its plan."""
    axes = tuple(map(ServedAxis, grid.names, grid.coordinates))
    return LandscapeInfo(
        axes,
        tuple(observables),
        int(record.num_samples or 0),
        str(record.precision or plan.get("precision", "")),
        str(plan.get("engine", "")),
        digest({"identity": record.digest, "plan": dict(plan)}),
        tuple(record.derived.items()),
    )


def describe_stored(store: LandscapeStore) -> LandscapeInfo | None:
    """The description of a landscape on disk; None if its coordinates are damaged."""
    grid = store.grid()
    return None if grid is None else describe_landscape(grid, store.observables, store.record, store.plan.whole)


# ----------------------------------------------------------------------------------------------------
# Refused requests: an HTTP status and one sentence, the same for REST and gRPC.

BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, NOT_ALLOWED, TOO_SLOW, TOO_LARGE, BUSY = 400, 401, 404, 405, 408, 413, 429
CLIENT_GONE = 499  # as nginx numbers it; no client sees it
FAILED, UNAVAILABLE = 500, 503


class Refusal(Exception):
    """The reason to refuse a request. It is picklable, as replicas return it.

    Args:
        status: of HTTP.
        sentence: the rule, the value that breaks it, and the remedy.
        retry_after: seconds after which the same request may be answered; None if asking again does not help.
    """

    def __init__(self, status: int, sentence: str, retry_after: float | None = None) -> None:
        super().__init__(status, sentence, retry_after)
        self.status, self.sentence, self.retry_after = status, sentence, retry_after

    def __str__(self) -> str:
        return self.sentence

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the HTTP answer."""
        if self.status == UNAUTHORIZED:
            return {"www-authenticate": "Bearer"}
        if self.status == TOO_SLOW:
            return {"connection": "close"}  # the rest of the request may still come
        return {} if self.retry_after is None else {"retry-after": str(max(1, math.ceil(self.retry_after)))}


def refuse_strangers(guard: Guard, authorization: str, field: str) -> None:
    """Refuse a client that does not send the token of the service; the sentence repeats nothing that was sent.

    Args:
        authorization: what the client has sent; '' for nothing.
        field: how a client sends it, by the name that the protocol has for it.

    Raises:
        Refusal: the token is missing, stands without its scheme, or is another one.
    """
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" and authorization.strip():
        raise Refusal(UNAUTHORIZED, f"token: must stand after the word Bearer; send {field}")
    if not token.strip():
        raise Refusal(UNAUTHORIZED, f"token: must be sent as {field}; `landscape serve` has printed it")
    if not guard.is_token(token.strip()):
        raise Refusal(
            UNAUTHORIZED,
            "token: is not that of this service; send the one that `landscape serve` printed when it started: it is "
            "another one at each start, unless --token or LANDSCAPE_TOKEN sets it",
        )


def refusal_for(error: BaseException) -> Refusal:
    """The refusal that tells a client of an error."""
    match error:
        case Refusal():
            return error
        case NotReproduced():  # not the client's fault, but this machine's
            return Refusal(UNAVAILABLE, few_lines(str(error)))
        case NotFoundError():
            return Refusal(NOT_FOUND, few_lines(str(error)))
        case JobError():
            return Refusal(BAD_REQUEST, few_lines(str(error)))
        case StoreError() | ClusterUnreachableError() | Interrupted():
            return Refusal(UNAVAILABLE, few_lines(str(error)), 1.0)
        case LandscapeError():
            return Refusal(FAILED, few_lines(str(error)))
    return Refusal(FAILED, f"{one_line(error)}; the service's own log says more")


# ----------------------------------------------------------------------------------------------------

BYTES_OF_NUMBER = 32  # of JSON, at most
BYTES_BESIDE = 1 << 16
LARGEST_MESSAGE = (1 << 31) - 1  # bytes, as gRPC counts them
ROUNDING = 4 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class RequestLimits:
    """The limits of one request.

    Attributes:
        points: the largest number of points.
        body_seconds: how long its body may take to arrive.
    """

    points: int = 100_000
    body_seconds: float = 60.0

    def body(self, axes: int = 3) -> int:
        """The largest number of bytes of a request's body."""
        return BYTES_BESIDE + self.points * axes * BYTES_OF_NUMBER

    def refuse_many(self, what: str, points: int) -> None:
        """Refuse a request for too many points.

        Raises:
            Refusal: there are more than `points`.
        """
        if points > self.points:
            raise Refusal(
                TOO_LARGE,
                f"{what}: must be at most {self.points} points of one request, not {quoted(points)}; ask in several, "
                "or compute a grid by `landscape run`",
            )


@dataclass(frozen=True)
class RequestedPoints:
    """Points [P, axes], and whether the error of the rise is wanted with their values."""

    points: Floats
    rise: bool = False


@dataclass(frozen=True)
class RequestedPatch:
    """A patch: the coordinates along each axis, and whether each row is sent as soon as it is ready."""

    coordinates: tuple[Floats, ...]
    rise: bool = False
    stream: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Points per dimension, the last axis first."""
        return tuple(len(values) for values in reversed(self.coordinates))

    @property
    def points(self) -> Floats:
        """All of them [P, axes], the first axis moving fastest."""
        tables = np.meshgrid(*reversed(self.coordinates), indexing="ij")
        return np.stack([table.reshape(-1) for table in reversed(tables)], axis=1)

    def place(self, index: Sequence[int]) -> list[float]:
        """A row's coordinates along the other axes, the last axis first; `index` is its index along these."""
        return [float(along[at]) for along, at in zip(reversed(self.coordinates), index, strict=False)]

    def row(self, index: Sequence[int]) -> Floats:
        """The points of a row, which runs along the first axis."""
        along = self.coordinates[0]
        fixed = (np.full(len(along), value) for value in reversed(self.place(index)))
        return np.stack([along, *fixed], axis=1)


Fields = Mapping[str, Any]  # of a request, by name


def parse_fields(body: bytes, known: Sequence[str]) -> Fields:
    """The fields of a JSON body.

    Raises:
        Refusal: it is not JSON, not an object, or has an unknown field.
    """
    try:
        parsed = parse_json(body)
    except RepeatedKey as error:
        raise Refusal(BAD_REQUEST, f"{quoted(error.key)[1:-1]}: must stand once in the body; keep one") from None
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else message_of(error)
        raise Refusal(BAD_REQUEST, f"body: must be JSON, and is not: {what}") from None
    if not isinstance(parsed, dict):
        raise Refusal(BAD_REQUEST, f"body: must be a JSON object with {', '.join(known)}, not {quoted(parsed)}")
    for key in parsed:
        if key not in known:
            raise Refusal(BAD_REQUEST, f"{quoted(key)[1:-1]}: is no field of this request; {nearest(key, known)}")
    return parsed


def parse_points(fields: Fields, info: LandscapeInfo, limits: RequestLimits) -> RequestedPoints:
    """The request {"points": [[a, b], …], "rise": false}."""
    return RequestedPoints(check_points(fields.get("points"), info, limits), _flag(fields, "rise"))


def check_points(given: Any, info: LandscapeInfo, limits: RequestLimits) -> Floats:
    """A list of points, each a list of coordinates.

    Raises:
        Refusal: it is no such list, or too long.
    """
    if not isinstance(given, list) or not given:
        raise Refusal(BAD_REQUEST, f"points: must be a list of points [{_names(info)}], not {quoted(given)}")
    limits.refuse_many("points", len(given))
    # Checked one by one first: with one long text among them NumPy would make an array of texts of that length.
    axes = len(info.axes)
    for place, point in enumerate(given):
        plain = isinstance(point, (list, tuple)) and len(point) == axes
        if not plain or not all(_fits_float(number) for number in point):
            check_point(f"points[{place}]", point, info)
    return check_table(np.asarray(given, np.float64), info)


def parse_raw_points(body: bytes, info: LandscapeInfo, limits: RequestLimits) -> Floats:
    """Points as float64, the least byte first, one point after the other."""
    axes = len(info.axes)
    if not body or len(body) % (8 * axes):
        raise Refusal(
            BAD_REQUEST,
            f"points: must be float64 of {axes} coordinates each, {8 * axes} bytes a point, not {len(body)} bytes",
        )
    limits.refuse_many("points", len(body) // (8 * axes))
    return check_table(np.frombuffer(body, "<f8").reshape(-1, axes).astype(np.float64), info)


def check_table(points: Floats, info: LandscapeInfo) -> Floats:
    """Points [P, axes] of finite numbers; −0 becomes 0, which is the same point.

    Raises:
        Refusal: a number is not finite, or there are more or fewer axes.
    """
    if points.ndim != 2 or points.shape[1] != len(info.axes) or not len(points):
        raise Refusal(BAD_REQUEST, f"points: must be points [{_names(info)}], not an array {points.shape}")
    bad = np.flatnonzero(~np.isfinite(points).all(1))
    if len(bad):
        raise Refusal(
            BAD_REQUEST,
            f"points[{bad[0]}]: must be finite numbers, not {quoted(points[bad[0]].tolist())}; leave it out",
        )
    refuse_too_far("points", points, info.precision)
    return np.ascontiguousarray(points + 0.0)


def check_point(what: str, given: Any, info: LandscapeInfo) -> list[float]:
    """One point.

    Raises:
        Refusal: it has more or fewer coordinates than axes, or one is no finite number.
    """
    numbers = given if isinstance(given, (list, tuple)) else ()
    if len(numbers) != len(info.axes) or not all(is_number(number) for number in numbers):
        axes = len(info.axes)
        raise Refusal(
            BAD_REQUEST,
            f"{what}: must be {axes} finite number{'s' if axes > 1 else ''} [{_names(info)}], not {quoted(given)}",
        )
    refuse_too_far(what, numbers, info.precision)
    return [float(number) + 0.0 for number in numbers]


def parse_point(fields: Fields, info: LandscapeInfo, limits: RequestLimits) -> list[float]:
    """The request {"point": [a, b]}."""
    return check_point("point", fields.get("point"), info)


def parse_line(fields: Fields, info: LandscapeInfo, limits: RequestLimits) -> RequestedPoints:
    """The request {"from": [a, b], "to": [a, b], "count": 101}: points at even steps that hit both ends exactly."""
    first, last = (check_point(name, fields.get(name), info) for name in ("from", "to"))
    count = fields.get("count", 101)
    check_whole("count", count, 2)
    limits.refuse_many("count", count)
    columns = [even_steps(*bounds, count) for bounds in zip(info.axes, first, last, strict=True)]
    return RequestedPoints(check_table(np.stack(columns, axis=1), info), _flag(fields, "rise"))


def parse_patch(fields: Fields, info: LandscapeInfo, limits: RequestLimits) -> RequestedPatch:
    """The request {"low": [a, b], "high": [a, b], "shape": [W, H], "stream": false}: as many points along each axis."""
    low, high = (check_point(name, fields.get(name), info) for name in ("low", "high"))
    shape = fields.get("shape")
    if not isinstance(shape, (list, tuple)) or len(shape) != len(info.axes):
        raise Refusal(BAD_REQUEST, f"shape: must be points along each axis, [{_names(info)}], not {quoted(shape)}")
    for place, size in enumerate(shape):
        check_whole(f"shape[{place}]", size, 1)
    limits.refuse_many("shape", math.prod(shape))
    for axis, size, one, other in zip(info.axes, shape, low, high, strict=True):
        if size == 1 and one != other:
            raise Refusal(BAD_REQUEST, f"shape: one point along {axis.name} needs low equal to high; ask for 2 or more")
    coordinates = tuple(
        np.array([one]) if size == 1 else even_steps(axis, one, other, size)
        for axis, one, other, size in zip(info.axes, low, high, shape, strict=True)
    )
    return RequestedPatch(coordinates, _flag(fields, "rise"), _flag(fields, "stream"))


def even_steps(axis: ServedAxis, first: float, last: float, count: int) -> Floats:
    """Even steps from one coordinate to another; a step that differs from a grid point only by rounding becomes it.

    The coordinates of a grid that was fitted to a path do not follow to the bit from its ends and its size.
    """
    steps, grid = axis_coordinates(count, first, last) + 0.0, axis.coordinates
    after = np.searchsorted(grid, steps).clip(1, len(grid) - 1)
    nearest = np.where(steps - grid[after - 1] < grid[after] - steps, grid[after - 1], grid[after])
    return np.where(np.abs(steps - nearest) <= ROUNDING * np.abs(grid).max(), nearest, steps)


def _names(info: LandscapeInfo) -> str:
    return ", ".join(axis.name for axis in info.axes)


def _fits_float(value: Any) -> bool:
    return type(value) is float or (type(value) is int and value.bit_length() < 1024)


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(BAD_REQUEST, f"{name}: must be true or false, not {quoted(value)}")
    return value
