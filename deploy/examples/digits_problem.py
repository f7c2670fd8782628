"""The callback of the example job: LeNet-5 on handwritten digits, with the weights that LANDSCAPE_WEIGHTS names."""

from landscape.recipes.digits import problem

__all__ = ["problem"]
