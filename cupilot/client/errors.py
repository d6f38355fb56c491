"""Errors of calls: one class for each kind of refusal, all with the service's code, hint and request id."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


class ApiError(Exception):
    """The service refused a request, or could not be reached (status 0)."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        where: str | None = None,
        status: int = 0,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """Stable and machine-readable; ``unreachable`` where no server answered."""
        self.message = message
        self.hint = hint
        """Advice for mending it."""
        self.where = where
        """Field, line or file that is meant."""
        self.status = status
        """HTTP status; 0 where no server answered."""
        self.request_id = request_id
        """Quote it when asking for help."""
        self.retry_after = retry_after
        """Seconds after which the service wants to be asked again, where it said so."""


class UnreachableError(ApiError):
    """No server answered."""


class UnexpectedAnswerError(ApiError):
    """Something answered that is not this service, or not of a version near this one."""


class RejectedError(ApiError):
    """The request is not acceptable (400, 405, 413, 415, 422); ``where`` says which field."""


class NotAuthorizedError(ApiError):
    """No API key, or not a valid one (401)."""


class NotAllowedError(ApiError):
    """The key is valid, but may not do this, or a quota forbids it (403)."""


class NotFoundError(ApiError):
    """No such thing, or it belongs to another team (404)."""


class ConflictError(ApiError):
    """The thing exists, but its state does not allow this (409)."""


class RateLimitedError(ApiError):
    """Too many requests (429), still after waiting as the service asked."""


class ServerError(ApiError):
    """The service could not answer (5xx), still after repeats where those are safe."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: NotAuthorizedError,
    403: NotAllowedError,
    404: NotFoundError,
    409: ConflictError,
    429: RateLimitedError,
}


def unreachable(url: str, error: httpx.RequestError) -> UnreachableError:
    """Return the error for a server that does not answer."""
    reason = str(error) or type(error).__name__
    return UnreachableError(
        "unreachable",
        f"no server answers at {url}: {reason}",
        hint="is it running there? cupilot up starts one on this machine",
    )


def refusal(response: httpx.Response) -> ApiError:
    """Return the error that a response without success means."""
    # Imported here: a command that only has to know the kinds of errors needs none of it.
    from pydantic import ValidationError

    from cupilot.schemas import ErrorEnvelope

    status, request_id = response.status_code, response.headers.get("X-Request-ID")
    try:
        error = ErrorEnvelope.model_validate_json(response.content, extra="ignore").error
    except ValidationError:
        return UnexpectedAnswerError(
            "unexpected_answer",
            f"{response.request.url.host} answered {status} without an error of this service",
            hint="is this the URL of a cuPilot service, or of a proxy in front of it?",
            status=status,
            request_id=request_id,
        )
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else RejectedError)
    return kind(
        error.code,
        error.message,
        hint=error.hint,
        where=error.where,
        status=status,
        request_id=error.request_id,
        retry_after=retry_after(response),
    )


def retry_after(response: httpx.Response) -> float | None:
    """Return seconds that the response asks to wait; None where it does not, or in the other form (a date)."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None
