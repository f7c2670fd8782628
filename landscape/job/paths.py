"""The runs whose paths a landscape draws: `paths:` of a landscape."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union

from pydantic import BeforeValidator, WithJsonSchema, field_validator

from landscape.core.errors import shown
from landscape.core.validation import Frozen, any_snapshots, is_list

MOST_PATHS = 12  # more lines over one another cannot be told apart
LONGEST_LABEL = 60

Selection = Annotated[
    Union[tuple[int, ...], Literal["all"]],
    BeforeValidator(any_snapshots),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}, {"const": "all"}]}
    ),
]


class PathOfRun(Frozen):
    """A run whose snapshots are drawn as a path."""

    run: str
    """Folder or URL that holds the trajectory; a relative folder starts at that of the job file."""
    snapshots: Selection = "all"
    """Which of its snapshots, by their numbers; default: all."""
    label: str | None = None
    """What figures call it; default: the end of the folder's name by which it differs from the others."""

    @field_validator("run", mode="before")
    @classmethod
    def _run_path(cls, value: Any) -> Any:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"must be a folder or URL, not {shown(value)}")
        return value

    @field_validator("label")
    @classmethod
    def _label(cls, value: str | None) -> str | None:
        if value is not None and not 0 < len(value.strip()) <= LONGEST_LABEL:
            raise ValueError(f"must have 1 to {LONGEST_LABEL} characters, not {shown(value)}")
        return None if value is None else value.strip()


# As an editor checks it: `listed_paths` takes a run by itself, too.
PATHS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {
            "type": "array",
            "items": {"anyOf": [{"type": "string"}, PathOfRun.model_json_schema()]},
            "minItems": 1,
            "maxItems": MOST_PATHS,
        },
        {"type": "null"},
    ]
}


def listed_paths(value: Any) -> Any:
    """What a user wrote, each run as the fields of a `PathOfRun`.

    >>> listed_paths(["runs/sgd", {"run": "runs/thor", "label": "THOR"}])
    ({'run': 'runs/sgd'}, {'run': 'runs/thor', 'label': 'THOR'})
    """
    if value is None:
        return None
    if not is_list(value) or not 1 <= len(value) <= MOST_PATHS:
        raise ValueError(
            f"must list 1 to {MOST_PATHS} runs, such as [runs/sgd, runs/thor], not "
            f"{f'{len(value)} of them; draw the others in another landscape' if is_list(value) else shown(value)}"
        )
    return tuple(each if isinstance(each, (Mapping, PathOfRun)) else {"run": each} for each in value)


def refuse_twice(paths: Sequence[PathOfRun]) -> None:
    """Refuse a snapshot that is drawn twice, and paths of one label.

    Raises:
        ValueError: names the run or the label.
    """
    for k, path in enumerate(paths):
        for other in paths[:k]:
            if os.path.normpath(path.run) == os.path.normpath(other.run) and overlap(path.snapshots, other.snapshots):
                raise ValueError(
                    f"paths must name each run once, or different snapshots of it, and {shown(path.run)} stands twice"
                )
            if path.label is not None and path.label == other.label:
                raise ValueError(f"paths must have labels of their own, and {shown(path.label)} stands twice")


def overlap(one: Sequence[int] | Literal["all"], other: Sequence[int] | Literal["all"]) -> bool:
    """Whether two selections of snapshots of one run have some in common."""
    return one == "all" or other == "all" or bool(set(one) & set(other))
