"""The command line: a thin skin over what scripts call."""
