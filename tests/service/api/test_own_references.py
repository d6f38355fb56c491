"""Results on a team's own reference stay in that team, whatever it shares; those on built-in problems may be shared.

A reference that sleeps makes any kernel look fast, and no judge can tell that it was meant to be fast itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import httpx
import pytest
from sqlalchemy import select, update

from api.pages.visits import COOKIE
from cupilot.client import Client, NotFoundError
from cupilot.domain import problems
from cupilot.domain.job import Learning
from cupilot.domain.pool import Provenance, Sharing
from cupilot.domain.problem import Problem
from cupilot.domain.states import JobState
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.jobs.learning import correct, learn
from cupilot.storage.db.tables.jobs import EvaluationRow, Job
from cupilot.storage.db.tables.pool import BuiltinProblem, PoolReference, PoolRow
from cupilot.storage.pool.references import Reference, ensure_reference, reference_of
from cupilot.storage.pool.rows import read_old, recall, remember
from tests.service.api.world import SOURCE, Story, Team, World, audited
from tests.unit.storage.references import entry as pool_entry

pytestmark = pytest.mark.service

SLEEPS = SOURCE.replace("import torch\n", "import time\n\nimport torch\n").replace(
    "        return x * 2", "        time.sleep(0.05)\n        return x * 2"
)
LIE = Problem(name="double", source=SLEEPS)
CLAIMS_TO_BE_SOFTMAX = Problem(name="softmax", source=SLEEPS + "# softmax\n")
TECHNIQUE = Strategy(techniques=(TechniqueUse(id="does_nothing"),), rationale="because")


@pytest.fixture(name="attacker")
def _attacker(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key) as client:
        yield client


@pytest.fixture(name="victim")
def _victim(world: World, stranger: Team) -> Iterator[Client]:
    with Client(world.url, stranger.key) as client:
        yield client


def judged(
    world: World,
    team: Team,
    problem: Problem,
    *,
    sharing: Sharing = Sharing.OPEN,
    speedup: float = 60.0,
    strategy: Strategy = TECHNIQUE,
) -> tuple[uuid.UUID, uuid.UUID]:
    """A job that proved a kernel and remembered it: the ids of the job and of the pool entry."""
    with world.database.transaction() as session:
        story = Story(session, team.id, problem).prepare()
        story.job.learning = Learning(sharing=sharing)
        evaluation = audited(speedup).model_copy(update={"problem_hash": problem.content_hash()})
        techniques = tuple(use.id for use in strategy.techniques)
        story.candidate(story.generation(0), evaluation, techniques=techniques, best=True)
        row = session.scalars(select(EvaluationRow).where(EvaluationRow.job_id == story.job.id)).one()
        learn(session, story.job, row, evaluation, strategy)
        return story.end(JobState.SUCCEEDED).id, row.id


def asking(world: World, team: Team) -> uuid.UUID:
    """A prepared job on a similar problem, before anything was measured."""
    with world.database.transaction() as session:
        return Story(session, team.id, Problem(name="double", source=SOURCE)).prepare().job.id


def names(world: World, team: Team, browser_path: str) -> str:
    browser = httpx.Client(base_url=world.url, cookies={COOKIE: team.key}, timeout=60)
    with browser:
        answer = browser.get(browser_path)
        assert answer.status_code == 200, answer.text
        return answer.text


@pytest.mark.parametrize("problem", [LIE, CLAIMS_TO_BE_SOFTMAX], ids=["own name", "name of a built-in"])
def test_what_was_learned_on_an_own_reference_reaches_no_other_team(  # noqa: PLR0917 - fixtures
    world: World, team: Team, stranger: Team, attacker: Client, victim: Client, problem: Problem
) -> None:
    asks = asking(world, stranger)
    before = victim.pool_search(job=asks)
    job, entry = judged(world, team, problem)
    shared = attacker.pool_share(Sharing.OPEN, job=job)
    assert (shared.changed, shared.withheld) == (0, 1)
    hidden: tuple[Callable[[], object], ...] = (
        lambda: victim.pool_entry(entry),
        lambda: victim.leaderboard(problem.content_hash()),
        lambda: victim.compare(str(job), str(job)),
        lambda: victim.measurements(str(job), 0),
        lambda: victim.export(str(job), "torch"),
    )
    for ask in hidden:
        with pytest.raises(NotFoundError):
            ask()
    assert victim.pool_search(job=asks) == before
    assert entry not in {item.id for item in victim.pool_entries(shared=True).items}
    assert all(standing.technique != "does_nothing" for standing in victim.pool_stats().techniques)
    assert problem.content_hash() not in {board.problem for board in victim.leaderboards().items}
    assert problem.content_hash() not in names(world, stranger, "/ui/leaderboards")
    with world.database.transaction() as session:
        described = session.scalars(select(PoolRow.shared_reference_id).where(PoolRow.id == entry)).one()
    assert described is None, "the vector index has no description of it for others"

    own = attacker.pool_search(job=asking(world, team))
    assert [match.entry.id for match in own.matches] == [str(entry)], "its own team learns from it"
    [board] = attacker.leaderboards().items
    assert (board.problem, board.builtin, board.best_speedup) == (problem.content_hash(), False, 60.0)
    assert not attacker.leaderboard(board.problem).builtin
    assert "own reference" in names(world, team, "/ui/leaderboards")


def test_its_words_move_no_weight_of_another_teams_search(
    world: World, team: Team, stranger: Team, victim: Client
) -> None:
    judged(world, stranger, Problem(name="double", source=SOURCE), speedup=2.0)
    asks = asking(world, stranger)

    def similarities() -> list[tuple[str, float, float]]:
        found = victim.pool_search(job=asks).matches
        return [(match.entry.id, match.similarity, match.why.lexical) for match in found]

    before = similarities()
    judged(world, team, LIE)
    assert similarities() == before
    assert len(before) == 1, "it has an entry of its own"


def test_a_team_that_brings_the_same_text_sees_its_own_results_alone(
    world: World, team: Team, stranger: Team, victim: Client
) -> None:
    judged(world, team, LIE)
    judged(world, stranger, LIE, speedup=1.5)
    [board] = victim.leaderboards().items
    assert (board.kernels, board.best_speedup) == (1, 1.5)
    assert [item.own for item in victim.leaderboard(board.problem).items] == [True]


def test_a_result_on_a_built_in_problem_is_shared_under_the_name_that_it_ships_with(
    world: World, team: Team, stranger: Team, attacker: Client, victim: Client
) -> None:
    shipped = problems.load("softmax")
    known = Strategy(techniques=(TechniqueUse(id="threads"),), rationale="because")
    job, entry = judged(world, team, Problem(name="zeus", source=shipped.source), speedup=2.0, strategy=known)
    seen = victim.pool_entry(entry)
    assert (seen.entry.problem_name, seen.entry.speedup) == ("softmax", 2.0)
    [match] = victim.pool_search(job=asking(world, stranger)).matches
    assert match.entry.id == str(entry)
    [board] = [item for item in victim.leaderboards().items if item.problem == shipped.content_hash()]
    assert (board.name, board.builtin) == ("softmax", True)
    [item] = victim.leaderboard(board.problem).items
    assert (item.own, item.job, item.speedup.median) == (False, None, 2.0)
    assert "zeus" not in victim.leaderboard(board.problem).model_dump_json()
    assert "zeus" not in names(world, stranger, f"/ui/leaderboards/{board.problem}")
    assert attacker.leaderboard(board.problem).name == "zeus", "its own team keeps its own name"
    assert attacker.pool_share(Sharing.PRIVATE, job=job).changed == 1
    assert board.problem not in {item.problem for item in victim.leaderboards().items}


def test_a_technique_that_another_team_invented_is_named_in_no_statistics(
    world: World, team: Team, stranger: Team, attacker: Client, victim: Client
) -> None:
    judged(world, team, Problem(name="zeus", source=problems.load("softmax").source), speedup=2.0)
    assert "does_nothing" in attacker.pool_stats().model_dump_json()
    assert "does_nothing" not in victim.pool_stats().model_dump_json()
    assert victim.pool_search(job=asking(world, stranger)).matches == ()


def test_an_imported_claim_about_a_built_in_problem_is_not_shared(
    world: World, team: Team, attacker: Client, victim: Client
) -> None:
    claim = pool_entry("softmax", str(uuid.uuid4()), team=str(team.id), speedup=9_000.0).model_copy(
        update={
            "problem_hash": problems.load("softmax").content_hash(),
            "provenance": Provenance(imported_from="elsewhere"),
        }
    )
    with world.database.transaction() as session:
        remember(session, claim)
    shared = attacker.pool_share(Sharing.OPEN, entries=[uuid.UUID(claim.id)])
    assert (shared.changed, shared.withheld) == (0, 1)
    with pytest.raises(NotFoundError):
        victim.pool_entry(claim.id)


def test_what_the_release_before_shared_is_hidden_at_once_and_private_once_it_is_read_again(
    world: World, team: Team, stranger: Team, victim: Client
) -> None:
    shipped = problems.load("gelu")
    _, lie = judged(world, team, LIE)
    _, honest = judged(world, team, shipped, speedup=2.0)
    asks = asking(world, stranger)
    with world.database.transaction() as session:
        for entry in (lie, honest):
            told = reference_of(recall(session, entry))
            old = Reference("cluster", told.target, told.policy, told.op_class, told.zone, told.text)
            kept = {"sharing": "open", "shared_reference_id": ensure_reference(session, old)}
            session.execute(update(PoolRow).where(PoolRow.id == entry).values(kept))
    for entry in (lie, honest):
        with pytest.raises(NotFoundError):
            victim.pool_entry(entry)
    assert {str(lie), str(honest)}.isdisjoint(match.entry.id for match in victim.pool_search(job=asks).matches)
    assert LIE.content_hash() not in {item.problem for item in victim.leaderboards().items}
    with world.database.transaction() as session:
        assert read_old(session, 100) == 2
        assert read_old(session, 100) == 0
        sharing = dict(session.execute(select(PoolRow.id, PoolRow.sharing).where(PoolRow.id.in_([lie, honest]))).all())
        assert "cluster" not in session.scalars(select(PoolReference.scope)).all()
    assert sharing == {lie: "private", honest: "open"}
    assert victim.pool_entry(honest).entry.problem_name == "gelu"


def test_a_built_in_problem_stays_one_after_an_upgrade_that_changes_its_text(
    world: World, team: Team, victim: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = problems.load("relu")
    _, entry = judged(world, team, shipped, speedup=2.0)
    monkeypatch.setattr(problems, "name_of", lambda _: None)
    with world.database.transaction() as session:
        row = session.get_one(EvaluationRow, entry)
        correct(session, row, evaluation=audited(1.9).model_copy(update={"problem_hash": shipped.content_hash()}))
    assert victim.pool_entry(entry).entry.speedup == 1.9
    [board] = [item for item in victim.leaderboards().items if item.problem == shipped.content_hash()]
    assert (board.name, board.builtin) == ("relu", True)


def test_only_shipped_texts_are_recorded_as_built_in(world: World, team: Team) -> None:
    judged(world, team, LIE)
    judged(world, team, CLAIMS_TO_BE_SOFTMAX)
    judged(world, team, problems.load("tanh"))
    with world.database.transaction() as session:
        recorded = set(session.scalars(select(BuiltinProblem.hash)))
    assert recorded == set(problems.hashes())


def test_a_cluster_admin_sees_every_teams_boards_marked_as_what_they_are(world: World, team: Team) -> None:
    job, _ = judged(world, team, LIE)
    judged(world, team, problems.load("sigmoid"), speedup=2.0)
    admin = world.cluster_admin()
    with Client(world.url, admin.key) as operator:
        boards = {board.problem: board for board in operator.all_leaderboards(all_teams=True)}
        assert not boards[LIE.content_hash()].builtin
        assert boards[problems.load("sigmoid").content_hash()].builtin
        found = operator.leaderboard(LIE.content_hash(), all_teams=True)
        assert not found.builtin
        assert job in {item.job for item in found.items}
    with world.database.transaction() as session:
        assert session.get_one(Job, job).team_id == team.id
