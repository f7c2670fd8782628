"""`landscape list`: the runs below a folder."""

from __future__ import annotations

from typing import Any

from cluster.commands.output import Json, show
from cluster.runtime.console import seconds_text
from cluster.runtime.logs import write_remark
from landscape.core.errors import DONE, FAILED, flat

LONGEST_NAMES = 60


def list_(folder: str = ".", *, json: Json = False) -> int:
    """List the runs below a folder: state, evaluations, size on disk, when they were last written, landscapes.

    Exit code 1 where something of a run cannot be read.

    Parameters
    ----------
    folder
        A folder, searched at every depth, or a URL such as s3://bucket/runs.
    """
    from landscape.store.status import list_runs

    rows = list_runs(folder)
    if rows or json:
        show(rows, json, list_text(rows))
    else:
        write_remark(f"no runs in {flat(folder)}")
    return DONE if all(row["readable"] for row in rows) else FAILED


def list_text(rows: list[dict[str, Any]]) -> str:
    """The rows of `list_runs` as aligned lines, each with its problem below it."""
    cells = [("run", "state", "points", "size", "written", "landscapes"), *map(_cells, rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(cells[0]) - 1)]
    lines = [
        "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]) for row in cells
    ]
    for number in range(len(rows), 0, -1):
        if rows[number - 1]["problem"]:
            lines.insert(number + 1, f"  {flat(rows[number - 1]['problem'], 1000)}")
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    names = [each["name"] for each in row["landscapes"] or []]
    age = row["age_seconds"]
    return (
        flat(row["name"]),
        state_text(row),
        f"{row['done']}/{row['points']}",
        size_text(row["bytes"]),
        "" if age is None else f"{age_text(age)} ago",
        flat(", ".join(names), LONGEST_NAMES),
    )


def state_text(row: dict[str, Any]) -> str:
    """The state of a run's landscapes; of one without any that of its training, which is also told while it runs."""
    if row["state"] == "empty" and row["training"]:
        return f"training {row['training']}"
    return f"{row['state']}, training" if row["training"] == "running" else str(row["state"])


def age_text(seconds: float) -> str:
    """A duration in its largest unit alone, in whole days from two days on."""
    return f"{seconds / 86400:.0f} days" if seconds >= 2 * 86400 else seconds_text(float(round(seconds)))


def size_text(count: int | None) -> str:
    """A number of bytes in the largest unit of which there is one.

    >>> size_text(1536)
    '1.5 KiB'
    """
    if count is None:
        return "unknown"
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.4g} {units[0]}"
