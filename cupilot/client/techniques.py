"""Calls of the client about techniques: the catalogue's, and those that the team's agents invented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupilot import schemas
from cupilot.client.definitions import call, stream
from cupilot.client.jobs import LONGEST_PAGE
from cupilot.client.protocol import Call, Stream, all_items
from cupilot.domain.problem import Target
from cupilot.domain.standing import Standing

if TYPE_CHECKING:
    from cupilot.schemas import TechniquePage, TechniqueView


class TechniqueCalls:
    """``/v1/techniques``."""

    @call
    def techniques(
        self,
        *,
        kind: Standing | str | None = None,
        target: Target | str | None = None,
        technique: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Call[TechniquePage]:
        """Return a page of techniques on targets by id, with what the team's kernels with them came to."""
        parameters = {"kind": kind, "target": target, "technique": technique, "cursor": cursor, "limit": limit}
        return Call(schemas.TechniquePage, "GET", "/v1/techniques", params=parameters)

    @stream
    def all_techniques(
        self, *, kind: Standing | str | None = None, target: Target | str | None = None
    ) -> Stream[TechniqueView]:
        """Return all of them, fetched a page at a time."""
        return all_items(
            lambda cursor: TechniqueCalls.techniques.ask(
                self, kind=kind, target=target, cursor=cursor, limit=LONGEST_PAGE
            ),
            lambda page: page.next_cursor,
        )
