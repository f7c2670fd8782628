"""The paths of other runs that a landscape draws, as its directions see them."""

from __future__ import annotations

from dataclasses import dataclass

NAMED = 3  # paths at most that a label lists


@dataclass(frozen=True)
class RunSnapshot:
    """A snapshot by the run that it lies in: an absolute folder or a URL, and the epoch or step."""

    run: str
    number: int


@dataclass(frozen=True)
class RunPath:
    """The snapshots of one run that a landscape draws as a path.

    Attributes:
        label: what figures call the run.
        run: its absolute folder, or its URL.
        named: the run as the job names it.
        unit: what the numbers count, step or epoch.
        numbers: ascending.
        own: whether it is the run that the landscape lies in.
    """

    label: str
    run: str
    named: str
    unit: str
    numbers: tuple[int, ...]
    own: bool = False

    @property
    def snapshots(self) -> tuple[RunSnapshot, ...]:
        """What the weights are asked for by, in the order of the path."""
        return tuple(RunSnapshot(self.run, number) for number in self.numbers)


def paths_in_words(paths: tuple[RunPath, ...]) -> str:
    """What a label calls these paths.

    >>> paths_in_words((RunPath("sgd", "/runs/sgd", "sgd", "epoch", (0, 1, 2)), RunPath("b", "/b", "b", "step", (5,))))
    'the paths of sgd and b'
    """
    if len(paths) > NAMED:
        return f"{len(paths)} paths"
    *before, last = (path.label for path in paths)
    return f"the paths of {', '.join(before)} and {last}" if before else f"the path of {last}"
