"""How `landscape train` last began a training of a run, and how that ended: `<run>/launch.json`.

A training in a loop of the user's own leaves no such file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from landscape.core.errors import StoreError
from landscape.core.files import Place
from landscape.core.folders import open_folder
from landscape.model.run_files import writing

LAUNCH_FILE = "launch.json"
LONGEST = 1 << 20  # bytes
RUNNING, DONE, INTERRUPTED, FAILED = "running", "done", "interrupted", "failed"


@dataclass(frozen=True)
class Launch:
    """A start of a training.

    Attributes:
        function: what is trained: a recipe's name, or 'module:function'.
        workers: how many ranks.
        command: the line that goes on with it; empty where no command can name the function or one of its options.
        started: when, in ISO format.
        outcome: "running" until it has ended, then "done", "interrupted" or "failed".
        reason: why it failed, in a line.
    """

    function: str
    workers: int
    command: str = ""
    started: str = ""
    outcome: str = RUNNING
    reason: str = ""


def now() -> str:
    """The time, as a launch has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_launch(run: Place, launch: Launch) -> None:
    """Record a start, or its end.

    Raises:
        LandscapeError: the disk is full, or rights are missing.
    """
    with writing(run, LAUNCH_FILE) as temporary:
        temporary.write_text(json.dumps(asdict(launch), indent=1) + "\n")


def read_launch(run: Place) -> Launch | None:
    """The last start of the run's training; None where there was none, or where its file says something else.

    Raises:
        StoreError: the object store does not answer.
    """
    try:
        data = open_folder(run).read(LAUNCH_FILE) or b""
        values: Any = json.loads(data) if 0 < len(data) <= LONGEST else None
    except StoreError:
        raise
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    known: dict[str, Any] = {each.name: values.get(each.name) for each in fields(Launch)}
    workers = known.pop("workers")
    if type(workers) is not int or not all(isinstance(value, str) for value in known.values()):
        return None
    return Launch(workers=workers, **known)
