"""Teams, users, keys, quotas and the audit log by the command line, against the real service."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user
from tests.service.api.world import SOURCE, World

pytestmark = [pytest.mark.service, pytest.mark.usefixtures("alone")]

OK, FAILED, USAGE, REFUSED, NOT_FOUND = 0, 1, 2, 3, 4


class Person:
    """Types commands with a key."""

    def __init__(self, url: str, secret: str | None) -> None:
        self.secret = secret
        self._environment = {"CUPILOT_URL": url, "CUPILOT_API_KEY": secret or None}

    def __call__(self, *words: str, leaves: int = OK) -> str:
        """Return the output, errors included; the command must end with this exit code."""
        result = CliRunner().invoke(app, list(words), env=self._environment)
        assert result.exit_code == leaves, (words, result.output)
        return result.output

    def json(self, *words: str, leaves: int = OK) -> Any:
        """The answer for programs."""
        return json.loads(self(*words, "--json", leaves=leaves))

    def code(self, *words: str, leaves: int) -> str:
        """The code of the error."""
        return str(self.json(*words, leaves=leaves)["error"]["code"])


@pytest.fixture
def olga(world: World) -> Person:
    """The cluster's admin."""
    with world.database.transaction() as session:
        user = ensure_user(session, "olga")
        user.cluster_admin = True
        _, secret = create_api_key(session, ensure_team(session, "operators"), "test", user=user)
    return Person(world.url, secret)


@pytest.fixture
def team(olga: Person) -> str:
    """A new team's name."""
    name = f"team-{uuid.uuid4().hex[:8]}"
    olga("team", "create", name)
    return name


def hire(world: World, olga: Person, team: str, role: str, scope: str = "admin") -> tuple[str, Person]:
    """A new person in the team, and their key, both by command."""
    name = f"{role}-{uuid.uuid4().hex[:8]}"
    olga("user", "create", name)
    olga("team", "add", team, name, "--role", role)
    made = olga.json("key", "create", "laptop", "--user", name, "--team", team, "--scope", scope, "--days", "0")
    return name, Person(world.url, made["secret"])


def test_a_team_is_made_once_and_what_is_not_named_stays(olga: Person, team: str) -> None:
    assert olga.json("team", "set", team, "--weight", "2.5")["weight"] == 2.5
    changed = olga.json("team", "set", team, "--running", "4", "--gpu-hours", "1.5", "--period", "week")
    assert changed["weight"] == 2.5
    limits = {"max_running_jobs": 4, "max_queued_jobs": None, "gpu_seconds": 5400.0, "model_usd": None}
    assert changed["quota"] == limits | {"period": "week"}
    said = olga("team", "set", team, "--running", "-1", "--model-usd", "20")
    assert said == f"{team}  weight 2.5, 0 members, 1.5 GPU hours a week, 20 USD for models a week\n"
    assert olga.code("team", "create", team, leaves=FAILED) == "conflict"
    assert olga.code("team", "create", "no/slash", leaves=USAGE) == "invalid_input"
    assert olga.code("team", "set", team, "--running", "1.5", leaves=USAGE) == "invalid_input"
    assert olga.code("team", "set", "nobody", "--weight", "1", leaves=NOT_FOUND) == "not_found"
    olga("team", "set", team, "--period", "year", leaves=USAGE)


def test_who_may_know_which_team(world: World, olga: Person, team: str) -> None:
    _, ann = hire(world, olga, team, "admin")
    assert ann("team", "list") == f"{team}  weight 1, 1 member, no limits\n"
    assert {"operators", team} <= {item["name"] for item in olga.json("team", "list")["items"]}
    assert ann.code("team", "members", "operators", leaves=NOT_FOUND) == "not_found"
    assert ann.code("team", "create", "mine", leaves=FAILED) == "cluster_admin_only"
    assert ann.code("team", "set", team, "--weight", "9", leaves=FAILED) == "cluster_admin_only"
    assert ann.code("user", "list", leaves=FAILED) == "cluster_admin_only"


def test_a_disabled_user_and_one_who_has_left_are_refused(world: World, olga: Person, team: str) -> None:
    name, bob = hire(world, olga, team, "member", "submit")
    assert f"{name}, member of team {team}; the key's scope is submit" in bob("whoami")
    assert bob.json("whoami")["acts_as"] == "member"
    assert "disabled" in olga("user", "set", name, "--disable")
    assert bob.code("whoami", leaves=REFUSED) == "unauthorized"
    olga("user", "set", name, "--enable")
    assert bob.json("whoami")["user"] == name
    [known] = [item for item in olga.json("user", "list")["items"] if item["name"] == name]
    assert (known["teams"], known["disabled"]) == ({team: "member"}, False)
    assert olga.code("user", "create", name, leaves=FAILED) == "conflict"
    olga("team", "remove", team, name)
    assert bob.code("whoami", leaves=REFUSED) == "unauthorized"
    assert olga.code("team", "remove", team, name, leaves=NOT_FOUND) == "not_found"


def test_an_admin_decides_who_is_in_the_team(world: World, olga: Person, team: str) -> None:
    _, ann = hire(world, olga, team, "admin")
    name, bob = hire(world, olga, team, "member")
    assert ann("team", "add", team, name, "--role", "viewer") == f"{name}  viewer\n"
    assert bob.code("pause", str(uuid.uuid4()), leaves=FAILED) == "role_too_low"
    unknown = ann("team", "add", team, "zoe", leaves=NOT_FOUND)
    assert f"zoe is not a member of team {team}" in unknown
    assert f"cupilot team invite {team}" in unknown, "it is said how to mend it"
    invitation = ann("team", "invite", team, "--role", "viewer").splitlines()[0]
    elsewhere = olga("team", "create", f"{team}-elsewhere")
    assert elsewhere
    guest, zoe = hire(world, olga, f"{team}-elsewhere", "member")
    assert zoe("team", "join", invitation).startswith(f"{guest} is viewer of team {team}")
    assert zoe.code("team", "join", invitation, leaves=NOT_FOUND) == "not_found"
    assert ann("team", "add", team, "nightly", "--service-account") == "nightly  member, service account\n"
    assert ann.code("team", "add", team, "nightly", "--service-account", leaves=FAILED) == "conflict"
    program = Person(world.url, ann("key", "create", "cron", "--user", "nightly").strip())
    assert program.json("whoami")["user"] == "nightly"
    ann("team", "remove", team, "nightly")
    assert program.code("whoami", leaves=REFUSED) == "unauthorized"
    assert ann.code("team", "add", "operators", name, leaves=NOT_FOUND) == "not_found"
    assert bob.code("team", "add", team, name, "--role", "admin", leaves=FAILED) == "role_too_low"


def test_keys_are_shown_once_listed_without_their_secret_and_revoked(world: World, olga: Person, team: str) -> None:
    name, bob = hire(world, olga, team, "member", "submit")
    _, ann = hire(world, olga, team, "admin")
    secret = bob("key", "create", "ci", "--days", "0").strip()
    listed = bob("key", "list")
    assert secret[:12] in listed
    assert "ci" in listed
    assert "does not expire" in listed
    assert secret not in listed
    assert {item["user"] for item in bob.json("key", "list")["items"]} == {name}
    assert len(ann.json("key", "list")["items"]) == len(olga.json("key", "list", "--team", team)["items"]) == 3
    assert ann.code("key", "list", "--team", "operators", leaves=NOT_FOUND) == "not_found"
    too_wide = bob.json("key", "create", "more", "--scope", "admin", leaves=FAILED)["error"]
    assert too_wide["code"] == "role_too_low"
    assert bob.code("key", "create", "his", "--user", "olga", leaves=FAILED) == "role_too_low"
    assert ann.code("key", "create", "hers", "--user", "zoe", leaves=NOT_FOUND) == "not_found"
    assert bob.code("key", "create", "", leaves=USAGE) == "invalid_input"
    assert bob.code("key", "revoke", str(ann.secret)[:12], leaves=FAILED) == "role_too_low"
    assert "revoked" in bob("key", "revoke", secret[:12])
    assert "revoked" in bob("key", "revoke", secret[:12]), "again is harmless"
    assert Person(world.url, secret).code("whoami", leaves=REFUSED) == "unauthorized"
    assert ann.code("key", "revoke", str(olga.secret)[:12], leaves=NOT_FOUND) == "not_found"
    olga("key", "revoke", str(ann.secret)[:12])
    assert ann.code("whoami", leaves=REFUSED) == "unauthorized"
    assert bob.code("key", "revoke", "cpk_00000000", leaves=NOT_FOUND) == "not_found"


def test_a_keys_scope_is_the_limit_and_the_error_says_what_helps(world: World, olga: Person, team: str) -> None:
    name, ann = hire(world, olga, team, "admin", "submit")
    said = ann("audit", leaves=FAILED)
    assert "scope is submit" in said
    assert f"cupilot key create NAME --user {name} --scope admin" in said


def test_a_quota_is_shown_and_enforced(world: World, olga: Person, team: str, tmp_path: Path) -> None:
    (tmp_path / "op.py").write_text(SOURCE)
    _, bob = hire(world, olga, team, "member", "submit")
    said = olga("team", "set", team, "--queued", "1", "--gpu-hours", "2")
    assert said == f"{team}  weight 1, 1 member, 1 queued, 2 GPU hours a month\n"
    bob("submit", "op.py", "--target", "cpu")
    full = bob.json("submit", "op.py", "--target", "cpu", leaves=FAILED)["error"]
    assert (full["code"], full["message"]) == ("quota_exceeded", "the team's queue is full: its limit is 1")
    shown = bob.json("quota")
    assert (shown["queued_jobs"], shown["gpu_seconds"]["limit"]) == ({"used": 1, "limit": 1}, 7200.0)
    assert "queued jobs   1 of 1" in bob("quota")
    olga("team", "set", team, "--queued", "-1")
    bob("submit", "op.py", "--target", "cpu")


def test_the_audit_log_tells_who_did_what_to_those_who_may_know(world: World, olga: Person, team: str) -> None:
    name, ann = hire(world, olga, team, "admin")
    _, bob = hire(world, olga, team, "member", "submit")
    ann("key", "create", "one")
    ann("team", "add", team, "nobody", leaves=NOT_FOUND)
    [refused] = ann.json("audit", "--outcome", "refused")["items"]
    assert (refused["principal"], refused["status"]) == (name, 404)
    assert f"PUT /v1/teams/{team}/members/nobody 404 refused" in ann("audit")
    first = ann.json("audit", "--limit", "1")
    second = ann.json("audit", "--limit", "1", "--cursor", str(first["next_cursor"]))
    assert [each["status"] for each in (*first["items"], *second["items"])] == [404, 201]
    assert bob.code("audit", leaves=FAILED) == "role_too_low"
    assert ann.code("audit", "--all-teams", leaves=FAILED) == "cluster_admin_only"
    everyone = olga.json("audit", "--all-teams", "--principal", name)["items"]
    assert {each["resource"] for each in everyone} >= {"/v1/keys", f"/v1/teams/{team}/members/nobody"}
    assert ann.json("audit", "--since", "2999-01-01")["items"] == []
    ann("audit", "--since", "yesterday", leaves=USAGE)


def test_without_a_key_and_with_a_wrong_one_nothing_opens(world: World) -> None:
    assert Person(world.url, None).code("whoami", leaves=REFUSED) == "unauthorized"
    wrong = Person(world.url, "cpk_00000000_" + "x" * 40)
    assert wrong.code("team", "list", leaves=REFUSED) == "unauthorized"
