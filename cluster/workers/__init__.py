"""One actor pinned to its device, the crew of them, and what travels to them."""
