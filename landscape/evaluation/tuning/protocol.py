"""Engines that were chosen before, kept in a folder of the user's so that the same job has the same bits again.

There is one small file per set of circumstances (`circumstances.py`), and the first choice of each budget stays in it.
Its content is data from outside: its size is bounded, its fields are checked one by one, and a file that cannot be read
is passed over with a line in the log.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from landscape.core.errors import one_line, shown
from landscape.core.files import folder_of_user, whole_file
from landscape.core.plan import Engine
from landscape.core.validation import is_number

CACHE = "LANDSCAPE_CACHE"  # the folder in place of ~/.cache/landscape; empty: nothing is kept
MOST_FILES, LARGEST_FILE, MOST_CHOICES = 256, 1 << 16, 16
LARGEST_BATCH = 1 << 40
LOCK, LOCK_SECONDS = ".lock", 5.0
_NAME = re.compile(r"[0-9a-f]{64}\.json")

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class Choice:
    """What a search chose, and when.

    Args:
        since: the time of the choice, in ISO format.
        complete: whether a longer search would try nothing else; if not, the budget had run out.
    """

    engine: Engine
    batch_size: int
    seconds_per_point: float
    since: str
    complete: bool = False

    def record(self) -> dict[str, Any]:
        """The fields as they are kept in a file, the engine as text."""
        return {**vars(self), "engine": str(self.engine)}


@dataclass(frozen=True)
class Record:
    """What is kept of one set of circumstances: the first measured cost of a point, and choices by their budget.

    The cost decides how long a search may take. It is kept, as its noise would give the same job another budget each
    time it is measured.
    """

    seconds_per_point: float
    choices: Mapping[float, Choice] = field(default_factory=dict)

    def choice_for(self, budget: float) -> Choice | None:
        """The choice of a search with this budget, else of the first that left nothing untried."""
        complete = sorted((each for each in self.choices.values() if each.complete), key=lambda each: each.since)
        return self.choices.get(budget) or next(iter(complete), None)

    def with_choice(self, budget: float, choice: Choice) -> Record:
        """This one with the choice of a search with this budget, in seconds, in place of any before."""
        return replace(self, choices={**self.choices, budget: choice})

    def over(self, later: Record) -> Record:
        """This one, with the choices of a later one for those budgets that this one has none for."""
        return replace(self, choices={**later.choices, **self.choices})

    def without(self, choice: Choice | None) -> Record:
        """This one without a choice, whatever its budget."""
        return replace(self, choices={k: each for k, each in self.choices.items() if each != choice})


class KeptChoices:
    """The records in one folder, by key. A file that cannot be read or written is passed over and never ends a job."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> KeptChoices:
        """Those in LANDSCAPE_CACHE, else in XDG_CACHE_HOME/landscape, else in ~/.cache/landscape."""
        asked = environment.get(CACHE)
        if asked == "":
            return cls(None)
        if asked is not None:
            place = Path(asked)
            if not place.is_absolute():
                # Workers and the user's code have working directories of their own.
                log.warning(
                    "%s: must be an absolute folder, not %s; no choice of an engine is kept", CACHE, shown(asked)
                )
                return cls(None)
            return cls(place / "engines")
        folder = folder_of_user("XDG_CACHE_HOME", ".cache", environment)
        return cls(folder and folder / "engines")

    def read(self, key: str) -> Record | None:
        """What is kept under a key; None where there is nothing, or what is there cannot be read."""
        if self.folder is None:
            return None
        file = self.folder / f"{key}.json"
        try:
            if not file.is_file():
                return None
            with file.open("rb") as stream:
                return _parse(stream.read(LARGEST_FILE + 1))
        except OSError as error:
            reason = error.strerror or "cannot be read"
        except (ValueError, RecursionError):
            reason = "holds no record of a choice"
        log.info("engine: the kept choice %s is passed over: it %s", str(file), reason)
        return None

    def write(self, key: str, record: Record, dropped: Choice | None = None) -> Record:
        """Keep a record in a file that this user alone can read, and remove the oldest files where there are too many.

        Choices that another process has kept meanwhile stay, and are added to.

        Args:
            dropped: a kept choice that does not hold any more, and may be replaced.

        Returns:
            What is kept now: of two processes that searched at once, the choice of the first.
        """
        if self.folder is None:
            return record
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(self.folder / LOCK, timeout=LOCK_SECONDS, mode=0o600):
                there = self.read(key)
                kept = record if there is None else there.without(dropped).over(record)
                if kept != there:
                    with whole_file(self.folder / f"{key}.json") as temporary:
                        temporary.write_text(_text(kept))
                    _forget_oldest(self.folder)
            return kept
        except (OSError, NotImplementedError) as error:  # the latter where a file system knows no locks
            reason = getattr(error, "strerror", None) or one_line(error)
            log.info("engine: the choice is not kept in %s: %s", str(self.folder), reason)
            return record


def _forget_oldest(folder: Path) -> None:
    """Remove the records that were written longest ago, down to the number that is kept."""
    files = [file for file in folder.iterdir() if _NAME.fullmatch(file.name)]
    if len(files) > MOST_FILES:
        files.sort(key=lambda file: file.lstat().st_mtime)
        for file in files[: len(files) - MOST_FILES]:
            file.unlink(missing_ok=True)


def _text(record: Record) -> str:
    newest = sorted(record.choices.items(), key=lambda pair: pair[1].since)[-MOST_CHOICES:]
    choices = {f"{budget:g}": each.record() for budget, each in newest}
    return json.dumps({"seconds_per_point": record.seconds_per_point, "choices": choices}, indent=1)


def _parse(content: bytes) -> Record:
    """Raises ValueError for anything that `_text` did not write."""
    if len(content) > LARGEST_FILE:
        raise ValueError("too large")
    parsed = json.loads(content)
    if not isinstance(parsed, dict) or not isinstance(choices := parsed.get("choices"), dict):
        raise ValueError("no record")
    return Record(
        _seconds(parsed.get("seconds_per_point")), {_seconds(float(k)): _choice(each) for k, each in choices.items()}
    )


def _choice(parsed: Any) -> Choice:
    if not isinstance(parsed, dict) or set(parsed) != set(Choice.__dataclass_fields__):
        raise ValueError("no choice")
    engine, size, since = parsed["engine"], parsed["batch_size"], parsed["since"]
    if not isinstance(engine, str) or type(size) is not int or not 0 < size < LARGEST_BATCH:
        raise ValueError("no plan")
    if not isinstance(since, str) or len(since) > 40 or not isinstance(parsed["complete"], bool):
        raise ValueError("no date")
    # Both are printed: parsed and written again, they hold nothing but what they should.
    since = datetime.fromisoformat(since).isoformat(timespec="seconds")
    return Choice(Engine.parse(engine), size, _seconds(parsed["seconds_per_point"]), since, parsed["complete"])


def _seconds(value: Any) -> float:
    if not is_number(value) or value <= 0:
        raise ValueError("no seconds")
    return float(value)
