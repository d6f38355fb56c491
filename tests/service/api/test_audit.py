"""The audit log: complete, append-only, without secrets, each team's own."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from sqlalchemy import event, select, text
from sqlalchemy.exc import DBAPIError
from starlette.types import Message, Receive, Scope, Send
from typer.testing import CliRunner

from api.audit import AuditLog
from cupilot.cli.app import app
from cupilot.client import Client
from cupilot.storage.db.changes import LONGEST
from cupilot.storage.db.tables.people import AuditEntry
from cupilot.storage.db.tables.people import Team as Tenant
from cupilot.storage.people.audit import prune_audit
from cupilot.storage.people.teams import create_api_key, ensure_user
from tests.service.api.world import Team, World

pytestmark = pytest.mark.service


def test_what_changes_something_is_recorded_with_who_and_what(world: World, team: Team, stranger: Team) -> None:
    with Client(world.url, team.key) as client:
        job = team.submit()
        team.http.post(f"/v1/jobs/{job['id']}/cancel", headers={"X-Request-ID": "my-request"})
        team.http.post("/v1/jobs", json={"nonsense": "hunter2"})
        team.http.get("/v1/jobs")
        stranger.http.post(f"/v1/jobs/{job['id']}/cancel")
        page = client.audit()
        assert [(entry.method, entry.status, entry.outcome) for entry in page.items] == [
            ("POST", 422, "refused"),
            ("POST", 202, "done"),
            ("POST", 202, "done"),
        ]
        assert page.items[1].route == "/v1/jobs/{job}/cancel"
        assert page.items[1].request_id == "my-request"
        assert page.items[2].resource == f"/v1/jobs/{job['id']}"
        assert {entry.key_prefix for entry in page.items} == {team.key[:12]}
        assert all(entry.principal and entry.address == "127.0.0.1" for entry in page.items)
        text_of_all = page.model_dump_json()
        assert team.key not in text_of_all
        assert "hunter2" not in text_of_all
        first = client.audit(limit=1)
        assert client.audit(cursor=first.next_cursor, limit=50).items == page.items[1:]
        assert [entry.status for entry in client.audit(outcome="refused").items] == [422]
        assert [entry.status for entry in client.audit(resource=f"/v1/jobs/{job['id']}/").items] == [202]
        assert client.audit(request_id="my-request", route="/v1/jobs/{job}/cancel").items == [page.items[1]]
        assert client.audit(until=page.items[-1].at).items == []
        assert len(client.audit(since=page.items[-1].at).items) == 3


@pytest.mark.parametrize(
    ("since", "status"),
    [("2020-01-01T00:00:00+20:00", 200), ("9999-12-31T23:59:59", 200), ("0001-01-01T00:00:00+14:00", 422)],
)
def test_it_can_be_asked_by_any_time(team: Team, since: str, status: int) -> None:
    assert team.http.get("/v1/audit", params={"since": since}).status_code == status


def test_a_wrong_key_is_recorded_by_its_visible_start_only(world: World) -> None:
    secret = "cpk_0badc0de_" + "s" * 43
    httpx.get(f"{world.url}/v1/jobs", headers={"Authorization": f"Bearer {secret}"}, timeout=60)
    with world.database.transaction() as session:
        row = session.execute(text("SELECT * FROM audit_log WHERE key_prefix = 'cpk_0badc0de'")).one()
    assert (row.status, row.outcome, row.team_id, row.principal) == (401, "refused", None, None)
    assert "sss" not in str(row)


@pytest.mark.parametrize("change", ["UPDATE audit_log SET status = 200", "DELETE FROM audit_log", "TRUNCATE audit_log"])
def test_nothing_is_changed_or_removed(world: World, team: Team, change: str) -> None:
    team.submit()
    with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
        session.execute(text(change))


def test_changes_of_rights_are_told_with_before_and_after(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        chief = ensure_user(session, f"chief-{team.id}")
        chief.cluster_admin = True
        home = session.get_one(Tenant, team.id)
        _, secret = create_api_key(session, home, "chief", user=chief)
        name, person = home.name, f"ann-{team.id}"
    http = world.http(secret)
    assert http.patch(f"/v1/teams/{name}", json={"weight": 2, "quota": {"gpu_seconds": 60}}).status_code == 200
    assert http.post("/v1/users", json={"name": person}).status_code == 201
    for role in ("viewer", "member", "member"):
        assert http.put(f"/v1/teams/{name}/members/{person}", json={"role": role}).status_code == 200
    made = http.post("/v1/keys", json={"name": "laptop", "user": person, "scope": "read", "expires_days": 3}).json()
    assert http.delete(f"/v1/keys/{made['id']}").status_code == 200
    assert http.patch(f"/v1/users/{person}", json={"disabled": True}).status_code == 200
    assert http.delete(f"/v1/teams/{name}/members/{person}").status_code == 204
    told = _told(team)
    assert told[:5] == [
        {"team.weight": [1.0, 2.0], "team.gpu_seconds": [None, 60.0]},
        {"user.name": [None, person]},
        {"member.role": [None, "viewer"]},
        {"member.role": ["viewer", "member"]},
        None,
    ]
    assert told[5] == {
        "key.prefix": [None, made["prefix"]],
        "key.name": [None, "laptop"],
        "key.scope": [None, "read"],
        "key.expires_at": [None, ANY],
    }
    assert told[6] == {"key.revoked_at": [None, ANY]}
    assert told[7] == {"user.disabled_at": [None, ANY]}
    assert told[8] == {"member.role": ["member", None]}
    assert made["secret"] not in str(told)


def test_of_secrets_only_that_they_changed(team: Team) -> None:
    asked = {"url": "https://93.184.216.34/hook/T0KEN", "events": ["job.*"], "description": "d" * 200}
    made = team.http.post("/v1/webhooks", json=asked).json()
    hook = f"/v1/webhooks/{made['id']}"
    new = team.http.post(f"{hook}/secret").json()["secret"]
    team.http.patch(hook, json={"enabled": False, "url": "https://93.184.216.34/hook/OTHER"})
    team.http.delete(hook)
    told = _told(team)
    url = "https://93.184.216.34/..."
    assert told[0] is not None
    assert (told[0]["webhook.url"], told[0]["webhook.secret"]) == ([None, url], [None, "(secret)"])
    assert told[1] == {"webhook.secret": ["(secret)", "(secret)"]}
    assert told[2] == {"webhook.url": [url, url], "webhook.enabled": [True, False]}
    assert told[3] is not None
    assert told[3]["webhook.events"] == [["job.*"], None]
    for secret in (made["secret"], new, "T0KEN", "OTHER"):
        assert secret not in str(told)


def test_a_job_is_told_by_its_settings_and_never_by_its_source(team: Team) -> None:
    job = f"/v1/jobs/{team.submit()['id']}"
    team.http.patch(job, json={"priority": "high", "labels": {"model": "llama"}})
    team.http.patch(job, json={"labels": {f"k{number}": "v" * 100 for number in range(15)}})
    team.http.post(f"{job}/pause")
    team.http.post(f"{job}/pause")
    team.http.post(f"{job}/cancel")
    submitted, changed, large, paused, again, cancelled = _told(team)
    assert (submitted, again) == (None, None)
    assert changed == {"job.labels": [{}, {"model": "llama"}], "job.priority": ["normal", "high"]}
    assert large is not None
    assert len(large["job.labels"][1]) == LONGEST + 3
    assert paused == {"job.state": ["queued", "paused"]}
    assert cancelled == {"job.state": ["paused", "cancelled"]}


def test_what_is_refused_has_changed_nothing(team: Team) -> None:
    job = f"/v1/jobs/{team.submit()['id']}"
    team.http.post(f"{job}/cancel")
    assert team.http.patch(job, json={"priority": "high", "labels": {"a": "b"}}).status_code == 409
    assert _told(team)[-1] is None


def test_who_revokes_their_own_key_is_known(world: World, team: Team) -> None:
    made = team.http.post("/v1/keys", json={"name": "spare"}).json()
    world.http(made["secret"]).delete(f"/v1/keys/{made['id']}")
    entry = team.http.get("/v1/audit", params={"limit": 1}).json()["items"][0]
    assert (entry["principal"], entry["key_prefix"]) == ("test", made["prefix"])
    assert entry["changes"] == {"key.revoked_at": [None, ANY]}


def test_who_acts_through_the_pages_is_known_by_their_key(world: World, team: Team) -> None:
    job = team.submit()["id"]
    with httpx.Client(base_url=world.url, timeout=60, headers={"Sec-Fetch-Site": "same-origin"}) as browser:
        assert browser.post("/ui/login", data={"key": team.key}).status_code == 303
        assert browser.post(f"/ui/jobs/{job}/pause").status_code == 303
        assert browser.post("/ui/logout").status_code == 303
    entries = team.http.get("/v1/audit", params={"limit": 3}).json()["items"]
    assert [(entry["route"], entry["principal"], entry["key_prefix"]) for entry in entries] == [
        ("/ui/logout", "test", team.key[:12]),
        ("/ui/jobs/{job}/{action}", "test", team.key[:12]),
        ("/ui/login", "test", team.key[:12]),
    ]


def _told(team: Team) -> list[dict[str, Any] | None]:
    """Return the changes of the team's requests, the oldest first."""
    return [item["changes"] for item in reversed(team.http.get("/v1/audit").json()["items"])]


def test_retention_forgets_what_is_old_and_nothing_else(world: World, team: Team) -> None:
    team.submit()
    with world.database.transaction() as session:
        prune_audit(session, timedelta(days=1))
        session.execute(
            text(
                "INSERT INTO audit_log (at, method, route, resource, status, outcome, request_id)"
                " VALUES (now() - interval '2 days', 'POST', '/old', '/old', 200, 'done', 'r')"
            )
        )
    with world.database.transaction() as session:
        prune_audit(session, timedelta(days=1))
    with world.database.transaction() as session:
        assert session.execute(text("SELECT count(*) FROM audit_log WHERE route = '/old'")).scalar_one() == 0
        assert session.execute(text("SELECT count(*) FROM audit_log")).scalar_one() > 0


def test_a_retention_that_was_shortened_is_worked_off_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cupilot.storage.people.audit.PRUNED_AT_ONCE", 2)
    left = []
    with world.database.transaction() as session:
        session.execute(
            text(
                "INSERT INTO audit_log (at, method, route, resource, status, outcome, request_id)"
                " SELECT now() - n * interval '1 day', 'POST', '/pieces', '/' || n, 200, 'done', 'r'"
                " FROM generate_series(400, 404) AS n"
            )
        )
    for _ in range(3):
        with world.database.transaction() as session:
            prune_audit(session, timedelta(days=399))
        with world.database.transaction() as session:
            days = session.scalars(text("SELECT resource FROM audit_log WHERE route = '/pieces' ORDER BY at"))
            left.append(list(days))
    assert left == [["/402", "/401", "/400"], ["/400"], []], "the oldest first"


def test_the_command_line_lists_it(world: World, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_URL", world.url)
    monkeypatch.setenv("CUPILOT_API_KEY", team.key)
    team.submit()
    done = CliRunner().invoke(app, ["audit", "--limit", "1"])
    assert done.exit_code == 0, done.output
    assert "POST /v1/jobs/" in done.output
    assert team.key[:12] in done.output
    team.http.patch(f"/v1/jobs/{team.submit()['id']}", json={"priority": "low"})
    done = CliRunner().invoke(app, ["audit", "--limit", "1"])
    assert '    job.priority: "normal" -> "low"' in done.output
    page = world.http()
    page.cookies.set("cupilot_key", team.key)
    assert "job.priority: &#34;normal&#34; &rarr; &#34;low&#34;" in page.get("/ui/audit").text


def test_requests_that_end_together_are_written_together_and_none_is_lost_over_another(world: World) -> None:
    """One of them cannot be written, for a character that no text column takes: it alone goes to the log."""
    marks = [f"together-{number}" for number in range(30)]

    async def accepted(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        await send({"type": "http.response.start", "status": 202, "headers": []})

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    async def drop(message: Message) -> None:
        pass

    async def ask(mark: str) -> None:
        state = {"request_id": "a\0b" if mark == marks[7] else mark}
        scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "headers": [], "state": state}
        await log(scope, nothing, drop)

    async def ask_all() -> None:
        await asyncio.gather(*map(ask, marks))

    begun: list[object] = []

    def count(connection: object) -> None:
        begun.append(connection)

    event.listen(world.database.engine, "begin", count)
    log = AuditLog(accepted, world.database)
    asyncio.run(ask_all())
    event.remove(world.database.engine, "begin", count)
    with world.database.transaction() as session:
        written = session.scalars(select(AuditEntry.request_id).where(AuditEntry.request_id.like("together-%"))).all()
    assert sorted(written) == sorted(set(marks) - {marks[7]})
    assert len(begun) <= 1 + 1 + len(marks), "the first by itself; the others at once, and then each after it failed"
