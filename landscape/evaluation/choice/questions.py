"""The vocabulary of the search for the fastest engine: what may be chosen, what is asked, and what is answered.

Plain values that travel to whoever does what is asked: this process, forked ones, the workers of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from landscape.evaluation.choice.kept import Choice, Record
from landscape.plan import Engine, Plan
from landscape.record import EngineChoice, TrialRecord

DEFAULT_POINT_SECONDS = 0.1  # where a point cannot be measured


@dataclass(frozen=True)
class Freedom:
    """What may be chosen, and for how many points: nothing is measured for a job that is over sooner."""

    engine: Engine | None = None  # the one that the job asks for; None: the fastest
    batch_size: bool = True
    points: int = 0
    row: int | None = None  # points of a row of the job's own tiles; else they suit the cost of a point


@dataclass(frozen=True)
class Limits:
    """How long a search may take.

    Args:
        share: of the time that the job would take as it is.
        longest: seconds, however long the job.
        shortest: seconds that are worth beginning with; a job with less does not search.
    """

    share: float = 0.05
    longest: float = 60.0
    shortest: float = 1.0


@dataclass(frozen=True)
class Candidate:
    engine: Engine
    batch_size: int


@dataclass(frozen=True)
class Trial:
    """One candidate: its speed on the first batches, or why it is out.

    `over_best` is the median of its speed over that of the best so far, round by round, and `spread` how far these
    ratios lie apart; None for what was not timed against another.
    """

    engine: Engine
    batch_size: int
    samples_per_second: float | None = None  # of one process, while all of them compute
    refused: str = ""
    over_best: float | None = None
    spread: float | None = None

    def record(self) -> TrialRecord:
        """The same as it is recorded with a landscape, the engine as text."""
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


class Request:
    """Something to be done by one process, or by all at once."""

    everyone: ClassVar[bool] = False


@dataclass(frozen=True)
class Measure(Request):
    """Find batches that fit the memory, and what a point costs; see what was chosen before. → `Measured`."""

    freedom: Freedom


@dataclass(frozen=True)
class Measured:
    plan: Plan
    seconds: float
    samples: int
    key: str = ""  # of the circumstances that a choice holds for
    record: Record | None = None
    warning: str = ""


@dataclass(frozen=True)
class Look(Request):
    """See what could be done to the model. → `Facts`."""


@dataclass(frozen=True)
class Facts:
    options: tuple[str, ...]  # of an engine, that change anything
    samples: int
    batches: int
    axes: int
    modules: int
    moved_parameters: int
    resident: bool


@dataclass(frozen=True)
class Slice:
    """A candidate and how many of its batches are timed; `row` points are counted on to share something."""

    candidate: Candidate
    count: int
    row: int


@dataclass(frozen=True)
class SetUp(Request):
    """Set up a candidate beside another that stays, and warm it up. → `Ready`."""

    everyone: ClassVar[bool] = True
    one: Slice
    beside: Slice


@dataclass(frozen=True)
class Ready:
    pass


@dataclass(frozen=True)
class Time(Request):
    """Time a slice of a candidate that is set up. → `Timed`."""

    everyone: ClassVar[bool] = True
    one: Slice
    turn: int


@dataclass(frozen=True)
class Timed:
    seconds: float  # per point


@dataclass(frozen=True)
class Check(Request):
    """Find the first of the candidates that agrees with float32 as well as `first` does. → `Checked`."""

    first: Candidate
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Checked:
    accepted: Candidate | None
    seconds: float = 0.0  # per point
    refused: tuple[str, ...] = ()  # why those before it are out


@dataclass(frozen=True)
class Keep(Request):
    """Keep a record without a choice that was dropped. → the `Record` that is kept, which may be another process's."""

    key: str
    record: Record
    dropped: Choice | None = None


@dataclass(frozen=True)
class Conclude(Request):
    """Go on with a plan. → the error of its precision."""

    plan: Plan


@dataclass(frozen=True)
class Refused:
    """The answer to anything that raised."""

    reason: str


Result = TypeVar("Result")
Asking = Generator[Request, Sequence[Any], Result]  # questions that end in a result
Steps = Asking[Tuned]


def follow(steps: Steps, ask: Callable[[Request], Sequence[Any]]) -> Tuned:
    """Do what the steps ask for to their end.

    Args:
        ask: the answers of all that live through it: at most one, or one of each process.
    """
    answers: Sequence[Any] | None = None
    while True:
        try:
            request = next(steps) if answers is None else steps.send(answers)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        answers = ask(request)


NOBODY_LEFT = "ends the process that tries it"


def one(request: Request) -> Asking[Any]:
    """Ask for the answer of the one process that is asked; None where it did not live through it."""
    answers = yield request
    return answers[0] if answers else None


def refusal(answers: Sequence[Any]) -> str:
    """Why a candidate is out: it raised somewhere, or nobody is left; empty where it is not."""
    return next((each.reason for each in answers if isinstance(each, Refused)), "" if answers else NOBODY_LEFT)
