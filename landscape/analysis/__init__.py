"""Questions about a finished landscape: can it be trusted, how sharp is it, how are two connected, what breaks."""
