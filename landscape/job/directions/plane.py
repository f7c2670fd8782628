"""Directions through networks: the line to another, the plane through three, the principal components of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from landscape.core.errors import JobError, quoted
from landscape.core.grid import Floats, coordinates_through_zero_and_one
from landscape.core.validation import Count, Reference, SnapshotsOrPaths, counted
from landscape.job.directions.base import DirectionSpec, Range, paths_in_words
from landscape.job.directions.computed import ComputedTensors, rejection, scaled_step, step
from landscape.surface.barriers import Curve

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.job.directions.base import Context, RunSnapshot
    from landscape.job.directions.tensors import PrincipalComponents
    from landscape.model.parameters import State


# ----------------------------------------------------------------------------------------------------
# The straight line from the origin to other weights (Goodfellow et al. 2015).


class TowardsDirection(DirectionSpec):
    """The straight line from the origin (0) to `target` (1): a snapshot's name or number, or a file of weights."""

    kind: Literal["towards"] = "towards"
    target: Reference
    """A snapshot's number, `first`, `last`, `problem`, or a file of weights."""

    in_parts: ClassVar[bool] = True
    default_range: ClassVar[Range | None] = (-0.2, 1.2)
    reaches_to: ClassVar[str] = "both ends of the line"

    def coordinates(self, size: int) -> Floats | None:
        """Coordinates with both ends of the line, 0 and 1, among them, if the size allows."""
        return coordinates_through_zero_and_one(size)

    @property
    def weights(self) -> tuple[int | str, ...]:
        """The far end of the line."""
        return (self.target,)

    def identity(self, context: Context) -> dict[str, Any]:
        """The digest of the weights at the far end, whatever their name."""
        return {"kind": "towards", "target": context.digest(self.target)}

    def make(self, context: Context) -> State:
        """The step from the origin to the target."""
        return towards_direction(context.origin, context.state(self.target))

    def label(self, context: Context) -> str:
        """The name of the target; of a file, without its folder."""
        return f"towards {Path(context.name(self.target)).name} (at 1)"


def towards_direction(origin: State, target: State) -> ComputedTensors:
    """d = θ_target − θ₀, buffers included, so that coordinate 1 is the target network as a whole.

    Integer buffers (counters) stay those of the origin. Frozen parameters move where the two differ: otherwise the far
    end would be a network that was never trained.

    Returns:
        A float32 tensor per name whose values differ, in its shape, computed when it is asked for.

    Raises:
        JobError: the two have the same weights, or their difference is not finite.
    """
    direction = step_towards(origin, target).moving()
    if not direction:
        raise JobError("directions: the target has the same weights as the origin; name another target or origin")
    return direction


def step_towards(origin: State, target: State) -> ComputedTensors:
    """θ_target − θ₀ over the floating-point tensors, buffers included.

    Raises:
        JobError: the difference is not finite in the type of the directions, float32.
    """
    names = [name for name, tensor in origin.items() if tensor.is_floating_point()]
    found = ComputedTensors.over(names, step, origin, target)
    bad = next((name for name, tensor in found.items() if not bool(tensor.isfinite().all())), None)
    if bad is not None:
        raise JobError(f"directions: the target must be finite; {bad} holds NaN or infinity")
    return found


# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworksPlane:
    """The plane w₁ + x·û + y·v̂ through three networks, u = w₂ − w₁ and v = (w₃ − w₁) − ⟨û, w₃ − w₁⟩·û.

    Lengths and angles are those of the parameters. Buffers move along in the same proportions, so that each corner is
    its network as a whole.

    Attributes:
        axes: û and v̂, each of length 1 over the parameters: a float32 tensor per name that moves, computed when it
            is asked for.
        corners: the coordinates [3, 2] of w₁, w₂ and w₃.
    """

    axes: tuple[ComputedTensors, ComputedTensors]
    corners: Floats


class PlaneDirection(DirectionSpec):
    """One of the two axes of the plane through three networks; the first is the origin. Written as `plane: [a, b, c]`.

    Coordinates are Euclidean distances in weight space. The first axis runs from the first network through the second,
    the second axis at a right angle to it towards the third.
    """

    kind: Literal["plane"] = "plane"
    models: tuple[Reference, Reference, Reference]
    """The three networks: snapshots' numbers, `first`, `last`, `problem`, or files of weights."""
    axis: Literal[1, 2] = 1
    """Which axis of the plane: 1 towards the second network, 2 at a right angle to it."""
    curve: Curve | None = None
    """Draw the curve from the first network to the second, with the third as its bend."""

    in_parts: ClassVar[bool] = True
    default_range: ClassVar[Range | None] = None
    reaches_to: ClassVar[str] = "its networks"

    @property
    def weights(self) -> tuple[int | str, ...]:
        """The three networks."""
        return self.models

    def check(self, context: Context) -> None:
        """Refuse equal networks, and an origin that is not the first of them."""
        from landscape.model.parameters import state_digest

        digests = [context.digest(model) for model in self.models]
        for k, digest in enumerate(digests):
            if digest in digests[:k]:
                raise JobError(
                    f"plane: must hold three different networks, but {quoted(self.models[digests.index(digest)])} and "
                    f"{quoted(self.models[k])} have the same weights; name another one"
                )
        if state_digest(context.origin) != digests[0]:
            raise JobError(
                f"origin: must be the first network of the plane, {quoted(self.models[0])}; leave origin out"
            )

    def identity(self, context: Context) -> dict[str, Any]:
        """The digests of the three networks, whatever their names; the curve is only drawn."""
        return {"kind": "plane", "axis": self.axis, "models": [context.digest(model) for model in self.models]}

    def make(self, context: Context) -> State:
        """û or v̂."""
        return self._plane(context).axes[self.axis - 1]

    def label(self, context: Context) -> str:
        """The two ends of the axis, and its unit, a distance."""
        first, second, third = self._names(context)
        way = f"from {first} to {second}" if self.axis == 1 else f"from that line to {third}"
        return f"{way} (Euclidean distance)"

    def places(self, context: Context) -> Floats:
        """The coordinates [3] of the networks."""
        return np.asarray(self._plane(context).corners[:, self.axis - 1])

    def attributes(self, context: Context) -> dict[str, Any]:
        """The coordinates of the networks; the norm is that of the parameters, without the buffers that move along."""
        pairs = zip(self._names(context), self.places(context).tolist(), strict=True)
        return {"norm": 1.0, "networks": [{"name": name, "at": at} for name, at in pairs]}

    def _names(self, context: Context) -> list[str]:
        """The names of the networks: files without folder and suffix, unless two names would then be equal."""
        full = [context.name(model) for model in self.models]
        short = [Path(name).name.removesuffix(".safetensors") for name in full]
        return short if len(set(short)) == len(short) else full

    def _plane(self, context: Context) -> NetworksPlane:
        """One plane for both axes."""

        def compute() -> NetworksPlane:
            names = [info.name for info in context.infos]
            return plane_through([context.state(model) for model in self.models], names)

        return context.once(("plane through networks", self.models), compute)


def plane_through(networks: list[State], names: list[str]) -> NetworksPlane:
    """The plane through three networks, in float64.

    Args:
        networks: three states of one model.
        names: its parameters.

    Raises:
        JobError: two networks have the same parameters, the three lie on a line, or one is not finite.

    >>> import torch
    >>> corners = [{"w": torch.tensor(place)} for place in ([1.0, 0.0], [4.0, 4.0], [1.0, 5.0])]
    >>> plane_through(corners, ["w"]).corners.tolist()
    [[0.0, 0.0], [5.0, 0.0], [4.0, 3.0]]
    """
    from landscape.model.parameters import norm

    first, second, third = networks
    _refuse_other_buffers(networks)
    u, w = step_towards(first, second), step_towards(first, third)

    def product(left: ComputedTensors, right: ComputedTensors) -> float:
        return sum(float((left.exact(name) * right.exact(name)).sum()) for name in names if name in left)

    across = product(u, u) ** 0.5
    far = product(w, w) ** 0.5
    share = product(u, w) / across**2 if across else 0.0
    v = ComputedTensors.over(u, partial(rejection, share, 1.0), *networks)
    height = product(v, v) ** 0.5
    # Of the parameters alone: a mask of -inf has no length, and a count of batches is far larger than all weights.
    lengths = [norm({name: network[name] for name in names if name in u}) for network in networks]
    # Weights are rounded to their type: a network closer to the line than this rounding counts as on the line.
    precision = max(
        (float(np.finfo(str(first[name].dtype).removeprefix("torch.")).eps) for name in names if name in u
         and first[name].element_size() >= 4), default=2.0**-7,
    )  # fmt: skip
    rounding = precision * (lengths[0] + lengths[2])
    if across <= precision * (lengths[0] + lengths[1]) or far <= rounding:
        raise JobError("plane: must hold three different networks, but two have the same parameters; name another one")
    if height <= rounding:
        raise JobError(
            "plane: the three networks lie on a straight line, which spans no plane; name another third one, or draw "
            "the line: directions: [{kind: towards, target: …}]"
        )
    towards_second = ComputedTensors.over(u, partial(scaled_step, across), first, second).moving()
    towards_third = ComputedTensors.over(u, partial(rejection, share, height), *networks).moving()
    corners = np.array([[0.0, 0.0], [across, 0.0], [share * across, height]])
    return NetworksPlane((towards_second, towards_third), corners)


def _refuse_other_buffers(networks: list[State]) -> None:
    """Refuse networks that differ in a tensor that cannot move, such as a mask: only the first corner would be exact.

    Counts of batches differ between any two trainings, and no output depends on them.

    Raises:
        JobError: names the tensor.
    """
    first = networks[0]
    still = [name for name, tensor in first.items() if not tensor.is_floating_point()]
    for name in still:
        others = (network[name] for network in networks[1:])
        if not name.endswith("num_batches_tracked") and any(not bool((first[name] == t).all()) for t in others):
            raise JobError(
                f"plane: the networks must have the same {name}, which holds no real numbers and so cannot move; take "
                "networks that differ in their weights alone"
            )


# ----------------------------------------------------------------------------------------------------
# A principal component of the snapshots of a training (Li et al. 2018, §7).

FEWEST_SNAPSHOTS = 3


class PcaDirection(DirectionSpec):
    """The `component`-th principal component (from 1) of the snapshots in `trajectory`."""

    kind: Literal["pca"] = "pca"
    trajectory: SnapshotsOrPaths
    """The snapshots, by their numbers, at least 3; or `all`; or `paths`: those of all `paths` of the landscape."""
    component: Count = 1
    """Which principal component, from 1."""

    title: ClassVar[str] = "PCA"
    default_range: ClassVar[Range | None] = None
    reaches_to: ClassVar[str] = "the path"

    @property
    def snapshots(self) -> tuple[int, ...] | Literal["all"] | None:
        """The snapshots of the run of which the component is taken; None where it is taken of several paths."""
        return None if self.trajectory == "paths" else self.trajectory

    def check(self, context: Context) -> None:
        """`all` may stand for fewer snapshots than PCA needs, or for none."""
        count = len(self._snapshots(context))
        if count < FEWEST_SNAPSHOTS and self.trajectory == "paths":
            raise JobError(
                f"paths: PCA needs at least {FEWEST_SNAPSHOTS} snapshots of all paths together, not {count}; name more"
            )
        if count < FEWEST_SNAPSHOTS:
            raise JobError(
                f"trajectory: PCA needs at least {FEWEST_SNAPSHOTS} snapshots, the run has "
                f"{len(context.snapshots('all'))}; collect more, or `landscape import` checkpoints"
            )

    def identity(self, context: Context) -> dict[str, Any]:
        """The component, and the digests of the weights of every snapshot."""
        if self.trajectory == "paths":  # the identity of the landscape holds the weights of the paths
            return {"kind": "pca", "component": self.component, "snapshots": "paths"}
        snapshots = {str(number): context.digest(number) for number in context.snapshots(self.trajectory)}
        return {"kind": "pca", "component": self.component, "snapshots": snapshots}

    def make(self, context: Context) -> dict[str, Tensor]:
        """The component, of unit length."""
        return dict(self.components_of(context).components[self.component - 1])

    def label(self, context: Context) -> str:
        """Which component, and of which snapshots."""
        if self.trajectory == "paths":
            return f"principal component {self.component} of {paths_in_words(context.paths)}"
        snapshots = counted(context.unit, context.snapshots(self.trajectory))
        return f"principal component {self.component} of {snapshots}"

    def attributes(self, context: Context) -> dict[str, Any]:
        """The share of the variance that it explains, and the share that it would explain of random walks."""
        pca, place = self.components_of(context), self.component - 1
        return {
            "explained_variance": pca.explained_variance[place],
            "random_walk_variance": pca.random_walk_variance[place],
        }

    def _snapshots(self, context: Context) -> Sequence[int | RunSnapshot]:
        """The snapshots of which the component is taken, one path after another."""
        if self.trajectory == "paths":
            return [snapshot for path in context.paths for snapshot in path.snapshots]
        return context.snapshots(self.trajectory)

    def components_of(self, context: Context) -> PrincipalComponents:
        """One PCA for all axes of the same snapshots, with as many components as they need."""
        from landscape.job.directions.tensors import principal_components

        axes = [axis for axis in context.axes if isinstance(axis, PcaDirection) and axis.trajectory == self.trajectory]
        count = max(axis.component for axis in axes)
        names = [info.name for info in context.infos]

        def compute() -> PrincipalComponents:
            snapshots = self._snapshots(context)
            states = [context.state(snapshot) for snapshot in snapshots]
            called = [context.name(snapshot) for snapshot in snapshots]
            lengths = [len(path.numbers) for path in context.paths] if self.trajectory == "paths" else None
            times = [snapshot if isinstance(snapshot, int) else snapshot.number for snapshot in snapshots]
            return principal_components(states, names, count, lengths, called, times)

        return context.once(("principal components", self.trajectory), compute)
