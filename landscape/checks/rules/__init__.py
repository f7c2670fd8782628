"""The checks as rules on numbers: each takes what was measured, and says what follows. Nothing here evaluates."""
