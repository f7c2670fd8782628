"""Keeps the weights, the history and the settings of a training, from inside any PyTorch loop.

    collector       `TrajectoryCollector`, which the loop calls
    options         its options, checked
    network         the network inside its wrappers
    start           what the run may hold already, and what of it is kept
    description     what run.json says of the training

`landscape.trajectory` reads back what it writes.
"""

from landscape.collector.collector import TrajectoryCollector

__all__ = ["TrajectoryCollector"]
