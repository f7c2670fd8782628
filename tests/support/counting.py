"""How many evaluations there are beside those of the grid and the path."""

WITNESS = 2  # by each process before its first tile: the origin, and the point that it must reproduce
