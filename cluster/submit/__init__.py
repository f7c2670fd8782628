"""Sending a job to a cluster: each target renders what it would send, purely, and then sends it.

`ray_jobs`, `kuberay` and `slurm` are the targets; in each `target.py` holds the options of the command and the sending,
and `state.py` says how a job does there. The files beside them serve every target.
"""
