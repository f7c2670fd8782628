"""The job file and the callback that `landscape init` writes."""
