"""The base of every value object: frozen, strict about unknown fields, hashed by content.

Knows nothing about storage; a content hash is a cache key, not a database key.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


def digest(data: Any) -> str:
    """SHA-256, in hex, of JSON-compatible ``data`` in canonical form (sorted keys, no spaces)."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Value(BaseModel):
    """An immutable value object. Two values with equal fields have equal content hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings")

    def content_hash(self) -> str:
        """SHA-256 of the fields that make this value what it is, in hex."""
        return digest(self._identity())

    def _identity(self) -> Any:
        """The JSON-compatible data that the content hash covers; all fields by default."""
        return self.model_dump(mode="json")
