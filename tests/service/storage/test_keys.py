"""The command that makes and revokes keys."""

from __future__ import annotations

import uuid
from datetime import timedelta
from unittest.mock import ANY

import pytest
from sqlalchemy.orm import Session

from cupilot.domain.errors import Conflict
from cupilot.domain.people import Role, Scope
from cupilot.schemas.people import KeyRequest
from cupilot.storage.db.engine import Database
from cupilot.storage.keys import DAYS, main
from cupilot.storage.people.audit import AuditFilter, list_entries
from cupilot.storage.people.people import make_service_account, remove_member
from cupilot.storage.people.teams import authenticate, create_api_key, ensure_team, identify

pytestmark = pytest.mark.service


def _is_valid(database: Database, secret: str) -> bool:
    with database.transaction() as session:
        return authenticate(session, secret) is not None


def test_a_created_key_works_until_it_is_revoked(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", "compilers", "laptop"], database) == 0
    secret = capsys.readouterr().out.strip()
    assert _is_valid(database, secret)
    assert main(["revoke", secret[:12]], database) == 0
    assert not _is_valid(database, secret)
    with database.transaction() as session:
        revoked, created = list_entries(session, None, AuditFilter(principal="operator"), before=None, limit=2).items
    assert (created.route, created.resource, revoked.resource) == ("keys create", "compilers", secret[:12])
    assert created.changes is not None
    assert created.changes["member.role"] == [None, "member"]
    assert revoked.changes == {"key.revoked_at": [None, ANY]}
    assert secret not in str([created, revoked])


def test_two_keys_of_a_team_are_different_and_revoked_apart(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["create", "compilers", "laptop"], database)
    main(["create", "compilers", "server"], database)
    one, two = capsys.readouterr().out.split()
    main(["revoke", one[:12]], database)
    assert (_is_valid(database, one), _is_valid(database, two)) == (False, True)


def test_the_name_of_a_service_account_that_was_removed_can_be_used_again(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["create", "compilers", "ci"], database)
    first = capsys.readouterr().out.strip()
    with database.transaction() as session:
        team = ensure_team(session, "compilers")
        with pytest.raises(Conflict):
            make_service_account(session, team, "ci", Role.MEMBER)
        remove_member(session, team, "ci")
        account, _ = make_service_account(session, team, "ci", Role.VIEWER)
        _, second = create_api_key(session, team, "ci", user=account)
        assert (identify(session, first), _role(session, second)) == (None, Role.VIEWER)
        remove_member(session, team, "ci")
    main(["create", "compilers", "ci"], database)
    third = capsys.readouterr().out.strip()
    with database.transaction() as session:
        assert (identify(session, first), identify(session, second)) == (None, None)
        assert _role(session, third) is Role.MEMBER
        with pytest.raises(Conflict):
            make_service_account(session, team, "ci", Role.MEMBER)


def _role(session: Session, secret: str) -> Role:
    caller = identify(session, secret)
    assert caller is not None
    return caller.role


def test_an_unknown_key_cannot_be_revoked(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revoke", "cpk_00000000"], database) == 1
    assert "cpk_00000000" in capsys.readouterr().err


def test_the_first_cluster_admin_is_made_once(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bootstrap", "ann"], database) == 0
    secret = capsys.readouterr().out.strip()
    with database.transaction() as session:
        caller = identify(session, secret)
    assert caller is not None
    assert (caller.user, caller.team, caller.cluster_admin, caller.acts_as) == ("ann", "operators", True, Role.ADMIN)
    assert main(["bootstrap", "bob"], database) == 1
    assert "ann" in capsys.readouterr().err
    assert main(["bootstrap", "bob", "--again"], database) == 0


def test_a_created_key_has_the_role_that_was_asked_for(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    main(["create", "compilers", "dashboard", "--role", "viewer"], database)
    with database.transaction() as session:
        caller = identify(session, capsys.readouterr().out.strip())
    assert caller is not None
    assert (caller.user, caller.acts_as, caller.cluster_admin) == ("dashboard", Role.VIEWER, False)


@pytest.mark.parametrize(
    ("words", "scope", "acts_as"),
    [
        ([], Scope.SUBMIT, Role.MEMBER),
        (["--role", "admin"], Scope.ADMIN, Role.ADMIN),
        (["--role", "viewer"], Scope.READ, Role.VIEWER),
        (["--role", "admin", "--scope", "read"], Scope.READ, Role.VIEWER),
        (["--role", "viewer", "--scope", "admin"], Scope.ADMIN, Role.VIEWER),
    ],
)
def test_a_created_key_has_the_scope_that_was_asked_for_or_that_of_its_role(
    database: Database, capsys: pytest.CaptureFixture[str], words: list[str], scope: Scope, acts_as: Role
) -> None:
    main(["create", "compilers", uuid.uuid4().hex, *words], database)
    with database.transaction() as session:
        caller = identify(session, capsys.readouterr().out.strip())
    assert caller is not None
    assert (caller.scope, caller.acts_as) == (scope, acts_as)


@pytest.mark.parametrize("command", [["bootstrap", "ann", "--again"], ["create", "compilers", "laptop"]])
@pytest.mark.parametrize(("words", "days"), [([], 90), (["--days", "2.5"], 2.5), (["--days", "0"], None)])
def test_a_key_made_here_expires_as_one_made_over_rest(
    database: Database,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    words: list[str],
    days: float | None,
) -> None:
    main([*command, *words], database)
    with database.transaction() as session:
        key = authenticate(session, capsys.readouterr().out.strip())
        assert key is not None
        assert key.expires_at == (None if days is None else key.created_at + timedelta(days=days))


@pytest.mark.parametrize("days", ["-1", "4000", "nan", "never"])
def test_days_that_no_key_lives_are_refused(database: Database, capsys: pytest.CaptureFixture[str], days: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["create", "compilers", "laptop", "--days", days], database)
    assert (caught.value.code, "--days" in capsys.readouterr().err) == (2, True)


def test_a_rest_key_lives_as_long_unless_it_says_otherwise() -> None:
    assert KeyRequest(name="laptop").expires_days == DAYS
