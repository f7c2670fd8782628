"""The class of every value that a user writes: frozen, closed to unknown keys, with errors in plain words."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, ValidationError, field_validator

from landscape.core.errors import JobError, holds_credentials, masked, shown
from landscape.core.explanation import Explained, explain
from landscape.core.validation import plain_text


class Frozen(Explained):
    """A value: immutable, compared by content, closed to unknown keys.

    Raises:
        JobError: a field is unknown, missing or wrong; says which, the rule, the value and the remedy.
    """

    # A text below a field is its description, in the reference of the job and in editors.
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise JobError(explain(error, type(self))) from None

    # Pydantic then validates a value inside another one by itself, and an error keeps the whole way to its field.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("*")
    @classmethod
    def _plain_text(cls, value: Any) -> Any:
        """Refuse a URL's credentials, which would stand in the run's provenance, in manifests and on dashboards."""
        if isinstance(value, str) and holds_credentials(value):
            place = shown(masked(value))  # in quotes, at which another masking stops
            raise ValueError(f"must not hold credentials ({place}); give them to the driver in its environment")
        return plain_text(value) if isinstance(value, str) else value
