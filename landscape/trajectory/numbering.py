"""Which epoch or step each checkpoint of a training is: from the numbers in its name, else from what lies inside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from landscape.errors import JobError, shown
from landscape.fields import Unit

STEP_WORDS = ("step", "steps", "iter", "iters", "iteration", "iterations", "it", "update", "updates", "globalstep")
EPOCH_WORDS = ("epoch", "epochs", "ep")
OTHER_WORDS = ("ckpt", "checkpoint", "chkpt", "model", "weights", "state", "snapshot", "")
# What trainings call it in a checkpoint: Lightning, transformers, detectron2, fairseq and hand-written loops.
STEP_KEYS = ("global_step", "step", "iteration", "iter", "num_updates", "steps", "n_iter", "it")
EPOCH_KEYS = ("epoch", "epochs", "current_epoch")
LARGEST = 10**15 - 1  # what the name of a snapshot holds
LEVELS = 3  # the name of the file, of its folder, and of the folder above
# A whole number with the word before and after it: `epoch=3-step=1200`, `60_steps`; no part of 1.5, 2k or 1e5.
_NUMBER = re.compile(
    r"(?P<before>[A-Za-z]*)[_\-= .]*(?<!\d)(?<!\d[.eE])(?P<number>\d{1,15})(?!\d|\.\d|[kKmMbBeE](?![A-Za-z]))"
    r"(?:(?=[_\-]?(?P<after>[A-Za-z]+)(?![A-Za-z]|[_\-= ]*\d)))?"
)


@dataclass(frozen=True)
class Numbers:
    """The number of each checkpoint in the order they were given, what they count, and where they were found.

    `source` is "name", "inside" or "order": 1, 2, 3, … as nothing tells.
    """

    numbers: tuple[int, ...]
    unit: Unit
    source: str


def numbers_from_names(files: Sequence[Path], unit: Unit | None = None) -> Numbers | None:
    """The number that tells these names apart; None where none does, or several do.

    That of the names of the files counts; where all are alike, that of their folders.
    """
    for level in range(LEVELS):
        names = [_name(file, level) for file in files]
        numbers = [_numbers_in(name) for name in names]
        if len(set(names)) > 1 or (len(files) == 1 and numbers[0]):
            # Of one file alone, or of folders, any number may mean anything: lenet5.pt, seed2/.
            return _from_words(numbers, unit, any_word=level == 0 and len(files) > 1, bare=level == 0 or len(files) > 1)
    return None


def _name(file: Path, level: int) -> str:
    """That of the file without an ending such as .pt, or of one of the folders above it."""
    if level == 0:
        return file.stem if re.fullmatch(r"\.[A-Za-z]+", file.suffix) else file.name
    parents = list(file.absolute().parents)
    return parents[level - 1].name if level <= len(parents) else ""


def _numbers_in(name: str) -> dict[tuple[str, int], int]:
    """Every number in a name by its word, and by how often that word came before."""
    found: dict[tuple[str, int], int] = {}
    for match in _NUMBER.finditer(name):
        before, after = match["before"].lower(), (match["after"] or "").lower()
        word = after if before not in (*STEP_WORDS, *EPOCH_WORDS) and after in (*STEP_WORDS, *EPOCH_WORDS) else before
        found[word, sum(each[0] == word for each in found)] = int(match["number"])
    return found


def _from_words(
    names: Sequence[Mapping[tuple[str, int], int]], unit: Unit | None, *, any_word: bool, bare: bool
) -> Numbers | None:
    """The numbers under the one word that tells the files apart: of a step, else of an epoch, else of a checkpoint."""
    if all(len(each) == 1 for each in names) and len({key for each in names for key in each}) > 1:
        names = [dict.fromkeys([("", 0)], *each.values()) for each in names]  # a_0, b_60: words that tell nothing
    telling = [key for key in names[0] if all(key in each for each in names) and _differ([each[key] for each in names])]
    ranks: list[tuple[tuple[str, ...], Unit]] = [(STEP_WORDS, "step"), (EPOCH_WORDS, "epoch")]
    known = tuple(word for word in OTHER_WORDS if word or bare)
    anything = tuple({word for word, _ in telling}) if any_word else ()
    for words, counted in [*(ranks if unit != "epoch" else reversed(ranks)), (known, "step"), (anything, "step")]:
        fitting = [key for key in telling if key[0] in words]
        if fitting:
            numbers = tuple(each[fitting[0]] for each in names)
            return Numbers(numbers, unit or counted, "name") if len(fitting) == 1 else None
    return None


def _differ(numbers: Sequence[int]) -> bool:
    return len(set(numbers)) == len(numbers)


def numbers_from_inside(found: Sequence[Mapping[str, Any]], unit: Unit | None = None) -> Numbers | None:
    """The step, else the epoch, that every one of these checkpoints holds, a different one each."""
    ranks: list[tuple[tuple[str, ...], Unit]] = [(STEP_KEYS, "step"), (EPOCH_KEYS, "epoch")]
    for keys, counted in ranks if unit != "epoch" else reversed(ranks):
        for key in keys:
            numbers = [whole_number(each.get(key)) for each in found]
            known = [number for number in numbers if number is not None]
            if len(known) == len(found) and _differ(known):
                return Numbers(tuple(known), unit or counted, "inside")
    return None


def whole_number(value: Any) -> int | None:
    """A number that can be an epoch or step: also as a tensor of one element, or as text in a file's metadata."""
    if getattr(value, "numel", lambda: 0)() == 1:
        value = value.item()
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value):
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= LARGEST else None


def refuse_unclear(files: Sequence[Path]) -> None:
    """Refuse files whose names differ in their numbers, and which still cannot be put in order.

    Raises:
        JobError: names a file without a number, or two that share theirs.
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
    raise JobError(f"checkpoints: which number in names like {shown(files[0].name)} counts cannot be told; {remedy}")
