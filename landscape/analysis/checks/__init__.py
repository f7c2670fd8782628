"""Whether the picture of a landscape can be trusted: fifteen checks, each with its measurement, judgement and words."""
