"""What the notebooks call: networks trained over seeds, their landscapes, numbers, pictures and tables of findings."""
