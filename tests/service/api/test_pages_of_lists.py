"""Every list that grows is paged alike: a cursor, which neither repeats nor loses what was there when one began."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from cupilot.client import Client
from cupilot.domain.people import Role
from cupilot.domain.problem import Problem
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.people.audit import add_own_entry
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user, set_role
from tests.service.api.world import SOURCE, World, evolved

pytestmark = pytest.mark.service


@dataclass
class Office:
    """A team with two jobs, five keys and five members, seen by its admin, who runs the service."""

    client: Client
    http: httpx.Client
    team: str
    job: str


@pytest.fixture
def office(world: World) -> Iterator[Office]:
    admin = world.cluster_admin()
    with world.database.transaction() as session:
        job = str(evolved(session, admin.id).id)
        evolved(session, admin.id, problem=Problem(name="thrice", source=SOURCE + "# thrice\n"))
        team = session.get_one(TeamRow, admin.id)
        for number in range(4):
            _join(session, team, f"user-{number}-{uuid.uuid4()}")
            add_own_entry(session, "operator", "COMMAND", "drain", str(number), team=admin.id)
        name = team.name
    with Client(world.url, admin.key) as client:
        yield Office(client, admin.http, name, job)


def _join(session: Session, team: TeamRow, name: str) -> None:
    user = ensure_user(session, name)
    set_role(session, team, user, Role.VIEWER)
    create_api_key(session, team, name, user=user)


LISTS: dict[str, tuple[Callable[[Office], str], Callable[[Any], object]]] = {
    "teams": (lambda _: "/v1/teams", lambda one: one["name"]),
    "users": (lambda _: "/v1/users", lambda one: one["name"]),
    "members": (lambda o: f"/v1/teams/{o.team}/members", lambda one: one["name"]),
    "keys": (lambda _: "/v1/keys", lambda one: one["id"]),
    "audit": (lambda _: "/v1/audit?all_teams=true", lambda one: one["id"]),
    "leaderboards": (lambda _: "/v1/leaderboards", lambda one: (one["problem"], one["device"])),
    "leaderboard": (
        lambda o: f"/v1/leaderboards/{o.client.leaderboards().items[0].problem}",
        lambda one: one["kernel"],
    ),
    "candidates": (lambda o: f"/v1/jobs/{o.job}/candidates", lambda one: one["ordinal"]),
    "fastest": (lambda o: f"/v1/jobs/{o.job}/candidates?order=speedup", lambda one: one["ordinal"]),
    "measurements": (
        lambda o: f"/v1/jobs/{o.job}/candidates/{o.client.best(o.job).candidate.ordinal}/measurements",
        lambda one: (one["job"], one["candidate"]),
    ),
}
"""Path of a list, and what names a row of it."""


def pages(office: Office, where: str, limit: int, between: Callable[[], None]) -> list[Any]:
    """All rows, so many at a time; something happens between any two pages."""
    rows: list[Any] = []
    cursor = None
    for _ in range(200):
        page = office.http.get(where, params={"limit": limit} | ({"cursor": cursor} if cursor else {}))
        assert page.status_code == 200, page.text
        assert len(page.json()["items"]) <= limit
        rows += page.json()["items"]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            return rows
        between()
    raise AssertionError("the list has no end")


@pytest.mark.parametrize("name", LISTS)
def test_what_is_added_meanwhile_neither_repeats_nor_hides_a_row(world: World, office: Office, name: str) -> None:
    path, key = LISTS[name]
    where = path(office)
    before = [key(row) for row in pages(office, where, 200, lambda: None)]
    assert before

    def grow() -> None:
        with world.database.transaction() as session:
            ensure_team(session, f"aa-{uuid.uuid4()}")
            home = session.scalars(select(TeamRow).where(TeamRow.name == office.team)).one()
            _join(session, home, f"aa-{uuid.uuid4()}")
            evolved(session, home.id)
            evolved(session, home.id, problem=Problem(name="aa", source=SOURCE + f"# {uuid.uuid4()}\n"))
            add_own_entry(session, "operator", "COMMAND", "drain", "*", team=home.id)

    seen = [key(row) for row in pages(office, where, max(1, len(before) // 5), grow)]
    assert len(seen) == len(set(seen)), "a row came twice"
    assert [each for each in seen if each in set(before)] == before, "a row was lost, or the order changed"


def test_old_parameters_still_answer(office: Office) -> None:
    old = {"users": "after", "leaderboards": "after", "leaderboard": "after", "candidates": "after", "audit": "before"}
    for name, following in old.items():
        path, key = LISTS[name]
        whole = pages(office, path(office), 200, lambda: None)
        first = office.http.get(path(office), params={"limit": 1}).json()
        found = office.http.get(path(office), params={following: first[f"next_{following}"], "limit": 200}).json()
        assert [key(each) for each in [*first["items"], *found["items"]]] == [key(each) for each in whole][:201], name


def test_lists_that_were_never_cut_still_come_whole_to_who_asks_for_no_page(office: Office) -> None:
    for name in ("teams", "members", "keys"):
        path, key = LISTS[name]
        everything = office.http.get(path(office)).json()
        assert everything["next_cursor"] is None
        assert [key(item) for item in everything["items"]] == [
            key(row) for row in pages(office, path(office), 2, lambda: None)
        ]


def test_the_client_goes_through_all_pages(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("people", "rankings"):
        monkeypatch.setattr(f"cupilot.client.{module}.LONGEST_PAGE", 2)
    client = office.client
    assert [item.name for item in client.all_teams()] == [item.name for item in client.teams().items]
    assert list(client.all_members(office.team)) == client.members(office.team).items
    assert len(client.keys().items) == 5
    assert [item.id for item in client.all_keys()] == [item.id for item in client.keys().items]
    assert list(client.all_leaderboards()) == client.leaderboards(limit=200).items
    board = client.leaderboards().items[0]
    assert [each.rank for each in client.ranked(board.problem)] == [1, 2, 3]
    assert len({item.id for item in client.all_users()}) >= 5


@pytest.mark.parametrize("name", LISTS)
def test_what_is_no_cursor_of_this_list_is_refused(office: Office, name: str) -> None:
    foreign = office.client.users(limit=1).next_cursor if name != "users" else office.client.teams(limit=1).next_cursor
    for cursor in ("nonsense", "é", "WyJ0ZWFtcyIsMV0", "WzFd", "bnVsbA", foreign):
        answer = office.http.get(LISTS[name][0](office), params={"cursor": cursor})
        assert (answer.status_code, answer.json()["error"]["where"]) == (422, "query.cursor"), cursor
