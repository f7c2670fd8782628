"""The defaults of a recipe's options, which differ by the optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from landscape.recipes.belonging import OF_OPTIMIZER, OF_SCHEDULE, refuse_unused
from landscape.recipes.settings import OPTIMIZERS

# What is usual wherever a recipe knows nothing better: PyTorch's own.
USUAL: Mapping[str, Mapping[str, Any]] = {"adagrad": {"learning_rate": 0.01}, "adam": {"learning_rate": 0.001}}


class Words(str):
    """A default in words, where it follows from something else."""


@dataclass(frozen=True)
class OptionTable:
    """The options of a recipe's loop.

    Args:
        base: the default of each.
        of_optimizers: what takes its place with an optimiser.
        told: how defaults that `train` works out are described, by the option's name and the optimiser's.
        only_with: the optimisers that take an option of the recipe's own, where not all do.
    """

    base: Mapping[str, Any]
    of_optimizers: Mapping[str, Mapping[str, Any]]
    told: Mapping[str, Mapping[str, str]]
    only_with: Mapping[str, Sequence[str]]

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options that were given, and the defaults of all others with the optimiser that is among them."""
        return {**self._with(given.get("optimizer", self.base["optimizer"])), **given}

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse options that do nothing with the optimiser or schedule that is chosen, or is the default.

        Raises:
            JobError: names the option, and what takes it.
        """
        chosen = self.completed(given)
        names = [name for name, value in given.items() if value is not None]
        if isinstance(chosen["optimizer"], str) and chosen["optimizer"] in OPTIMIZERS:  # the settings refuse others
            refuse_unused(names, "optimizer", chosen["optimizer"], self._takers)
        refuse_unused(names, "schedule", chosen["schedule"], OF_SCHEDULE)

    def default_of(self, name: str) -> Any:
        """The default of an option with the recipe's own optimiser, or with the first that takes it."""
        return self._with(self._optimizers_of(name)[0])[name]

    def takers_of(self, name: str) -> tuple[str, Sequence[str]] | None:
        """The field "optimizer" or "schedule", and those of them that take an option; None where all do."""
        if name in self._takers:
            return "optimizer", self._takers[name]
        return ("schedule", OF_SCHEDULE[name]) if name in OF_SCHEDULE else None

    def defaults_of(self, name: str) -> dict[str, Any]:
        """The default of an option with each optimiser that takes it, the recipe's own optimiser first.

        A default that `train` works out is described by `Words`; an option of the recipe's own that has no such
        description has none here.
        """
        told = self.told.get(name, {})
        return {
            optimizer: Words(told[optimizer]) if optimizer in told else self._with(optimizer)[name]
            for optimizer in self._optimizers_of(name)
            if optimizer in told or name in self.base
        }

    def _optimizers_of(self, name: str) -> list[str]:
        """Those that take an option, the recipe's own first."""
        return sorted(self._takers.get(name, OPTIMIZERS), key=lambda optimizer: optimizer != self.base["optimizer"])

    @property
    def _takers(self) -> Mapping[str, Sequence[str]]:
        return {**OF_OPTIMIZER, **self.only_with}

    def _with(self, optimizer: Any) -> dict[str, Any]:
        own = [table.get(optimizer, {}) for table in (USUAL, self.of_optimizers) if isinstance(optimizer, str)]
        return {name: value for table in (self.base, *own) for name, value in table.items()}


def of_all(words: str) -> dict[str, str]:
    """The same description with every optimiser."""
    return dict.fromkeys(OPTIMIZERS, words)


def epochs_in_words(intervals: Sequence[Sequence[int]]) -> str:
    """The epochs of several landscapes, each without gaps, the last of which end with the training.

    Example:
        >>> epochs_in_words([[1, 2, 3], [7, 8]])
        'epochs 1 to 3 and the last 2, or all where there are fewer'
    """
    *first, last = intervals
    spans = " and ".join([*(f"{min(each)} to {max(each)}" for each in first), f"the last {len(last)}"])
    return f"epochs {spans}, or all where there are fewer"
