"""Landscapes of a model in memory: `line`, `plane`, `volume`, `path`, `between`, each a call that returns a surface.

A call is an ordinary job: it has a run, which lasts as long as this process unless `keep` names its folder, and every
value is that of the job. The same call again finds its landscape there, and computes only what is missing.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from landscape.compute.callback_place import remember_problem
from landscape.compute.landscape_context import own_state
from landscape.compute.plans import make_evaluator
from landscape.compute.prepare import prepare
from landscape.compute.problem_in_memory import Model, ProblemInMemory, problem_of
from landscape.compute.recorded_job import recorded_job
from landscape.compute.refine import run as run_job
from landscape.compute.reproducibility import NotReproduced, refuse_other_values
from landscape.core.errors import ComputedOtherwise, Interrupted, JobError, LandscapeError, nearest, quoted
from landscape.core.files import temporary_folder, whole_file
from landscape.core.folders import locate
from landscape.core.text import digest
from landscape.job.directions.base import DEFAULT_IGNORE
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.model.checkpoint_import import import_checkpoints
from landscape.model.parameters import State, persistent_buffers, state_digest
from landscape.model.run_files import SNAPSHOT_FORMAT
from landscape.model.weight_files import load_weights, unusual_kind
from landscape.problem.terms import Problem
from landscape.problem.user_code import in_folder
from landscape.store.landscape import LandscapeStore
from landscape.store.results import Run, open_run
from landscape.store.runs import NETWORKS, landscape_names
from landscape.surface.surface import NOT_COMPUTED, Surface

log = logging.getLogger("landscape")

F = TypeVar("F", bound=Callable[..., Any])
Network = nn.Module | Mapping[str, Tensor] | str | Path | int
Compute = Callable[[Job], Run]

# ----------------------------------------------------------------------------------------------------
# Where the values are kept, and the weights that a call names as tensors.


@dataclass
class Session:
    """What this process has computed without `keep`: the folder of the runs, and the names of their landscapes."""

    folder: Path
    names: dict[str, list[str]] = field(default_factory=dict)
    """The landscapes of each call, the last one first, by the digest of all that it was given but its data."""


_sessions: dict[int, Session] = {}  # by the number of the process
_making_session = threading.Lock()
_computing: dict[str, threading.RLock] = {}  # run → held by the thread that computes there


def session() -> Session:
    """The one of this process; its folder is deleted when the process ends. A fork of the process has its own."""
    with _making_session:
        if os.getpid() not in _sessions:
            stack = ExitStack()
            atexit.register(stack.close)
            _sessions[os.getpid()] = Session(stack.enter_context(temporary_folder()))
        return _sessions[os.getpid()]


def _weights_of(network: nn.Module | Mapping[str, Tensor], called: Any) -> dict[str, Tensor]:
    state: Mapping[str, Tensor]
    if isinstance(network, nn.Module):
        state = {**dict(network.named_parameters()), **persistent_buffers(network)}
    else:
        state = network
    for name, tensor in state.items():
        if kind := unusual_kind(tensor):
            raise JobError(f"weights {quoted(str(called))}: {quoted(name)} is {kind}; give ordinary tensors")
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}


def _is_network(value: Any) -> bool:
    is_state = isinstance(value, Mapping) and bool(value) and all(isinstance(part, Tensor) for part in value.values())
    return isinstance(value, nn.Module) or is_state


def _write_weights(weights: State, file: Path) -> str:
    from safetensors.torch import save_file

    try:
        if not file.exists():
            with whole_file(file) as temporary:
                save_file(dict(weights), temporary, {"format": SNAPSHOT_FORMAT})
    except OSError as error:
        raise LandscapeError(f"{quoted(str(file))} cannot be written: {error.strerror}; name another keep") from None
    return str(file)


def _file_of(network: Any, run: str, name: str) -> Any:
    """A file of the run that holds a network in memory, called by this name; any other reference as it is.

    Raises:
        JobError: the run is a URL.
    """
    if not _is_network(network):
        return str(network) if isinstance(network, Path) else network
    if "://" in run:
        raise JobError(
            f"keep: must be a folder where networks are in memory, not a URL; save {quoted(name)} to a file first"
        )
    weights = _weights_of(network, name)
    called = "-".join(re.findall(r"[\w.]+", name)) or "network"
    return _write_weights(weights, Path(run) / NETWORKS / state_digest(weights)[:8] / f"{called}.safetensors")


def _with_files(value: Any, run: str, name: str) -> Any:
    """The options with a file in place of every network in memory, which is called after its option, or its key.

    The three networks of a plane are `first`, `second` and `third`, unless they are given with names.
    """
    if name == "plane" and isinstance(value, (list, tuple)):
        value = dict(zip(("first", "second", "third"), value, strict=False)) if len(value) == 3 else value
    if name == "plane" and isinstance(value, Mapping):
        return [_file_of(network, run, str(key)) for key, network in value.items()]
    if isinstance(value, Mapping) and not _is_network(value):
        return {key: _with_files(part, run, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_files(part, run, name) for part in value]
    return _file_of(value, run, name)


# ----------------------------------------------------------------------------------------------------
# The options of all calls: those of a landscape, those of a job, and where and how it is computed.

NOT_OPTIONS = ("run", "problem", "landscapes", "collect_landscape", "name", "like")
OF_JOB = tuple(name for name in Job.model_fields if name not in NOT_OPTIONS)
OF_LANDSCAPE = tuple(name for name in Landscape.model_fields if name not in NOT_OPTIONS)


def _options(function: F) -> F:
    """Give a function of **options the signature of the options of landscapes and jobs; OPTIONS become their texts."""
    own = inspect.signature(function)
    listed = {
        name: model.model_fields[name]
        for model, names in ((Landscape, OF_LANDSCAPE), (Job, OF_JOB))
        for name in names
        if name not in own.parameters
    }
    parameters = [entry for entry in own.parameters.values() if entry.kind is not entry.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=entry.get_default(call_default_factory=True))
        for name, entry in listed.items()
    ]
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    texts = [
        fill(f"{name}: {' '.join((entry.description or '').split())}", 116, initial_indent=8 * " ",
             subsequent_indent=12 * " ")
        for name, entry in listed.items()
    ]  # fmt: skip
    function.__doc__ = (function.__doc__ or "").replace(" " * 8 + "OPTIONS", "\n".join(texts))
    return function


@dataclass(frozen=True)
class Call:
    """A call of one of the functions below.

    Attributes:
        function: its name, which is that of the landscape too, unless `name` says otherwise.
        problem: with a copy of the model.
        options: of the landscape and of the job, as they were given.
        keep: the folder or URL of the run; None for a run that this process deletes.
        name: of the landscape; None for the first free one.
        compute: what computes a job, such as `cluster.run`; None for this process.
    """

    function: str
    problem: Problem
    options: Mapping[str, Any]
    keep: str | Path | None = None
    name: str | None = None
    compute: Compute | None = None
    progress: bool = True
    accept_origin: bool = False

    def __post_init__(self) -> None:
        for name in self.options:
            if name not in (*OF_JOB, *OF_LANDSCAPE):
                known = nearest(name, [*OF_LANDSCAPE, *OF_JOB])
                raise JobError(f"{self.function}: unknown option {quoted(name)}; {known}")
        if self.keep is not None and (not isinstance(self.keep, (str, Path)) or not str(self.keep)):
            raise JobError(f"keep: must be the folder or the URL of a run, not {quoted(self.keep)}")
        if hasattr(self.problem.data, "__next__"):
            raise JobError(
                f"data: must be readable more than once, and a {type(self.problem.data).__name__} is not; give "
                "list(data), a DataLoader, or a class with __iter__"
            )

    def run_path(self, folder: str = "run") -> str:
        """The run's absolute folder, or its URL.

        Args:
            folder: of a run that is not kept, within the session's.
        """
        return str(session().folder / folder) if self.keep is None else locate(str(self.keep), Path.cwd())

    def surface(self, run: str, **defaults: Any) -> Surface:
        """Compute the landscape, or what is missing of it, and read it.

        Args:
            run: the absolute folder, or the URL.
            defaults: options of the landscape where the caller gave none.

        Raises:
            JobError: an option or the problem is wrong.
        """
        given = {name: value for name, value in self.options.items() if value is not None}
        fields = _with_files({**defaults, **given}, run, "")
        spec = {name: value for name, value in fields.items() if name in OF_LANDSCAPE}
        of_job = {name: value for name, value in fields.items() if name in OF_JOB}
        if self.keep is not None:
            of_job.setdefault("packed_copy", True)  # so that commands can evaluate it when this process has ended
        callback = ProblemInMemory(self.problem)
        weights = state_digest(own_state(self.problem))
        first = self.name or self.function
        key = digest({"run": run, "name": first, "fields": repr(sorted(fields.items())), "weights": weights})
        with _computing.setdefault(run, threading.RLock()):  # a run has one writer, so that threads wait here
            for name in self._names(run, first, key):
                job = Job(run=run, problem=callback, landscapes=[{**spec, "name": name}], **of_job)
                is_stored = LandscapeStore.find(run, name) is not None
                try:
                    surface = self._compute(job, name)
                    if is_stored:
                        refuse_another_function(job, name)
                except (ComputedOtherwise, NotReproduced):
                    if self.name is not None or not is_stored:
                        raise
                    continue
                remember_problem(run, name, callback)
                known = session().names.setdefault(key, [])
                session().names[key] = [name, *(other for other in known if other != name)]
                return surface
        raise AssertionError("a free name is among those tried")

    def _names(self, run: str, first: str, key: str) -> list[str]:
        """The names to try: the one of the same call before, those in a kept run, and the first free one."""
        if self.name is not None:
            return [self.name]
        taken = landscape_names(run)
        numbered = [first, *(f"{first}-{number}" for number in range(2, len(taken) + 2))]
        free = next(name for name in numbered if name not in taken)
        known = [name for name in numbered if name in taken] if self.keep is not None else []
        return list(dict.fromkeys([*session().names.get(key, []), *known, free]))

    def _compute(self, job: Job, name: str) -> Surface:
        """The surface; after an interruption, with the points that are there."""
        compute = self.compute or partial(run_job, accept_origin=self.accept_origin, progress=self.progress)
        try:
            return compute(job)[name]
        except (KeyboardInterrupt, Interrupted):
            store = LandscapeStore.find(job.run_path, name)
            if store is None:
                raise
            surface = open_run(job.run_path)[name]
            done = int((surface.status != NOT_COMPUTED).sum())
            log.warning(
                "interrupted: %d of %d points of %r are there; the same call goes on", done, surface.status.size, name
            )
            return surface


def refuse_another_function(job: Job, name: str) -> None:
    """Refuse a stored landscape that has the weights, samples and options of a job, but another loss or architecture.

    Only values tell them apart: they are computed at the origin and at one point beside it. Where the landscape was
    computed on GPUs, and this process has none, nothing is compared.

    Raises:
        NotReproduced: the values differ.
    """
    store = LandscapeStore.open(job.run_path, name)
    prepared = prepare(recorded_job(job.run_path, store, job.problem, job.folder), reading=True)
    (landscape,) = prepared.landscapes
    if landscape.plan.device == "cpu" or torch.cuda.is_available():
        with in_folder(prepared.folder):
            refuse_other_values(store, landscape.grid, make_evaluator(prepared, landscape), on_any_processor=True)


def job_in_memory(
    model: Model, data: Any, loss: Any, metrics: Any, keep: str | Path | None, options: Mapping[str, Any], function: str
) -> Job:
    """A job without landscapes on a problem in memory, for a function that asks about its weights alone.

    Raises:
        JobError: as for `plane`; also an option of landscapes.
    """
    for name in options:
        if name not in OF_JOB:
            raise JobError(f"{function}: unknown option {quoted(name)}; {nearest(name, OF_JOB)}")
    call = Call(function, problem_of(model, data, loss, metrics), {}, keep)
    run = call.run_path(state_digest(own_state(call.problem))[:16])
    return Job(run=run, problem=ProblemInMemory(call.problem), **options)


# ----------------------------------------------------------------------------------------------------
# The functions.


@_options
def line(
    model: Model, data: Any = None, loss: Any = "cross_entropy", *, metrics: Any = None,
    keep: str | Path | None = None, name: str | None = None, compute: Compute | None = None, progress: bool = True,
    accept_origin: bool = False, **options: Any,
) -> Surface:  # fmt: skip
    """The loss of a model along a line through its weights: θ = θ₀ + α·d.

    See `plane` for the arguments; `directions` lists one direction, by default a random one, filter-normalised.

    Args:
        OPTIONS
    """
    call = Call("line", problem_of(model, data, loss, metrics), options, keep, name, compute, progress, accept_origin)
    return call.surface(call.run_path(), **_random(1, options))


@_options
def plane(
    model: Model, data: Any = None, loss: Any = "cross_entropy", *, metrics: Any = None,
    keep: str | Path | None = None, name: str | None = None, compute: Compute | None = None, progress: bool = True,
    accept_origin: bool = False, **options: Any,
) -> Surface:  # fmt: skip
    """The loss of a model over a plane through its weights: θ = θ₀ + α·d₁ + β·d₂.

    The model is copied; it may be on any device, in any mode, and be trained on afterwards. The same call again
    evaluates two points, which tell whether it is the same; after Ctrl-C it goes on. Weights may be given wherever an
    option names some: a module, a state dict, or a file; the three of `plane` as a list, or as {name: weights}.

    Args:
        model: a `torch.nn.Module`; or a `Problem`, a callback that returns one, or its name 'module:function', each
            without data and loss.
        data: tensors or arrays (inputs, targets), a data set, a `DataLoader`, or a list of batches of any structure; no
            generator, since later questions read it again.
        loss: the name of a loss of torch.nn.functional ("cross_entropy", "mse", …) or "causal_lm" for token ids; a
            criterion (outputs, targets) with a `reduction`; or a function (model, batch) that returns the loss of each
            sample [n], or {"loss": [n], …} with further observables.
        metrics: names ("accuracy", "top5", "error"), or name → function (outputs, targets).
        keep: the folder or URL of the run, which commands, page and later sessions then have; with a packed copy of
            the problem, where it can be packed. Default: a run that is deleted with this process.
        name: of the landscape; another call with this name is then refused. Default: the function's name, numbered
            where that is taken by another call.
        compute: what computes a job, such as `cluster.run`; default: this process.
        progress: show a bar on a terminal and in a notebook, elsewhere a line for every 10 %.
        accept_origin: go on, with a warning, where the model has another loss by its own forward pass.
        OPTIONS

    Returns:
        The surface. Its `run` and `name` are those that commands take.

    Raises:
        JobError: the model, the data, the loss or an option cannot be used; says which and why.

    Example:
        >>> import torch, landscape
        >>> x, y = torch.randn(64, 4, generator=torch.manual_seed(0)), torch.arange(64) % 3
        >>> surface = landscape.plane(torch.nn.Linear(4, 3), (x, y), "cross_entropy", size=5, progress=False)
        >>> surface.axes[0].record.kind, surface.loss.shape
        ('random', (5, 5))
    """
    call = Call("plane", problem_of(model, data, loss, metrics), options, keep, name, compute, progress, accept_origin)
    return call.surface(call.run_path(), **_random(2, options))


@_options
def volume(
    model: Model, data: Any = None, loss: Any = "cross_entropy", *, metrics: Any = None,
    keep: str | Path | None = None, name: str | None = None, compute: Compute | None = None, progress: bool = True,
    accept_origin: bool = False, **options: Any,
) -> Surface:  # fmt: skip
    """The loss of a model over three directions: θ = θ₀ + α·d₁ + β·d₂ + γ·d₃.

    See `plane` for the arguments; `size` is 15 by default, that is 3,375 points.

    Args:
        OPTIONS
    """
    call = Call("volume", problem_of(model, data, loss, metrics), options, keep, name, compute, progress, accept_origin)
    return call.surface(call.run_path(), size=VOLUME_SIZE, **_random(3, options))


@_options
def between(
    first: Model, second: Network, data: Any = None, loss: Any = "cross_entropy", *, metrics: Any = None,
    keep: str | Path | None = None, name: str | None = None, compute: Compute | None = None, progress: bool = True,
    accept_origin: bool = False, **options: Any,
) -> Surface:  # fmt: skip
    """The loss on the straight line from one network to another: θ = (1 − α)·θ₁ + α·θ₂, over [−0.2, 1.2].

    Args:
        first: as `model` of `plane`, whose other arguments these are too.
        second: weights of the same architecture: a module, a state dict, or a file.
        OPTIONS

    Example:
        >>> import torch, landscape
        >>> x, y = torch.randn(64, 4, generator=torch.manual_seed(0)), torch.arange(64) % 3
        >>> surface = landscape.between(torch.nn.Linear(4, 3), torch.nn.Linear(4, 3), (x, y), size=8, progress=False)
        >>> surface.find_barrier().height < 1e-6  # the loss of a linear model is convex
        True
    """
    call = Call(
        "between", problem_of(first, data, loss, metrics), options, keep, name, compute, progress, accept_origin
    )
    run = call.run_path()
    axis = {"kind": "towards", "target": _file_of(second, run, "second")}
    return call.surface(run, origin="problem", directions=[axis])


@_options
def path(
    model: Model, checkpoints: Any, data: Any = None, loss: Any = "cross_entropy", *, metrics: Any = None,
    unit: str | None = None, keep: str | Path | None = None, name: str | None = None, compute: Compute | None = None,
    progress: bool = True, accept_origin: bool = False, **options: Any,
) -> Surface:  # fmt: skip
    """The loss over the plane of a training: the principal components of its checkpoints, with the path drawn.

    Args:
        model: as for `plane`, whose other arguments these are too; its own weights are not used.
        checkpoints: of one training, in order: files, modules or state dicts; or {epoch: weights}; or the folder of a
            run that a collector kept, or a list of several, whose paths are then drawn on one plane.
        unit: of the numbers, "epoch" or "step".
        OPTIONS

    Raises:
        JobError: as for `plane`; also fewer than three checkpoints, or a kept run that holds another training.
    """
    call = Call("path", problem_of(model, data, loss, metrics), options, keep, name, compute, progress, accept_origin)
    runs = _runs_in(checkpoints)
    if runs:
        kept = call.run_path()
        of_itself = [locate(run, Path.cwd()) for run in runs] == [kept]
        return call.surface(kept, **({"trajectory": "all"} if of_itself else {"paths": runs}))
    files = _checkpoint_files(checkpoints, unit or "epoch")
    named = [(file.name, state_digest(load_weights(file, again=True))) for file in files]
    run = call.run_path(digest([unit, *named])[:16])
    import_checkpoints(files, run, unit)  # type: ignore[arg-type]
    return call.surface(run, trajectory="all")


def _runs_in(checkpoints: Any) -> list[str]:
    """The folders of runs that are named; empty where checkpoints are files or weights in memory.

    Raises:
        JobError: some are folders, and others are not.
    """
    listed = checkpoints if isinstance(checkpoints, (list, tuple)) else [checkpoints]
    places = [str(getattr(place, "path", place)) for place in listed if isinstance(place, (str, Path, Run))]
    runs = [place for place in places if "://" in place or Path(place).is_dir()]
    if runs and len(runs) < len(listed):
        raise JobError(
            f"checkpoints: must all be runs, or all be files or weights; {quoted(runs[0])} is a folder, and others are "
            "not"
        )
    return runs


def _checkpoint_files(checkpoints: Any, unit: str) -> list[Path]:
    """The checkpoints as files; those in memory are written, with their numbers in their names."""
    if unit not in ("epoch", "step"):
        raise JobError(f"unit: must be 'epoch' or 'step', not {quoted(unit)}")
    is_one = _is_network(checkpoints) or isinstance(checkpoints, (str, Path, Surface))
    numbered = isinstance(checkpoints, Mapping)
    listed = [] if is_one or not isinstance(checkpoints, Iterable) else list(checkpoints)
    if not listed:
        raise JobError(
            "checkpoints: must be a list of files, modules or state dicts, in the order of training, or {epoch: "
            f"weights}}, or the folder of a run, not {quoted(checkpoints)}"
        )
    if not numbered and all(isinstance(file, (str, Path)) for file in listed):
        return [Path(file) for file in listed]
    weights = {}
    for number, one in checkpoints.items() if numbered else enumerate(listed, 1):
        if not isinstance(number, Integral) or number < 0:
            raise JobError(f"checkpoints: must be numbered by whole numbers of at least 0, not {quoted(number)}")
        if not _is_network(one) and not isinstance(one, (str, Path)):
            raise JobError(f"checkpoints: must hold files, modules or state dicts of tensors, not {quoted(one)}")
        weights[number] = _weights_of(one, f"{unit} {number}") if _is_network(one) else load_weights(one)
    folder = session().folder / "checkpoints" / digest([state_digest(state) for state in weights.values()])[:16]
    return [Path(_write_weights(state, folder / f"{unit}-{number}.safetensors")) for number, state in weights.items()]


VOLUME_SIZE = 15


def _random(axes: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of the problem as origin, and random directions, where the caller names no axes."""
    if any(options.get(name) is not None for name in ("directions", "trajectory", "paths", "plane")):
        return {} if options.get("plane") is not None or options.get("paths") is not None else {"origin": "problem"}
    random = {"kind": "random", "normalise": "filter", "ignore": DEFAULT_IGNORE}  # as a job without directions has them
    return {"origin": "problem", "directions": [{**random, "seed": seed} for seed in range(1, axes + 1)]}
