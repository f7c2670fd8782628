"""Surfaces that other software computed, read from its files into a run."""

from landscape.importing.importing import import_surface, import_surfaces

__all__ = ["import_surface", "import_surfaces"]
