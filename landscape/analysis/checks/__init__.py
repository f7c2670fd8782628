"""Fifteen checks whether the picture of a landscape can be trusted; each measures, judges and explains in words."""
