"""Where the callback of a landscape on disk is found: where its job ran, where it was sent from, or in a packed copy.

A packed copy of the problem lies in the run itself; `packed_copy.py` makes it. It answers on machines that do not have
the callback.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from landscape.core.errors import JobError, LandscapeError, message_of, quoted
from landscape.core.files import UNPACKED
from landscape.core.folders import open_folder
from landscape.core.validation import OF_RUN
from landscape.job.job import module_files
from landscape.model.packed_file import MANIFEST, Archive, names_a_file, names_onnx, onnx_files
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import COPIES
from landscape.surface.record_parts import PackedCopyRecord, Provenance

log = logging.getLogger("landscape")

Callback = str | Callable[[], Any]

# ----------------------------------------------------------------------------------------------------
# Problems in the memory of this process, which have no name that another process could import.

MEMORY = "memory"  # stands for the module in their names
_in_memory: dict[tuple[str, str], Callable[[], Any]] = {}


def remember_problem(run: str, name: str, callback: Callable[[], Any]) -> None:
    """Keep the callback of a landscape for later questions about it in this process."""
    _in_memory[run, name] = callback


def is_of_memory(store: LandscapeStore) -> bool:
    """Whether a landscape was computed with a problem in the memory of a process."""
    return str(store.job.whole.get("problem")).startswith(f"{MEMORY}:")


# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallbackPlace:
    """A callback, and the folder in which it is looked up and where relative paths of its job begin.

    Attributes:
        problem: the function, its name, or the file of a portable problem.
        folder: for the job of a packed file, that file.
        copy: set if `problem` is the packed copy that the run keeps.
    """

    problem: Callback
    folder: Path
    copy: PackedCopyRecord | None = None


def recorded_folder(store: LandscapeStore) -> Path:
    """The folder in which the callback was looked up first; the working directory if none is recorded."""
    return Path(store.record.provenance.folder or ".")


def find_callback(
    run: str, store: LandscapeStore, problem: Callback | None = None, folder: Path | None = None
) -> CallbackPlace:
    """The place of a landscape's callback: where its job ran, else where it was sent from, else the run's packed copy.

    A job that was sent ran in a folder of its cluster that ends with it, or lies on another machine.

    Args:
        run: the present place of the run.
        problem: the callback; default: the one with which the landscape was computed, by its name.
        folder: where it is looked up first, and the only place that is tried.

    Raises:
        JobError: the callback is not on this machine, or was a function that cannot be found by a name; or the run is a
            packed one that holds no problem.
    """
    if problem is None and is_packed_copy(run):
        return _own_problem(run, store)
    provenance, ran_in = store.record.provenance, recorded_folder(store)
    if problem is None and is_of_memory(store):
        return _place_of_memory(run, store, folder or ran_in)
    reference = problem or _recorded_problem(store)
    if not isinstance(reference, str):
        return CallbackPlace(reference, folder or ran_in)
    packed_job = problem is None and names_a_file(str(ran_in))
    if folder is not None:
        return _place_in(reference, folder, packed_job) or CallbackPlace(reference, folder)
    if place := _place_in(reference, ran_in, packed_job):
        return place
    if provenance.sent_from and (place := _place_in(reference, Path(provenance.sent_from), packed_job)):
        from_there = f"{quoted(provenance.sent_from)}, where the job was sent from"
        _tell(logging.INFO, f"the callback {quoted(reference)} is taken from {from_there}")
        return place
    if problem is not None or is_installed(reference):
        return CallbackPlace(reference, ran_in)
    if place := _packed_copy(run, store, reference):
        return place
    raise JobError(_missing(reference, ran_in, provenance))


def _place_of_memory(run: str, store: LandscapeStore, folder: Path) -> CallbackPlace:
    """The problem that this process holds, else the packed copy of it in the run."""
    callback = _in_memory.get((run, store.name))
    if callback is not None:
        return CallbackPlace(callback, folder)
    if place := _packed_copy(run, store, str(store.job.whole.get("problem"))):
        return place
    raise JobError(
        f"problem: landscape {quoted(store.name)} was computed with a model in the memory of a process that has ended, "
        "and the run keeps no packed copy of it; give --problem FILE:function (in Python `problem=`)"
    )


def is_packed_copy(run: str) -> bool:
    """Whether a run is the temporary copy of a packed one, for which no callback but the packed problem is called."""
    return "://" not in run and (Path(run) / UNPACKED).exists()


def _own_problem(run: str, store: LandscapeStore) -> CallbackPlace:
    """The packed problem of a landscape of a packed run."""
    if store.record.packed is None:
        raise JobError(
            f"problem: the packed run holds none for landscape {quoted(store.name)}, so only its stored values can be "
            "read; name the callback with --problem FILE:function, or pack the run where its callback is"
        )
    file = Path(run) / COPIES / Path(store.record.packed.file).name  # of what the sender wrote, the name alone
    if not file.is_file() or manifest_digest(file) != store.record.packed.digest:
        raise JobError(f"problem: that of landscape {quoted(store.name)} is not in the packed run; pack it again")
    return CallbackPlace(str(file), file, store.record.packed)


def _place_in(reference: str, folder: Path, packed_job: bool) -> CallbackPlace | None:
    """The callback as it is found in a folder; None if it is not there.

    Args:
        packed_job: whether a packed file was the job itself, which then stands in place of a folder too.
    """
    if packed_job:
        file = folder if names_a_file(str(folder)) else folder / Path(reference).name
        return CallbackPlace(str(file), file) if file.is_file() else None
    if names_a_file(reference):
        files = [reference]
    else:
        files = onnx_files(reference) if names_onnx(reference) else module_files(reference, folder)
    return CallbackPlace(reference, folder) if files and all((folder / name).exists() for name in files) else None


def is_installed(reference: str) -> bool:
    """Whether the callback's module or package can be imported from anywhere else."""
    if names_a_file(reference) or names_onnx(reference):
        return False
    top = reference.partition(":")[0].partition(".")[0]
    try:
        return top in sys.modules or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _missing(reference: str, ran_in: Path, provenance: Provenance) -> str:
    """The error of a callback that is in none of the places where it may be."""
    sent_from = f"nor in {quoted(provenance.sent_from)} of {provenance.sent_host}, where it was sent from, "
    return (
        f"problem: {quoted(reference)} is not on this machine: neither in {quoted(str(ran_in))}, where the job ran, "
        f"{sent_from if provenance.sent_from else ''}nor on sys.path; name its folder with --folder"
    )


def _recorded_problem(store: LandscapeStore) -> str:
    """The callback with which the landscape was computed.

    Raises:
        JobError: the callback was a function that cannot be found by its name, such as that of another script.
    """
    recorded = str(store.job.whole.get("problem"))
    module, _, function = recorded.partition(":")
    of_script = module == "__main__"
    if "<" not in recorded and not (of_script and not callable(getattr(sys.modules[module], function, None))):
        return recorded
    named = "--problem FILE:function (in Python `problem=`)"
    if of_script and function.isidentifier():
        raise JobError(
            f"problem: landscape {quoted(store.name)} was computed with {function}() of a script or notebook, which is "
            f"not this program; give {named.replace('function', function, 1)}, where FILE.py is that script; it is "
            "imported: what it computes belongs below `if __name__ == '__main__':`"
        )
    raise JobError(
        f"problem: landscape {quoted(store.name)} was computed with a function that cannot be found by its name "
        f"({quoted(recorded)}); give {named}"
    )


# ----------------------------------------------------------------------------------------------------
# The packed copy of a problem that a run keeps.


def _packed_copy(run: str, store: LandscapeStore, reference: str) -> CallbackPlace | None:
    """The copy that was made for this landscape; None, with a line that says why, if it cannot be taken."""
    copy = store.record.packed
    if copy is None:
        return None
    try:
        file = _on_this_machine(run, copy.file)
        if manifest_digest(file) != copy.digest:
            raise JobError("it is not the one that was made for this landscape, by its digest")
    except (OSError, LandscapeError) as error:
        _tell(logging.WARNING, f"the packed copy {quoted(copy.file)} of the run cannot be taken: {message_of(error)}")
        return None
    subject = f"the callback {quoted(reference)} is not on this machine"
    if is_of_memory(store):
        subject = "its model was in memory"
    other = f"; its values may differ by {copy.difference:.2g} of those of the source" if copy.difference else ""
    _tell(
        logging.WARNING,
        f"{subject}: the packed copy of the problem in the run serves instead{other}",
    )
    return CallbackPlace(str(file), file, copy)


@cache
def _on_this_machine(run: str, path: str) -> Path:
    """A file of a run; that of an object store is fetched, and kept until this process ends."""
    kept = ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(open_folder(run).fetched(path)).absolute()


def manifest_digest(file: Path) -> str:
    """The SHA-256 of a packed file's manifest, which holds the digests of its other members."""
    return hashlib.sha256(Archive(file).bytes_of(MANIFEST)).hexdigest()


FREE_TEXTS = ("name", "kind", "label", "observable")  # fields that never name a file or a run


def with_packed_names(values: Any, files: Mapping[str, str], runs: Mapping[str, str]) -> Any:
    """The fields of a landscape, with its files and runs called as in a packed file."""
    if isinstance(values, Mapping):
        return {
            key: value if key in FREE_TEXTS else with_packed_names(value, files, runs) for key, value in values.items()
        }
    if isinstance(values, (list, tuple)):
        return [with_packed_names(value, files, runs) for value in values]
    if not isinstance(values, str):
        return values
    match = OF_RUN.fullmatch(values)
    if match is not None and match[1] in runs and values not in files:
        return f"{runs[match[1]]}@{match[2]}"
    return files.get(values, runs.get(values, values))


def copy_in_use(problem: Callback, store: LandscapeStore | None) -> PackedCopyRecord | None:
    """The packed copy of a landscape's problem if it is the problem of a job that extends the landscape, else None."""
    copy = None if store is None else store.record.packed
    is_copy = copy is not None and isinstance(problem, str) and Path(problem).name == Path(copy.file).name
    return copy if is_copy else None


def with_source_names(values: Any, copy: PackedCopyRecord) -> Any:
    """The fields of a landscape, with its files and runs called as in the job that the copy was made of."""
    files, runs = ({member: name for name, member in names.items()} for names in (copy.files, copy.runs))
    return with_packed_names(values, files, runs)


@cache  # one line per process, whatever the number of landscapes
def _tell(level: int, line: str) -> None:
    log.log(level, "%s", line)
