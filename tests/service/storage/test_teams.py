"""Teams and keys."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select, update

from cupilot.domain.people import Role
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.people import ApiKey
from cupilot.storage.people.teams import (
    adopt_api_key,
    authenticate,
    create_api_key,
    ensure_team,
    ensure_user,
    identify,
    set_role,
)

pytestmark = pytest.mark.service


def test_a_key_opens_its_team_and_only_its_hash_is_kept(database: Database) -> None:
    with database.transaction() as session:
        team = ensure_team(session, "blue")
        assert ensure_team(session, "blue").id == team.id
        key, secret = create_api_key(session, team, "laptop")
    assert secret.startswith(f"{key.prefix}_")
    assert secret not in (key.prefix, key.hash, key.name)
    with database.transaction() as session:
        found = authenticate(session, secret)
        assert found is not None
        assert (found.id, found.team_id) == (key.id, team.id)
    with database.transaction() as session:
        assert session.get_one(ApiKey, key.id).last_used_at is not None


NUL = "cpk_\0" + "1234567_" + "a" * 43


@pytest.mark.parametrize(
    "change", ["", "x", "cpk_", "cpk_12345678_", "not a key at all", "cpk_12345678_" + "a" * 43, NUL]
)
def test_anything_else_opens_nothing(database: Database, change: str) -> None:
    with database.transaction() as session:
        create_api_key(session, ensure_team(session, "blue"), "laptop")
        assert authenticate(session, change) is None


def test_a_wrong_secret_of_a_known_prefix_opens_nothing(database: Database) -> None:
    with database.transaction() as session:
        _, secret = create_api_key(session, ensure_team(session, "blue"), "laptop")
        wrong = secret[:-1] + ("a" if secret[-1] != "a" else "b")
        assert authenticate(session, wrong) is None
        assert authenticate(session, secret) is not None


def test_a_revoked_key_opens_nothing(database: Database) -> None:
    with database.transaction() as session:
        key, secret = create_api_key(session, ensure_team(session, "blue"), "laptop")
        session.execute(update(ApiKey).where(ApiKey.id == key.id).values(revoked_at=func.now()))
        assert authenticate(session, secret) is None


def test_a_secret_that_exists_already_can_be_adopted_twice(database: Database) -> None:
    with database.transaction() as session:
        _, secret = create_api_key(session, ensure_team(session, "blue"), "laptop")
        session.execute(ApiKey.__table__.delete())
        session.expunge_all()
        first = adopt_api_key(session, ensure_team(session, "blue"), "laptop", secret)
        second = adopt_api_key(session, ensure_team(session, "blue"), "laptop", secret)
        assert first.id == second.id
        assert authenticate(session, secret) is not None
        assert session.execute(select(func.count()).select_from(ApiKey)).scalar_one() == 1
        with pytest.raises(ValueError, match="not an API key"):
            adopt_api_key(session, ensure_team(session, "blue"), "laptop", "hunter2")


def test_a_key_ends_with_its_time_its_user_and_its_membership(database: Database) -> None:
    with database.transaction() as session:
        team = ensure_team(session, "blue")
        user = ensure_user(session, "ann")
        member = set_role(session, team, user, Role.VIEWER)
        key, secret = create_api_key(session, team, "laptop", user=user)
        found = identify(session, secret)
        assert found is not None
        assert (found.role, found.acts_as, found.user, found.team) == (Role.VIEWER, Role.VIEWER, "ann", "blue")
        key.expires_at = func.now()
        session.flush()
        assert identify(session, secret) is None, "expired"
        key.expires_at = None
        user.disabled_at = func.now()
        session.flush()
        assert identify(session, secret) is None, "its user is disabled"
        user.disabled_at = None
        session.delete(member)
        session.flush()
        assert identify(session, secret) is None, "its user has left the team"
        user.cluster_admin = True
        session.flush()
        assert identify(session, secret) is not None, "a cluster admin is an admin of every team"


def test_a_person_and_a_service_account_may_share_a_name(database: Database) -> None:
    with database.transaction() as session:
        team = ensure_team(session, "blue")
        users = {ensure_user(session, "ci").id, ensure_user(session, "ci", team=team).id}
        users |= {ensure_user(session, "ci").id, ensure_user(session, "ci", team=ensure_team(session, "red")).id}
    assert len(users) == 3
