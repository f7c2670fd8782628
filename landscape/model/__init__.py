"""A network in memory and on disk: parameters, snapshots, checkpoints, packed files, and rules that watch layers."""
