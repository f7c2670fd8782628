"""Values and files that everything else stands on: errors, grids, plans, rounding, folders, locks; no model, no job."""
