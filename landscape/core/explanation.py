"""Pydantic's reports in the words of the job file: field, rule, value and remedy in one line per error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ValidationError

from landscape.core.errors import flat, nearest, shown

LONGEST_KEY = 30  # characters of a key that an error repeats
LONGEST_ERROR = 285  # characters of a line; the count of further ones follows
EXPECTED = {
    "string_type": "text", "dict_type": "keys and values", "model_type": "keys and values",
    "model_attributes_type": "keys and values", "tuple_type": "a list", "is_instance_of": "another type",
    "bool_type": "true or false", "bool_parsing": "true or false", "invalid_key": "keys that are words",
}  # fmt: skip


class Explained(BaseModel):
    """A value whose errors are explained.

    Attributes:
        often_misplaced: fields of the whole value that users look for in its parts; what is meant is then clear.
    """

    often_misplaced: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def unknown_key(cls, key: str) -> str:
        """What an error says of a key that is no field of this class."""
        return f"unknown key {shown(key, LONGEST_KEY)}; {nearest(key, cls.model_fields)}"


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
        text = shown(value).strip("'") if isinstance(value, str) else shown(value)
        text = text.lower() if isinstance(value, bool) else text  # as YAML writes it
        return f"{where}: {rule}; move '{words[-1]}: {text}' beside '{words[0]}'"
    if unknown:
        return f"{where}: {place.owner.unknown_key(str(words[-1]))}"
    if kind == "missing":
        return f"{where}: is required and missing"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        got = value.get("kind") if isinstance(value, Mapping) else value
        *first, last = (str(_tag(choice)) for choice in place.choices)
        return f"{where}.kind: must be {', '.join(first)} or {last}, not {shown(got)}"
    if kind == "value_error":
        return f"{where}: {error['ctx']['error']}"
    message = EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ").removeprefix("Input should ")
    return f"{where}: must be {message}, not {shown(value)}"


def _is_one_level_too_deep(words: Sequence[str | int], model: type[Explained]) -> bool:
    """Whether a key is one of the whole value's and stands in one of its parts, as `tile` in a landscape.

    Further down it is more likely another mistake.
    """
    return words[-1] in model.often_misplaced and sum(isinstance(word, str) for word in words) == 2


@dataclass(frozen=True)
class _Place:
    """Where pydantic's location leads to.

    Attributes:
        words: the location as the user wrote it, without the names that pydantic gives to the parts of a union.
        owner: the class to which keys at this place belong.
        choices: the classes that the value at this place may be of.
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
    """The classes of values that an annotation names, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, Explained):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _tag(model: type[Explained]) -> str | None:
    """What `kind` says of a value of this class; None where the class stands in no union."""
    field = model.model_fields.get("kind")
    return None if field is None else field.default
