"""Second-order training: the optimiser THOR, and the schedules of its published trainings."""
