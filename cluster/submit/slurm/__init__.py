"""Slurm: a batch script, handed to sbatch."""
