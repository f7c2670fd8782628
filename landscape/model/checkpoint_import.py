"""Makes existing checkpoints the trajectory of a run: orders them, checks them, and writes them as snapshots."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from landscape.core.errors import JobError, LandscapeError, NotFoundError, quoted
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.core.validation import Unit
from landscape.model.parameters import state_digest
from landscape.model.run_files import FOLDER, HISTORY_FILE, read_info
from landscape.model.snapshots import (
    UNITS,
    Trajectory,
    finish_replacement,
    read_trajectory,
    remove_leftovers,
    replace_trajectory,
    snapshot_files,
    staging,
    versions,
    write_snapshot,
)
from landscape.model.weight_files import load_weights, read_about

log = logging.getLogger("landscape")

# ----------------------------------------------------------------------------------------------------
# The epoch or step of each checkpoint: from the numbers in its name, else from its content.

STEP_WORDS = ("step", "steps", "iter", "iters", "iteration", "iterations", "it", "update", "updates", "globalstep")
EPOCH_WORDS = ("epoch", "epochs", "ep")
OTHER_WORDS = ("ckpt", "checkpoint", "chkpt", "model", "weights", "state", "snapshot", "")
# The keys of a step or an epoch in Lightning, transformers, detectron2, fairseq and hand-written loops.
STEP_KEYS = ("global_step", "step", "iteration", "iter", "num_updates", "steps", "n_iter", "it")
EPOCH_KEYS = ("epoch", "epochs", "current_epoch")
LARGEST = 10**15 - 1  # the name of a snapshot holds 15 digits
LEVELS = 3  # the name of the file, of its folder, and of the folder above
# A whole number with the words around it: `epoch=3-step=1200`, `60_steps`. Parts of 1.5, 2k or 1e5 do not match.
_NUMBER = re.compile(
    r"(?P<before>[A-Za-z]*)[_\-= .]*(?<!\d)(?<!\d[.eE])(?P<number>\d{1,15})(?!\d|\.\d|[kKmMbBeE](?![A-Za-z]))"
    r"(?:(?=[_\-]?(?P<after>[A-Za-z]+)(?![A-Za-z]|[_\-= ]*\d)))?"
)
# A number in a name is identified by its word, and by how many numbers with that word precede it.
Key = tuple[str, int]


@dataclass(frozen=True)
class Numbers:
    """The numbers of checkpoints.

    Args:
        numbers: the number of each checkpoint, in the given order of the checkpoints.
        unit: of the numbers.
        source: "name", "inside" the files, or "order": 1, 2, 3, … because neither has numbers.
    """

    numbers: tuple[int, ...]
    unit: Unit
    source: str


def numbers_from_names(files: Sequence[Path], unit: Unit | None = None) -> Numbers | None:
    """The numbers by which the names of these files differ.

    The names of the files are used; if they are all equal, the names of their folders.

    Args:
        unit: of the numbers; None takes the word in the names, else steps.

    Returns:
        The numbers; None if the names have no number by which they differ, or several candidates.

    Example:
        >>> numbers_from_names([Path("ckpt_0.pt"), Path("ckpt_60.pt")])
        Numbers(numbers=(0, 60), unit='step', source='name')
        >>> numbers_from_names([Path("epoch=1-step=390.ckpt"), Path("epoch=2-step=780.ckpt")])
        Numbers(numbers=(390, 780), unit='step', source='name')
        >>> numbers_from_names([Path("step=7.ckpt")]), numbers_from_names([Path("run/lenet5.pt")])
        (Numbers(numbers=(7,), unit='step', source='name'), None)
    """
    for level in range(LEVELS):
        names = [_name(file, level) for file in files]
        numbers = [_numbers_in(name) for name in names]
        if len(set(names)) > 1 or (len(files) == 1 and numbers[0]):
            # In the name of a single file, or of a folder, a number without a known word may mean anything: lenet5.pt.
            return _from_words(numbers, unit, any_word=level == 0 and len(files) > 1, bare=level == 0 or len(files) > 1)
    return None


def _name(file: Path, level: int) -> str:
    """The name of the file without a suffix such as .pt (level 0), or of the folder `level` levels above it."""
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
        numbers[word, sum(other == word for other, _ in numbers)] = int(match["number"])
    return numbers


def _from_words(names: Sequence[Mapping[Key, int]], unit: Unit | None, *, any_word: bool, bare: bool) -> Numbers | None:
    """The numbers under the one word by which the files differ: a step's, else an epoch's, else a checkpoint's.

    Args:
        unit: see `numbers_from_names`; if it is "epoch", words of epochs come before those of steps.
        any_word: whether an unknown word may be used, as the last choice.
        bare: whether a number without a word may be used.
    """
    if all(len(numbers) == 1 for numbers in names) and len({key for numbers in names for key in numbers}) > 1:
        # One number in each name, with different words, as in a_0 and b_60: ignore the words.
        names = [dict.fromkeys([("", 0)], *numbers.values()) for numbers in names]
    telling = [
        key
        for key in names[0]
        if all(key in numbers for numbers in names) and _all_differ([numbers[key] for numbers in names])
    ]
    ranks: list[tuple[tuple[str, ...], Unit]] = [(STEP_WORDS, "step"), (EPOCH_WORDS, "epoch")]
    familiar = tuple(word for word in OTHER_WORDS if word or bare)
    anything = tuple({word for word, _ in telling}) if any_word else ()
    for words, counted in [*(ranks if unit != "epoch" else reversed(ranks)), (familiar, "step"), (anything, "step")]:
        fitting = [key for key in telling if key[0] in words]
        if fitting:
            values = tuple(numbers[fitting[0]] for numbers in names)
            return Numbers(values, unit or counted, "name") if len(fitting) == 1 else None
    return None


def _all_differ(numbers: Sequence[int]) -> bool:
    return len(set(numbers)) == len(numbers)


def numbers_from_inside(checkpoints: Sequence[Mapping[str, Any]], unit: Unit | None = None) -> Numbers | None:
    """The step, else the epoch, in each of these checkpoints, if all have one and all differ.

    Args:
        checkpoints: the entries of each checkpoint beside its weights (see `weight_files.read_about`).
        unit: of the numbers; None takes the key in the checkpoints.

    Returns:
        The numbers; None if a checkpoint has none, or two have the same.

    Example:
        >>> numbers_from_inside([{"epoch": 1}, {"epoch": 4}])
        Numbers(numbers=(1, 4), unit='epoch', source='inside')
    """
    ranks: list[tuple[tuple[str, ...], Unit]] = [(STEP_KEYS, "step"), (EPOCH_KEYS, "epoch")]
    for keys, counted in ranks if unit != "epoch" else reversed(ranks):
        for key in keys:
            numbers = [whole_number_in(checkpoint.get(key)) for checkpoint in checkpoints]
            present = [number for number in numbers if number is not None]
            if len(present) == len(checkpoints) and _all_differ(present):
                return Numbers(tuple(present), unit or counted, "inside")
    return None


def whole_number_in(value: Any) -> int | None:
    """The epoch or step in a value: a whole number, a tensor of one element, or digits; None for other values."""
    if getattr(value, "numel", lambda: 0)() == 1:
        value = value.item()
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value):
        value = int(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value <= LARGEST else None


def refuse_unclear(files: Sequence[Path]) -> None:
    """Refuse files whose names differ in their numbers, but do not decide an order."""
    names = [_name(file, 0) for file in files]
    digits = [tuple(re.findall(r"\d+", name)) for name in names]
    if len(set(digits)) == 1 and (len(set(names)) == len(names) or not digits[0]):
        return
    remedy = "give them in the order of training with --order given (order='given')"
    if not all(digits):
        without = files[digits.index(())]
        raise JobError(f"checkpoints: {quoted(without.name)} has no number in its name, and others have; {remedy}")
    shared = [numbers for numbers, count in Counter(digits).items() if count > 1]
    if shared:
        first, second = [file for file, numbers in zip(files, digits, strict=True) if numbers == shared[0]][:2]
        raise JobError(f"checkpoints: {quoted(str(first))} and {quoted(str(second))} share their number; {remedy}")
    raise JobError(
        f"checkpoints: it cannot be told which number in names like {quoted(files[0].name)} counts; {remedy}"
    )


Order = Literal["auto", "given"]
ORDERS: tuple[Order, ...] = ("auto", "given")


def import_checkpoints(
    paths: Sequence[str | Path],
    run: Place,
    unit: Unit | None = None,
    *,
    order: Order = "auto",
    overwrite: bool = False,
) -> Trajectory:
    """Make existing checkpoints the trajectory of `run`; if that fails, the run is unchanged.

    The checkpoints are ordered by the number in which their names differ (`ckpt_0.pt`, `ckpt_60.pt`, …, else those of
    their folders: `checkpoint-500/model.safetensors`), and keep it: step 0, step 60. Of several such numbers, one named
    a step counts, then one named an epoch. If the names have none, the step or epoch inside the files counts
    (`global_step`, `step`, `iteration`, `epoch`, …). If the files have none either, they are numbered 1, 2, 3, … in the
    given order, with a warning. If the order is unclear, the import is refused.

    Args:
        paths: the checkpoints: files of safetensors or `torch.save`.
        run: the run's folder or URL; it is made if it does not exist.
        unit: of the numbers, "epoch" or "step". Default: the word in the names or files, else steps; epochs if the
            checkpoints are numbered in the given order.
        order: "given" numbers the files 1, 2, 3, … in the given order, whatever their names.
        overwrite: whether to replace the trajectory of the run.

    Returns:
        The trajectory that the run now holds; the same files again change nothing.

    Raises:
        NotFoundError: a file does not exist.
        JobError: a file is no checkpoint, two differ in names or shapes, their order is unclear, or the run has another
            trajectory already.
        LandscapeError: the run cannot be written, or a file changed meanwhile.
    """
    _check_arguments(paths, unit, order)
    folder = open_folder(run)
    finish_replacement(folder)
    existing = snapshot_files(folder)
    files, info = [Path(path) for path in paths], read_info(folder)
    if existing and not overwrite:
        if (held := _held(run, files, info.get("imported"), unit, order)) is not None:
            return held
        kinds = " and ".join(sorted({f"{counted}s" for counted, _, _ in existing}))
        raise JobError(
            f"run: {quoted(str(run))} already holds a trajectory of {len(existing)} {kinds}; "
            "name another run or give overwrite=True (--overwrite)"
        )
    _refuse_missing(files)
    _refuse_own(files, folder)
    _refuse_twice(files)
    shapes = _refuse_different(files)
    numbers = _numbers(files, unit, order)
    # A history belongs to the snapshots that were collected with it, not to imported ones.
    history = HISTORY_FILE if not existing or "imported" in info else None
    _write(folder, files, numbers, shapes, {} if overwrite else info, history)
    return read_trajectory(run)


def _held(run: Place, files: Sequence[Path], imported: Any, unit: Unit | None, order: Order) -> Trajectory | None:
    """The trajectory of the run if it holds these checkpoints, under the numbers that they would get; else None.

    Args:
        imported: the names of the files that the run was imported from, as it records them.
    """
    if not isinstance(imported, list) or set(imported) != set(_labels(files).values()):
        return None
    _refuse_missing(files)
    numbers, held = _numbers(files, unit, order), read_trajectory(run)
    if (held.unit, held.numbers) != (numbers.unit, tuple(sorted(numbers.numbers))):
        return None
    numbered = [file for _, file in sorted(zip(numbers.numbers, files, strict=True))]
    pairs = zip(numbered, held.snapshots, strict=True)
    same = all(state_digest(load_weights(file)) == state_digest(snapshot.load()) for file, snapshot in pairs)
    return held if same else None


def _check_arguments(paths: Sequence[str | Path], unit: Unit | None, order: Order) -> None:
    if unit not in (None, *UNITS):
        raise JobError(f"unit: must be 'epoch' or 'step', not {quoted(unit)}")
    if order not in ORDERS:
        raise JobError(f"order: must be 'auto' or 'given', not {quoted(order)}")
    if isinstance(paths, (str, Path)) or not paths:
        raise JobError(
            f"checkpoints: must be a list of one file or more, in the order of training, not {quoted(paths)}"
        )


def _write(
    folder: Folder,
    files: Sequence[Path],
    numbers: Numbers,
    shapes: Mapping[str, tuple[int, ...]],
    previous: Mapping[str, Any],
    history: str | None,
) -> None:
    """Replace the trajectory of the run by these checkpoints, written as snapshots.

    Args:
        shapes: of their tensors; a file that has other shapes by now is refused.
        previous: the entries of run.json that stay.
        history: HISTORY_FILE to keep the history, None to remove it.
    """
    numbered = sorted(zip(numbers.numbers, files, strict=True))
    labels = _labels(files)
    sources = [labels[file] for _, file in numbered]
    info = {**_imported_info(len(shapes)), **previous, "imported": sources, "unit": numbers.unit}
    remove_leftovers(folder)
    with staging(folder) as staged:
        written = []
        for number, file in numbered:
            state = _read_again(file, shapes)
            about: dict[str, Any] = {"source": labels[file], numbers.unit: number, **versions()}
            written.append(write_snapshot(folder, numbers.unit, number, state, below=staged, **about))
        replace_trajectory(folder, info, written, history)


def _numbers(files: Sequence[Path], unit: Unit | None, order: Order) -> Numbers:
    """The number of each file, in the given order of the files."""
    by_name = numbers_from_names(files, unit)
    as_given = Numbers(tuple(range(1, len(files) + 1)), unit or "epoch", "order")
    if order == "given":
        if by_name:
            _warn_of_falling(files, by_name.numbers)
        return as_given
    numbers = by_name or numbers_from_inside([read_about(file) for file in files], unit)
    if numbers is not None:
        return numbers
    if len(files) > 1:
        refuse_unclear(files)
        log.warning(
            "import: neither the names nor the files say which comes first; they are numbered as given, so %s is "
            "the end of the training; --order given (order='given') says that this is meant",
            quoted(files[-1].name),
        )
    return as_given


def _warn_of_falling(files: Sequence[Path], numbers: Sequence[int]) -> None:
    """Warn about the first file that follows one with a higher or the same number in the given order."""
    for k in range(1, len(files)):
        if numbers[k] <= numbers[k - 1]:
            log.warning(
                "import: the numbers in the names do not rise in the order given: %s comes after %s; --order auto goes "
                "by the numbers",
                quoted(files[k].name), quoted(files[k - 1].name),
            )  # fmt: skip
            return


def _labels(files: Sequence[Path]) -> dict[Path, str]:
    """The name under which the run records each file: its own, after that of its folder if two files have one name."""
    is_ambiguous = len({file.name for file in files}) < len(files)
    labels = {file: "/".join(file.absolute().parts[-2:]) if is_ambiguous else file.name for file in files}
    # A file's name may be any bytes, and JSON holds text only.
    return {file: os.fsencode(label).decode(errors="backslashreplace") for file, label in labels.items()}


def _refuse_missing(files: Iterable[Path]) -> None:
    for file in files:
        if "://" not in str(file) and not file.exists():
            raise NotFoundError(f"weights file {quoted(str(file))} does not exist")


def _refuse_twice(files: Iterable[Path]) -> None:
    first_named: dict[Path, Path] = {}
    for file in files:
        earlier = first_named.setdefault(file.resolve(), file)
        if earlier is not file:
            raise JobError(
                f"checkpoints: {quoted(str(file))} and {quoted(str(earlier))} are one file; leave one of them out"
            )


def _refuse_own(files: Iterable[Path], folder: Folder) -> None:
    own = Path(folder.place(FOLDER)).resolve()
    for file in files:
        if file.resolve().parent == own:
            raise JobError(
                f"checkpoints: {quoted(str(file))} is part of the run it would be imported into; copy it first"
            )


def _refuse_different(files: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    """Refuse checkpoints of different networks, reading one at a time; returns the shapes of their tensors."""
    first: dict[str, tuple[int, ...]] = {}
    unusual: dict[str, list[str]] = {}
    for file in files:
        state = load_weights(file)
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        first = first or shapes
        difference = _first_difference(first, shapes)
        if difference:
            raise JobError(
                f"checkpoints: must be of one network, but {quoted(str(file))} {difference} in "
                f"{quoted(str(files[0]))}; leave one of them out"
            )
        for kind, name in _unusual(state).items():
            unusual.setdefault(kind, []).append(f"{quoted(name)} of {quoted(file.name)}")
    for kind, places in unusual.items():
        rest = f", and in {len(places) - 1} more files" if len(places) > 1 else ""
        log.warning("import: %s in %s%s; imported as it is", kind, places[0], rest)
    return first


def _unusual(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Unlikely values, which are imported nevertheless: their kind → the first tensor that holds them."""
    first_with: dict[str, str] = {}
    for name, tensor in state.items():
        if tensor.is_complex():
            first_with.setdefault("complex numbers", name)
        elif not tensor.is_floating_point():
            if name.endswith((".weight", ".bias")):
                first_with.setdefault("whole numbers for weights", name)
        elif not bool(torch.isfinite(tensor.float() if tensor.element_size() == 1 else tensor).all()):
            first_with.setdefault("NaN or infinity", name)
    return first_with


def _read_again(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of a file that was checked before, each with memory of its own."""
    state = load_weights(file, again=True)
    if {name: tuple(tensor.shape) for name, tensor in state.items()} != dict(shapes):
        raise LandscapeError(f"weights {quoted(str(file))} changed while it was imported; import again")
    return {name: tensor.clone().contiguous() for name, tensor in state.items()}


def _first_difference(first: Mapping[str, tuple[int, ...]], second: Mapping[str, tuple[int, ...]]) -> str:
    """How `second` differs from `first`, in words such as 'lacks 'fc.bias', which is'; empty if it does not."""
    for name, shape in first.items():
        if name not in second:
            return f"lacks {quoted(name)}, which is"
        if second[name] != shape:
            return f"has {quoted(name)} of shape {second[name]}, which is {shape}"
    return next((f"has {quoted(name)}, which is not" for name in second if name not in first), "")


def _imported_info(tensors: int) -> dict[str, Any]:
    """The run.json of checkpoints with `tensors` tensors; None for entries that they do not hold."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    unknown = dict.fromkeys(("optimiser", "learning_rate", "steps_per_epoch"))
    return {
        "created": created, "model": None, "parameters": None, "tensors": tensors, **unknown, "versions": versions()
    }  # fmt: skip
