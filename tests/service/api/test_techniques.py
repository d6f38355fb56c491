"""``/v1/techniques`` over REST, through client and command line: kinds, counts, effects, pages, and who sees what."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cupilot.cli.app import app as command_line
from cupilot.client import Client
from cupilot.domain.problem import Target
from cupilot.domain.standing import Standing
from cupilot.domain.states import StrategyOrigin
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.technique import catalogue
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Job
from cupilot.storage.pool.rows import remember
from cupilot.storage.pool.techniques import enter_techniques
from tests.service.api.world import Team, World
from tests.unit.storage.references import entry

pytestmark = pytest.mark.service

MEANING = "Two rows at once.\x1b[31m"


@pytest.fixture
def client(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key) as opened:
        yield opened


@pytest.fixture
def job(world: World, team: Team) -> uuid.UUID:
    """A job that invented two techniques, of which one has proven itself."""
    made = uuid.UUID(team.submit()["id"])
    uses = (TechniqueUse(id="two_rows", meaning=MEANING), TechniqueUse(id="untried", meaning="nobody knows"))
    with world.database.transaction() as session:
        enter_techniques(session, session.get_one(Job, made), [Strategy(techniques=uses)], StrategyOrigin.CROSSOVER)
    for reference in ("softmax", "layer_norm"):
        for names, speedup in (("simd",), 1.0), (("simd",), 1.1), (("two_rows",), 2.0), (("two_rows",), 2.1):
            measured(world.database, team, reference, names, speedup)
    return made


def measured(database: Database, team: Team, reference: str, names: tuple[str, ...], speedup: float) -> None:
    made = entry(reference, str(uuid.uuid4()), techniques=names, speedup=speedup, team=str(team.id), target=Target.CPU)
    with database.transaction() as session:
        remember(session, made)


def test_a_technique_is_listed_with_what_came_of_it(client: Client, job: uuid.UUID) -> None:
    [found] = client.techniques(kind=Standing.PROMOTED).items
    assert (found.id, found.target, found.kind, found.meaning) == ("two_rows", Target.CPU, "promoted", MEANING)
    assert (found.tries, found.wins, found.problems, found.families) == (4, 4, 2, ["norm", "softmax"])
    assert (found.origin, found.job) == ("crossover", job)
    assert found.effect is not None
    assert 1 < found.effect.low < found.effect.factor < found.effect.high
    [novel] = client.techniques(kind="novel").items
    assert (novel.id, novel.tries, novel.effect) == ("untried", 0, None)
    [known] = client.techniques(technique="simd", target="cpu").items
    assert (known.kind, known.tries, known.origin) == ("catalogued", 4, None)
    assert known.effect is not None
    assert known.effect.factor < 1


def test_pages_hold_everything_once_in_order(client: Client, job: uuid.UUID) -> None:
    assert job
    whole = list(client.all_techniques())
    keys = [(item.id, item.target.value) for item in whole]
    assert keys == sorted(set(keys))
    assert len(keys) == sum(len(technique.targets) for technique in catalogue()) + 2
    paged, cursor = [], None
    while True:
        page = client.techniques(target="cpu", limit=7, cursor=cursor)
        paged += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    assert paged == [item for item in whole if item.target is Target.CPU]
    assert client.techniques(kind="novel", limit=1).next_cursor is None


def test_no_other_team_sees_what_was_invented(world: World, stranger: Team, job: uuid.UUID) -> None:
    assert job
    with Client(world.url, stranger.key) as other:
        assert {technique.kind for technique in other.all_techniques()} == {"catalogued"}
        assert all(technique.tries == 0 for technique in other.all_techniques())
        assert other.techniques(technique="two_rows").items == []


def test_a_misspelt_technique_is_not_banned_silently(world: World, team: Team, job: uuid.UUID) -> None:
    def ban(*arguments: str) -> Result:
        options = ["ban", str(job), *arguments, "--server", world.url]
        return CliRunner().invoke(command_line, options, env={"CUPILOT_API_KEY": team.key})

    refused = ban("--technique", "two_row")
    assert refused.exit_code == 2
    assert "did you mean two_rows" in refused.output
    assert json.loads(ban("--technique", "two_row", "--json").output)["error"]["code"] == "unknown_technique"
    for accepted in (["two_rows"], ["simd"], ["two_row", "--any-name"]):
        assert ban("--technique", *accepted).exit_code == 0


def test_the_command_line_lists_and_shows(world: World, team: Team, job: uuid.UUID) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(command_line, [*arguments, "--server", world.url], env={"CUPILOT_API_KEY": team.key})
        assert found.exit_code == code, found.output
        return found.output

    assert [line.split()[2] for line in run("techniques", "--kind", "promoted").splitlines()] == ["two_rows"]
    shown = run("techniques", "two_rows")
    assert "4 of 4 count" in shown
    assert "Two rows at once." in shown
    assert "\x1b" not in shown
    assert f"named first by crossover in job {job}" in shown
    assert json.loads(run("techniques", "two_rows", "--json"))["items"][0]["kind"] == "promoted"
    assert "no such technique" in run("techniques", "no_such_thing", code=4)
