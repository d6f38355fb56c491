"""The pages' door and own files; the rooms behind it are included here."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from api.dependencies import Transaction
from api.pages import actions, champions, overviews, sso, submission, team, work
from api.pages.visits import (
    COOKIE,
    HEADERS,
    HOME,
    SIGN_IN,
    PageRoute,
    asset,
    is_secure,
    keeps_secure_cookies,
    page,
    remember,
    same_site,
)
from cupilot.domain.errors import InvalidInput, NotFound
from cupilot.storage.people.identities import close_session
from cupilot.storage.people.teams import identify

MEDIA_TYPES = {"style.css": "text/css", "cockpit.js": "text/javascript", "icon.svg": "image/svg+xml"}
CACHED = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
LARGEST_FORM = 1_000
IN_THE_CLEAR = (
    "Your browser keeps the key only over TLS, and this page was opened without: open it over https, or on the machine"
    " itself as localhost. The service permits http only where CUPILOT_ENVIRONMENT is development."
)

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)

front = APIRouter(include_in_schema=False)


@front.get("/")
async def home(request: Request) -> Response:
    """Lead a browser to the pages; there is nothing here for anybody else."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(HOME, 303)
    raise HTTPException(404)


@front.get("/llms.txt")
async def llms() -> Response:
    """Tell a language model what this service is and where its interfaces are (llmstxt.org)."""
    return Response(asset("llms.txt")[0], media_type="text/plain; charset=utf-8")


@router.get("/login")
def sign_in(request: Request) -> Response:
    """Show the form for a key, and the way to single sign-on where that is set up."""
    return _sign_in(request)


@router.post("/login", dependencies=[Depends(same_site)])
async def signed_in(request: Request) -> Response:
    """Keep a valid key in the cookie."""
    if is_secure(request) and not keeps_secure_cookies(request):
        return _sign_in(request, IN_THE_CLEAR)
    body = await request.body()
    if len(body) > LARGEST_FORM:
        raise InvalidInput("this is not an API key", hint="paste the key that cupilot key create printed: cpk_...")
    secret = parse_qs(body.decode("ascii", "ignore")).get("key", [""])[0].strip()

    def known() -> bool:
        with request.app.state.database.transaction() as session:
            request.state.caller = identify(session, secret) if secret else None  # for the audit log
            return request.state.caller is not None

    if not await run_in_threadpool(known):
        return _sign_in(request, "The key is unknown, has expired or was revoked.")
    answer = RedirectResponse(HOME, 303, headers=HEADERS)
    remember(answer, request, secret)
    return answer


@router.post("/logout", dependencies=[Depends(same_site)])
def sign_out(request: Request, session: Transaction) -> Response:
    """Forget the key; one that single sign-on made opens nothing any more."""
    caller = identify(session, request.cookies.get(COOKIE, ""))
    if caller is not None:
        request.state.caller = caller  # for the audit log
        close_session(session, caller.key_id)
    answer = RedirectResponse(SIGN_IN, 303, headers=HEADERS)
    answer.delete_cookie(COOKIE, path=HOME)
    return answer


@router.get("/static/{digest}/{name}")
async def static(digest: str, name: str) -> Response:  # noqa: ARG001 - another digest is another address to a cache
    """Return the style sheet, the script or the icon."""
    if name not in MEDIA_TYPES:
        raise NotFound("there is no such file")
    return Response(asset(name)[0], media_type=MEDIA_TYPES[name], headers=CACHED)


def _sign_in(request: Request, complaint: str | None = None) -> Response:
    single = request.app.state.settings.oidc_name if request.app.state.provider else None
    return page("login", None, status=401 if complaint else 200, complaint=complaint, single=single)


ROUTERS = (
    front,
    router,
    *(room.router for room in (sso, work, actions, submission, overviews, champions, team)),
)
"""Every room of the pages, for the application."""
