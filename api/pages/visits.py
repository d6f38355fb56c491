"""Sign in to pages with an API key in a cookie that only they are sent, and render errors as pages.

The cookie holds the key itself, out of reach of scripts and of other sites. Pages only read, so that a forged request
could change nothing but who is signed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.dependencies import Transaction
from api.errors import domain_error, request_id
from api.pages.sides import side_by_side
from api.readiness import OK, check
from cupilot.domain.errors import Busy, CupilotError, NotFound, Unavailable
from cupilot.domain.people import Caller, Forbidden, Role
from cupilot.reports.job import factor
from cupilot.storage.people.teams import identify

COOKIE = "cupilot_key"
HOME = "/ui"
SIGN_IN = f"{HOME}/login"
SIGNED_IN_SECONDS = 12 * 3600
HEADERS = {
    # Nothing but this origin's style sheet and forms: what models wrote stands on these pages.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_templates = Environment(
    loader=PackageLoader("api.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_templates.filters["times"] = lambda value: "-" if value is None else f"{value:.2f}x"
_templates.filters["interval"] = lambda value: "-" if value is None else factor(value)
_templates.filters["moment"] = lambda value: "-" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"
_templates.filters["sides"] = side_by_side
_templates.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
_templates.filters["number"] = lambda value: (
    "-" if value is None else f"{value:,.4g}" if value < 1e6 else f"{value:,.0f}"
)


class SignedOut(CupilotError):
    """The request has no key, or one that is no longer valid."""

    code = "unauthorized"
    status = 401


class CrossSite(Forbidden):
    """A form came from another site's page."""

    code = "cross_site"


class PageRoute(APIRoute):
    """A route whose errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its errors turned into pages."""
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except SignedOut:
                return RedirectResponse(SIGN_IN, 303, headers=HEADERS)
            except RequestValidationError:
                return failed(NotFound("there is no such page"))
            except Unavailable:
                raise  # to the handler that :func:`install` registers, like those that the end of the transaction finds
            except CupilotError as error:
                return failed(error)

        return guarded


def install(app: FastAPI) -> None:
    """Register the handler that tells on a page what is down; requests of other routes get the envelope as ever."""

    @app.exception_handler(Unavailable)
    async def _unavailable(request: Request, error: Unavailable) -> Response:
        if not isinstance(request.scope.get("route"), PageRoute):
            return domain_error(error, request_id(request))
        return failed(error if isinstance(error, Busy) else await _what_is_down(request, error))


async def _what_is_down(request: Request, error: Unavailable) -> Unavailable:
    """Return the error with what the service's parts answer, which says more than that one of them did not."""
    found = await run_in_threadpool(check, request.app.state.database)
    wrong = [f"{part}: {answer}" for part, answer in found.checks.items() if answer != OK]
    return Unavailable(error.message, hint="; ".join(wrong) or error.hint)


def visitor(request: Request, session: Transaction) -> Caller:
    """Return the caller, who must be a viewer at least; raise SignedOut without a valid key."""
    secret = request.cookies.get(COOKIE)
    caller = identify(session, secret) if secret else None
    if caller is None:
        raise SignedOut("sign in with an API key")
    caller.needs(Role.VIEWER)
    return caller


Visitor = Annotated[Caller, Depends(visitor)]


def same_site(request: Request) -> None:
    """Raise :class:`CrossSite` for a form that another site sends: it would sign its visitor in or out."""
    fetched, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if fetched is not None:
        foreign = fetched not in ("same-origin", "none")
    else:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if foreign:
        raise CrossSite("this form was sent by another site", hint=f"open {SIGN_IN} of this service itself")


def page(name: str, caller: Caller | None, *, status: int = 200, refresh: bool = False, **shown: Any) -> Response:
    """Render a template as a response; ``refresh`` has the browser look again every few seconds."""
    text = _templates.get_template(f"{name}.html").render(caller=caller, refresh=refresh, home=HOME, **shown)
    return HTMLResponse(text, status, headers=HEADERS)


def failed(error: CupilotError) -> Response:
    """Render an error as a page."""
    return page("error", None, status=error.status, error=error)
