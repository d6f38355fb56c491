"""Domain errors: each has a stable code, an HTTP status and, where there is one, a hint what to do.

A failed kernel is a result (:class:`cupilot.domain.evaluation.Failure`), never one of these.
"""

from __future__ import annotations

from datetime import datetime


class CupilotError(Exception):
    """Base of all domain errors; ``str(error)`` is safe to show to the user."""

    code = "internal_error"
    status = 500

    def __init__(self, message: str, *, hint: str | None = None, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        """Advice for mending it, in one sentence."""
        self.where = where
        """Which field, line or file is meant, e.g. ``problem.source:12``."""


class InvalidInput(CupilotError):
    """A request, file or option is not acceptable."""

    code = "invalid_input"
    status = 422


class InvalidProblem(InvalidInput):
    """A problem file is not in KernelBench's format."""

    code = "invalid_problem"


class InvalidPlan(InvalidInput):
    """A launch plan does not fit its problem or its target."""

    code = "invalid_plan"


class InvalidTensorMap(InvalidPlan):
    """A tensor map of a launch plan cannot be used; ``rule`` is a :class:`cupilot.domain.tensor_map.MapRule`."""

    code = "invalid_tensor_map"

    def __init__(self, message: str, *, rule: str, where: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, where=where)
        self.rule = rule


class NotFound(CupilotError):
    """No such thing, or it belongs to another team."""

    code = "not_found"
    status = 404


class Conflict(CupilotError):
    """The thing exists but its state does not allow this."""

    code = "conflict"
    status = 409


class Pruned(CupilotError):
    """The operator's retention removed it for good: asking again never helps."""

    code = "pruned"
    status = 410

    def __init__(self, what: str, at: datetime | None) -> None:
        when = f" on {at:%Y-%m-%d %H:%M} UTC" if at else ""
        super().__init__(
            f"{what} was pruned{when}: its job ended more than CUPILOT_JOB_KEEP_DAYS days before",
            hint="states, scores, lineage and costs are kept, and so is every kernel that was proved",
        )


class Unauthorized(CupilotError):
    """No API key, or not a valid one."""

    code = "unauthorized"
    status = 401


class Unavailable(CupilotError):
    """Something the service depends on does not answer now; the same request may work later."""

    code = "unavailable"
    status = 503


class Busy(Unavailable):
    """Others are at the same rows for so long that the request gave up: most often the caller's own requests."""

    code = "busy"
    status = 429
