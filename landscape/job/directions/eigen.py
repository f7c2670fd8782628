"""An eigenvector of the Hessian of the loss at the origin."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from landscape.core.validation import Seed, Steps
from landscape.job.directions.base import DirectionSpec, Range

if TYPE_CHECKING:
    from torch import Tensor

    from landscape.job.directions.context import Context
    from landscape.job.directions.spectrum import Eigenpair, Spectrum

# A rise of at least so much is what an axis should show: a loss near zero would make it infinitely narrow.
LEAST_RISE = 0.1
# Of Lanczos: on a spectrum of 2,000 with ten outliers 20 steps gave both ends to four digits, 10 steps the top alone;
# 60 leave room for the flat bulk of a network's Hessian.
STEPS = 60
# Evaluations of all samples that a product with the Hessian takes about as long as: a gradient takes 2.2, a product
# three gradients.
PRODUCT_EVALUATIONS = 7
PLACES = {1: "first", 2: "second", -1: "last"}


class EigenDirection(DirectionSpec):
    """An eigenvector of the Hessian at the origin, of unit length, over all trainable parameters; never normalised."""

    kind: Literal["eigen"] = "eigen"
    rank: Literal[1, 2, -1] = 1
    """Of which eigenvalue: 1 the largest, 2 the second largest, -1 the smallest, the most negative one."""
    steps: Steps = STEPS
    """Steps of the Lanczos method at most, a product with the Hessian each."""
    seed: Seed = 0
    """Of the vector that it starts from."""

    default_range: ClassVar[Range | None] = None
    is_costly: ClassVar[bool] = True
    follows_samples: ClassVar[bool] = True

    def identity(self, context: Context) -> dict[str, Any]:
        """The fields; what the eigenvector is of stands in the identity of every landscape: origin and samples."""
        return self.model_dump(mode="json")

    def make(self, context: Context) -> dict[str, Tensor]:
        """The eigenvector, in float32."""
        return dict(self._pair(context).vector)

    def range_at(self, context: Context) -> Range | None:
        """±√(2·max(L₀, 0.1)/|λ|), to three digits: there the parabola of the eigenvalue has risen by the loss L₀."""
        spectrum = self._spectrum(context)
        if spectrum.foreseen:
            return (-1.0, 1.0)
        half = float(f"{half_width(spectrum.pairs[self.rank].value, spectrum.loss):.3g}")
        return (-half, half)

    def label(self, context: Context) -> str:
        """Of which eigenvalue, and how large that is."""
        name = f"{PLACES[self.rank]} eigenvector of the Hessian"
        spectrum = self._spectrum(context)
        if spectrum.foreseen:
            return f"{name}, computed when the job runs"
        pair = spectrum.pairs[self.rank]
        error = "" if pair.stderr is None else f" ± {2 * pair.stderr:.2g}, 2 s.e."
        doubt = "" if pair.is_resolved else f", not resolved: residual {pair.residual:.2g}"
        return f"{name} (λ = {pair.value:.4g}{error}{doubt})"

    def attributes(self, context: Context) -> dict[str, Any]:
        """The eigenvalue, how far the vector is from solving its equation, and how far it depends on the samples."""
        spectrum = self._spectrum(context)
        if spectrum.foreseen:
            return {"foreseen": True}
        pair = spectrum.pairs[self.rank]
        return {
            "eigenvalue": pair.value,
            "eigenvalue_residual": pair.residual,
            "eigenvalue_stderr": pair.stderr,
            "lanczos_steps": spectrum.steps,
            "second_derivatives": spectrum.method,
        }

    def _pair(self, context: Context) -> Eigenpair:
        return self._spectrum(context).pairs[self.rank]

    def _spectrum(self, context: Context) -> Spectrum:
        """One Lanczos run for all axes with the same steps and seed."""
        same = [
            axis
            for axis in context.axes
            if isinstance(axis, EigenDirection) and (axis.steps, axis.seed) == (self.steps, self.seed)
        ]
        ranks = tuple(sorted({axis.rank for axis in same}))
        return context.once(
            ("spectrum", ranks, self.steps, self.seed), lambda: context.spectrum(ranks, self.steps, self.seed)
        )


def half_width(value: float, loss: float) -> float:
    """√(2·max(L₀, 0.1)/|λ|): where the parabola of the eigenvalue λ has risen by the loss; infinite where λ is 0."""
    return math.sqrt(2 * max(loss, LEAST_RISE) / abs(value)) if value else math.inf
