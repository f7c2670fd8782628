"""Warnings about jobs that may not mean what they say: a line each, with the remedy."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import nn

from landscape.compute.landscape_context import Weights
from landscape.compute.prepared import PreparedLandscape, batch_norm_layers
from landscape.core.devices import cores
from landscape.core.errors import JobError, quoted
from landscape.core.plan import OPTIONS, RECALIBRATE, STATISTICS
from landscape.job.directions.computed import PartTensors
from landscape.job.directions.plane import TowardsDirection
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.model.layer_rules import inspect_command
from landscape.model.parameters import State, norm
from landscape.problem.batches import Samples
from landscape.store.examination import has_constant_loss
from landscape.store.format import NETWORK
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record

log = logging.getLogger("landscape")


Losses = Callable[[Sequence[State]], Sequence[float]]

Guessing = Callable[[], float | None]

THREADS_PER_CORE = 4  # more threads are never faster


def thread_warnings(job: Job) -> list[str]:
    """A warning about more threads than useful on this machine; no error, as the workers may have more cores."""
    if (job.threads or 1) <= THREADS_PER_CORE * cores():
        return []
    return [
        f"threads: {job.threads} per worker are more than {THREADS_PER_CORE} times the {cores()} cores here, which "
        "makes points slower unless the workers' machines are larger; leave threads out, or name fewer"
    ]


def origin_warnings(
    specs: Sequence[Landscape], weights: Weights, losses: Losses, guessing: Guessing, *, implied: bool,
    own_callback: bool = False,
) -> list[str]:  # fmt: skip
    """A warning if the origin is the last snapshot by default, although the callback returns trained weights.

    Most callbacks return a new, untrained network: the trajectory was trained, and nothing is wrong. Weights count as
    trained if their loss is nearer to that of the last snapshot than to the loss of guessing; if that is not known,
    nearer than to the loss of the first snapshot, or to twice that of the last one.

    Args:
        losses: the mean losses of some samples at sets of weights.
        guessing: returns the loss of the best constant guess, after reading all labels; None if it is not known.
        implied: whether the landscapes come from the collector's options, since the job lists none.
        own_callback: whether the training recorded the callback: then it returns the network without trained weights.
    """
    if own_callback:
        return []
    unnamed = [
        spec.name for spec in specs if (spec.origin is None or implied) and spec.snapshots is None and not spec.paths
    ]
    if not unnamed or not weights.trajectory.numbers or weights.digest("last") == weights.digest("problem"):
        return []
    if _is_untrained(weights, losses, guessing()):
        return []
    return [
        f"origin: {weights.label('last')} of the trajectory is the origin of {', '.join(unnamed)}, and the callback "
        "returns other weights, which are trained, too; `origin: problem` in a landscape takes the callback's, "
        "`origin: last` says that these are meant"
    ]


def end_warnings(specs: Sequence[Landscape], prepared: Sequence[PreparedLandscape]) -> list[str]:
    """A warning about landscapes around the last snapshot of a training that went on after it."""
    ends: dict[tuple[str, str], list[str]] = {}
    for spec, landscape in zip(specs, prepared, strict=True):
        record = landscape.record
        if record.went_on_to and _means_last(spec):
            what = f"{record.origin} is the last snapshot, and training went on to {record.went_on_to}"
            ends.setdefault((what, _last_by_number(spec, record)), []).append(spec.name)
    return [
        f"origin of {', '.join(names)}: {source}, whose weights no snapshot has; finish a training that was "
        "interrupted, end the collector (`with`, or end_training) to keep the final weights, or write "
        f"`origin: {written}` to say that these are meant"
        for (source, written), names in ends.items()
    ]


def _last_by_number(spec: Landscape, record: Record) -> str:
    """The last snapshot, which is the origin, as a job names it by number: `10`, or `runs/sgd@10`."""
    number = str(record.origin).rpartition(" ")[2]  # from a name such as `epoch 10`
    if record.origin_step is not None:
        return number
    run = spec.origin.rpartition("@")[0] if isinstance(spec.origin, str) else spec.paths[0].run if spec.paths else ""
    return f"{run}@{number}" if run else number


def _means_last(spec: Landscape) -> bool:
    """Whether the origin is the last snapshot, by name or by default."""
    if spec.origin is not None:
        return isinstance(spec.origin, str) and spec.origin.rpartition("@")[2] == "last"
    chosen = spec.paths[0].snapshots if spec.paths else spec.snapshots
    return chosen in (None, "all")


def _is_untrained(weights: Weights, losses: Losses, guessing: float | None) -> bool:
    """Whether the callback's weights are clearly worse than the last snapshot; False if user code raises."""
    names = ("problem", "last") if guessing is not None else ("problem", "last", "first")
    states = [weights.state(name) for name in names]
    try:
        own, last, *first = losses(states)
    except Exception:  # of user code
        return False
    untrained = guessing if guessing is not None else max(*first, 2 * last)
    return own > last and own >= (last + untrained) / 2


def raising_warning(landscape: str, error: str) -> str:
    """The warning that user code raises beside the origin.

    Args:
        landscape: its name.
        error: the exception, on one line.
    """
    return (
        f"landscape {landscape!r}: a point beside the centre raises {error}; such points are left empty, so make "
        "forward and observe take any weights, or take a smaller range"
    )


def not_finite_warning(landscape: str, loss: float) -> str:
    """The warning that the loss at a landscape's origin is NaN or infinite; empty if it is finite."""
    if math.isfinite(loss):
        return ""
    return (
        f"landscape {landscape!r}: the loss at its origin is {loss}, not finite; are the weights and the samples "
        "finite, and does observe take no logarithm or root of 0?"
    )


def warn_of_constant(store: LandscapeStore, landscape: PreparedLandscape) -> None:
    """Log a warning, with the likely reason, if a computed landscape has the same loss at all points."""
    if not has_constant_loss(store.arrays):
        return
    unmoved = _unmoved_as_zero(landscape)
    reason = (
        "nothing that the directions move changes it; check that observe uses the model that it is given, that what "
        "requires gradients takes part in the loss, and that no layer computes with a copy of its weights (such as "
        "LoRA's, merged on `eval()`)"
    )
    if unmoved:
        others = f" and {len(unmoved) - 1} more tensors" if len(unmoved) > 1 else ""
        reason = (
            f"the directions leave {unmoved[0]}{others} at zero, as they are scaled by the size of the weights (LoRA's "
            "B is zero before it is trained); take trained weights, or `normalise: none`"
        )
    command = inspect_command("RUN", store.name, len(landscape.directions))
    log.warning(
        "landscape %r: the loss is the same, to the last bit, at all points: %s; `%s` says whether a layer is dead",
        store.name, reason, command,
    )  # fmt: skip


def _unmoved_as_zero(landscape: PreparedLandscape) -> list[str]:
    """The matrices that are zero at the origin and in every direction; vectors, such as biases, are often zero."""
    directions = [axis.tensors for axis in landscape.directions]
    return [
        name
        for name, tensor in landscape.origin.items()
        if tensor.dim() > 1
        and not any(values.any() for values in (tensor, *(d[name] for d in directions if name in d)))
    ]


def data_warnings(samples: Samples) -> list[str]:
    """A warning per tensor of the samples that holds NaN or infinity."""
    return [
        f"data: {name} hold NaN or infinity in {count} of the {samples.length} samples, and so may the loss at "
        "every point; leave these samples out, or mask what is missing"
        for name, count in samples.not_finite().items()
    ]


# ----------------------------------------------------------------------------------------------------
# Whether a grid is coarse enough for weights that are rounded to bfloat16 at every point.

LEAST_REACH = 0.03  # of the weights' norm: 6 % of the weights do not move at all, the cosine of the real move is 0.998

GOOD_REACH = 0.1  # 2 % do not move, the cosine is 0.9999

GOOD_STEP = 0.005

SLACK = 1e-3  # relative: by how much a filter-normalised direction may be shorter than the weights by rounding


def rounding_warnings(landscapes: Iterable[PreparedLandscape]) -> list[str]:
    """Warnings about axes along which the rounding of weights to bfloat16 may show in the surface.

    A step of bfloat16 is up to 2⁻⁸ of a weight, so the relative move of the weights matters. For coordinate c along a
    direction d it is r(c) = |c|·‖d‖/‖θ₀‖ over the moved tensors in bfloat16. With `normalise: filter`, `layer` or
    `model`, ‖d‖ = ‖θ₀‖, and r is the coordinate itself; with `towards`, `pca`, a file, or `normalise: none` it is not.

    Raises:
        JobError: r at the farther end of an axis is below 0.03.
    """
    rounded = [landscape for landscape in landscapes if landscape.plan.rounds_weights]
    return [warning for landscape in rounded for warning in _warnings_of(landscape)]


def _warnings_of(landscape: PreparedLandscape) -> Iterator[str]:
    axes = zip(landscape.grid.names, landscape.grid.coordinates, landscape.directions, strict=True)
    for name, coordinates, direction in axes:
        unit = _unit(direction.tensors, landscape.origin)
        if unit is None:
            continue
        reach, step = unit * float(np.abs(coordinates).max()), unit * float(np.diff(coordinates).min())
        moves = f"range: {name} of landscape {quoted(landscape.name)} moves the weights by {reach:.2g} of their norm"
        if reach < LEAST_REACH * (1 - SLACK):
            raise JobError(
                f"{moves}, and must by {LEAST_REACH} or more where they are held in bfloat16, whose steps are too "
                "coarse for less; widen the range, or set `precision: float32`, which takes the weights to float32"
            )
        if reach < GOOD_REACH * (1 - SLACK):
            yield (
                f"{moves}: below {GOOD_REACH} the rounding of weights to bfloat16 may show in the surface; widen the "
                "range, or set `precision: float32`"
            )
        elif step < GOOD_STEP * (1 - SLACK):
            yield (
                f"size: neighbouring points on {name} of landscape {quoted(landscape.name)} differ by {step:.2g} of "
                f"the weights' norm: below {GOOD_STEP} the rounding of weights to bfloat16 may show between them; take "
                "fewer points, or set `precision: float32`"
            )


SAMPLED = 4096  # numbers of a tensor of which the moving ones are counted


def moving_weights(landscape: PreparedLandscape) -> dict[str, float]:
    """By axis, the share of the weights in bfloat16 that differ between the origin and the next point; empty without.

    Counted of the first numbers of every tensor, each weighted by its size.
    """
    origin, shares = landscape.origin, dict[str, float]()
    for name, coordinates, axis in zip(
        landscape.grid.names, landscape.grid.coordinates, landscape.directions, strict=True
    ):
        step, moving, size = float(np.diff(coordinates).min()), 0.0, 0
        for tensor in axis.tensors:
            if origin[tensor].dtype is torch.bfloat16 and origin[tensor].numel():
                before = origin[tensor].reshape(-1)[:SAMPLED].float()
                after = torch.add(before, _first(axis.tensors, tensor, len(before)), alpha=step).bfloat16().float()
                moving += origin[tensor].numel() * float((before != after).double().mean())
                size += origin[tensor].numel()
        if size:
            shares[name] = moving / size
    return shares


def _first(direction: State, name: str, count: int) -> torch.Tensor:
    """The first numbers of a tensor; of one that is made when it is asked for, whole rows, and not all of them."""
    if not isinstance(direction, PartTensors):
        return direction[name].reshape(-1)[:count]
    leading = direction.leading(name)
    width = max(1, math.prod(direction.shapes[name][leading:]))
    rows = direction.rectangle(name, range(-(-count // width)), range(width), leading=leading)
    return rows.reshape(-1)[:count]


def _unit(direction: State, origin: State) -> float | None:
    """‖d‖/‖θ₀‖ over the moved tensors in bfloat16; None if there are none, or all are zero."""
    lengths = {name: norm({name: direction[name]}) for name in direction if origin[name].dtype is torch.bfloat16}
    size = norm({name: origin[name] for name, length in lengths.items() if length})
    return math.hypot(*lengths.values()) / size if size else None


def engine_warnings(job: Job, landscapes: Sequence[PreparedLandscape]) -> list[str]:
    """A warning if an option of the job's engine needs quantised landscapes, and the job has others too."""
    engine = job.asked_engine
    plain = [
        landscape.name for landscape in landscapes if engine is not None and engine.against(landscape.plan.quantise)
    ]
    if engine is None or not plain:
        return []
    names = engine.against(None)
    where = "; ".join(f"{name} does nothing {OPTIONS[name].suits.against}" for name in names)
    verb = "is" if len(plain) == 1 else "are"
    return [f"engine: {', '.join(plain)} {verb} computed by {engine.suiting(None)} in place of {engine}: {where}"]


ANEW = f"{RECALIBRATE}, in twice the time"

WHY = "between networks the running statistics of training are those of none"


def with_batch_norm(job: Job, model: nn.Module, landscapes: Sequence[Landscape]) -> tuple[Job, list[str]]:
    """The job with `recalibrate` if all its landscapes are planes through networks, as in Garipov et al. 2018.

    One job has one mode. If it also has other landscapes, it stays unchanged, and a warning says so.

    Returns:
        The job, and lines that report the choice; no lines if the job names a mode or the model has no batch norm.
    """
    planes = [landscape.name for landscape in landscapes if landscape.plane is not None]
    if not planes or "batch_norm" in job.model_fields_set or not batch_norm_layers(model):
        return job, []
    if len(planes) == len(landscapes):
        return job.replace(batch_norm="recalibrate"), [
            f"batch_norm: recalibrate, as the job names none and {WHY}; write batch_norm: eval for those, mixed"
        ]
    return job, [
        f"batch_norm: eval holds for {', '.join(planes)} too, where {WHY}; write batch_norm: recalibrate, or give the "
        "planes a job of their own"
    ]


def statistics_warnings(
    job: Job, model: nn.Module, specs: Sequence[Landscape], landscapes: Sequence[PreparedLandscape]
) -> list[str]:
    """Warnings for paths, and for lines and planes through networks, if batch norm keeps the origin's statistics.

    Only the origin fits its running statistics: below a snapshot, and between two networks, wrong statistics alone may
    raise the loss several times.
    """
    if not STATISTICS[job.batch_norm].fixed or not batch_norm_layers(model):
        return []
    planes = [spec.name for spec in specs if spec.plane is not None]
    paths = [
        landscape.name for landscape in landscapes
        if landscape.path is not None and _has_snapshots(landscape) and landscape.name not in planes
    ]  # fmt: skip
    lines = [
        spec.name for spec in specs if any(isinstance(direction, TowardsDirection) for direction in spec.directions)
    ]
    warnings = []
    if paths:
        warnings.append(
            f"batch_norm: eval keeps the origin's statistics at every point of {', '.join(paths)}, also below "
            f"snapshots, which have their own: the picture may show training going uphill; {ANEW}"
        )
    if lines:
        warnings.append(
            f"batch_norm: eval mixes the statistics of both ends along the line of {', '.join(lines)}, and {WHY}: the "
            f"barrier may be theirs; {ANEW}"
        )
    if planes:
        warnings.append(
            f"batch_norm: eval mixes the statistics of the networks at every point of {', '.join(planes)}, and {WHY}: "
            f"what rises between them may be theirs; {ANEW}"
        )
    return warnings


def _has_snapshots(landscape: PreparedLandscape) -> bool:
    assert landscape.path is not None
    units = [run.unit for run in landscape.path.runs] or [landscape.path.unit]
    return any(unit != NETWORK for unit in units)
