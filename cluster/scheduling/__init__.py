"""Which task goes where, what is tried again, checked or given up: pure decisions, the clock passed in."""
