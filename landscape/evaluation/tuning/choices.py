"""What a search for the fastest engine may choose, what it has chosen, and the choices that are kept for later jobs.

Kept choices lie in a folder of the user, so that the same job has the same bits again: one small file per key (`key_of`
in `trials.py`), which keeps the first choice of each budget. The files are untrusted: their size is bounded, their
fields are checked, and an unreadable file is ignored with a line in the log.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pydantic.dataclasses
from filelock import FileLock
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter

from landscape.core.errors import one_line, quoted
from landscape.core.files import folder_of_user, whole_file
from landscape.core.plan import Engine, Plan
from landscape.surface.record_parts import EngineChoice, TrialRecord

DEFAULT_POINT_SECONDS = 0.1  # if a point cannot be measured

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class TuningScope:
    """What a search may choose.

    Args:
        engine: the engine that the job asks for, or has; None: the fastest is chosen.
        by: what chose that engine, see `EngineChoice`.
        may_choose_batch_size: whether the job leaves the batch size open.
        points: of the whole job; if they take too little time, nothing is searched.
        needs_cost: whether the cost of a point decides anything, such as the shape of tiles.
        same_moved: whether all landscapes of the job move the weights of the same layers.
        row: points in a row of the job's tiles; None if the cost of a point decides the tiles.
    """

    engine: Engine | None = None
    may_choose_batch_size: bool = True
    points: int = 0
    row: int | None = None
    same_moved: bool = True
    needs_cost: bool = True
    by: str = "given"


@dataclass(frozen=True)
class Limits:
    """How long a search may take.

    Args:
        share: of the job's time with the first planned engine.
        longest: seconds; the limit for any job.
        shortest: seconds; a job whose share is less does not search.
    """

    share: float = 0.05
    longest: float = 60.0
    shortest: float = 1.0


@dataclass(frozen=True)
class Candidate:
    """An engine and a batch size that a search may choose."""

    engine: Engine
    batch_size: int


@dataclass(frozen=True)
class Trial(Candidate):
    """The result for one candidate.

    Args:
        samples_per_second: of one process, while all of them compute; None if it was not timed.
        refused: why it cannot be used; empty if it can.
        over_best: its speed over that of the best candidate so far, the median over the rounds; None if it was not
            timed against another.
        spread: how far these ratios lie apart; None likewise.
    """

    samples_per_second: float | None = None
    refused: str = ""
    over_best: float | None = None
    spread: float | None = None

    def record(self) -> TrialRecord:
        """The landscape's record of the trial."""
        return TrialRecord(**{**vars(self), "engine": str(self.engine)})


@dataclass(frozen=True)
class Tuned:
    """The plan to use, the cost of a point with it, and facts about the choice.

    Args:
        by: what chose the engine, see `EngineChoice`.
        precision_error: the largest difference of the mean loss from float32 at the probe points; None if the
            precision is no lower.
        since: when an earlier job made the choice; None if this one did.
        processes: the most processes that were timed at once.
        raised: the exception of user code at the point to be timed, on one line.
    """

    plan: Plan
    seconds_per_point: float = DEFAULT_POINT_SECONDS
    trials: tuple[Trial, ...] = ()
    precision_error: Mapping[str, float | int | None] | None = None
    warning: str = field(default="", compare=False)
    since: str = ""
    processes: int = 0
    raised: str = field(default="", compare=False)
    by: str = "given"

    def record(self) -> EngineChoice:
        """The landscape's record of how its engine was chosen."""
        return EngineChoice(
            engine=str(self.plan.engine),
            by=self.by,
            batch_size=self.plan.batch_size,
            seconds_per_point=self.seconds_per_point,
            trials=tuple(trial.record() for trial in self.trials),
            processes=self.processes,
            cached=bool(self.since),
            since=self.since or None,
        )


# ----------------------------------------------------------------------------------------------------
# Kept choices and their files.

CACHE = "LANDSCAPE_CACHE"  # the folder in place of ~/.cache/landscape; empty: nothing is kept
MOST_FILES, LARGEST_FILE = 256, 1 << 16
LOCK, LOCK_SECONDS = ".lock", 5.0
_NAME = re.compile(r"[0-9a-f]{64}\.json")


def _parsed_engine(value: Any) -> Any:
    return Engine.parse(value) if isinstance(value, str) else value


def _parsed_date(text: str) -> str:
    """The date, parsed and formatted anew: it is printed, so no other text may pass."""
    return datetime.fromisoformat(text).isoformat(timespec="seconds")


_STRICT = ConfigDict(strict=True, extra="forbid")
_EngineName = Annotated[Engine, BeforeValidator(_parsed_engine), PlainSerializer(str)]
_Date = Annotated[str, Field(max_length=40), AfterValidator(_parsed_date)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class TunedChoice:
    """What a search chose, and when.

    Args:
        since: the time of the choice, in ISO format.
        complete: whether the search tried every candidate; False if its budget ran out.
    """

    engine: _EngineName
    batch_size: Annotated[int, Field(gt=0, lt=1 << 40)]
    seconds_per_point: _Seconds
    since: _Date
    complete: bool = False


@pydantic.dataclasses.dataclass(frozen=True, config=_STRICT)
class TuningRecord:
    """The record of one key: the first measured cost of a point, and choices by the search's budget in seconds.

    The cost decides how long a search may take. It is kept because a new, noisy measurement would give the same job
    another budget.
    """

    seconds_per_point: _Seconds
    choices: Mapping[_Seconds, TunedChoice] = field(default_factory=dict)

    def choice_for(self, budget: float) -> TunedChoice | None:
        """The choice of a search with this budget, else of the first complete search.

        Args:
            budget: 0 for a job that does not search: it takes the choice of the longest search that there was.
        """
        complete = (choice for choice in self.choices.values() if choice.complete)
        first = self.choices.get(budget) or min(complete, key=lambda choice: choice.since, default=None)
        return first or (self.choices[max(self.choices)] if self.choices and not budget else None)

    def with_choice(self, budget: float, choice: TunedChoice, dropped: TunedChoice | None = None) -> TuningRecord:
        """This record without the `dropped` choice, and with the new one unless its budget has a choice already."""
        others = {seconds: other for seconds, other in self.choices.items() if other != dropped}
        return replace(self, choices={budget: choice, **others})


_RECORD = TypeAdapter(TuningRecord)


class KeptChoices:
    """The records in one folder, by key. A file that cannot be read or written is ignored, and never ends a job."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def of_user(cls, environment: Mapping[str, str] = os.environ) -> KeptChoices:
        """The records in LANDSCAPE_CACHE, else in XDG_CACHE_HOME/landscape, else in ~/.cache/landscape."""
        given = environment.get(CACHE)
        if given is None:
            folder = folder_of_user("XDG_CACHE_HOME", ".cache", environment)
        else:
            folder = Path(given) if given else None
        if folder is not None and not folder.is_absolute():
            # Workers and user code have other working directories.
            log.warning("%s: must be an absolute folder, not %s; no choice of an engine is kept", CACHE, quoted(given))
            folder = None
        return cls(folder and folder / "engines")

    def read(self, key: str) -> TuningRecord | None:
        """The record of a key; None if there is none, or it cannot be read."""
        if self.folder is None:
            return None
        file = self.folder / f"{key}.json"
        try:
            if not file.is_file():
                return None
            with file.open("rb") as stream:
                content = stream.read(LARGEST_FILE + 1)
            if len(content) <= LARGEST_FILE:
                return _RECORD.validate_json(content)
            reason = "is too large"
        except OSError as error:
            reason = error.strerror or "cannot be read"
        except ValueError:
            reason = "holds no record of a choice"
        log.info("engine: the kept choice %s is passed over: it %s", str(file), reason)
        return None

    def write(
        self, key: str, seconds_per_point: float, budget: float = 0.0, choice: TunedChoice | None = None,
        dropped: TunedChoice | None = None,
    ) -> TuningRecord:  # fmt: skip
        """Keep the cost of a point, and the choice of a search with this budget, in a file that only this user reads.

        Entries that another process has written meanwhile stay. The oldest files are removed if there are too many.

        Args:
            dropped: a kept choice that is no longer valid, and may be replaced.

        Returns:
            The record as it is now: of two simultaneous searches, the choice of the first one.
        """

        def added(there: TuningRecord | None) -> TuningRecord:
            record = there or TuningRecord(seconds_per_point)
            return record if choice is None else record.with_choice(budget, choice, dropped)

        if self.folder is None:
            return added(None)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(self.folder / LOCK, timeout=LOCK_SECONDS, mode=0o600):
                there = self.read(key)
                kept = added(there)
                if kept != there:
                    with whole_file(self.folder / f"{key}.json") as temporary:
                        temporary.write_bytes(_RECORD.dump_json(kept, indent=1))
                    _remove_oldest(self.folder)
            return kept
        except (OSError, NotImplementedError) as error:  # the latter from a file system without locks
            reason = getattr(error, "strerror", None) or one_line(error)
            log.info("engine: the choice is not kept in %s: %s", str(self.folder), reason)
            return added(None)


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest records beyond the number to keep."""
    files = [file for file in folder.iterdir() if _NAME.fullmatch(file.name)]
    files.sort(key=lambda file: file.lstat().st_mtime, reverse=True)
    for file in files[MOST_FILES:]:
        file.unlink(missing_ok=True)
