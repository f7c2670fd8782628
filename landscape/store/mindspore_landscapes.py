"""Makes landscapes of a run from those of MindSpore, with what its pictures leave unsaid."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from landscape.core.errors import quoted
from landscape.core.grid import Floats
from landscape.model.mindspore_files import SOFTWARE, MindSporeLandscape
from landscape.model.snapshots import UNITS
from landscape.store.format import PathPlan
from landscape.store.import_surface import ImportedSurface, NoSurfaceError, make_surface
from landscape.surface.record import Record
from landscape.surface.record_parts import ImportRecord, ProgressRecord

if TYPE_CHECKING:
    from torch import Tensor

# The weights of several snapshots under MindSpore's names; None if one is missing.
Stored = Callable[[Sequence[int]], "Sequence[Mapping[str, Tensor]] | None"]
Read = Sequence[tuple[Path, MindSporeLandscape]]


def make_landscape(
    file: Path, one: MindSporeLandscape, others: Read, stored: Stored, about: Mapping[str, Any]
) -> tuple[str, ImportedSurface, Record]:
    """A landscape as a run holds it: the name of its kind, its values to the bit, and its record.

    Args:
        file: the event file that it was read from.
        others: all landscapes of the folder.
        about: further fields of its record.

    Raises:
        NoSurfaceError: it is no landscape; the message follows its tag.
    """
    if one.decomposition not in ("PCA", "Random") or one.unit not in UNITS:
        kind = quoted([one.decomposition, one.unit])
        raise NoSurfaceError(f"must be of PCA or Random, in steps or epochs, not {kind}")
    numbers = one.intervals or tuple(map(int, re.findall(r"\d{1,15}", one.tag)[-1:]))
    drawn = _draw_path(one, stored) if one.path is not None else None
    what, kind = ("component" if drawn else "random direction"), f"event file of {SOFTWARE}"
    surface = make_surface(
        kind, [one.plane.x, one.plane.y], {"loss": one.plane.z}, labels=[f"{SOFTWARE}'s {what} {k}" for k in (1, 2)],
        norms=drawn.norms if drawn else (), path=(drawn.plan, None, drawn.heights) if drawn else None,
    )  # fmt: skip
    now, points = datetime.now(UTC).isoformat(timespec="seconds"), surface.status.size
    at_origin = _loss_at_origin(one)
    if at_origin is None:
        at_origin = _loss_of_same_call(file, one, others)
    known = dict(about)
    if numbers:
        known |= {"origin": f"{one.unit} {numbers[-1]}", "origin_step": numbers[-1]}
    if drawn is not None and drawn.cosine is not None:
        known["cosine"] = [[1.0, drawn.cosine], [drawn.cosine, 1.0]]
    record = Record().changed(
        imported=ImportRecord(
            file=file.name, format=kind, digest=hashlib.sha256(one.message).hexdigest(),
            notes=tuple(filter(None, [drawn.note if drawn else _beside_the_origin(one, at_origin)])),
        ),
        observables=["loss"], failures=[], origin_loss=at_origin, origin_loss_stderr=None,
        progress=ProgressRecord(state="complete", points=points, points_done=points, updated=now),
        **known,
    )  # fmt: skip
    word = f"{one.unit}s-{numbers[0]}-{numbers[-1]}" if drawn else "result"
    return f"{SOFTWARE.lower()}-{word}", surface, record


def _loss_at_origin(one: MindSporeLandscape) -> float | None:
    """The loss that MindSpore has at the origin itself: on even grids, its convergence point lies beside it."""
    point = one.convergence
    if point is None or not all(values.size == 1 for values in (point.x, point.y, point.z)):
        return None
    x, y, z = (float(values.ravel()[0]) for values in (point.x, point.y, point.z))
    return z if x == y == 0 and math.isfinite(z) else None


def _loss_of_same_call(file: Path, one: MindSporeLandscape, others: Read) -> float | None:
    """The loss at the origin by a landscape of the same file around the same weights: one call computes both."""
    last = re.findall(r"\d+", one.tag)[-1:]
    known = [
        _loss_at_origin(other)
        for other_file, other in others
        if other_file == file and other.intervals and [str(other.intervals[-1])] == last
    ]
    return next((loss for loss in known if loss is not None), None)


def _beside_the_origin(one: MindSporeLandscape, at_origin: float | None) -> str:
    """The note on the loss that MindInsight shows, if it is not that of the origin; else empty."""
    point = one.convergence
    if point is None or _loss_at_origin(one) is not None or not point.x.size == point.y.size == point.z.size == 1:
        return ""
    x, y, z = (float(values.ravel()[0]) for values in (point.x, point.y, point.z))
    note = f"the loss that MindInsight shows, {z:.4g}, is that of the point ({x:.3g}, {y:.3g}) beside the origin"
    return note if at_origin is None else f"{note}, where it is {at_origin:.4g}"


@dataclass(frozen=True)
class _DrawnPath:
    """The path as MindSpore drew it, with what the checkpoints say of its plane: norms and cosine of its components."""

    plan: PathPlan
    heights: Floats
    norms: tuple[float, ...]
    cosine: float | None
    note: str


TOLERANCE = 1e-3  # of the largest coordinate: MindSpore rounds to float32, and searches components at random


def _draw_path(one: MindSporeLandscape, stored: Stored) -> _DrawnPath:
    """The path of a landscape, with the distances of its snapshots if their checkpoints give the places in the file."""
    assert one.path is not None
    count, (x, y, z) = len(one.intervals), (one.path.x, one.path.y, one.path.z)
    if not count or any(values.shape != (count,) for values in (x, y, z)) or not np.isfinite([*x, *y]).all():
        raise NoSurfaceError(f"has a path that does not give one place for each of its {count} snapshots")
    if list(one.intervals) != sorted(set(one.intervals)):
        raise NoSurfaceError(f"must list its snapshots in ascending order, not {quoted(list(one.intervals))}")
    places, distance = np.stack([x, y], axis=1).astype(np.float64), np.full(count, math.nan)
    norms, cosine = tuple[float, ...](), None
    note = (
        f"{SOFTWARE} rescales each tensor of its components, which takes the path off its own plane: it is drawn at "
        "its projection, with the losses there"
    )
    states = stored(one.intervals) if count > 2 else None
    components = None if states is None else rescaled_components(states)
    if states is not None and components is not None:
        offsets = [_offset(state, states[-1]) for state in states]
        gram = np.array([[_inner(a, b) for b in components] for a in components])
        onto = np.array([[_inner(offset, component) for component in components] for offset in offsets])
        own = np.linalg.lstsq(gram, onto.T, rcond=None)[0].T
        signs = np.where((own * places).sum(axis=0) < 0, -1.0, 1.0)  # those of components are arbitrary
        if np.abs(own * signs - places).max() <= TOLERANCE * np.abs(places).max():
            lengths = np.sqrt([_inner(offset, offset) for offset in offsets])
            at = places * signs
            squares = lengths**2 - 2 * (at * onto).sum(axis=1) + (at @ gram * at).sum(axis=1)
            distance = np.sqrt(np.maximum(squares, 0.0))
            norms = tuple(float(norm) for norm in np.sqrt(np.diag(gram)))
            cosine = float(signs.prod() * gram[0, 1] / math.prod(norms))
            shares = distance[:-1] / lengths[:-1]
            k = int(np.argmax(shares))
            note += (
                f" ({one.unit} {one.intervals[k]} lies {100 * shares[k]:.0f}\u00a0% of its distance from "
                f"{one.unit} {one.intervals[-1]} off the plane)"
            )
    return _DrawnPath(PathPlan(one.unit, one.intervals, places, distance), z.astype(np.float64), norms, cosine, note)


Arrays = dict[str, NDArray[Any]]


def rescaled_components(states: Sequence[Mapping[str, Tensor]]) -> tuple[Arrays, Arrays] | None:
    """The two directions of MindSpore's plane through snapshots, up to their signs, float32 by MindSpore's names.

    They are the first two principal components of θᵢ − θₙ, each difference about the mean of its own elements, without
    centring over snapshots; then each tensor is scaled to the norm of that tensor in θₙ. Tensors whose names have
    neither `weight` nor `bias` do not move: batch norm's `gamma` and `beta`, embeddings.

    Args:
        states: the snapshots in the order of the path, at least three, the last one θₙ.

    Returns:
        None if the differences do not span a plane, or are not finite.
    """
    last = states[-1]
    offsets = [_offset(state, last) for state in states[:-1]]
    size = sum(values.size for values in offsets[0].values())
    for offset in offsets:
        mean = sum(float(values.sum()) for values in offset.values()) / size
        for values in offset.values():
            values -= mean
    gram = np.array([[_inner(one, other) for other in offsets] for one in offsets])
    if len(offsets) < 2 or not np.isfinite(gram).all():
        return None
    powers, vectors = np.linalg.eigh(gram)
    if powers[-2] <= 1e-12 * powers[-1]:
        return None
    components = []
    for share in (vectors[:, -1], vectors[:, -2]):
        component: Arrays = {}
        for name in offsets[0]:
            values = sum(part * offset[name] for part, offset in zip(share, offsets, strict=True))
            norm, wanted = np.linalg.norm(values), np.linalg.norm(last[name].double().numpy())
            component[name] = (values * (wanted / norm if norm else 0.0)).astype(np.float32)
        components.append(component)
    return components[0], components[1]


def _offset(state: Mapping[str, Tensor], last: Mapping[str, Tensor]) -> Arrays:
    """θᵢ − θₙ in float64, of the tensors that MindSpore moves."""
    names = [name for name in last if ("weight" in name or "bias" in name) and "moment" not in name]
    return {name: state[name].double().numpy() - last[name].double().numpy() for name in names}


def _inner(one: Arrays, other: Arrays) -> float:
    return float(
        sum(np.vdot(values.astype(np.float64), other[name].astype(np.float64)) for name, values in one.items())
    )
