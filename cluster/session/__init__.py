"""A Ray session: attaching, placement, metrics, and which files travel to a cluster."""
