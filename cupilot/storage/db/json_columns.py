"""JSONB columns that hold domain values: validated when they are written and when they are read.

A value is stored as its ``model_dump(mode="json")``. Queries address parts of it by path, like parts of any JSONB
column; :func:`part` reads such a part as a value of its own. :func:`to_json` writes JSON that Postgres accepts: JSONB
takes neither infinite numbers nor all characters of messages.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, type_coerce
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

from cupilot.domain.value import storable


class ValidatedJson(TypeDecorator[Any]):
    """JSONB of a type that pydantic validates. ``None`` is SQL's NULL.

    With ``empty_is_none`` it is ``{}`` instead, for a column that may not be NULL.
    """

    impl = JSONB
    cache_ok = True

    def __init__(self, kind: Any, *, empty_is_none: bool = False) -> None:
        super().__init__(none_as_null=True)
        self.kind = kind
        self.empty_is_none = empty_is_none

    def process_bind_param(self, value: Any, dialect: object) -> Any:  # noqa: ARG002 - the signature is SQLAlchemy's
        """Return the JSON-compatible form; raise ``ValidationError`` where the value is not of the type."""
        if value is None:
            return {} if self.empty_is_none else None
        adapter = _adapter(self.kind)
        return adapter.dump_python(adapter.validate_python(value), mode="json")

    def process_result_value(self, value: Any, dialect: object) -> Any:  # noqa: ARG002 - the signature is SQLAlchemy's
        """Return the value; raise ``ValidationError`` where the stored JSON is not of the type."""
        if value is None or (self.empty_is_none and value == {}):
            return None
        return _adapter(self.kind).validate_python(value)

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """Treat what a path or an operator is given as JSONB does, not as a value of the column's type."""
        return self.impl_instance.coerce_compared_value(op, value)


def part(path: ColumnElement[Any], kind: Any) -> ColumnElement[Any]:
    """Return a path into a JSONB column as an expression whose results are validated as ``kind``."""
    return type_coerce(path, ValidatedJson(kind))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(value: Any) -> str:
    """Return JSON of ``value``. A number that is not finite becomes ``"Infinity"``, ``"-Infinity"`` or ``"NaN"``, which
    pydantic reads as a float again; U+0000 and lone surrogates become U+FFFD.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_storable(value), allow_nan=False)
    # Only these escapes can stand for what Postgres refuses; most documents have none and are not walked.
    return json.dumps(_storable(value)) if "\\u0000" in text or "\\ud" in text else text


def _storable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return storable(value)
    return value
