"""A job, from its text to its last value: prepared, computed here or by workers, extended, refined, packed."""
