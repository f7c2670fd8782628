"""The numbers of snapshots in words: in which stretches of equal steps they lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_STRETCHES = 4  # that a label lists


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short, as at most 12 ranges.

    Example:
        >>> ranges([0, 1, 2, 3, 10, 20, 30, 40])
        '0-3, 10-40 by 10'
    """
    words = [_word(each) for each in progressions(numbers)]
    return ", ".join(words) if len(words) <= 12 else ", ".join([*words[:6], "…", *words[-5:]])


def counted(unit: str, numbers: Sequence[int]) -> str:
    """Which snapshots these are, as the words of an axis or of a legend.

    Example:
        >>> counted("epoch", range(21)), counted("step", [5]), counted("epoch", [0, 1, 2, 3, 9, 10, 11, 12])
        ('epochs 0 to 20', 'step 5', 'epochs 0-3, 9-12')
        >>> counted("epoch", [0, 2, 4, 6, 8]), counted("epoch", [1, 2, 4, 8, 16, 32])
        ('epochs 0 to 8 by 2', '6 epochs from 1 to 32')
    """
    parts = progressions(numbers)
    if len(numbers) == 1:
        return f"{unit} {numbers[0]}"
    if len(parts) == 1:
        stride = numbers[1] - numbers[0]
        return f"{unit}s {numbers[0]} to {numbers[-1]}{f' by {stride}' if stride > 1 else ''}"
    if len(parts) > MOST_STRETCHES:
        return f"{len(numbers)} {unit}s from {numbers[0]} to {numbers[-1]}"
    return f"{unit}s {ranges(numbers)}"


def progressions(numbers: Iterable[int]) -> list[list[int]]:
    """Ascending numbers cut into stretches of equal steps; two that are no neighbours are no stretch."""
    found: list[list[int]] = []
    for number in numbers:
        last = found[-1] if found else []
        if last and (len(last) == 1 or number - last[-1] == last[1] - last[0]):
            last.append(number)
        elif len(last) == 2 and last[1] - last[0] > 1:  # the second may begin a stretch with what follows
            found.append([last.pop(), number])
        else:
            found.append([number])
    cut = len(found[-1]) == 2 and found[-1][1] - found[-1][0] > 1 if found else False
    return [*found[:-1], *([k] for k in found[-1])] if cut else found


def _word(progression: list[int]) -> str:
    """An arithmetic progression as one range."""
    if len(progression) == 1:
        return str(progression[0])
    stride = progression[1] - progression[0]
    return f"{progression[0]}-{progression[-1]}" + (f" by {stride}" if stride > 1 else "")
