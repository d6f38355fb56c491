"""The audit log: complete, append-only, without secrets, each team's own."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.client import Client
from cupilot.storage.audit import prune_audit
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
        assert client.audit(before=first.next_before, limit=50).items == page.items[1:]
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
    httpx.get(f"{world.url}/v1/jobs", headers={"Authorization": f"Bearer {secret}"})
    with world.database.transaction() as session:
        row = session.execute(text("SELECT * FROM audit_log WHERE key_prefix = 'cpk_0badc0de'")).one()
    assert (row.status, row.outcome, row.team_id, row.principal) == (401, "refused", None, None)
    assert "sss" not in str(row)


@pytest.mark.parametrize("change", ["UPDATE audit_log SET status = 200", "DELETE FROM audit_log"])
def test_nothing_is_changed_or_removed(world: World, team: Team, change: str) -> None:
    team.submit()
    with pytest.raises(DBAPIError, match="append-only"), world.database.transaction() as session:
        session.execute(text(change))


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


def test_the_command_line_lists_it(world: World, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPILOT_URL", world.url)
    monkeypatch.setenv("CUPILOT_API_KEY", team.key)
    team.submit()
    done = CliRunner().invoke(app, ["audit", "--limit", "1"])
    assert done.exit_code == 0, done.output
    assert "POST /v1/jobs/" in done.output
    assert team.key[:12] in done.output
