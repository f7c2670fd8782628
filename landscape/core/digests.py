"""Digests of plain values: each value has one text, and the digest is the SHA-256 of that text."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, the shortest text of each float.

    Example:
        >>> canonical_json({"b": 0.5, "a": [1, None]})
        '{"a":[1,null],"b":0.5}'

    Raises:
        ValueError: it holds NaN or infinity, which JSON has not.
        TypeError: it holds something else that JSON has not.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON of a value, in hexadecimal.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
        >>> digest([])[:8]
        '4f53cda1'
    """
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
