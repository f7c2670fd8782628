"""Which files of a job's folder are sent to a cluster, which are not and why, and the archive of those that are."""
