"""How sharp a network's loss is around some of its weights, with intervals, and whether two sets of weights differ."""
