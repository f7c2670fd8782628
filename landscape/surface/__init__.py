"""The values of a landscape on its axes, its record, and what is derived from both: barriers, basins, finer levels."""
