"""What all messages share: how strict requests are, how tolerant responses, and the error envelope."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from cupilot.domain.value import OPEN_ENUM


def open_enum(values: type[StrEnum]) -> WithJsonSchema:
    """A string whose present values the schema tells, and to which values may be added."""
    known = [value.value for value in values]
    return WithJsonSchema({"type": "string", OPEN_ENUM: known, "description": "More values may be added."})


class Request(BaseModel):
    """Base of what clients send: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Response(BaseModel):
    """Base of what the service answers."""

    model_config = ConfigDict(use_attribute_docstrings=True, ser_json_inf_nan="strings")


class FieldProblem(Response):
    """One thing that is wrong with a request."""

    where: str
    """Path of the field, e.g. ``body.budgets.candidates``."""
    message: str


class ErrorBody(Response):
    """What went wrong."""

    code: str
    """Stable and machine-readable."""
    message: str
    hint: str | None = None
    """How to mend it."""
    where: str | None = None
    """Field, line or file that is meant."""
    request_id: str
    """Also in the ``X-Request-ID`` header; quote it when asking for help."""
    details: list[FieldProblem] = []
    """All that is wrong with a request that failed validation; ``where`` and ``message`` repeat the first."""


class ErrorEnvelope(Response):
    """Every error of the service looks like this."""

    error: ErrorBody
