"""How two networks are connected: curves trained between them, and permutations of units that bring them closer."""
