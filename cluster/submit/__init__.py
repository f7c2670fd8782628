"""Sending a job to a cluster: each target renders what it would send, purely, and then sends it.

`ray_jobs`, `kuberay` and `slurm` are the targets: the options of the command, what is sent, and how a sent job does.
The files beside them serve every target.
"""
