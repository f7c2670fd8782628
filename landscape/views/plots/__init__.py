"""From prepared values to matplotlib's axes, for papers."""
