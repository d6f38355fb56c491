"""Single sign-on for the pages: to the provider and back, into the session that an API key would open.

The provider's protocol is :mod:`api.single_sign_on`'s, who may come in :mod:`cupilot.storage.people.identities`'.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from api.dependencies import plain_text
from api.pages.visits import HEADERS, HOME, SIGNED_IN_SECONDS, PageRoute, is_secure, page, remember, same_site
from api.single_sign_on import PENDING_SECONDS, Pending, Provider
from cupilot.domain.errors import NotFound
from cupilot.storage.db.changes import changes, watch
from cupilot.storage.people.identities import open_session
from cupilot.storage.people.teams import identify

START = f"{HOME}/sso"
COOKIE = "cupilot_sign_in"

router = APIRouter(prefix=HOME, route_class=PageRoute, include_in_schema=False)


def provider(request: Request) -> Provider:
    """Return the provider; NotFound where none is set up."""
    found: Provider | None = request.app.state.provider
    if found is None:
        raise NotFound("single sign-on is not set up here", hint="sign in with an API key")
    return found


Asked = Annotated[Provider, Depends(provider)]


@router.get("/sso", dependencies=[Depends(same_site)])
def start(request: Request, asked: Asked, team: Annotated[str | None, Query(max_length=100)] = None) -> Response:
    """Send the browser to the provider; not for another site, which could sign its visitor in as somebody else."""
    redirect = request.app.state.settings.oidc_redirect_url or f"{request.base_url}ui/sso/callback"
    address, pending = asked.begin(redirect, plain_text("team", team))
    answer = RedirectResponse(address, 303, headers=HEADERS)
    # "lax", since the provider's site leads back here; the session's own cookie is "strict".
    answer.set_cookie(
        COOKIE,
        pending.pack(),
        max_age=PENDING_SECONDS,
        path=START,
        httponly=True,
        samesite="lax",
        secure=is_secure(request),
    )
    return answer


@router.get("/sso/callback")
def finish(request: Request, asked: Asked) -> Response:
    """Sign in whom the provider vouches for, if they are a member here."""
    pending = Pending.unpack(request.cookies.get(COOKIE))
    person = asked.finish(request.query_params, pending)
    with request.app.state.database.transaction() as session:
        watch(session)
        secret = open_session(session, person, pending.team, SIGNED_IN_SECONDS)
        request.state.caller = identify(session, secret)  # for the audit log, as is what has changed
        request.state.changes = changes(session)
    # A page and no redirect: a browser that comes from another site brings no strict cookie along a redirect.
    answer = page("signed_in", None)
    remember(answer, request, secret)
    answer.delete_cookie(COOKIE, path=START)
    return answer
