"""How fast points are evaluated here, beside a bare forward pass of the same model and batches in the same run."""

from typing import TYPE_CHECKING

from landscape.core.late_imports import import_on_use

if TYPE_CHECKING:
    from landscape.bench.__main__ import bench_text
    from landscape.bench.measure import bench
    from landscape.bench.options import BenchOptions, options_for

__all__ = ["BenchOptions", "bench", "bench_text", "options_for"]

# Words of a command are checked before torch is imported.
__getattr__ = import_on_use(
    __name__, {"measure": ("bench",), "options": ("BenchOptions", "options_for"), "__main__": ("bench_text",)}
)
