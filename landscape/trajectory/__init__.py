"""What training left in a run: snapshots of the weights, its history, imported checkpoints."""
