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
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from filelock import FileLock

from landscape.core.errors import one_line, quoted
from landscape.core.files import folder_of_user, whole_file
from landscape.core.plan import Engine, Plan
from landscape.core.validation import is_number
from landscape.surface.record_parts import EngineChoice, TrialRecord

CACHE = "LANDSCAPE_CACHE"  # the folder in place of ~/.cache/landscape; empty: nothing is kept
MOST_FILES, LARGEST_FILE, MOST_CHOICES = 256, 1 << 16, 16
LARGEST_BATCH = 1 << 40
LOCK, LOCK_SECONDS = ".lock", 5.0
_NAME = re.compile(r"[0-9a-f]{64}\.json")

log = logging.getLogger("landscape")


@dataclass(frozen=True)
class TunedChoice:
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
class TuningRecord:
    """What is kept of one set of circumstances: the first measured cost of a point, and choices by their budget.

    The cost decides how long a search may take. It is kept, as its noise would give the same job another budget each
    time it is measured.
    """

    seconds_per_point: float
    choices: Mapping[float, TunedChoice] = field(default_factory=dict)

    def choice_for(self, budget: float) -> TunedChoice | None:
        """The choice of a search with this budget, else of the first that left nothing untried."""
        complete = sorted((each for each in self.choices.values() if each.complete), key=lambda each: each.since)
        return self.choices.get(budget) or next(iter(complete), None)

    def with_choice(self, budget: float, choice: TunedChoice) -> TuningRecord:
        """This one with the choice of a search with this budget, in seconds, in place of any before."""
        return replace(self, choices={**self.choices, budget: choice})

    def over(self, later: TuningRecord) -> TuningRecord:
        """This one, with the choices of a later one for those budgets that this one has none for."""
        return replace(self, choices={**later.choices, **self.choices})

    def without(self, choice: TunedChoice | None) -> TuningRecord:
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
                    "%s: must be an absolute folder, not %s; no choice of an engine is kept", CACHE, quoted(asked)
                )
                return cls(None)
            return cls(place / "engines")
        folder = folder_of_user("XDG_CACHE_HOME", ".cache", environment)
        return cls(folder and folder / "engines")

    def read(self, key: str) -> TuningRecord | None:
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

    def write(self, key: str, record: TuningRecord, dropped: TunedChoice | None = None) -> TuningRecord:
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


def _text(record: TuningRecord) -> str:
    newest = sorted(record.choices.items(), key=lambda pair: pair[1].since)[-MOST_CHOICES:]
    choices = {f"{budget:g}": each.record() for budget, each in newest}
    return json.dumps({"seconds_per_point": record.seconds_per_point, "choices": choices}, indent=1)


def _parse(content: bytes) -> TuningRecord:
    """Raises ValueError for anything that `_text` did not write."""
    if len(content) > LARGEST_FILE:
        raise ValueError("too large")
    parsed = json.loads(content)
    if not isinstance(parsed, dict) or not isinstance(choices := parsed.get("choices"), dict):
        raise ValueError("no record")
    return TuningRecord(
        _seconds(parsed.get("seconds_per_point")), {_seconds(float(k)): _choice(each) for k, each in choices.items()}
    )


def _choice(parsed: Any) -> TunedChoice:
    if not isinstance(parsed, dict) or set(parsed) != set(TunedChoice.__dataclass_fields__):
        raise ValueError("no choice")
    engine, size, since = parsed["engine"], parsed["batch_size"], parsed["since"]
    if not isinstance(engine, str) or type(size) is not int or not 0 < size < LARGEST_BATCH:
        raise ValueError("no plan")
    if not isinstance(since, str) or len(since) > 40 or not isinstance(parsed["complete"], bool):
        raise ValueError("no date")
    # Both are printed: parsed and written again, they hold nothing but what they should.
    since = datetime.fromisoformat(since).isoformat(timespec="seconds")
    return TunedChoice(Engine.parse(engine), size, _seconds(parsed["seconds_per_point"]), since, parsed["complete"])


def _seconds(value: Any) -> float:
    if not is_number(value) or value <= 0:
        raise ValueError("no seconds")
    return float(value)


# ----------------------------------------------------------------------------------------------------
# The requests and answers of the search for the fastest engine, what may be chosen, and what is recorded of it.
#
# They are plain values, sent to the processes that carry out the requests: this one, forked ones, a cluster's workers.

DEFAULT_POINT_SECONDS = 0.1  # where a point cannot be measured


@dataclass(frozen=True)
class TuningScope:
    """What may be chosen.

    Args:
        engine: the one that the job asks for; None: the fastest is chosen.
        may_choose_batch_size: whether the batch size is not given.
        points: of the whole job; where they take too little time, nothing is measured.
        row: points in a row of the job's tiles; None where the tiles suit the cost of a point.
    """

    engine: Engine | None = None
    may_choose_batch_size: bool = True
    points: int = 0
    row: int | None = None


@dataclass(frozen=True)
class Limits:
    """How long a search may take.

    Args:
        share: the part of the time that the job would take with the engine planned at first.
        longest: seconds that are not exceeded, however long the job.
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
class Trial:
    """What a search has found of one candidate.

    Args:
        samples_per_second: of one process, while all of them compute; None where it was not timed.
        refused: why it cannot be used; empty where it can.
        over_best: its speed over that of the best candidate so far, the median over the rounds; None where it was not
            timed against another.
        spread: how far these ratios lie apart; None likewise.
    """

    engine: Engine
    batch_size: int
    samples_per_second: float | None = None
    refused: str = ""
    over_best: float | None = None
    spread: float | None = None

    def record(self) -> TrialRecord:
        """The trial as it is recorded with a landscape, the engine as text."""
        return TrialRecord(**{**vars(self), "engine": str(self.engine)})


@dataclass(frozen=True)
class Tuned:
    """The plan to keep, what a point costs with it, and what is recorded of the choice.

    `precision_error` is the largest difference of the mean loss from float32 at the probe points; None where the
    precision is no lower. `since` is when an earlier job chose, where that choice was taken.
    """

    plan: Plan
    seconds_per_point: float = DEFAULT_POINT_SECONDS
    trials: tuple[Trial, ...] = ()
    precision_error: Mapping[str, float | int | None] | None = None
    warning: str = field(default="", compare=False)
    since: str = ""
    processes: int = 0  # that were timed at once
    raised: str = field(default="", compare=False)  # by user code at the point that was to be timed, on one line

    def record(self) -> EngineChoice:
        """What is recorded with a landscape of how its engine was chosen."""
        return EngineChoice(
            engine=str(self.plan.engine),
            batch_size=self.plan.batch_size,
            seconds_per_point=self.seconds_per_point,
            trials=tuple(each.record() for each in self.trials),
            processes=self.processes,
            cached=bool(self.since),
            since=self.since or None,
        )


# -- what is asked, and what is answered ---------------------------------------------------------------------------


class TuningRequest:
    """Something to be done: by one process, or by all at once where `everyone` is set."""

    everyone: ClassVar[bool] = False


@dataclass(frozen=True)
class Measure(TuningRequest):
    """Find batches that fit the memory, and what a point costs; see what was chosen before. → `MeasuredCost`."""

    scope: TuningScope


@dataclass(frozen=True)
class MeasuredCost:
    """The plan with batches that fit, the seconds of a point, and what was kept of earlier searches."""

    plan: Plan
    seconds: float
    samples: int
    key: str = ""  # of the circumstances that a choice holds for
    record: TuningRecord | None = None
    warning: str = ""


@dataclass(frozen=True)
class ExamineModel(TuningRequest):
    """See what could be done to the model. → `Facts`."""


@dataclass(frozen=True)
class Facts:
    """What decides which candidates there are: the model's and the samples' sizes, and what could be done to them."""

    options: tuple[str, ...]  # of an engine, that change anything
    samples: int
    batches: int
    axes: int
    modules: int
    moved_parameters: int
    resident: bool
    whole_batches: bool = False  # the data itself cuts them, whatever the batch size


@dataclass(frozen=True)
class Slice:
    """A candidate, how many of its batches are timed, and the assumed number of points that share their row's cost."""

    candidate: Candidate
    count: int
    row: int


@dataclass(frozen=True)
class SetUp(TuningRequest):
    """Set up a candidate beside another that stays, and warm it up. → `Ready`."""

    everyone: ClassVar[bool] = True
    one: Slice
    beside: Slice


@dataclass(frozen=True)
class Ready:
    """The candidate is set up."""


@dataclass(frozen=True)
class Time(TuningRequest):
    """Time a slice of a candidate that is set up. → `Timed`."""

    everyone: ClassVar[bool] = True
    one: Slice
    turn: int


@dataclass(frozen=True)
class Timed:
    """How long the batches of the slice took."""

    seconds: float  # per point


@dataclass(frozen=True)
class CheckAgreement(TuningRequest):
    """Find the first of the candidates whose values agree with float32 as those of `first` do. → "
    "`AgreeingCandidate`."""

    first: Candidate
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class AgreeingCandidate:
    """The candidate that agrees; None where none does."""

    accepted: Candidate | None
    seconds: float = 0.0  # per point
    refused: tuple[str, ...] = ()  # why each candidate before it cannot be used


@dataclass(frozen=True)
class Keep(TuningRequest):
    """Keep a record without a choice that was dropped. → the `TuningRecord` that is kept, perhaps another process's."""

    key: str
    record: TuningRecord
    dropped: TunedChoice | None = None


@dataclass(frozen=True)
class Conclude(TuningRequest):
    """Set the evaluator to the chosen plan. → the error of its precision, or None where that is no lower."""

    plan: Plan


@dataclass(frozen=True)
class FailedRequest:
    """The answer where carrying out a request raised an error."""

    reason: str


Result = TypeVar("Result")
Asking = Generator[TuningRequest, Sequence[Any], Result]  # questions that end in a result
Steps = Asking[Tuned]


def follow(steps: Steps, ask: Callable[[TuningRequest], Sequence[Any]]) -> Tuned:
    """Carry out the requests of a search to its end, and return its result.

    Args:
        ask: carries out one request, and returns the answer of each process that it was sent to; a process that has
            ended gives none.
    """
    answers: Sequence[Any] | None = None
    while True:
        try:
            request = next(steps) if answers is None else steps.send(answers)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answers = ask(request)


NOBODY_LEFT = "ends the process that tries it"


def one(request: TuningRequest) -> Asking[Any]:
    """The answer to a request that one process carries out; None where that process has ended."""
    answers = yield request
    return answers[0] if answers else None


def refusal(answers: Sequence[Any]) -> str:
    """Why a candidate cannot be used: it raised in a process, or ended all of them; empty where it can."""
    return next(
        (answer.reason for answer in answers if isinstance(answer, FailedRequest)), "" if answers else NOBODY_LEFT
    )
