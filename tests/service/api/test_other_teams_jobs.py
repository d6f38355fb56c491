"""A cluster admin sees, moves and measures again any team's jobs; to everybody else they do not exist."""

from __future__ import annotations

import uuid

import httpx
import pytest
from typer.testing import CliRunner

from cupilot.cli.app import app
from cupilot.client import Client, NotFoundError
from cupilot.domain.evaluation import Failure, FailureKind, Verdict
from cupilot.domain.people import Role, Scope
from cupilot.domain.states import JobState
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user, set_role
from tests.service.api.world import Story, Team, World, audited, evolved

pytestmark = [pytest.mark.service, pytest.mark.usefixtures("alone")]


def key_of_olga(world: World, scope: Scope = Scope.ADMIN) -> str:
    """Of a cluster admin, for a team of her own."""
    with world.database.transaction() as session:
        user = ensure_user(session, "olga")
        user.cluster_admin = True
        return create_api_key(session, ensure_team(session, "operators"), "test", user=user, scope=scope)[1]


@pytest.fixture
def olga(world: World) -> httpx.Client:
    return world.http(key_of_olga(world))


@pytest.fixture
def name(world: World, team: Team) -> str:
    with world.database.transaction() as session:
        return session.get_one(TeamRow, team.id).name


def test_a_cluster_admin_moves_a_job_and_its_team_is_told(team: Team, olga: httpx.Client) -> None:
    first, second = (team.submit(target="cuda")["id"] for _ in range(2))
    before = team.http.get(f"/v1/jobs/{second}").json()["queue_position"]
    moved = olga.patch(f"/v1/jobs/{second}", json={"priority": "high"})
    assert (moved.status_code, moved.json()["priority"]) == (200, "high")
    assert team.http.get(f"/v1/jobs/{second}").json()["queue_position"] < before
    assert team.http.get(f"/v1/jobs/{first}").json()["priority"] == "normal"
    last = team.http.get(f"/v1/jobs/{second}/events").json()["items"][-1]
    assert (last["kind"], last["data"]) == ("job.changed", {"labels": {}, "priority": "high", "by": "olga"})
    [entry] = olga.get("/v1/audit", params={"resource": f"/v1/jobs/{second}"}).json()["items"]
    assert (entry["principal"], entry["method"], entry["outcome"]) == ("olga", "PATCH", "done")


def test_a_member_moves_the_own_teams_jobs(team: Team, world: World) -> None:
    def client(role: Role) -> httpx.Client:
        with world.database.transaction() as session:
            row = session.get_one(TeamRow, team.id)
            user = ensure_user(session, f"user-{uuid.uuid4().hex[:8]}")
            set_role(session, row, user, role)
            return world.http(create_api_key(session, row, "test", user=user)[1])

    job = team.submit()["id"]
    answers = [client(role).patch(f"/v1/jobs/{job}", json={"priority": "low"}).status_code for role in Role]
    assert answers == [403, 200, 200]


@pytest.mark.parametrize("state", [item for item in JobState if item.final])
def test_what_has_ended_is_not_moved(world: World, team: Team, olga: httpx.Client, state: JobState) -> None:
    with world.database.transaction() as session:
        job = Story(session, team.id).prepare().end(state, reason="test").id
    answer = olga.patch(f"/v1/jobs/{job}", json={"priority": "high"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


def test_to_everybody_else_another_teams_jobs_do_not_exist(
    world: World, team: Team, stranger: Team, name: str, olga: httpx.Client
) -> None:
    """A stranger who is an admin of another team; and a cluster admin with a key for less."""
    job = team.submit()["id"]
    for http in (stranger.http, world.http(key_of_olga(world, Scope.SUBMIT))):
        asked = (
            http.get(f"/v1/jobs/{job}"),
            http.patch(f"/v1/jobs/{job}", json={"priority": "high"}),
            http.post(f"/v1/jobs/{job}/candidates/0/remeasure"),
            http.get("/v1/jobs", params={"team": name}),
        )
        assert {(item.status_code, item.json()["error"]["code"]) for item in asked} == {(404, "not_found")}
    assert olga.get("/v1/jobs", params={"team": "nobody's"}).status_code == 404
    assert olga.get(f"/v1/jobs/{uuid.uuid4()}").status_code == 404
    assert team.http.get("/v1/jobs", params={"team": name}).status_code == 200, "its own team, by name"


def test_the_client_lists_another_teams_jobs(world: World, team: Team, stranger: Team, name: str) -> None:
    made = {uuid.UUID(team.submit()["id"]) for _ in range(3)}
    with Client(world.url, key_of_olga(world)) as olga:
        assert {job.id for job in olga.all_jobs(team=name)} == made
        assert len(olga.list(team=name, limit=2).items) == 2
        assert made.isdisjoint(job.id for job in olga.all_jobs())
    with Client(world.url, stranger.key) as client, pytest.raises(NotFoundError):
        client.list(team=name)


def test_a_kernel_in_quarantine_is_judged_again_in_its_team(world: World, team: Team, olga: httpx.Client) -> None:
    failure = Failure(kind=FailureKind.BELOW_FLOOR, message="faster than the floor")
    with world.database.transaction() as session:
        story = Story(session, team.id).prepare()
        judged = audited(90.0).model_copy(update={"verdict": Verdict.QUARANTINED, "failure": failure})
        candidate = story.candidate(story.generation(0), judged).id
        odd = story.end(JobState.FAILED, reason="no_valid_kernel").id
    made = olga.post(f"/v1/jobs/{odd}/candidates/0/remeasure")
    assert made.status_code == 202
    again = team.http.get(made.headers["Location"]).json()
    assert (again["author"], again["labels"]) == ("olga", {"remeasures": str(candidate)})


def test_by_command(world: World, team: Team, name: str) -> None:
    def say(*words: str) -> str:
        environment = {"CUPILOT_URL": world.url, "CUPILOT_API_KEY": key_of_olga(world)}
        result = CliRunner().invoke(app, list(words), env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    job = team.submit()["id"]
    with world.database.transaction() as session:
        evolved(session, team.id)
    assert job in say("list", "--team", name, "--state", "queued")
    assert say("change", job, "--priority", "low") == f"job {job}: priority low, labels none\n"
    [row] = [line.split() for line in say("list", "--team", name).splitlines() if line.startswith(job)]
    assert row[:4] == [job, "double", "cpu", "low"]
    assert say("status", job).startswith("job")
