"""A Ray cluster that exists: its dashboard takes jobs, and tells their logs and how they end."""
