"""Second-order training: the optimiser THOR, and the schedules of its published trainings."""

from __future__ import annotations

from landscape.optim.schedules import SCHEDULES, Schedule, thor_damping, thor_learning_rate
from landscape.optim.thor import THOR

__all__ = ["SCHEDULES", "THOR", "Schedule", "thor_damping", "thor_learning_rate"]
