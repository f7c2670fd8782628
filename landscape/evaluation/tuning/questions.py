"""The requests and answers of the search for the fastest engine, what may be chosen, and what is recorded of it.

They are plain values, sent to the processes that carry out the requests: this one, forked ones, a cluster's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from landscape.core.plan import Engine, Plan
from landscape.evaluation.tuning.protocol import Choice, Record
from landscape.surface.record_parts import EngineChoice, TrialRecord

DEFAULT_POINT_SECONDS = 0.1  # where a point cannot be measured


@dataclass(frozen=True)
class Freedom:
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


class Request:
    """Something to be done: by one process, or by all at once where `everyone` is set."""

    everyone: ClassVar[bool] = False


@dataclass(frozen=True)
class Measure(Request):
    """Find batches that fit the memory, and what a point costs; see what was chosen before. → `Measured`."""

    freedom: Freedom


@dataclass(frozen=True)
class Measured:
    """The plan with batches that fit, the seconds of a point, and what was kept of earlier searches."""

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
class SetUp(Request):
    """Set up a candidate beside another that stays, and warm it up. → `Ready`."""

    everyone: ClassVar[bool] = True
    one: Slice
    beside: Slice


@dataclass(frozen=True)
class Ready:
    """The candidate is set up."""


@dataclass(frozen=True)
class Time(Request):
    """Time a slice of a candidate that is set up. → `Timed`."""

    everyone: ClassVar[bool] = True
    one: Slice
    turn: int


@dataclass(frozen=True)
class Timed:
    """How long the batches of the slice took."""

    seconds: float  # per point


@dataclass(frozen=True)
class Check(Request):
    """Find the first of the candidates whose values agree with float32 as those of `first` do. → `Checked`."""

    first: Candidate
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Checked:
    """The candidate that agrees; None where none does."""

    accepted: Candidate | None
    seconds: float = 0.0  # per point
    refused: tuple[str, ...] = ()  # why each candidate before it cannot be used


@dataclass(frozen=True)
class Keep(Request):
    """Keep a record without a choice that was dropped. → the `Record` that is kept, which may be another process's."""

    key: str
    record: Record
    dropped: Choice | None = None


@dataclass(frozen=True)
class Conclude(Request):
    """Set the evaluator to the chosen plan. → the error of its precision, or None where that is no lower."""

    plan: Plan


@dataclass(frozen=True)
class Refused:
    """The answer where carrying out a request raised an error."""

    reason: str


Result = TypeVar("Result")
Asking = Generator[Request, Sequence[Any], Result]  # questions that end in a result
Steps = Asking[Tuned]


def follow(steps: Steps, ask: Callable[[Request], Sequence[Any]]) -> Tuned:
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


def one(request: Request) -> Asking[Any]:
    """The answer to a request that one process carries out; None where that process has ended."""
    answers = yield request
    return answers[0] if answers else None


def refusal(answers: Sequence[Any]) -> str:
    """Why a candidate cannot be used: it raised in a process, or ended all of them; empty where it can."""
    return next((answer.reason for answer in answers if isinstance(answer, Refused)), "" if answers else NOBODY_LEFT)
