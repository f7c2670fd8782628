"""Questions about a network at chosen weights, and who answers them: this process, or the workers of a cluster."""

from landscape.calculation.calculator import (
    Calculator,
    Calculators,
    LocalCalculator,
    Question,
    Setting,
    Shared,
    Station,
    here,
    setting_of,
)
from landscape.calculation.derivatives import (
    BlockGradient,
    ProductOfBlocks,
    SumOfProducts,
    TotalsOfBlocks,
    UnusedParameters,
)
from landscape.calculation.points import AtPoints, AtWeights

__all__ = [
    "AtPoints",
    "AtWeights",
    "BlockGradient",
    "Calculator",
    "Calculators",
    "LocalCalculator",
    "ProductOfBlocks",
    "Question",
    "Setting",
    "Shared",
    "Station",
    "SumOfProducts",
    "TotalsOfBlocks",
    "UnusedParameters",
    "here",
    "setting_of",
]
