"""The one error envelope: every failure, whatever its origin, is rendered here.

Decides nothing; domain errors carry their own code and status (:mod:`cupilot.domain.errors`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from cupilot.domain.errors import CupilotError, Unauthorized, Unavailable
from cupilot.schemas import ErrorBody, ErrorEnvelope, FieldProblem
from cupilot.schemas.paths import field_path, unknown_field

MAX_DETAILS = 20
"""Validation problems that one answer lists; a hostile body could have thousands."""

log = logging.getLogger("cupilot.api")

_CODES = {
    HTTPStatus.NOT_FOUND: ("route_not_found", "no such route", "the routes are listed at /docs"),
    HTTPStatus.METHOD_NOT_ALLOWED: ("method_not_allowed", "the route does not support this method", None),
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: ("unsupported_media_type", "send application/json", None),
}


def request_id(request: Request) -> str:
    """Return the id that the middleware gave the request."""
    return str(request.scope.get("state", {}).get("request_id", ""))


def render(
    status: int,
    code: str,
    message: str,
    request_id: str,
    *,
    hint: str | None = None,
    where: str | None = None,
    details: Sequence[FieldProblem] = (),
) -> Response:
    """Return the envelope as a response."""
    body = ErrorBody(code=code, message=message, hint=hint, where=where, request_id=request_id, details=list(details))
    return Response(ErrorEnvelope(error=body).model_dump_json(), status_code=status, media_type=JSONResponse.media_type)


def domain_error(error: CupilotError, request_id: str) -> Response:
    """Return a domain error as a response."""
    response = render(error.status, error.code, error.message, request_id, hint=error.hint, where=error.where)
    headers = MutableHeaders(raw=response.raw_headers)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Unavailable):
        headers["Retry-After"] = "2"
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        headers["Retry-After"] = "5"
    return response


class BodyTooLarge(HTTPException):
    """More of a body arrived than is accepted. An HTTPException, since FastAPI makes any other a 400."""

    def __init__(self, limit: int) -> None:
        super().__init__(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        self.limit = limit


class BodyTooSlow(HTTPException):
    """A body did not arrive in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(HTTPStatus.REQUEST_TIMEOUT)
        self.seconds = seconds


def too_large(limit: int, request_id: str) -> Response:
    """Return the answer to a body that is too large; what is left of the body is not read."""
    response = render(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "body_too_large",
        f"the request body is larger than {limit} bytes",
        request_id,
        hint="make large tensors in get_inputs() rather than writing them out",
    )
    response.headers["Connection"] = "close"
    return response


def install(app: FastAPI) -> None:
    """Register the handlers; what they do not know is an internal error (:mod:`api.middleware`)."""

    @app.exception_handler(CupilotError)
    async def _domain(request: Request, error: CupilotError) -> Response:
        return domain_error(error, request_id(request))

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> Response:
        body = getattr(request.scope.get("route"), "body_field", None)
        annotation = None if body is None else body.field_info.annotation
        return _validation_response(error.errors(), request_id(request), annotation)

    @app.exception_handler(BodyTooLarge)
    async def _too_large(request: Request, error: BodyTooLarge) -> Response:
        return too_large(error.limit, request_id(request))

    @app.exception_handler(BodyTooSlow)
    async def _too_slow(request: Request, error: BodyTooSlow) -> Response:
        message = f"the request body did not arrive within {error.seconds:.0f} s"
        response = render(HTTPStatus.REQUEST_TIMEOUT, "body_too_slow", message, request_id(request))
        response.headers["Connection"] = "close"
        return response

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        known = _CODES.get(HTTPStatus(error.status_code))
        code, message, hint = known or (_slug(error.status_code), str(error.detail), None)
        response = render(error.status_code, code, message, request_id(request), hint=hint)
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        return response


def _slug(status: int) -> str:
    return HTTPStatus(status).phrase.lower().replace(" ", "_").replace("-", "_")


def _validation_response(errors: Sequence[Any], request_id: str, annotation: Any) -> Response:
    if errors and all(error["loc"][0] == "path" for error in errors):
        # An id that cannot exist is an id that does not exist.
        return render(404, "not_found", "no such thing", request_id, where=_path(errors[0]))
    details = [FieldProblem(where=_path(error), message=_message(error, annotation)) for error in errors[:MAX_DETAILS]]
    first = details[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return render(
        422,
        "invalid_input",
        f"{first.where}: {first.message}{more}",
        request_id,
        where=first.where,
        hint="the schema of every request is at /docs",
        details=details,
    )


def _message(error: Any, annotation: Any) -> str:
    """Return what is wrong with a field; ``annotation`` is the type of the body."""
    if error["type"] == "extra_forbidden":
        return unknown_field(annotation, error["loc"][1:])[:500]
    if error["type"] == "json_invalid":
        return f"not valid JSON: {error['ctx']['error']}"
    if error["type"] == "model_attributes_type" and tuple(error["loc"]) == ("body",):
        return "send a JSON object, with the header Content-Type: application/json"
    return str(error["msg"]).removeprefix("Value error, ")[:500]


def _path(error: Any) -> str:
    # Where JSON breaks, FastAPI gives an offset, which is no field.
    return (str(error["loc"][0]) if error["type"] == "json_invalid" else field_path(error))[:500]
