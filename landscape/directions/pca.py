"""A principal component of the snapshots of a training (Li et al. 2018, §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from landscape.directions.base import DirectionSpec, Range
from landscape.errors import JobError
from landscape.fields import Count, Snapshots

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.directions.components import PrincipalComponents
    from landscape.directions.context import Context

FEWEST_SNAPSHOTS = 3


class PcaDirection(DirectionSpec):
    """The `component`-th principal component (from 1) of the snapshots in `trajectory`."""

    kind: Literal["pca"] = "pca"
    trajectory: Snapshots
    """The snapshots, by their numbers, at least 3; or `all`."""
    component: Count = 1
    """Which principal component, from 1."""

    title: ClassVar[str] = "PCA"
    default_range: ClassVar[Range | None] = None
    reaches_to: ClassVar[str] = "the path"

    @property
    def snapshots(self) -> tuple[int, ...] | Literal["all"]:
        """The snapshots of which the component is taken."""
        return self.trajectory

    def check(self, context: Context) -> None:
        """`all` may stand for fewer snapshots than PCA needs, or for none."""
        if len(context.snapshots(self.trajectory)) < FEWEST_SNAPSHOTS:
            raise JobError(
                f"trajectory: PCA needs at least {FEWEST_SNAPSHOTS} snapshots, the run has "
                f"{len(context.snapshots('all'))}; collect more, or `landscape import` checkpoints"
            )

    def identity(self, context: Context) -> dict[str, Any]:
        """The weights of every snapshot, and which component of them."""
        snapshots = {str(number): context.digest(number) for number in context.snapshots(self.trajectory)}
        return {"kind": "pca", "component": self.component, "snapshots": snapshots}

    def make(self, context: Context) -> dict[str, Tensor]:
        """The component, of unit length."""
        return dict(self._components(context).components[self.component - 1])

    def label(self, context: Context) -> str:
        """Which component, and of which snapshots."""
        numbers = context.snapshots(self.trajectory)
        return f"principal component {self.component} of {context.unit}s {numbers[0]} to {numbers[-1]}"

    def attributes(self, context: Context) -> dict[str, Any]:
        """The share of the variance that it explains, beside what it would explain of a random walk as long."""
        pca, place = self._components(context), self.component - 1
        return {
            "explained_variance": pca.explained_variance[place],
            "random_walk_variance": pca.random_walk_variance[place],
        }

    def _components(self, context: Context) -> PrincipalComponents:
        """One PCA for all axes of the same snapshots, with as many components as they need."""
        from landscape.directions.components import principal_components

        axes = [axis for axis in context.axes if isinstance(axis, PcaDirection) and axis.trajectory == self.trajectory]
        count = max(axis.component for axis in axes)
        names = [info.name for info in context.infos]

        def compute() -> PrincipalComponents:
            states = [context.state(number) for number in context.snapshots(self.trajectory)]
            return principal_components(states, names, count)

        return context.once(("principal components", self.trajectory), compute)
