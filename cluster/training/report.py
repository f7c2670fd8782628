"""What a training reports while it runs, a line per epoch on stderr, and at its end, its pace as a value."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from cluster.runtime.logs import write_remark
from landscape.core.errors import quoted
from landscape.store.state import finite

# ----------------------------------------------------------------------------------------------------
# News from the ranks and the controller of a training to its driver, by way of an actor.

# The kinds of news.
PACE = "pace"  # of one rank: an epoch, or what of it is done
SUMMARY = "summary"  # of one rank, at its end
STARTED = "started"  # of one rank
KEPT = "kept"  # a checkpoint
LOST = "lost"  # ranks, which begin anew: a line for the user
REMARK = "remark"  # another line for the user
CONTROLLER = "controller"  # the handle of Ray Train's controller
MOST_NEWS = 10_000  # that wait for the driver; the oldest go first


class Board:
    """An actor that keeps news until the driver takes them."""

    def __init__(self) -> None:
        self._news: list[dict[str, Any]] = []
        self._told: set[str] = set()

    def tell(self, kind: str, news: dict[str, Any]) -> None:
        """Keep a piece of news."""
        self._told.add(kind)
        self._news = [*self._news[1 - MOST_NEWS :], {"kind": kind, **news}]

    def was_told(self, kind: str) -> bool:
        """Whether news of this kind came at any time."""
        return kind in self._told

    def take(self) -> list[dict[str, Any]]:
        """All that was told since the last call."""
        taken, self._news = self._news, []
        return taken


@dataclass
class Report:
    """Takes the news of a training.

    Attributes:
        shown: whether lines are written.
        ranks: what each rank did, by its number.
    """

    epochs: int | None = None
    shown: bool = True
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __call__(self, news: dict[str, Any]) -> None:
        """Take a piece of news."""
        match news["kind"]:
            case "pace":
                told = {name: value for name, value in news.items() if name != "kind"}
                self._write(pace_text(news, self.epochs), PACE, **dict(finite(told)))
            case "lost":
                self.ranks.clear()
                self._write(news["text"], LOST, logging.WARNING)
            case "remark":
                self._write(news["text"], REMARK)
            case "summary":
                self.ranks[news["rank"]] = {name: value for name, value in news.items() if name != "kind"}

    def _write(self, text: str, event: str, level: int = logging.INFO, **fields: Any) -> None:
        if self.shown:
            write_remark(text, event, level, **fields)

    def tell(self, kind: str, news: dict[str, Any]) -> None:
        """Take a piece of news from this process."""
        self({"kind": kind, **news})


@dataclass(frozen=True)
class TrainingResult:
    """How a training went; its trajectory, history and checkpoints are in the run.

    Attributes:
        run: the run's folder or URL.
        workers: how many ranks it had at its end.
        epochs, steps, samples, seconds: what was done since this start, in batches; `seconds` leaves out evaluation.
        total_steps, total_epochs: those of the whole run; epochs are None where the function has no collector.
        loss: the mean over the last epoch; None where the function told none.
        communication: the share of each rank's time that passed while ranks exchanged gradients and means, in the
            order of the ranks; most of it while gradients are computed. Empty for one rank.
    """

    run: str
    workers: int = 1
    epochs: int = 0
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    loss: float | None = None
    communication: tuple[float, ...] = ()
    total_steps: int = 0
    total_epochs: int | None = None

    @property
    def samples_per_second(self) -> float | None:
        """Samples of whole batches per second."""
        return self.samples / self.seconds if self.seconds else None


def result_of(run: str, ranks: dict[int, dict[str, Any]]) -> TrainingResult:
    """The result, from what the ranks did."""
    first = ranks.get(0, {})
    names = ("epochs", "steps", "samples", "seconds", "loss", "total_steps", "total_epochs")
    same = {name: first[name] for name in names if name in first}
    shares = [each["communication"] for _, each in sorted(ranks.items()) if each["communication"] is not None]
    return TrainingResult(run, first.get("world", 1), **same, communication=tuple(shares))


def pace_text(news: dict[str, Any], epochs: int | None) -> str:
    """A line on an epoch: which, its loss, how fast; how far it is where it has not ended."""
    parts = [f"epoch {news['epoch']}" + (f" of {epochs}" if epochs else "")]
    if news["count"]:
        parts[0] += f", {news['samples'] / news['count']:.0%} done"
    if news["loss"] is not None:
        parts.append(f"loss {news['loss']:.4f}")
    parts.append(f"{news['samples'] / news['seconds']:,.0f} samples/s")
    return f"{parts[0]}: {', '.join(parts[1:])}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _done(epochs: int | None, steps: int) -> str:
    return ", ".join([*([] if epochs is None else [_counted(epochs, "epoch")]), _counted(steps, "step")])


def result_text(result: TrainingResult) -> str:
    """The result in a line or two: what this start did, and what the run has where an earlier start did a part."""
    whole = _done(result.total_epochs, result.total_steps)
    if not result.steps:
        return f"{quoted(result.run)}: nothing was left to do" + (f" after {whole}" if result.total_steps else "")
    loss = "" if result.loss is None else f", loss {result.loss:.4f} over its last epoch"
    pace = result.samples_per_second
    text = f"{quoted(result.run)}: {_done(result.epochs, result.steps)}{loss}; {_counted(result.workers, 'worker')}"
    if pace is not None:
        text += f", {pace:,.0f} samples/s"
    if result.total_steps > result.steps:
        text += f"; since this start, and with those before {whole}"
    if result.communication:
        listed = ", ".join(f"{share:.0%}" for share in result.communication)
        text += f"; of their time in communication: {listed} (ranks 0 to {len(result.communication) - 1})"
    return text
