"""The Zarr store of a run's landscapes. Only this package knows Zarr."""
