"""Makes a run of a summary folder of MindSpore: its landscapes, its training's history, and its checkpoints."""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from landscape import __version__
from landscape.core.errors import JobError, LandscapeError, NotFoundError, quoted
from landscape.core.files import Folder, Place
from landscape.core.folders import open_folder
from landscape.core.lock import run_lock
from landscape.core.validation import Unit, is_number, parse_json
from landscape.job.job import CollectLandscape
from landscape.model.history import finite, history_line
from landscape.model.mindspore_files import (
    CHECKPOINTS,
    EVENT_FILE,
    METADATA,
    SOFTWARE,
    Events,
    Lineage,
    MindSporeFileError,
    MindSporeLandscape,
    Scalar,
    is_event_file,
    is_summary_folder,
    read_checkpoint,
    read_events,
    torch_names,
)
from landscape.model.run_files import HISTORY_FILE, NETWORK, PROBLEM, read_info, read_network, read_problem
from landscape.model.snapshots import (
    UNITS,
    finish_replacement,
    remove_leftovers,
    replace_trajectory,
    snapshot_files,
    staging,
    versions,
    write_snapshot,
)
from landscape.store.import_surface import ImportedSurface, NoSurfaceError, refused
from landscape.store.importing import write_imported
from landscape.store.mindspore_landscapes import make_landscape
from landscape.store.results import Run, refuse_taken
from landscape.store.runs import refuse_unwritable, survey, write_error
from landscape.surface.record import Record
from landscape.surface.record_parts import Provenance

if TYPE_CHECKING:
    from torch import Tensor, nn

log = logging.getLogger("landscape")

SOURCE = "source"  # the key of run.json for where a run came from
COLLECTED = re.compile(r"(?P<network>.+)_(?P<number>\d{1,15})_(?P<unit>epoch|step)\.(ckpt|safetensors)")
OF_MODEL_CHECKPOINT = re.compile(r".+-(?P<epoch>\d{1,9})_(?P<step>\d{1,15})\.(ckpt|safetensors)")
SUFFIXES = (".ckpt", ".safetensors")
LARGEST_FILE = 4 << 30
LARGEST_METADATA = 16 << 20
MOST_COLUMNS = 64
MOST_STEPS = 10**12  # in an epoch; also samples
RESERVED = {"step", "epoch", "epoch_end", "seconds", "watch"}


@dataclass(frozen=True)
class NumberedFile:
    """A file of weights, and its number in the unit of the run."""

    number: int
    file: Path


@dataclass
class _Summary:
    """The content of a summary folder."""

    folder: Path
    landscapes: list[tuple[Path, MindSporeLandscape]] = field(default_factory=list)
    scalars: list[list[Scalar]] = field(default_factory=list)  # of each file, the oldest first
    lineage: Lineage = field(default_factory=Lineage)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps_per_epoch(self) -> int | None:
        known = [self.metadata.get("step_per_epoch"), *(one.steps_per_epoch for _, one in reversed(self.landscapes))]
        return next((int(steps) for steps in known if is_number(steps) and 1 <= steps <= MOST_STEPS), None)


def import_mindspore(
    summary_dir: str | Path,
    run: Place,
    problem: str | Callable[[], Any] | None = None,
    *,
    network: Mapping[str, Any] | None = None,
    checkpoints: Sequence[str | Path] = (),
    overwrite: bool = False,
) -> Run:
    """Make a run of a folder that MindSpore's SummaryCollector and SummaryLandscape wrote, without MindSpore.

    Landscapes keep their values, paths and coordinates to the bit. The history is that of the recorded scalars;
    network, optimiser and learning rate are those of the lineage. Snapshots are the checkpoints of `ckpt_dir`, and
    those of `ModelCheckpoint` for other epochs or steps. The paths in `train_metadata.json` need not hold any more. The
    same folder again adds what has come since.

    Args:
        summary_dir: the folder.
        run: the run's folder or URL, which is made if it does not exist.
        problem: the callback of the network, 'module:function' or a function: then the weights get the names of its
            model, and must fit it. It becomes the callback of the run's own landscapes. Default: the one of the last
            import, if any.
        network: the options that the callback reads by `network_options`.
        checkpoints: files of `ModelCheckpoint`, or folders of them, that lie elsewhere.
        overwrite: whether to replace the trajectory that the run holds.

    Returns:
        The run, opened.

    Raises:
        NotFoundError: there is no such folder, or no such checkpoint.
        JobError: the folder holds nothing of MindSpore, a file is damaged, the weights do not fit the problem, or the
            run holds another trajectory; nothing is written then.
        LandscapeError: a driver writes the run, or it cannot be written.
    """
    path = open_folder(run).name
    refuse_unwritable(path)
    summary = _read_summary(Path(summary_dir))
    unit, found = _find_checkpoints(summary, [Path(place) for place in checkpoints])
    if not (summary.landscapes or summary.scalars or found):
        raise JobError(
            f"summary_dir: {quoted(str(summary_dir))} holds no landscape, scalar or checkpoint of MindSpore; name "
            "the summary_dir of a SummaryCollector"
        )
    opened = open_folder(path)
    if problem is None and not network and _is_of(summary, read_info(opened)):  # go on with what was named before
        problem, network = read_problem(opened), read_network(opened)
    model = _model_of(problem, network)
    weights = _Weights(found, model)
    made = _landscapes(summary, weights)
    try:
        with run_lock(path):
            _write_training(opened, summary, unit, found, weights, problem, network, overwrite)
            _write_landscapes(path, made)
    except LandscapeError:
        raise
    except OSError as error:
        raise write_error(path, error) from error
    return Run(path)


def _model_of(problem: str | Callable[[], Any] | None, network: Mapping[str, Any] | None) -> nn.Module | None:
    if problem is None:
        if network:
            raise JobError("network: is read by the callback; name it too, as problem 'module:function'")
        return None
    from landscape.problem.callback import load_problem

    return load_problem(problem, Path.cwd(), network).model


# ----------------------------------------------------------------------------------------------------
# What lies in the folder.


def _read_summary(folder: Path) -> _Summary:
    if not folder.exists():
        raise NotFoundError(f"summary_dir {quoted(str(folder))} does not exist")
    if not folder.is_dir():
        raise JobError(f"summary_dir: must be a folder, not the file {quoted(str(folder))}; name its folder")
    try:
        files = sorted(filter(is_event_file, folder.iterdir()), key=_age)
    except OSError as error:
        raise JobError(f"summary_dir: {quoted(str(folder))} cannot be read: {error.strerror}") from None
    if not files and not (folder / CHECKPOINTS).is_dir():
        others = sorted(below.name for below in folder.iterdir() if below.is_dir() and is_summary_folder(below))
        below = f"; its folder {quoted(others[0])} does: name that" if others else ""
        raise JobError(
            f"summary_dir: {quoted(str(folder))} holds no event file of MindSpore (*.out.events.summary.*) and no "
            f"{CHECKPOINTS}{below or '; name a summary_dir of SummaryCollector'}"
        )
    summary = _Summary(folder)
    first_device = min((_device(file) for file in files), default=0)
    for file in files:
        events = _read_event_file(file)
        summary.landscapes += [(file, one) for one in events.landscapes]
        if events.scalars and _device(file) == first_device:  # every device records the loss of its own samples
            summary.scalars.append(events.scalars)
        known = {name: value for name, value in vars(events.lineage).items() if value is not None}
        summary.lineage = replace(summary.lineage, **known)
    summary.metadata = _read_metadata(folder / CHECKPOINTS / METADATA)
    return summary


def _age(file: Path) -> tuple[int, str]:
    match = EVENT_FILE.fullmatch(file.name)
    return (int(match[1]) if match else 0, file.name)


def _device(file: Path) -> int:
    match = EVENT_FILE.fullmatch(file.name)
    return int(match[2]) if match else 0


def _read_event_file(file: Path) -> Events:
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise MindSporeFileError(f"must be at most {LARGEST_FILE >> 30} GiB")
        events = read_events(file)
    except MindSporeFileError as error:
        raise refused(str(file), f"{error}; move it away to import the others") from None
    except OSError as error:
        raise refused(str(file), f"cannot be read: {error.strerror}") from None
    if events.problem:
        log.warning("import: %s %s", quoted(file.name), events.problem)
    return events


def _read_metadata(file: Path) -> Mapping[str, Any]:
    """What the collector recorded; empty if there is no such file, as after a killed training, or it is damaged."""
    try:
        data = file.read_bytes() if file.stat().st_size <= LARGEST_METADATA and file.is_file() else b""
        metadata = parse_json(data)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        log.warning("import: %s cannot be read; the checkpoints are numbered by their names", quoted(str(file)))
        return {}
    return metadata


def _find_checkpoints(summary: _Summary, places: Sequence[Path]) -> tuple[Unit, list[NumberedFile]]:
    """The unit of the run, and its checkpoints in the order of training."""
    files = [*_checkpoint_files(summary.folder / CHECKPOINTS), *_checkpoint_files(summary.folder)]
    for place in places:
        if not place.exists():
            raise NotFoundError(f"checkpoints: {quoted(str(place))} does not exist")
        listed = _checkpoint_files(place) if place.is_dir() else [place]
        if not listed or not all(file.is_file() for file in listed):
            raise JobError(f"checkpoints: {quoted(str(place))} is no file and holds no *.ckpt or *.safetensors")
        files += listed
    collected = [(match, file) for file in files if (match := COLLECTED.fullmatch(file.name))]
    others = [(match, file) for file in files if (match := OF_MODEL_CHECKPOINT.fullmatch(file.name))]
    unit = _unit_of(summary, Counter(match["unit"] for match, _ in collected))
    found = {int(match["number"]): file for match, file in collected if match["unit"] == unit}
    steps = summary.steps_per_epoch or max((int(match["step"]) for match, _ in others), default=1)
    unused, double = [], []
    for match, file in others:
        epoch, step = int(match["epoch"]), int(match["step"])
        if unit == "epoch" and step != steps:
            unused.append(file.name)
        elif found.setdefault(epoch if unit == "epoch" else (epoch - 1) * steps + step, file) is not file:
            double.append(file.name)
    named = {file.name for _, file in (*collected, *others)}
    unused += [file.name for match, file in collected if match["unit"] != unit]
    unused += [file.name for file in files if file.name not in named]
    for names, reason in ((unused, f"their names give no {unit}"), (double, f"others are of the same {unit}")):
        if names:
            log.warning("import: left out, as %s: %s", reason, ", ".join(sorted(set(names))))
    return unit, [NumberedFile(number, found[number]) for number in sorted(found)]


def _checkpoint_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    except OSError:
        return []


def _unit_of(summary: _Summary, counts: Counter[str]) -> Unit:
    """The unit by the metadata or the landscapes, if any of the collector's checkpoints counts it; else theirs."""
    said = [summary.metadata.get("unit"), *(one.unit for _, one in reversed(summary.landscapes))]
    words = [word for word in said if word in UNITS and (word in counts or not counts)]
    return "step" if [*words, *counts, "epoch"][0] == "step" else "epoch"


# ----------------------------------------------------------------------------------------------------
# The weights.


class _Weights:
    """The weights of the checkpoints, read one at a time, under the names of the model if there is one.

    Raises:
        JobError: a file is no checkpoint, two are of different networks, or one does not fit the model.
    """

    def __init__(self, checkpoints: Sequence[NumberedFile], model: nn.Module | None) -> None:
        self._model = model
        self._files = {one.number: one.file for one in checkpoints}
        self.shapes: dict[str, tuple[int, ...]] = {}
        left_out: dict[str, None] = {}
        for one in checkpoints:
            stored, others = self._read(one.file)
            shapes = {name: tuple(tensor.shape) for name, tensor in self._fitted(one.file, stored).items()}
            if self.shapes and shapes != self.shapes:
                name = next(iter(sorted(set(shapes.items()) ^ set(self.shapes.items()))))[0]
                raise JobError(
                    f"checkpoints: must be of one network, but {quoted(str(one.file))} differs from "
                    f"{quoted(str(checkpoints[0].file))} in {quoted(name)}; give each network a run of its own"
                )
            self.shapes = shapes
            left_out |= dict.fromkeys(others)
        if left_out:
            log.warning("import: left out of the checkpoints: %s", _briefly(left_out))

    @property
    def parameters(self) -> int | None:
        """How many numbers a checkpoint holds, without the statistics of batch norm; None without checkpoints."""
        statistics = ("moving_mean", "moving_variance", "running_mean", "running_var", "num_batches_tracked")
        sizes = [math.prod(shape) for name, shape in self.shapes.items() if not name.endswith(statistics)]
        return sum(sizes) if sizes else None

    @property
    def has_batch_norm(self) -> bool:
        return any(name.endswith(("moving_mean", "running_mean")) for name in self.shapes)

    def state(self, number: int) -> dict[str, Tensor]:
        """The weights of one snapshot as they are stored in the run."""
        return self._fitted(self._files[number], self._read(self._files[number])[0])

    def stored(self, numbers: Sequence[int]) -> list[dict[str, Tensor]] | None:
        """The weights of several snapshots under MindSpore's names; None if one is missing."""
        if not all(number in self._files for number in numbers):
            return None
        return [self._read(self._files[number])[0] for number in numbers]

    def _read(self, file: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        try:
            return read_checkpoint(file)
        except MindSporeFileError as error:
            raise refused(str(file), error) from None
        except OSError as error:
            raise refused(str(file), f"cannot be read: {error.strerror}") from None

    def _fitted(self, file: Path, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._model is None:
            return dict(stored)
        from landscape.model.parameters import match_state, persistent_buffers

        own = {**dict(self._model.named_parameters()), **persistent_buffers(self._model)}
        try:
            return match_state(self._model, torch_names(stored, own), f"checkpoint {quoted(file.name)}")
        except JobError as error:
            biases = [name for name in own if name.endswith(".bias") and name not in stored]
            remedy = "; MindSpore's Conv2d has no bias by default: make the model with bias=False" if biases else ""
            raise JobError(f"{error}{remedy}") from None


def _briefly(names: Mapping[str, None]) -> str:
    """Names in short: those below one word, such as `moments.fc.weight`, as `moments.* (8)`."""
    counts = Counter(name.partition(".")[0] + (".*" if "." in name else "") for name in names)
    return ", ".join(f"{word} ({count})" if word.endswith(".*") else word for word, count in counts.items())


# ----------------------------------------------------------------------------------------------------
# The training: run.json, the history and the snapshots, replaced as a whole.


def _write_training(
    folder: Folder,
    summary: _Summary,
    unit: Unit,
    found: Sequence[NumberedFile],
    weights: _Weights,
    problem: Any,
    network: Mapping[str, Any] | None,
    overwrite: bool,
) -> None:
    finish_replacement(folder)
    before = read_info(folder)
    existing = {f"{word} {number}" for word, number, _ in snapshot_files(folder)}
    is_ours = _is_of(summary, before)
    if (
        (existing or before)
        and not overwrite
        and not (is_ours and existing <= {f"{unit} {one.number}" for one in found})
    ):
        raise JobError(
            f"run: {quoted(folder.name)} already holds another training ({len(existing)} snapshots); name another run "
            "or give overwrite=True (--overwrite)"
        )
    info = _info(summary, unit, found, weights, problem, network)
    info["created"] = before.get("created", info["created"]) if is_ours else info["created"]
    rows = history_rows(summary.scalars, summary.steps_per_epoch)
    rows += _end_of_training(rows, summary)
    remove_leftovers(folder)
    with staging(folder) as staged:
        written, history = [], None
        for one in found:
            state = {name: tensor.clone().contiguous() for name, tensor in weights.state(one.number).items()}
            about: dict[str, Any] = {"source": one.file.name, unit: one.number, **versions()}
            if unit == "epoch" and summary.steps_per_epoch:
                about["step"] = one.number * summary.steps_per_epoch
            written.append(write_snapshot(folder, unit, one.number, state, below=staged, **about))
        if rows:
            history = f"{staged}/{HISTORY_FILE}"
            folder.write(history, "".join(map(history_line, rows)).encode())
        replace_trajectory(folder, info, written, history)


def _is_of(summary: _Summary, info: Mapping[str, Any]) -> bool:
    """Whether a run with this run.json was imported from a folder of this name."""
    source = info.get(SOURCE)
    return isinstance(source, dict) and source.get("folder") == summary.folder.resolve().name


def _info(
    summary: _Summary,
    unit: Unit,
    found: Sequence[NumberedFile],
    weights: _Weights,
    problem: Any,
    network: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The run.json of an imported training."""
    lineage = summary.lineage
    match = COLLECTED.fullmatch(found[-1].file.name) if found else None
    source = {
        "software": SOFTWARE, "folder": summary.folder.resolve().name, "loss_function": lineage.loss_function,
        "epochs": lineage.epochs, "evaluation": _metrics(lineage.metrics),
    }  # fmt: skip
    collect = _collect_options(summary, unit, {one.number for one in found})
    optional = {
        "collect_landscape": collect,
        NETWORK: dict(network or {}),
        PROBLEM: problem if isinstance(problem, str) else None,
    }
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": lineage.network or (match["network"] if match else None),
        "parameters": weights.parameters,
        "tensors": len(weights.shapes) or None,
        "optimiser": lineage.optimiser,
        "learning_rate": None if lineage.learning_rate is None else finite(_shortest(lineage.learning_rate)),
        "batch_size": lineage.batch_size,
        "steps_per_epoch": summary.steps_per_epoch,
        "versions": versions(),
        SOURCE: {name: value for name, value in source.items() if value},
        "imported": [one.file.name for one in found],
        "unit": unit,
    } | {name: value for name, value in optional.items() if value}


def _metrics(text: str | None) -> dict[str, float]:
    """The metrics of MindSpore's evaluation, such as the accuracy."""
    try:
        metrics = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    numbers = metrics.items() if isinstance(metrics, dict) else ()
    return {str(name)[:100]: float(value) for name, value in numbers if is_number(value) and math.isfinite(value)}


def _shortest(value: float) -> float:
    """The shortest decimal of a float32: 0.01 for 0.009999999776482582."""
    return float(str(np.float32(value)))


def _collect_options(summary: _Summary, unit: Unit, numbers: set[int]) -> dict[str, Any] | None:
    """The collector's options, so that a job without landscapes computes the same planes; None if they are not known.

    The size is that of the last landscape on a path: the metadata has that of the last call of SummaryLandscape.
    """
    groups = summary.metadata.get("epoch_group")
    listed = list(groups.values()) if isinstance(groups, dict) else []
    paths = [one for _, one in summary.landscapes if one.intervals]
    listed = listed or [list(intervals) for intervals in dict.fromkeys(one.intervals for one in paths)]
    intervals = [interval for interval in listed if isinstance(interval, list) and numbers.issuperset(interval)]
    sizes = [len(one.plane.x) for one in paths]
    options: dict[str, Any] = {"unit": unit, "intervals": intervals}
    options |= {"landscape_size": sizes[-1]} if sizes else {}
    for name in ("landscape_size", "num_samples"):
        if name in summary.metadata:
            options.setdefault(name, summary.metadata[name])
    try:
        return CollectLandscape(**options).model_dump(mode="json")
    except (ValueError, TypeError):
        return None


def history_rows(files: Sequence[Sequence[Scalar]], steps_per_epoch: int | None) -> list[dict[str, Any]]:
    """The scalars of event files, the oldest first, as lines of a history; `loss/auto` becomes `loss`.

    A file that begins at a step which an older one has reached is of a training that was begun again there: it replaces
    what the older one has from that step on.
    """
    rows: dict[int, dict[str, Any]] = {}
    columns: dict[str, None] = {}
    for scalars in files:
        start = min(scalar.step for scalar in scalars)
        rows = {step: row for step, row in rows.items() if step < start}
        for scalar in scalars:
            name = re.sub(r"[^0-9A-Za-z._/-]+", "-", scalar.tag.removesuffix("/auto"))
            if name in RESERVED or (name not in columns and len(columns) == MOST_COLUMNS):
                continue
            columns[name] = None
            row = rows.setdefault(scalar.step, _place(scalar.step, steps_per_epoch))
            row[name] = finite(_shortest(scalar.value))
    return [rows[step] for step in sorted(rows)]


def _end_of_training(rows: Sequence[Mapping[str, Any]], summary: _Summary) -> list[dict[str, Any]]:
    """The last step, if the lineage says that the training reached it: MindSpore records every tenth step only."""
    steps, epochs = summary.steps_per_epoch, summary.lineage.epochs
    if not rows or steps is None or epochs is None:
        return []
    gap = max((b["step"] - a["step"] for a, b in itertools.pairwise(rows)), default=1)
    return [_place(steps * epochs, steps)] if 0 < steps * epochs - rows[-1]["step"] < gap else []


def _place(step: int, steps_per_epoch: int | None) -> dict[str, Any]:
    if steps_per_epoch is None or step < 1:
        return {"step": step}
    ends = {"epoch_end": True} if step % steps_per_epoch == 0 else {}
    return {"step": step, "epoch": (step - 1) // steps_per_epoch + 1, **ends}


# ----------------------------------------------------------------------------------------------------
# The landscapes.


def _landscapes(summary: _Summary, weights: _Weights) -> list[tuple[str, ImportedSurface, Record]]:
    """The landscapes with the names that they get if those are free, the newest first."""
    made = []
    for file, one in reversed(summary.landscapes):
        try:
            made.append(make_landscape(file, one, summary.landscapes, weights.stored, _about(one, summary, weights)))
        except NoSurfaceError as error:
            raise refused(str(file), f"its {quoted(one.tag)} {error}") from None
    return made


def _about(one: MindSporeLandscape, summary: _Summary, weights: _Weights) -> dict[str, Any]:
    """What the folder says of a landscape beside the landscape itself."""
    provenance = Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"), versions={"landscape": __version__},
        model=summary.lineage.network, parameters=weights.parameters,
    )  # fmt: skip
    about: dict[str, Any] = {"provenance": provenance}
    if weights.has_batch_norm:
        about["batch_norm"] = "batch"  # MindSpore evaluates in training mode
    samples = summary.metadata.get("num_samples")
    # The metadata are those of the last call of SummaryLandscape alone.
    if is_number(samples) and 1 <= samples <= MOST_STEPS and summary.metadata.get("landscape_size") == len(one.plane.x):
        about["num_samples"] = int(samples)
    return about


def _write_landscapes(run: str, made: Sequence[tuple[str, ImportedSurface, Record]]) -> None:
    """Write the landscapes that the run does not have yet, the oldest first.

    Args:
        made: the newest first: of several of one kind it has the plain name, and the others get a number.
    """
    readable = survey(run).readable
    held = {one.record.imported.digest: name for name, one in readable.items() if one.record.imported}
    taken, names = {name.lower() for name in readable}, dict[str, str]()
    for kind, _, record in made:
        digest = record.imported.digest if record.imported and record.imported.digest else ""
        numbered = (f"{kind}-{k}" for k in range(2, len(made) + len(taken) + 2))
        free = (name for name in (kind, *numbered) if name not in taken)
        names[digest] = held.get(digest) or names.get(digest) or next(free)
        taken.add(names[digest])
    position = 1 + max((one.record.position or 0 for one in readable.values()), default=-1)
    written = list[str]()
    for _, surface, record in reversed(made):
        name = names[record.imported.digest or ""] if record.imported else ""
        if name not in readable and name not in written:
            refuse_taken(run, name)
            write_imported(run, name, surface, record.changed(position=position + len(written)))
            written.append(name)
