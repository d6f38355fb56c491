"""A key that expires makes only keys that expire no later, whoever asks; one that does not makes what it likes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.domain.people import Role, Scope
from cupilot.storage.db.tables.people import ApiKey
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.people.teams import create_api_key, ensure_user, set_role
from tests.service.api.world import Team, World

pytestmark = pytest.mark.service

DAYS = 7.0
MINUTE = timedelta(minutes=1)
"""More than a request takes that is made with a key of some days."""


class Maker:
    """Somebody with a key that expires, or does not."""

    def __init__(self, world: World, team: Team, days: float | None = DAYS, *, cluster_admin: bool = False) -> None:
        with world.database.transaction() as session:
            row = session.get_one(TeamRow, team.id)
            user = ensure_user(session, f"{row.name}-{days}-{cluster_admin}")
            user.cluster_admin = cluster_admin
            set_role(session, row, user, Role.ADMIN)
            lifetime = None if days is None else timedelta(days=days)
            key, self.secret = create_api_key(session, row, "laptop", user=user, scope=Scope.ADMIN, lifetime=lifetime)
            session.refresh(key)
            self.expires = key.expires_at
            self.user = user.name
        self._http: httpx.Client = world.http(self.secret)

    def makes(self, **fields: Any) -> datetime | None:
        """Return the expiry of the new key."""
        answer = self._http.post("/v1/keys", json={"name": "new", **fields})
        assert answer.status_code == 201, answer.text
        expires = answer.json()["expires_at"]
        return None if expires is None else datetime.fromisoformat(expires)

    def refused(self, **fields: Any) -> dict[str, Any]:
        """The error."""
        answer = self._http.post("/v1/keys", json={"name": "new", **fields})
        assert answer.status_code == 403, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error


@pytest.mark.parametrize("cluster_admin", [False, True])
@pytest.mark.parametrize("days", [None, DAYS + 0.1, 3_650])
def test_a_key_that_expires_makes_none_that_lives_longer(world: World, days: float | None, cluster_admin: bool) -> None:
    maker = Maker(world, world.team(), cluster_admin=cluster_admin)
    error = maker.refused(expires_days=days)
    assert (error["code"], error["where"]) == ("key_outlives_maker", "expires_days")
    assert f"expires in {DAYS:.2f} days" in error["message"]
    assert "leave expires_days (--days) out" in error["hint"]


def test_nor_for_somebody_else(world: World) -> None:
    team = world.team()
    other = Maker(world, team, None)
    maker = Maker(world, team)
    assert maker.refused(user=other.user, expires_days=None)["code"] == "key_outlives_maker"
    assert maker.makes(user=other.user) == maker.expires


def test_what_is_refused_leaves_no_key(world: World) -> None:
    team = world.team()
    Maker(world, team).refused(expires_days=None)
    with world.database.transaction() as session:
        assert session.query(ApiKey).filter(ApiKey.team_id == team.id, ApiKey.name == "new").count() == 0


def test_where_nothing_is_said_the_new_key_expires_with_its_maker(world: World) -> None:
    maker = Maker(world, world.team())
    assert maker.makes() == maker.expires


def test_a_key_may_make_one_that_expires_before_it(world: World) -> None:
    maker = Maker(world, world.team())
    made = maker.makes(expires_days=DAYS - 1)
    assert made is not None
    assert maker.expires is not None
    assert timedelta(0) <= made - (maker.expires - timedelta(days=1)) < MINUTE


def test_a_key_that_does_not_expire_makes_any(world: World) -> None:
    maker = Maker(world, world.team(), None)
    assert maker.makes(expires_days=None) is None
    assert maker.makes(expires_days=3_650) is not None
    assert maker.makes() is not None, "90 days"


def test_the_command_says_how_to_mend_it(world: World) -> None:
    maker = Maker(world, world.team())
    environment = {"CUPILOT_URL": world.url, "CUPILOT_API_KEY": maker.secret}
    for days in ("0", "30"):
        result = CliRunner().invoke(app, ["key", "create", "new", "--days", days], env=environment)
        assert result.exit_code == 1, result.output
        assert "cannot make a key that expires later" in result.output
        assert "--days" in result.output
    assert CliRunner().invoke(app, ["key", "create", "new"], env=environment).exit_code == 0
    assert CliRunner().invoke(app, ["key", "create", "new", "--days", "6.5"], env=environment).exit_code == 0


@pytest.mark.parametrize("days", [None, DAYS])
def test_whoever_asks_is_told_when_the_key_expires(world: World, days: float | None) -> None:
    maker = Maker(world, world.team(), days)
    told = world.http(maker.secret).get("/v1/me").json()["expires_at"]
    assert (None if told is None else datetime.fromisoformat(told)) == maker.expires
    shown = CliRunner().invoke(app, ["whoami", "--server", world.url], env={"CUPILOT_API_KEY": maker.secret})
    assert shown.exit_code == 0, shown.output
    assert (f"expires on {maker.expires:%Y-%m-%d}" if maker.expires else "does not expire") in shown.output
