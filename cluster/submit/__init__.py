"""Sending a job to a cluster: each target renders what it would send, purely, and then sends it.

`common` holds what every target needs, `ray_jobs` speaks Ray's job API, `kuberay` writes manifests, `slurm` scripts.
"""
