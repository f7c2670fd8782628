"""The schemas of KubeRay's custom resources, as a judge of manifests that knows nothing of this project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCHEMAS = Path(__file__).parents[2].parent / "shared" / "data" / "kuberay"


def strict(schema: object) -> object:
    """The schema with unknown fields refused, as an API server would drop them in silence."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    stricter = {key: strict(value) for key, value in schema.items()}
    if stricter.get("properties") and "additionalProperties" not in stricter:
        stricter["additionalProperties"] = False
    return stricter


def check_manifest(kind: str, document: object) -> None:
    """Check a manifest against the schema of its kind; skip the test where the schemas are not there.

    Args:
        kind: rayjob or raycluster.
    """
    validators = pytest.importorskip("jsonschema")
    file = SCHEMAS / f"ray.io_v1_{kind}.schema.json"
    if not file.is_file():
        pytest.skip("KubeRay's schemas are not here")
    schema = strict(json.loads(file.read_text()))
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}  # the API server knows it itself
    validators.Draft202012Validator(schema).validate(document)
