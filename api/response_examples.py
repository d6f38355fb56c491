"""An example of each answer, made from its schema: every field is there, with a value of its kind. Adds, checks none.

Real names stand where a field's name says what is in it, so that a reader recognises them; the rest says its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEEPEST = 6
"""Levels of an example; below them lists and optional objects are left empty."""
ID, HASH, TIME = "3f2c8a52-9d0e-4a62-9a3f-0c3f8f1f6a10", "9f86d081884c7d65" * 4, "2026-01-31T09:30:00Z"
NAMED: dict[str, Any] = {
    "next_cursor": None,
    "reason": None,
    "message": None,
    "failure": None,
    "state": "succeeded",
    "target": "cuda",
    "verdict": "reproduced",
    "policy": "fp32",
    "agents": "playbook",
    "priority": "normal",
    "sharing": "private",
    "role": "member",
    "scope": "submit",
    "crossover": "strategy",
    "zone": "memory",
    "baseline": "eager",
    "next_after": None,
    "name": "softmax",
    "problem": "softmax",
    "team": "compilers",
    "user": "ann",
    "author": "ann",
    "prefix": "cpk_1a2b3c4d",
    "technique": "vectorized_access",
    "arch": "sm_90",
    "unit": "us",
    "median": 1.85,
    "low": 1.82,
    "high": 1.88,
    "hash": HASH,
    "kernel_hash": HASH,
    "problem_hash": HASH,
    "url": "https://ci.example.org/hook",
}
"""By field; used where the schema takes such a value."""
FORMATS = {"uuid": ID, "date-time": TIME, "date": TIME[:10], "uri": "https://ci.example.org/hook"}
TYPES: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}


def add_response_examples(document: dict[str, Any]) -> None:
    """Give every JSON answer of success an example, where its schema is known and none is given."""
    schemas = document.get("components", {}).get("schemas", {})
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation.get("responses", {}).items():
                content = response.get("content", {}).get("application/json")
                if status.startswith("2") and content and content.get("schema") and not _has_example(content):
                    content["example"] = example(content["schema"], schemas)


def example(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "", depth: int = 0) -> Any:
    """Return a value that fits a JSON schema of the document."""
    schema = _resolved(schema, schemas)
    for given in ("const", "default"):
        if schema.get(given) is not None:
            return schema[given]
    for several in ("enum", "examples"):
        if schema.get(several):
            return schema[several][0]
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return _of_choices(choices, schemas, name, depth)
    if name in NAMED and isinstance(NAMED[name], TYPES.get(schema.get("type", ""), ())):
        return NAMED[name]
    if schema.get("type") == "object" or "properties" in schema:
        return _object(schema, schemas, depth)
    if schema.get("type") == "array":
        return _array(schema, schemas, name, depth)
    return _scalar(schema)


def _has_example(content: Mapping[str, Any]) -> bool:
    return "example" in content or "examples" in content


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def _of_choices(choices: list[dict[str, Any]], schemas: Mapping[str, Any], name: str, depth: int) -> Any:
    some = [choice for choice in choices if choice.get("type") != "null"]
    optional = len(some) < len(choices)
    if optional and (depth >= DEEPEST or (name in NAMED and NAMED[name] is None)):
        return None
    return example(some[0], schemas, name, depth)


def _object(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int) -> dict[str, Any]:
    required = set(schema.get("required", ()))
    return {
        field: example(of, schemas, field, depth + 1)
        for field, of in schema.get("properties", {}).items()
        if depth < DEEPEST or field in required
    }


def _array(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str, depth: int) -> list[Any]:
    items = schema.get("prefixItems") or [schema.get("items", {})] * max(1, schema.get("minItems", 1))
    least = schema.get("minItems", 0)
    if depth >= DEEPEST and not least:
        return []
    return [example(item, schemas, name.removesuffix("s"), depth + 1) for item in items]


def _scalar(schema: Mapping[str, Any]) -> Any:
    kind = schema.get("type")
    if kind == "boolean":
        return True
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        return max(1, int(least) + ("exclusiveMinimum" in schema))
    if kind == "string":
        return FORMATS.get(schema.get("format", ""), "text")
    return None
