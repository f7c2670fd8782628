"""Directions in weight space: random and normalised, towards other weights, PCA of a trajectory, from a file."""
