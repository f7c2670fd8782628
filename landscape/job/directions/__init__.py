"""Directions in weight space: one file per kind, and one table of them."""
