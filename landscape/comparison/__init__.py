"""Two landscapes on one plane: the difference with its paired error, the loss per bit width, the steps of rounding."""

from landscape.comparison.comparing import ALL_BITS, Compare, compare_landscapes
from landscape.comparison.sides import sides_of

__all__ = ["ALL_BITS", "Compare", "compare_landscapes", "sides_of"]
