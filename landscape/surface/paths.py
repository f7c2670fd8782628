"""What the document of a landscape says of the runs whose paths it draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from landscape.surface.record_parts import OMITTED, AnyReal, Flag, Text, adapter_of

LONGEST_LABEL = 200  # characters, more than a job may give: a document may say anything


@dataclass(frozen=True, kw_only=True)
class PathRecord:
    """The run that a path is of.

    Attributes:
        label: what figures call it.
        run: its folder or URL, as the job names it.
        unit: what the numbers of its snapshots count.
        own: whether it is the run that the landscape lies in.
        shown: the share of the variance of its own snapshots that lies on the axes; None where it has none.
        shown_of_walk: the same of a random walk in its place, where the axes are principal components of all paths.
    """

    label: Text
    run: Text = ""
    unit: Text = "epoch"
    own: Flag = False
    shown: AnyReal = None
    shown_of_walk: AnyReal = field(default=None, metadata=OMITTED)


def path_records(given: Any, count: int) -> tuple[PathRecord, ...]:
    """The runs of so many paths, from a document; one that is malformed there is called by its number."""
    listed = given if isinstance(given, list) else []
    return tuple(_record(listed[k] if k < len(listed) else None, k) for k in range(count))


def _record(given: Any, place: int) -> PathRecord:
    if isinstance(given, Mapping):
        try:
            record: PathRecord = adapter_of(PathRecord).validate_python(given)
        except ValueError:  # pydantic's error is one
            record = PathRecord(label="")
        if 0 < len(record.label) <= LONGEST_LABEL:
            return record
    return PathRecord(label=f"path {place + 1}")
