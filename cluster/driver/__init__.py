"""The one process that schedules and writes."""
