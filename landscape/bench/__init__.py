"""How fast points are evaluated here, beside a bare forward pass of the same model and batches in the same run."""

from landscape.bench.measure import bench
from landscape.bench.options import Options, options_for
from landscape.bench.table import bench_text

__all__ = ["Options", "bench", "bench_text", "options_for"]
