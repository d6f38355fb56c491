"""The base of every value object: frozen, strict about unknown fields, hashed by content.

Knows nothing about storage; a content hash is a cache key, not a database key.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict


def digest(data: Any) -> str:
    """SHA-256, in hex, of JSON-compatible ``data`` in canonical form (sorted keys, no spaces)."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def in_utc(moment: datetime) -> datetime:
    """The same moment in UTC, which one without a zone is taken to be in; ValueError beyond the years 1 to 9999.

    Zones that Postgres does not know, such as +20:00, are fine in ISO 8601.
    """
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("beyond the years 1 to 9999 in UTC") from error


Moment = Annotated[datetime, AfterValidator(in_utc)]
"""A time that somebody asks with."""


class Value(BaseModel):
    """An immutable value object. Two values with equal fields have equal content hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="strings")

    def content_hash(self) -> str:
        """SHA-256 of the fields that make this value what it is, in hex."""
        return digest(self._identity())

    def _identity(self) -> Any:
        """The JSON-compatible data that the content hash covers; all fields by default."""
        return self.model_dump(mode="json")
