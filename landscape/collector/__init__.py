"""The collector: keeps weights, history and settings of a training run, from inside any PyTorch loop."""

from landscape.collector.collector import TrajectoryCollector

__all__ = ["TrajectoryCollector"]
