"""How a forward pass is run: operation by operation, rewritten, compiled, for several points at once."""
