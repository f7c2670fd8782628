"""Second-order training: the optimiser THOR, and the schedules of its published trainings."""

from __future__ import annotations

from landscape.training.thor.optimizer import SCHEDULES, THOR, Schedule, thor_damping, thor_learning_rate

__all__ = ["SCHEDULES", "THOR", "Schedule", "thor_damping", "thor_learning_rate"]
