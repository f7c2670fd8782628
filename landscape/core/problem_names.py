"""The names that observables may have, beside those that the store uses itself."""

from __future__ import annotations

from typing import Any

WEIGHT = "weight"  # how much each sample counts, beside the observables

# Arrays and dimensions of the store have these names, and the weight of a sample its own.
RESERVED = frozenset(
    [
        *("status", "directions", "moments", "alpha", "beta", "gamma", "axis", "parameter", "snapshot", "moment"),
        *("sample", "sample_index", "loss_samples", "origin_loss_samples", "sample_weights", WEIGHT),
    ]
)


def why_unusable(name: Any) -> str | None:
    """Why this cannot name an observable, as the end of a message; None where it can."""
    if not isinstance(name, str):
        return f"it must be a word, not {type(name).__name__}"
    if not name.isidentifier():
        return "it must be a plain word of letters, digits and underscores"
    taken = name in RESERVED or name.startswith("path_") or name.endswith("_stderr")
    return "the store uses it itself; take another word" if taken else None
