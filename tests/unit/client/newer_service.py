"""Answers of a service that is newer than the client: in each object a field, and in each open vocabulary a word, that
nobody knows yet. Made from what the schemas say; values that hang together are given here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from cupilot.domain.value import OPEN_ENUM

FUTURE_FIELD = "a_field_of_the_future"
FUTURE_WORD = "a word of the future"

INTERVAL = {"median": 2.0, "low": 1.0, "high": 3.0}
TOGETHER: Mapping[str, Any] = {
    "Interval": INTERVAL,
    "SweepPoint": {"tunables": {"BLOCK": 64}, "kernel_us": INTERVAL, "speedup": INTERVAL},
}
"""Of these schemas, values that their own checks accept."""
FORMATS = {"uuid": "3f2b8c1e-0000-4000-8000-000000000001", "date-time": "2026-01-01T00:00:00Z", "date": "2026-01-01"}


def answer(model: type[BaseModel]) -> Any:
    """An answer of this form with every field, as JSON."""
    schema = model.model_json_schema(mode="serialization")
    return _example(schema, schema.get("$defs", {}), ())


def _example(schema: Mapping[str, Any], named: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].split("/")[-1]
        if name in TOGETHER:
            return {**TOGETHER[name], FUTURE_FIELD: 1}
        return _example(named[name], named, (*within, name))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return _example(_chosen(schema[key], within), named, within)
    if "const" in schema:
        return schema["const"]
    if OPEN_ENUM in schema:
        return FUTURE_WORD
    if "enum" in schema:
        return schema["enum"][0]
    kinds = {"object": _object, "array": _array, "string": _string, "number": _number, "integer": _number}
    make = kinds.get(schema.get("type", ""))
    return make(schema, named, within) if make else schema.get("type") == "boolean"


def _chosen(choices: list[Mapping[str, Any]], within: tuple[str, ...]) -> Mapping[str, Any]:
    """The first alternative, but for one that leads into itself."""
    return next((choice for choice in choices if choice.get("$ref", "").split("/")[-1] not in within), choices[-1])


def _object(schema: Mapping[str, Any], named: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    if "properties" in schema:
        fields = {name: _example(field, named, within) for name, field in schema["properties"].items()}
        return fields | {FUTURE_FIELD: {"more": [1]}}
    free = schema.get("additionalProperties")
    word = FUTURE_WORD if "propertyNames" in schema else "name"
    return {word: _example(free, named, within)} if isinstance(free, dict) else {}


def _array(schema: Mapping[str, Any], named: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    if "prefixItems" in schema:
        return [_example(item, named, within) for item in schema["prefixItems"]]
    return [_example(schema["items"], named, within)] * max(schema.get("minItems", 1), 1) if "items" in schema else []


def _string(schema: Mapping[str, Any], *_: Any) -> str:
    return FORMATS.get(schema.get("format", ""), "name".ljust(schema.get("minLength", 0), "x"))


def _number(schema: Mapping[str, Any], *_: Any) -> float:
    return max(schema.get("minimum", 0), schema.get("exclusiveMinimum", 0) + 1)
