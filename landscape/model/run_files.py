"""The files of a run beside its landscapes: their names, how they are written whole, and which of them count.

    <run>/run.json                             the training and its options
    <run>/history.jsonl                        one line per recorded step and per epoch
    <run>/trajectory/epoch-00003.safetensors   parameters and buffers of one epoch or step
    <run>/measures.json                        measures of the run, one JSON object
    <run>/measures/0f1e2d3c….npz               the losses of single samples behind these, named in measures.json

Nothing else in the project knows these names. While a trajectory is being replaced, run.json alone says which snapshots
and which history count (see `snapshots.py`). A run may also lie in an object store; `core/folders.py` hides that.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError

from landscape.core.errors import LandscapeError, StoreError, message_of, quoted
from landscape.core.files import PARTIAL, Folder, Place
from landscape.core.folders import open_folder
from landscape.core.validation import RepeatedKey, parse_json

SNAPSHOT_FORMAT = "landscape-snapshot-1"
INFO_FILE, HISTORY_FILE, MEASURES_FILE, FOLDER = "run.json", "history.jsonl", "measures.json", "trajectory"
MEASURES_FOLDER = "measures"
MOST_MEASURES = 16 << 20  # bytes
DEEPEST = 64  # levels of run.json
MOST_DIGITS = 308  # of a whole number: a longer one is beyond every floating-point number
PROBLEM = "problem"  # the key of run.json for the callback of the run's landscapes
NETWORK = "network"  # the key of run.json for the options that the model and the data were made with
REPLACING = "replacing"  # the key of run.json for the files that count while a trajectory is being replaced
SNAPSHOT_NAME = re.compile(r"(epoch|step)-(\d{5,15})\.safetensors")
HISTORY_NAME = re.compile(re.escape(HISTORY_FILE))
STAGED = re.compile(rf"\.{FOLDER}-(\d+)-[0-9a-f]{{8}}{re.escape(PARTIAL)}")


@dataclass(frozen=True)
class Contents:
    """The paths, relative to the run, of the snapshots and the history that count; `history` may be None."""

    snapshots: tuple[str, ...]
    history: str | None


def read_info(run: Place) -> dict[str, Any]:
    """The contents of run.json; empty if there is none."""
    folder = open_folder(run)
    place = quoted(folder.place(INFO_FILE))
    try:
        data = folder.read(INFO_FILE)
        info = {} if data is None else parse_json(data, parse_int=parse_whole_number)
        if depth_exceeds(info, DEEPEST):
            raise ValueError
    except OSError as error:
        raise LandscapeError(f"{place} cannot be read: {reason_of(error)}; restore it or move it away") from None
    except RepeatedKey as error:
        raise LandscapeError(f"{place} cannot be read: {error}") from None
    except (ValueError, RecursionError):
        raise LandscapeError(
            f"{place} cannot be read: it is empty, no JSON, or nested too deeply, or holds a number of more "
            f"than {MOST_DIGITS} digits; restore it or delete it"
        ) from None
    if not isinstance(info, dict):
        raise LandscapeError(f"{place} must hold one JSON object; restore it or delete it")
    return info


def read_network(run: Place) -> dict[str, Any]:
    """The options that the model and the data of a run's training were made with; empty if run.json has none."""
    network = read_info(run).get(NETWORK)
    return network if isinstance(network, dict) else {}


def read_problem(run: Place) -> str | None:
    """The callback 'module:function' of a run's landscapes, if its training recorded one."""
    problem = read_info(run).get(PROBLEM)
    return problem if isinstance(problem, str) else None


def parse_whole_number(digits: str) -> int:
    """A whole number of a JSON document.

    Raises:
        ValueError: it is larger than every floating-point number.
    """
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number must have at most {MOST_DIGITS} digits, not {len(digits)}")
    return int(digits)


def depth_exceeds(value: Any, most: int) -> bool:
    """Whether lists and mappings are nested deeper than `most` levels.

    >>> depth_exceeds({"a": [1]}, 2), depth_exceeds({"a": [1]}, 1)
    (False, True)
    """
    level = [value]
    for _ in range(most + 1):
        level = [container for container in level if isinstance(container, (dict, list))]
        if not level:
            return False
        level = [
            inner for container in level for inner in (container.values() if isinstance(container, dict) else container)
        ]
    return True


def read_measures(run: Place) -> dict[str, Any]:
    """The contents of measures.json; empty if there is none, or if it is damaged, too large or no JSON object.

    Nothing else depends on this file, so unreadable measures count as none.
    """
    try:
        data = open_folder(run).read(MEASURES_FILE) or b""
        measures = json.loads(data) if 0 < len(data) <= MOST_MEASURES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return measures if isinstance(measures, dict) else {}


def write_measures(run: Place, measures: Mapping[str, Any]) -> None:
    """Write measures.json, whole or not at all."""
    with writing(run, MEASURES_FILE) as temporary:
        temporary.write_text(json.dumps(measures, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_info(run: Place, info: Mapping[str, Any]) -> None:
    """Write run.json, whole or not at all."""
    with writing(run, INFO_FILE) as temporary:
        temporary.write_text(json.dumps(info, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def contents(run: Place, info: Mapping[str, Any]) -> Contents:
    """The snapshots and the history that count in a run.

    Raises:
        LandscapeError: run.json names files that are no snapshots or history of this run.
    """
    folder = open_folder(run)
    if REPLACING in info:
        return _named_contents(info[REPLACING], folder)
    names = filter(SNAPSHOT_NAME.fullmatch, folder.names(FOLDER))
    return Contents(tuple(f"{FOLDER}/{name}" for name in names), HISTORY_FILE)


def _named_contents(named: Any, folder: Folder) -> Contents:
    """The files that run.json names under `REPLACING`; all but snapshots and a history are refused."""
    snapshots, history = (named.get("snapshots"), named.get("history")) if isinstance(named, dict) else (None, None)
    usable_history = history in (None, HISTORY_FILE) or _lies_in_run(history, HISTORY_NAME)
    if usable_history and isinstance(snapshots, list) and all(_lies_in_run(path, SNAPSHOT_NAME) for path in snapshots):
        return Contents(tuple(snapshots), history)
    place = quoted(folder.place(INFO_FILE))
    raise LandscapeError(
        f"{place} must name snapshots and a history of this run under {REPLACING!r}, and names something else; "
        "restore it or delete it"
    )


def _lies_in_run(path: Any, name: re.Pattern[str]) -> bool:
    """Whether a path leads to a file of this name in the trajectory's folder, or in one of a replacement."""
    below, _, last = path.rpartition("/") if isinstance(path, str) else ("", "", "")
    return (below == FOLDER or STAGED.fullmatch(below) is not None) and name.fullmatch(last) is not None


@contextlib.contextmanager
def writing(run: Place, path: str) -> Iterator[Any]:
    """Give a temporary file to fill, which then replaces `path`.

    A reader finds the old file or the whole new one, also after a crash at any moment.
    """
    folder = open_folder(run)
    with refusing_disk_errors(folder.place(path)), folder.whole(path) as temporary:
        yield temporary


def reason_of(error: BaseException) -> str:
    """The reason why a file cannot be read or written."""
    return (isinstance(error, OSError) and error.strerror) or message_of(error) or type(error).__name__


@contextlib.contextmanager
def refusing_disk_errors(place: str) -> Iterator[None]:
    """Turn a full disk or missing rights into one line with its remedy.

    Raises:
        LandscapeError: names `place` and the reason.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise LandscapeError(
            f"{quoted(place)} cannot be written: {reason_of(error)}; what was collected is intact: make room or mend "
            "the rights"
        ) from None


# ----------------------------------------------------------------------------------------------------
# The names of a training's checkpoints, such as <run>/checkpoints/step-00000400.pt.

CHECKPOINTS = "checkpoints"
NAME = re.compile(r"step-(\d{8,15})\.pt")


def checkpoint_path(number: int) -> str:
    """The path in the run of the checkpoint with this number."""
    return f"{CHECKPOINTS}/step-{number:08d}.pt"


def checkpoint_numbers(folder: Folder) -> list[int]:
    """The numbers of the checkpoints of a run, ascending."""
    return sorted(int(match[1]) for match in map(NAME.fullmatch, folder.names(CHECKPOINTS)) if match)


# ----------------------------------------------------------------------------------------------------
# The last start of a run's training by `landscape train`, and its end: <run>/launch.json.

LAUNCH_FILE = "launch.json"
LONGEST = 1 << 20  # bytes
RUNNING, DONE, INTERRUPTED, FAILED = "running", "done", "interrupted", "failed"


@dataclass(frozen=True)
class Launch:
    """A start of a training.

    Attributes:
        function: the training function: a recipe's name, or 'module:function'.
        workers: how many ranks.
        command: the command that continues it; empty if no command can name the function or one of its options.
        started: the time, in ISO format.
        outcome: "running" until it has ended, then "done", "interrupted" or "failed".
        reason: of a failure, in a line.
        finished: the digest of what was trained and of the files that it left, where it did all of its epochs; else
            empty.
        steps, epochs: those of the whole run, at that end.
    """

    function: str
    workers: int
    command: str = ""
    started: str = ""
    outcome: str = RUNNING
    reason: str = ""
    finished: str = ""
    steps: int = 0
    epochs: int = 0


def now() -> str:
    """The current time in the format of a launch."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_launch(run: Place, launch: Launch) -> None:
    """Record a start, or its end."""
    with writing(run, LAUNCH_FILE) as temporary:
        temporary.write_text(json.dumps(asdict(launch), indent=1) + "\n")


def read_launch(run: Place) -> Launch | None:
    """The last start of the run's training; None if there was none, or if its file holds something else."""
    try:
        data = open_folder(run).read(LAUNCH_FILE) or b""
    except StoreError:
        raise
    except OSError:
        return None
    try:
        return TypeAdapter(Launch).validate_json(data, strict=True) if len(data) <= LONGEST else None
    except ValidationError:
        return None
