"""Bases of all messages: strict requests, tolerant responses, and the error envelope."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from cupilot.domain.value import BUILD_LATER, OPEN_ENUM


def open_enum(values: type[StrEnum]) -> WithJsonSchema:
    """Return the type of a string: the schema lists its present values, later versions may add some."""
    known = [value.value for value in values]
    return WithJsonSchema({"type": "string", OPEN_ENUM: known, "description": "More values may be added."})


class Request(BaseModel):
    """Base of all requests: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=not BUILD_LATER, defer_build=BUILD_LATER)


class Response(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(
        use_attribute_docstrings=not BUILD_LATER, ser_json_inf_nan="strings", defer_build=BUILD_LATER
    )


class FieldProblem(Response):
    """An error in a field of a request."""

    where: str
    """Path of the field, e.g. ``body.budgets.candidates``."""
    message: str


class ErrorBody(Response):
    """The error: its code, message and hint."""

    code: str
    """Stable and machine-readable."""
    message: str
    hint: str | None = None
    """Advice for mending it."""
    where: str | None = None
    """Field, line or file that is meant."""
    request_id: str
    """Also in the ``X-Request-ID`` header; quote it when asking for help."""
    details: list[FieldProblem] = []
    """All that is wrong with a request that failed validation; ``where`` and ``message`` repeat the first."""


class ErrorEnvelope(Response):
    """The body of every error answer."""

    error: ErrorBody
