"""Sign in to pages with an API key in a cookie that only they are sent, and render pages and errors.

The cookie holds the key itself, out of reach of scripts and of other sites. A request that changes something must come
from a page of this service: browsers do not send the cookie with those of other sites, and say where a request is from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import Depends, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import ValidationError
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.dependencies import Transaction, read_body
from api.errors import domain_error, request_id
from api.pages import words
from api.pages.code import coloured, coloured_diff
from api.readiness import OK, check
from cupilot.domain.counted import counted
from cupilot.domain.errors import Busy, CupilotError, InvalidInput, NotFound, Unavailable
from cupilot.domain.people import Caller, Forbidden, Role
from cupilot.storage.people.teams import identify

COOKIE = "cupilot_key"
HOME = "/ui"
SIGN_IN = f"{HOME}/login"
SIGNED_IN_SECONDS = 12 * 3600
STATIC = Path(__file__).parent / "static"
HEADERS = {
    # Nothing but this origin's own files, and no script or style inside a page: what models wrote stands on them.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LARGEST_FIELD = 300_000
"""Characters of a form's field; a problem's source is the longest."""

LOCAL = re.compile(r"(.+\.)?localhost|127(\.\d{1,3}){3}|::1")
"""Hosts whose pages browsers trust without TLS."""

SECTIONS = {
    **dict.fromkeys(("job", "candidate", "candidates", "lineage", "submit", "compare"), "jobs"),
    **dict.fromkeys(("board", "champion"), "boards"),
}
"""Which entry of the navigation a page belongs to, where it is not its own name."""


class SignedOut(CupilotError):
    """The request has no key, or one that is no longer valid."""

    code = "unauthorized"
    status = 401


class CrossSite(Forbidden):
    """A form came from another site's page."""

    code = "cross_site"


class PageRoute(APIRoute):
    """A route that reads its form before anything else, and whose errors are pages."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its errors turned into pages."""
        handler = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            await read_body(request)
            try:
                return await handler(request)
            except SignedOut:
                request.state.signed_out = True  # for the rate limits
                return RedirectResponse(SIGN_IN, 303, headers=HEADERS)
            except RequestValidationError:
                return failed(NotFound("there is no such page"))
            except ValidationError as error:
                return failed(invalid_form(error))
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
    request.state.caller = caller  # for the audit log
    return caller


def same_site(request: Request) -> None:
    """Raise :class:`CrossSite` for a form that another site sends: it would act in its visitor's name."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:  # which browsers set themselves, and no proxy in between changes
        foreign = site not in ("same-origin", "none")
    else:
        host = request.headers.get("host", "").lower()
        foreign = origin is not None and urlsplit(origin).netloc.lower() != host
    if foreign:
        raise CrossSite("this form was sent by another site", hint="use this service's own pages")


def actor(request: Request, caller: Annotated[Caller, Depends(visitor)]) -> Caller:
    """Return the caller of a request that changes something: a member, on a page of this origin."""
    same_site(request)
    caller.needs(Role.MEMBER)
    return caller


Visitor = Annotated[Caller, Depends(visitor)]
Actor = Annotated[Caller, Depends(actor)]


class Form(dict[str, str]):
    """A form's fields, the first of each name; ``everything`` has them all."""

    def __init__(self, body: str) -> None:
        self.everything = parse_qs(body, keep_blank_values=True)
        super().__init__({name: _typed(values[0]) for name, values in self.everything.items()})

    def text(self, name: str) -> str | None:
        """Return a field that was filled in, or None."""
        value = self.get(name) or None
        if value is not None and ("\0" in value or len(value) > LARGEST_FIELD):
            raise InvalidInput(f"{name} is too long, or holds the character U+0000", where=name)
        return value

    def needed(self, name: str) -> str:
        """Return a field that must be filled in."""
        value = self.text(name)
        if value is None:
            raise InvalidInput(f"fill in {name}", where=name)
        return value

    def given(self, **kinds: Callable[[str], Any]) -> dict[str, Any]:
        """Return the fields that were filled in, each read by its kind; InvalidInput where that cannot be."""
        read: dict[str, Any] = {}
        for name, kind in kinds.items():
            if (value := self.text(name)) is None:
                continue
            try:
                read[name] = kind(value)
            except ValueError as error:
                raise InvalidInput(f"{name.replace('_', ' ')}: {value!r} cannot be used", where=name) from error
        return read


def _typed(value: str) -> str:
    """Return a field's text without spaces around it; a text of several lines with the line ends that files have."""
    text = value.replace("\r\n", "\n")  # which browsers send in place of every line end
    return text if "\n" in text.strip() else text.strip()


async def form(request: Request) -> Form:
    """Return the fields of a form that was sent (``application/x-www-form-urlencoded``)."""
    return Form((await request.body()).decode("utf-8", "replace"))


Fields = Annotated[Form, Depends(form)]


@cache
def asset(name: str) -> tuple[bytes, str]:
    """Return one of the pages' own files, and the address that names its content: it may be cached for ever."""
    content = (STATIC / name).read_bytes()
    return content, f"{HOME}/static/{hashlib.sha256(content).hexdigest()[:12]}/{name}"


def page(
    name: str,
    caller: Caller | None,
    *,
    status: int = 200,
    events: str | None = None,
    poll: int | None = None,
    **shown: Any,
) -> Response:
    """Render a template as a response.

    ``events`` is the address of a stream of events after which the page's live parts are fetched again; ``poll``
    fetches them every so many seconds.
    """
    text = (
        _environment()
        .get_template(f"{name}.html")
        .render(caller=caller, home=HOME, section=SECTIONS.get(name, name), events=events, poll=poll, **shown)
    )
    return HTMLResponse(text, status, headers=HEADERS)


def is_secure(request: Request) -> bool:
    """Return whether cookies go over TLS only."""
    return request.url.scheme == "https" or request.app.state.settings.environment == "production"


def keeps_secure_cookies(request: Request) -> bool:
    """Return whether the browser that sent a form keeps a cookie that goes over TLS only.

    By the page's own address, which it names: a proxy in between may end TLS without being trusted to say so.
    """
    address = urlsplit(request.headers.get("origin") or str(request.url))
    return address.scheme != "http" or LOCAL.fullmatch(address.hostname or "") is not None


def remember(answer: Response, request: Request, secret: str) -> None:
    """Keep a valid key in the cookie: whoever brings it is signed in."""
    answer.set_cookie(
        COOKIE,
        secret,
        max_age=SIGNED_IN_SECONDS,
        path=HOME,
        httponly=True,
        samesite="strict",
        secure=is_secure(request),
    )


def seen(path: str) -> Response:
    """Send the browser to a page, after what it asked for was done."""
    return RedirectResponse(f"{HOME}{path}", 303, headers=HEADERS)


def failed(error: CupilotError) -> Response:
    """Render an error as a page."""
    return page("error", None, status=error.status, error=error)


def invalid_form(error: ValidationError) -> InvalidInput:
    """Return the first thing that is wrong with what a form asks for."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "form"
    return InvalidInput(f"{where}: {first['msg']}", where=where)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("api.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("number", "micros", "seconds", "times", "interval", "percent", "money", "moment", "ago", "badge"):
        made.filters[name] = getattr(words, name)
    made.filters["counted"] = counted
    made.filters["diff"] = coloured_diff
    made.filters["coloured"] = coloured
    made.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    made.globals["asset"] = lambda name: asset(name)[1]
    return made
