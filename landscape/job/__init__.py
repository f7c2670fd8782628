"""The job: what to compute, as frozen values that are parsed and checked once, at the border."""
