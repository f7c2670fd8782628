"""The values of a job's fields, one rule each: whole numbers, ranges, lists of snapshots, references to weights.

A rule takes what a user wrote and returns a plain Python value, or raises ValueError with the rule and the value.
NumPy's numbers are numbers; a bool is none, nor is a text that looks like one.
"""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeGuard, Union, get_args
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema, field_validator

from landscape.core.errors import JobError, flat, holds_credentials, masked, nearest, printable, quoted

Unit = Literal["step", "epoch"]

LEAST_STEPS = 3  # of Lanczos, one per rank: with fewer, one vector would be both ends of a spectrum
MIN_SIZE, MAX_SIZE = 3, 65536
MOST = 10**12  # of anything that is counted
LARGEST_SEED = 2**64 - 1  # of torch
LARGEST_STEP = 2**63 - 1  # of the store
MOST_THREADS = 1024
MOST_WORKERS = 100_000
LONGEST_PATH, LONGEST_NAME = 4000, 255  # of common file systems
LARGEST_END = 1e308  # of a range
AUTO = "auto"  # a range that is found from the loss
MOST_GPUS = 1024  # of one worker
OF_RUN = re.compile(r"(.+)@(first|last|\d{1,15})")  # a snapshot of another run, as a job names it


def whole(value: Any) -> int:
    """A whole number: neither a bool nor a float nor a text that looks like one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"must be a whole number, not {quoted(value)}")
    return int(value)


def real(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"must be a number, not {quoted(value)}{_plainly(value)}")
    number = _as_float(value)
    if not math.isfinite(number):
        raise ValueError(f"must be finite, not {quoted(value)}")
    return number


def _as_float(value: Any) -> float:
    """A number as a float; infinity where it is beyond the range of floats."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _plainly(*values: Any) -> str:
    """The remedy for numbers that YAML reads as texts, such as 1e-3."""
    for value in values:
        try:
            number = float(value) if isinstance(value, str) else math.nan
        except ValueError:
            continue
        if math.isfinite(number):
            return (
                f"; YAML takes {quoted(value)} for text: write {number!r}" if repr(number) != value else "; no quotes"
            )
    return ""


def between(low: int, high: int = MOST) -> Callable[[Any], int]:
    """The rule of a whole number from `low` to `high`.

    >>> between(1, 9)(10)
    Traceback (most recent call last):
    ValueError: must be at most 9, not 10
    """

    def check(value: Any) -> int:
        number = whole(value)
        if number < low:
            raise ValueError(f"must be at least {low}, not {quoted(number)}")
        if number > high:
            raise ValueError(f"must be at most {high}, not {quoted(number)}")
        return number

    return check


def size(value: Any) -> int:
    """A number of points along an axis."""
    if not MIN_SIZE <= whole(value) <= MAX_SIZE:
        raise ValueError(f"must be from {MIN_SIZE} to {MAX_SIZE} points per axis, not {quoted(value)}")
    return int(value)


def gpus(value: Any) -> float:
    """A share of one GPU, or a whole number of GPUs: Ray cannot give one and a half."""
    number = real(value)
    if not 0 <= number <= MOST_GPUS or (number > 1 and number != int(number)):
        raise ValueError(f"must be a share from 0 to 1, or a whole number up to {MOST_GPUS}, not {quoted(value)}")
    return number


def snapshots(value: Any) -> tuple[int, ...] | Literal["all"]:
    """The numbers of at least three snapshots, ascending and each once; or `all`.

    >>> snapshots([7, 1, 3, 1])
    (1, 3, 7)
    """
    if is_list(value) and len({whole(number) for number in value}) < 3:
        listed = quoted(list(value))
        raise ValueError(f"must name at least 3 different snapshots, not {listed}; PCA needs 3 points to span a plane")
    return any_snapshots(value)


def any_snapshots(value: Any) -> tuple[int, ...] | Literal["all"]:
    """The numbers of at least one snapshot, ascending and each once; or `all`."""
    if isinstance(value, str) and value == "all":
        return "all"
    if not is_list(value):
        raise ValueError(f"must be a list of epochs or steps, or 'all', not {quoted(value)}")
    named = [whole(number) for number in value]
    if not named:
        raise ValueError("must name at least one snapshot, not []; leave it out for all of them")
    if min(named) < 0 or max(named) > LARGEST_STEP:
        wrong = min(named) if min(named) < 0 else max(named)
        raise ValueError(f"must hold epochs or steps from 0 on, below 2**63, not {quoted(wrong)}")
    return tuple(sorted(set(named)))


def snapshots_or_paths(value: Any) -> tuple[int, ...] | Literal["all"] | Literal["paths"]:
    """As `snapshots`, or `paths` for the snapshots of all paths that the landscape draws."""
    return "paths" if isinstance(value, str) and value == "paths" else snapshots(value)


def is_list(value: Any) -> bool:
    """Whether a user would call a value a list: a tuple is one, a text is none."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def pair(value: Any) -> tuple[float, float]:
    """The two ends of a range, the lower one first."""
    if not is_list(value) or len(value) != 2:
        raise ValueError(f"must be a pair [low, high] or one pair per axis, not {quoted(value)}")
    if any(isinstance(end, bool) or not isinstance(end, numbers.Real) for end in value):
        raise ValueError(f"must hold two numbers, not {quoted(list(value))}{_plainly(*value)}")
    low, high = map(_as_float, value)
    if not (abs(low) < LARGEST_END and abs(high) < LARGEST_END):
        raise ValueError(f"must be finite, not {quoted(list(value))}")
    if low >= high:
        raise ValueError(f"must go from low to high, not [{low:g}, {high:g}]; swap or widen the two ends")
    return low, high


def refuse_coinciding(low: float, high: float, points: int) -> None:
    """Refuse a range from `low` to `high` that is too narrow for `points` different float64 coordinates.

    Raises:
        ValueError: two coordinates would be the same.
    """
    # Rationals a unit in the last place apart may round to the same float.
    if (high - low) / (points - 1) <= 2 * math.ulp(max(abs(low), abs(high))):
        raise ValueError(
            f"range must be wide enough for {points} different coordinates in float64, not [{low!r}, {high!r}]; "
            "widen it, or take fewer points"
        )


def reference(value: Any) -> int | str:
    """A set of weights: the number of a snapshot, `first`, `last`, RUN@NUMBER, RUN@last, `problem`, or a file."""
    if isinstance(value, str) and value.strip():
        return value
    number = int(value) if isinstance(value, numbers.Integral) else -1
    if 0 <= number <= LARGEST_STEP and not isinstance(value, bool):
        return number
    raise ValueError(f"must be a snapshot's number, first, last, problem or a file of weights, not {quoted(value)}")


def plain_text(value: str) -> str:
    """A name, path or URL: one line, whose parts are no longer than file systems allow."""
    if len(value) > LONGEST_PATH or any(len(part.encode(errors="replace")) > LONGEST_NAME for part in value.split("/")):
        rule = f"at most {LONGEST_PATH} characters, and {LONGEST_NAME} between slashes"
        raise ValueError(f"must have {rule}, not {len(value)}: {quoted(value, 60)}")
    try:
        urlsplit(value if "://" in value else "")
    except ValueError:
        raise ValueError(f"must be a path or a whole URL, not {quoted(value)}") from None
    if printable(value) != value or "\n" in value or "\t" in value:
        raise ValueError(f"must be text of one line without control characters, not {quoted(value)}")
    return value


# A rule is code; editors complete a job by its JSON schema, which repeats what each rule accepts.
PAIR = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
SNAPSHOTS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 3}


def integer(low: int = 0, high: int = MOST) -> dict[str, Any]:
    """The JSON schema of a whole number from `low` to `high`."""
    return {"type": "integer", "minimum": low, "maximum": high}


def one_or_per_axis(schema: dict[str, Any]) -> WithJsonSchema:
    """The JSON schema of one value for all axes, or a list with one value per axis."""
    return WithJsonSchema({"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1, "maxItems": 3}]})


Size = Annotated[int, BeforeValidator(size), WithJsonSchema(integer(MIN_SIZE, MAX_SIZE))]
Sizes = Annotated[tuple[Size, ...], one_or_per_axis(integer(MIN_SIZE, MAX_SIZE))]
Ranges = tuple[tuple[float, float], ...]
RangesOrAuto = Annotated[
    Union[Literal["auto"], Ranges],
    WithJsonSchema({"anyOf": [{"const": AUTO}, PAIR, {"type": "array", "items": PAIR, "minItems": 1, "maxItems": 3}]}),
]
TilePoints = Annotated[int, BeforeValidator(between(1, MAX_SIZE))]
TileShape = Annotated[tuple[TilePoints, ...], one_or_per_axis(integer(1, MAX_SIZE))]
Axes = Annotated[int, BeforeValidator(whole), WithJsonSchema(integer(1, 3))]
Seed = Annotated[int, BeforeValidator(between(0, LARGEST_SEED)), WithJsonSchema(integer(0, LARGEST_SEED))]
Count = Annotated[int, BeforeValidator(between(1)), WithJsonSchema(integer(1))]
Steps = Annotated[int, BeforeValidator(between(LEAST_STEPS)), WithJsonSchema(integer(LEAST_STEPS))]
Threads = Annotated[int, BeforeValidator(between(1, MOST_THREADS)), WithJsonSchema(integer(1, MOST_THREADS))]
Workers = Annotated[int, BeforeValidator(between(1, MOST_WORKERS)), WithJsonSchema(integer(1, MOST_WORKERS))]
Gpus = Annotated[float, BeforeValidator(gpus), WithJsonSchema({"type": "number", "minimum": 0, "maximum": MOST_GPUS})]
GpuNumber = Annotated[int, BeforeValidator(between(0)), WithJsonSchema(integer())]
Snapshots = Annotated[
    Union[tuple[int, ...], Literal["all"]],
    BeforeValidator(snapshots),
    WithJsonSchema({"anyOf": [SNAPSHOTS, {"const": "all"}]}),
]
SnapshotsOrPaths = Annotated[
    Union[tuple[int, ...], Literal["all"], Literal["paths"]],
    BeforeValidator(snapshots_or_paths),
    WithJsonSchema({"anyOf": [SNAPSHOTS, {"enum": ["all", "paths"]}]}),
]
Intervals = Annotated[tuple[tuple[int, ...], ...], WithJsonSchema({"type": "array", "items": SNAPSHOTS, "minItems": 1})]
Reference = Annotated[
    Union[int, str],
    BeforeValidator(reference),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]


# ----------------------------------------------------------------------------------------------------
# Rules of values outside a job: whole numbers, finite numbers, coordinates; JSON without repeated keys.

FARTHEST = float(np.finfo(np.float32).max)


class RepeatedKey(ValueError):
    """A key of JSON that stands twice in one object, of which most readers silently take the last value."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key {quoted(key)} stands twice; keep one")
        self.key = key


def parse_json(content: str | bytes, **options: Any) -> Any:
    """The value of a JSON document, as `json.loads` returns it; a key that stands twice is refused.

    >>> parse_json('{"size": 3, "size": 4}')
    Traceback (most recent call last):
    landscape.core.validation.RepeatedKey: key 'size' stands twice; keep one

    Raises:
        ValueError, RecursionError: the content is no JSON; `RepeatedKey` where a key stands twice.
    """
    return json.loads(content, object_pairs_hook=_without_repeats, **options)


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedKey(next(name for place, name in enumerate(names) if name in names[:place]))
    return mapping


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse a value that is no whole number, or below `least`.

    >>> check_whole("epochs", 2.5, 1)
    Traceback (most recent call last):
    landscape.core.errors.JobError: epochs: must be a whole number from 1 on, not 2.5

    Raises:
        JobError: names the argument.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise JobError(f"{name}: must be a whole number from {least} on, not {quoted(value)}")


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number that a float can hold.

    >>> [is_number(value) for value in (1, 0.5, True, "1", math.nan, 10**400)]
    [True, True, False, False, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number above all floats
        return False


def refuse_too_far(field: str, coordinates: ArrayLike, precision: str) -> None:
    """Refuse coordinates that numbers of the precision cannot hold: weights there could not be set.

    Args:
        field: the name of the coordinates in the error.

    Raises:
        JobError: one of them is beyond ±3.4e38, and the precision is not float64.

    >>> refuse_too_far("at", [0.5, 1e99], "float32")
    Traceback (most recent call last):
    landscape.core.errors.JobError: at: must be within ±3.4e+38, which float32 can hold, not 1e+99; choose nearer points
    """
    table = np.abs(np.asarray(coordinates, np.float64))
    if precision != "float64" and (table > FARTHEST).any():
        raise JobError(
            f"{field}: must be within ±{FARTHEST:.2g}, which {precision} can hold, not {table.max():g}; "
            "choose nearer points"
        )


# ----------------------------------------------------------------------------------------------------
# Pydantic's errors in the words of the job file: field, rule, value and remedy, one line per error.

LONGEST_KEY = 30  # characters of a key that an error repeats
LONGEST_ERROR = 285  # characters of a line; the count of further errors follows
EXPECTED = {
    "string_type": "text", "dict_type": "keys and values", "model_type": "keys and values",
    "model_attributes_type": "keys and values", "tuple_type": "a list", "is_instance_of": "another type",
    "bool_type": "true or false", "bool_parsing": "true or false", "invalid_key": "keys that are words",
}  # fmt: skip


class Explained(BaseModel):
    """A value whose errors are explained.

    Attributes:
        often_misplaced: fields of the whole value that users often write in one of its parts.
    """

    often_misplaced: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """The error of a key that is no field of this class."""
        return f"unknown key {quoted(key, LONGEST_KEY)}; {nearest(key, cls.model_fields)}"


def explain(error: ValidationError, model: type[Explained]) -> str:
    """Pydantic's report as one line per error, two at most.

    Args:
        model: the class whose value was refused.
    """
    count = error.error_count()
    lines = [flat(_explain_one(details, model), LONGEST_ERROR) for details in error.errors(include_url=False)[:2]]
    if count > 2:
        lines[1] += f" (and {count - 2} more)"
    return "\n".join(lines)


def _explain_one(error: Any, model: type[Explained]) -> str:
    kind, value = error["type"], error["input"]
    unknown = kind == "extra_forbidden"
    place = _follow(model, error["loc"][:-1] if unknown else error["loc"])
    words = [*place.words, error["loc"][-1]] if unknown else place.words
    where = ".".join(flat(str(word), LONGEST_KEY) for word in words) or model.__name__.lower()
    if unknown and _is_one_level_too_deep(words, model):
        rule = f"must be a field of the whole {model.__name__.lower()}, not of a part of it"
        # Without the quotes of a text: the whole line to move stands in quotes.
        text = quoted(value).strip("'") if isinstance(value, str) else quoted(value)
        text = text.lower() if isinstance(value, bool) else text  # as YAML writes it
        return f"{where}: {rule}; move '{words[-1]}: {text}' beside '{words[0]}'"
    if unknown:
        return f"{where}: {place.owner.unknown_key(str(words[-1]))}"
    if kind == "missing":
        return f"{where}: is required and missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        got = value.get("kind") if isinstance(value, Mapping) else value
        *first, last = (str(_tag(choice)) for choice in place.choices)
        return f"{where}.kind: must be {', '.join(first)} or {last}, not {quoted(got)}"
    if kind == "value_error":
        return f"{where}: {error['ctx']['error']}"
    message = EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ").removeprefix("Input should ")
    return f"{where}: must be {message}, not {quoted(value)}"


def _is_one_level_too_deep(words: Sequence[str | int], model: type[Explained]) -> bool:
    """Whether a key of the whole value stands in one of its parts, as `tile` in a landscape.

    Deeper down, the key is more likely another mistake.
    """
    return words[-1] in model.often_misplaced and sum(isinstance(word, str) for word in words) == 2


@dataclass(frozen=True)
class _Place:
    """A location in pydantic's error, followed into the classes.

    Attributes:
        words: the location as the user wrote it, without pydantic's names for the parts of a union.
        owner: the class whose fields are the keys at this place.
        choices: the classes that the value at this place may have.
    """

    words: tuple[str | int, ...]
    owner: type[Explained]
    choices: tuple[type[Explained], ...] = ()


def _follow(model: type[Explained], location: Sequence[str | int]) -> _Place:
    place = _Place((), model, (model,))
    for part in location:
        place = _step(place, part)
    return place


def _step(place: _Place, part: str | int) -> _Place:
    if isinstance(part, int):
        return _Place((*place.words, part), place.owner, place.choices)
    chosen = tuple(choice for choice in place.choices if _tag(choice) == part)
    if chosen:
        return _Place(place.words, chosen[0], chosen)
    if part not in place.owner.model_fields:
        return place  # the name of a type in a union, such as int
    inner = tuple(_models_in(place.owner.model_fields[part].annotation))
    return _Place((*place.words, part), inner[0] if len(inner) == 1 else place.owner, inner)


def _models_in(annotation: Any) -> Iterator[type[Explained]]:
    """The subclasses of `Explained` that an annotation names, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Explained):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _tag(model: type[Explained]) -> str | None:
    """The value of the field `kind` in this class; None where the class is in no union."""
    field = model.model_fields.get("kind")
    return None if field is None else field.default


# ----------------------------------------------------------------------------------------------------


class Frozen(Explained):
    """A value: immutable, compared by content, closed to unknown keys.

    Raises:
        JobError: a field is unknown, missing or wrong; with the field, the rule, the value and the remedy.
    """

    # A text below a field is its description in the reference of the job and in editors.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise JobError(explain(error, type(self))) from None

    # With this, pydantic validates nested values itself, and an error keeps the whole location of its field.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("*")
    @classmethod
    def _plain_text(cls, value: Any) -> Any:
        """Refuse credentials in a URL: they would appear in the run's provenance, in manifests and on dashboards."""
        if isinstance(value, str) and holds_credentials(value):
            place = quoted(masked(value))  # the quotes stop a second masking
            raise ValueError(f"must not hold credentials ({place}); give them to the driver in its environment")
        return plain_text(value) if isinstance(value, str) else value


# ----------------------------------------------------------------------------------------------------
# The names of landscapes.

LONGEST_LANDSCAPE_NAME = 100


def landscape_name(name: str) -> str:
    """The name, if a landscape can have it: a folder on any file system has the same name.

    Raises:
        ValueError: the name breaks the rule, which is the message.
    """
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum() and name[0].isalnum()) or len(name) > LONGEST_LANDSCAPE_NAME:
        raise ValueError(
            f"must be letters, digits, '.', '-' and '_', at most {LONGEST_LANDSCAPE_NAME}, not {quoted(name)}"
        )
    if name == "zarr.json":
        raise ValueError("must not be 'zarr.json', a file of the store; choose another")
    return name


# ----------------------------------------------------------------------------------------------------
# The numbers of snapshots in words, as stretches of equal steps.

MOST_STRETCHES = 4  # in a label


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short, as at most 12 ranges.

    Example:
        >>> ranges([0, 1, 2, 3, 10, 20, 30, 40])
        '0-3, 10-40 by 10'
    """
    words = [_word(stretch) for stretch in progressions(numbers)]
    return ", ".join(words) if len(words) <= 12 else ", ".join([*words[:6], "…", *words[-5:]])


def counted(unit: str, numbers: Sequence[int]) -> str:
    """Snapshots in words, for an axis or a legend.

    Example:
        >>> counted("epoch", range(21)), counted("step", [5]), counted("epoch", [0, 1, 2, 3, 9, 10, 11, 12])
        ('epochs 0 to 20', 'step 5', 'epochs 0-3, 9-12')
        >>> counted("epoch", [0, 2, 4, 6, 8]), counted("epoch", [1, 2, 4, 8, 16, 32])
        ('epochs 0 to 8 by 2', '6 epochs from 1 to 32')
    """
    parts = progressions(numbers)
    if len(numbers) == 1:
        return f"{unit} {numbers[0]}"
    if len(parts) == 1:
        stride = numbers[1] - numbers[0]
        return f"{unit}s {numbers[0]} to {numbers[-1]}{f' by {stride}' if stride > 1 else ''}"
    if len(parts) > MOST_STRETCHES:
        return f"{len(numbers)} {unit}s from {numbers[0]} to {numbers[-1]}"
    return f"{unit}s {ranges(numbers)}"


def progressions(numbers: Iterable[int]) -> list[list[int]]:
    """Ascending numbers cut into stretches of equal steps; two numbers with a gap between them are no stretch."""
    stretches: list[list[int]] = []
    for number in numbers:
        last = stretches[-1] if stretches else []
        if last and (len(last) == 1 or number - last[-1] == last[1] - last[0]):
            last.append(number)
        elif len(last) == 2 and last[1] - last[0] > 1:  # the second may begin a stretch with the next number
            stretches.append([last.pop(), number])
        else:
            stretches.append([number])
    cut = len(stretches[-1]) == 2 and stretches[-1][1] - stretches[-1][0] > 1 if stretches else False
    return [*stretches[:-1], *([k] for k in stretches[-1])] if cut else stretches


def _word(progression: list[int]) -> str:
    """An arithmetic progression as one range."""
    if len(progression) == 1:
        return str(progression[0])
    stride = progression[1] - progression[0]
    return f"{progression[0]}-{progression[-1]}" + (f" by {stride}" if stride > 1 else "")


# ----------------------------------------------------------------------------------------------------
# The names of observables, and those that the store reserves.

WEIGHT = "weight"  # how much each sample counts; returned beside the observables

# Arrays and dimensions of the store have these names, and the weight of a sample its own.
RESERVED = frozenset(
    [
        *("status", "directions", "moments", "alpha", "beta", "gamma", "axis", "parameter", "snapshot", "moment"),
        *("sample", "sample_index", "loss_samples", "origin_loss_samples", "sample_weights", "loss_rise", WEIGHT),
        *("interpolated", "samples_known", "loss_interpolation_error"),
    ]
)


def why_unusable(name: Any) -> str | None:
    """Why `name` cannot name an observable, as the end of a message; None where it can."""
    if not isinstance(name, str):
        return f"it must be a word, not {type(name).__name__}"
    if not name.isidentifier():
        return "it must be a plain word of letters, digits and underscores"
    reserved = name in RESERVED or name.startswith("path_") or name.endswith("_stderr")
    return "the store uses it itself; take another word" if reserved else None
