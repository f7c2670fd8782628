"""Whether the picture of a landscape can be trusted: fifteen checks, each measured, judged and put into words in one place."""
