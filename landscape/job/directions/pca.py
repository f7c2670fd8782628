"""A principal component of the snapshots of a training (Li et al. 2018, §7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from landscape.core.errors import JobError
from landscape.core.validation import Count, SnapshotsOrPaths, counted
from landscape.job.directions.base import DirectionSpec, Range, paths_in_words

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.job.directions.base import Context, RunSnapshot
    from landscape.job.directions.tensors import PrincipalComponents

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
        count = len(self._taken(context))
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
        """The weights of every snapshot, and which component of them."""
        if self.trajectory == "paths":  # whose weights the identity of the landscape has
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
        taken = counted(context.unit, context.snapshots(self.trajectory))
        return f"principal component {self.component} of {taken}"

    def attributes(self, context: Context) -> dict[str, Any]:
        """The share of the variance that it explains, beside what it would of random walks over the same epochs."""
        pca, place = self.components_of(context), self.component - 1
        return {
            "explained_variance": pca.explained_variance[place],
            "random_walk_variance": pca.random_walk_variance[place],
        }

    def _taken(self, context: Context) -> Sequence[int | RunSnapshot]:
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
            taken = self._taken(context)
            states, called = [context.state(each) for each in taken], [context.name(each) for each in taken]
            lengths = [len(path.numbers) for path in context.paths] if self.trajectory == "paths" else None
            times = [each if isinstance(each, int) else each.number for each in taken]
            return principal_components(states, names, count, lengths, called, times)

        return context.once(("principal components", self.trajectory), compute)
