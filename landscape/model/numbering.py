"""Which epoch or step each checkpoint of a training is: told by the numbers in its name, else by what it holds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landscape.core.errors import JobError, shown
from landscape.core.validation import Unit

STEP_WORDS = ("step", "steps", "iter", "iters", "iteration", "iterations", "it", "update", "updates", "globalstep")
EPOCH_WORDS = ("epoch", "epochs", "ep")
OTHER_WORDS = ("ckpt", "checkpoint", "chkpt", "model", "weights", "state", "snapshot", "")
# The keys under which Lightning, transformers, detectron2, fairseq and hand-written loops keep a step or an epoch.
STEP_KEYS = ("global_step", "step", "iteration", "iter", "num_updates", "steps", "n_iter", "it")
EPOCH_KEYS = ("epoch", "epochs", "current_epoch")
LARGEST = 10**15 - 1  # the name of a snapshot holds 15 digits
LEVELS = 3  # the name of the file, of its folder, and of the folder above
# A whole number with the word before and after it: `epoch=3-step=1200`, `60_steps`. Parts of 1.5, 2k or 1e5 are none.
_NUMBER = re.compile(
    r"(?P<before>[A-Za-z]*)[_\-= .]*(?<!\d)(?<!\d[.eE])(?P<number>\d{1,15})(?!\d|\.\d|[kKmMbBeE](?![A-Za-z]))"
    r"(?:(?=[_\-]?(?P<after>[A-Za-z]+)(?![A-Za-z]|[_\-= ]*\d)))?"
)
# A number in a name is known by its word, and by how many numbers with that word stand before it.
Key = tuple[str, int]


@dataclass(frozen=True)
class Numbers:
    """The numbers of checkpoints.

    Args:
        numbers: the number of each checkpoint, in the order in which the checkpoints were given.
        unit: what the numbers count.
        source: where they come from: "name", "inside" the files, or "order": 1, 2, 3, … because nothing tells them.
    """

    numbers: tuple[int, ...]
    unit: Unit
    source: str


def numbers_from_names(files: Sequence[Path], unit: Unit | None = None) -> Numbers | None:
    """The numbers that tell these files apart by their names.

    The names of the files are looked at; where these are all alike, the names of their folders.

    Args:
        files: the checkpoints.
        unit: what the numbers count; None takes what the names call them, else steps.

    Returns:
        The numbers; None where the names hold none that tells the files apart, or several that might be meant.

    Example:
        >>> numbers_from_names([Path("ckpt_0.pt"), Path("ckpt_60.pt")])
        Numbers(numbers=(0, 60), unit='step', source='name')
        >>> numbers_from_names([Path("epoch=1-step=390.ckpt"), Path("epoch=2-step=780.ckpt")])
        Numbers(numbers=(390, 780), unit='step', source='name')
    """
    for level in range(LEVELS):
        names = [_name(file, level) for file in files]
        numbers = [_numbers_in(name) for name in names]
        if len(set(names)) > 1 or (len(files) == 1 and numbers[0]):
            # In the name of a single file, or of a folder, any number may mean anything: lenet5.pt, seed2/.
            return _from_words(numbers, unit, any_word=level == 0 and len(files) > 1, bare=level == 0 or len(files) > 1)
    return None


def _name(file: Path, level: int) -> str:
    """The name of the file without an ending such as .pt (level 0), or of the folder that many levels above it."""
    if level == 0:
        return file.stem if re.fullmatch(r"\.[A-Za-z]+", file.suffix) else file.name
    parents = list(file.absolute().parents)
    return parents[level - 1].name if level <= len(parents) else ""


def _numbers_in(name: str) -> dict[Key, int]:
    """Every number in a name."""
    numbers: dict[Key, int] = {}
    for match in _NUMBER.finditer(name):
        before, after = match["before"].lower(), (match["after"] or "").lower()
        word = after if before not in (*STEP_WORDS, *EPOCH_WORDS) and after in (*STEP_WORDS, *EPOCH_WORDS) else before
        numbers[word, sum(known == word for known, _ in numbers)] = int(match["number"])
    return numbers


def _from_words(names: Sequence[Mapping[Key, int]], unit: Unit | None, *, any_word: bool, bare: bool) -> Numbers | None:
    """The numbers under the one word that tells the files apart: a step's, else an epoch's, else a checkpoint's.

    Args:
        names: the numbers in each name.
        unit: see `numbers_from_names`; where it is "epoch", words of epochs come before those of steps.
        any_word: whether a word that means nothing to us serves as well, as the last choice.
        bare: whether a number without a word serves.
    """
    if all(len(numbers) == 1 for numbers in names) and len({key for numbers in names for key in numbers}) > 1:
        # One number in each name, with words that differ, as in a_0 and b_60: the words tell nothing.
        names = [dict.fromkeys([("", 0)], *numbers.values()) for numbers in names]
    telling = [
        key
        for key in names[0]
        if all(key in numbers for numbers in names) and _all_differ([numbers[key] for numbers in names])
    ]
    ranks: list[tuple[tuple[str, ...], Unit]] = [(STEP_WORDS, "step"), (EPOCH_WORDS, "epoch")]
    known = tuple(word for word in OTHER_WORDS if word or bare)
    anything = tuple({word for word, _ in telling}) if any_word else ()
    for words, counted in [*(ranks if unit != "epoch" else reversed(ranks)), (known, "step"), (anything, "step")]:
        fitting = [key for key in telling if key[0] in words]
        if fitting:
            values = tuple(numbers[fitting[0]] for numbers in names)
            return Numbers(values, unit or counted, "name") if len(fitting) == 1 else None
    return None


def _all_differ(numbers: Sequence[int]) -> bool:
    return len(set(numbers)) == len(numbers)


def numbers_from_inside(checkpoints: Sequence[Mapping[str, Any]], unit: Unit | None = None) -> Numbers | None:
    """The step, else the epoch, that every one of these checkpoints holds, a different one each.

    Args:
        checkpoints: what each checkpoint holds besides its weights (see `weight_files.read_about`).
        unit: what the numbers count; None takes what the checkpoints call them.

    Returns:
        The numbers; None where a checkpoint holds none, or two hold the same.

    Example:
        >>> numbers_from_inside([{"epoch": 1}, {"epoch": 4}])
        Numbers(numbers=(1, 4), unit='epoch', source='inside')
    """
    ranks: list[tuple[tuple[str, ...], Unit]] = [(STEP_KEYS, "step"), (EPOCH_KEYS, "epoch")]
    for keys, counted in ranks if unit != "epoch" else reversed(ranks):
        for key in keys:
            numbers = [whole_number(checkpoint.get(key)) for checkpoint in checkpoints]
            known = [number for number in numbers if number is not None]
            if len(known) == len(checkpoints) and _all_differ(known):
                return Numbers(tuple(known), unit or counted, "inside")
    return None


def whole_number(value: Any) -> int | None:
    """The epoch or step that a value holds: a whole number, a tensor of one element, or digits; None for others."""
    if getattr(value, "numel", lambda: 0)() == 1:
        value = value.item()
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value):
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= LARGEST else None


def refuse_unclear(files: Sequence[Path]) -> None:
    """Refuse files whose names differ in their numbers, and which still cannot be put in order.

    Raises:
        JobError: names a file without a number, or two files that share theirs.
    """
    names = [_name(file, 0) for file in files]
    digits = [tuple(re.findall(r"\d+", name)) for name in names]
    if len(set(digits)) == 1 and (len(set(names)) == len(names) or not digits[0]):
        return
    remedy = "give them in the order of training with --order given (order='given')"
    if not all(digits):
        without = files[digits.index(())]
        raise JobError(f"checkpoints: {shown(without.name)} has no number in its name, and others have; {remedy}")
    shared = [numbers for numbers, count in Counter(digits).items() if count > 1]
    if shared:
        one, other = [file for file, numbers in zip(files, digits, strict=True) if numbers == shared[0]][:2]
        raise JobError(f"checkpoints: {shown(str(one))} and {shown(str(other))} share their number; {remedy}")
    raise JobError(f"checkpoints: it cannot be told which number in names like {shown(files[0].name)} counts; {remedy}")
