"""The command line: a thin layer over the functions that scripts call."""
