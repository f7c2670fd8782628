"""Whether the picture of a landscape can be trusted: fifteen checks, each with its number and its remedy."""
