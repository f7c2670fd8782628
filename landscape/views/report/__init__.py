"""One self-contained page for a run."""
