"""Sending a job to a cluster: each target renders the job as text or arguments, without side effects, then sends it.

`ray_jobs`, `kuberay` and `slurm` are the targets: the options of the command, rendering and sending, and the state of a
sent job. The other modules serve every target.
"""
