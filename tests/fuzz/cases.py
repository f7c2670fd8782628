"""What a case is: commands to give in a scene that was spoilt, and what is asked of each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        named: words of which a refusal must hold one.
        refused: whether it must not end well.
        raised: the exception that user code raised, which may be shown.
        keeps: whether what the run holds must be the same afterwards where the command was refused.
        same: whether the run's values must be the original ones where the command ended well.
    """

    words: tuple[str, ...]
    named: tuple[str, ...] = ()
    refused: bool = False
    raised: str = ""
    keeps: bool = True
    same: bool = False


@dataclass(frozen=True)
class Case:
    what: str
    steps: list[Step] = field(default_factory=list)
