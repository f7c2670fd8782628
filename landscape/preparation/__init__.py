"""From a job to what can be evaluated: origin, axes, grid, path, identity and plan of each landscape."""
