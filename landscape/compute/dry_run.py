"""Warnings of a job that may mean something else than it says: a line each, which names the remedy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from landscape.compute.prepared import PreparedLandscape
from landscape.compute.weights import Weights
from landscape.core.devices import cores
from landscape.job.job import Job
from landscape.job.landscape import Landscape
from landscape.model.layer_rules import inspect_command
from landscape.model.parameters import State
from landscape.problem.samples import Samples
from landscape.store.examination import has_constant_loss
from landscape.store.landscape import LandscapeStore
from landscape.surface.record import Record

log = logging.getLogger("landscape")

Losses = Callable[[Sequence[State]], Sequence[float]]
Guessing = Callable[[], float | None]
THREADS_PER_CORE = 4  # above it nothing computes faster, on any machine


def thread_warnings(job: Job) -> list[str]:
    """A warning of more threads than help on this machine: the workers may have more cores, so it is no error."""
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
    """A warning where the last weights of the trajectory are taken unasked, though the callback returns trained ones.

    Most callbacks make the network anew, with weights that nobody trained: what was trained is the trajectory, and
    nothing is wrong. Weights are taken for trained whose loss is nearer to that of the last snapshot than to the loss
    of guessing; where that is not known, than to the loss of the first snapshot, or to twice that of the last one.

    Args:
        losses: the mean losses of some samples at sets of weights.
        guessing: gives the loss of the best constant guess, for which all labels are read; None where it is not known.
        implied: whether the landscapes are those that the collector's options stand for, and none is in the job.
        own_callback: whether the training recorded the callback itself: it makes the network, and not its weights.
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
    """A warning of landscapes around the last snapshot of a training that went on after it."""
    ends: dict[tuple[str, str], list[str]] = {}
    for spec, landscape in zip(specs, prepared, strict=True):
        record = landscape.record
        if record.went_on_to and _means_last(spec):
            what = f"{record.origin} is the last snapshot, and training went on to {record.went_on_to}"
            ends.setdefault((what, _last_by_number(spec, record)), []).append(spec.name)
    return [
        f"origin of {', '.join(names)}: {what}, whose weights no snapshot has; finish a training that was "
        "interrupted, end the collector (`with`, or end_training) to keep the final weights, or write "
        f"`origin: {written}` to say that these are meant"
        for (what, written), names in ends.items()
    ]


def _last_by_number(spec: Landscape, record: Record) -> str:
    """How a job names the last snapshot, which is the origin, by its number: `10`, or `runs/sgd@10`."""
    number = str(record.origin).rpartition(" ")[2]  # of a name such as `epoch 10`
    if record.origin_step is not None:
        return number
    run = spec.origin.rpartition("@")[0] if isinstance(spec.origin, str) else spec.paths[0].run if spec.paths else ""
    return f"{run}@{number}" if run else number


def _means_last(spec: Landscape) -> bool:
    """Whether the origin is the last snapshot that there is, by name or because the job leaves it open."""
    if spec.origin is not None:
        return isinstance(spec.origin, str) and spec.origin.rpartition("@")[2] == "last"
    chosen = spec.paths[0].snapshots if spec.paths else spec.snapshots
    return chosen in (None, "all")


def _is_untrained(weights: Weights, losses: Losses, guessing: float | None) -> bool:
    """Whether the callback's weights are clearly worse than the last snapshot; not where user code does not tell."""
    names = ("problem", "last") if guessing is not None else ("problem", "last", "first")
    states = [weights.state(name) for name in names]
    try:
        own, last, *first = losses(states)
    except Exception:  # of user code
        return False
    untrained = guessing if guessing is not None else max(*first, 2 * last)
    return own > last and own >= (last + untrained) / 2


def warn_of_constant(store: LandscapeStore, landscape: PreparedLandscape) -> None:
    """Log a warning, with the likely reason, where a landscape that is computed has one loss at all of its points."""
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
    """The matrices that are zero at the origin and in every direction; vectors, such as biases, often begin so."""
    directions = [axis.tensors for axis in landscape.directions]
    return [
        name
        for name, tensor in landscape.origin.items()
        if tensor.dim() > 1 and not any(each.any() for each in (tensor, *(d[name] for d in directions if name in d)))
    ]


def data_warnings(samples: Samples) -> list[str]:
    """A warning per tensor of the samples that holds NaN or infinity."""
    return [
        f"data: {name} hold NaN or infinity in {count} of the {samples.length} samples, and so may the loss at "
        "every point; leave these samples out, or mask what is missing"
        for name, count in samples.not_finite().items()
    ]
