"""Bases of all value objects (frozen, strict about unknown fields, hashed by content) and of their vocabularies.

Knows nothing about storage; a content hash is a cache key, not a database key.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


def digest(data: Any) -> str:
    """Return SHA-256, in hex, of JSON-compatible ``data`` in canonical form (sorted keys, no spaces)."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def storable(text: str) -> str:
    """Return text that UTF-8 and Postgres can hold: U+0000 and lone surrogates become U+FFFD."""
    return text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def stated(value: BaseModel) -> Any:
    """Return JSON-compatible data of what a value says beyond its defaults, and the names that tell its kind.

    It stays the same where a release adds an optional field, and where somebody spells a default out.
    """
    return _stated(value, value.model_dump(mode="json"))


def _stated(value: Any, dumped: Any) -> Any:
    if isinstance(value, BaseModel) and isinstance(dumped, dict):
        return {
            name: _stated(getattr(value, name), dumped[name])
            for name, field in type(value).model_fields.items()
            if name in dumped and (_is_tag(field) or not _is_default(field, getattr(value, name)))
        }
    if isinstance(value, Mapping) and isinstance(dumped, dict):
        return {key: _stated(item, dumped[key]) for key, item in zip(dumped, value.values(), strict=True)}
    if isinstance(value, list | tuple) and isinstance(dumped, list):
        return [_stated(*pair) for pair in zip(value, dumped, strict=True)]
    return dumped


def _is_tag(field: FieldInfo) -> bool:
    """Return whether a field can have one value only: members of a union are told apart by it."""
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def _is_default(field: FieldInfo, value: Any) -> bool:
    if field.is_required():
        return False
    return bool(value == field.get_default(call_default_factory=True, validated_data={}))


def in_utc(moment: datetime) -> datetime:
    """Return the moment in UTC, which one without a zone is taken to be in; ValueError beyond the years 1 to 9999.

    Zones that Postgres does not know, such as +20:00, are fine in ISO 8601.
    """
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("beyond the years 1 to 9999 in UTC") from error


Moment = Annotated[datetime, AfterValidator(in_utc)]
"""A time that somebody asks with."""


BUILD_LATER = "cupilot.cli" in sys.modules
"""True to build a model's validator at its first use. A command uses few of some hundred, and is to be quick; a
service builds all of them at its start, so that its threads do not all begin to build one. Then fields go without their
descriptions too, for which each class's source is parsed and which only the API's documentation shows."""

OPEN_ENUM = "x-extensible-enum"
"""Keyword of a JSON schema: the present values of a string to which values may be added."""

_of_a_newer_version: ContextVar[bool] = ContextVar("of_a_newer_version", default=False)


@contextmanager
def from_a_newer_version() -> Iterator[None]:
    """Accept any value of a :class:`Vocabulary` meanwhile: what a newer version wrote may know more words."""
    token = _of_a_newer_version.set(True)
    try:
        yield
    finally:
        _of_a_newer_version.reset(token)


class Vocabulary(StrEnum):
    """Vocabulary to which later versions may add.

    Others are refused, except in answers of a newer service (:func:`from_a_newer_version`): there an unknown word is a
    value of its own that is equal to none of the members. The JSON schema of what is answered says so with
    ``x-extensible-enum`` (Zalando's RESTful API guidelines, rule 112).
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not _of_a_newer_version.get() or not isinstance(value, str):
            return None
        word = str.__new__(cls, value)
        word._name_, word._value_ = value, value
        return word

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        if handler.mode == "serialization":
            own = handler.resolve_ref_schema(schema)
            own[OPEN_ENUM] = own.pop("enum", own.get(OPEN_ENUM))
        return schema


class Value(BaseModel):
    """An immutable value object. Two values with equal fields have equal content hashes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=not BUILD_LATER,
        ser_json_inf_nan="strings",
        defer_build=BUILD_LATER,
    )

    def content_hash(self) -> str:
        """Return SHA-256 of the fields that make this value what it is, in hex."""
        return digest(self._identity())

    def _identity(self) -> Any:
        """Return the JSON-compatible data that the content hash covers; all fields by default."""
        return self.model_dump(mode="json")
