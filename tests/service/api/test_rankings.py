"""Leaderboards and comparisons over REST, through the client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from cupilot.client import Client, ConflictError, NotAllowedError, NotFoundError, RejectedError
from cupilot.domain.evaluation import Verdict, WorkloadPreparation
from cupilot.domain.pool import Sharing
from cupilot.domain.problem import Problem, Target
from cupilot.domain.problems import load
from cupilot.domain.states import JobState
from cupilot.domain.workload import Workload
from cupilot.exports import ExportFormat
from cupilot.reports.job import markdown
from cupilot.schemas import ImportRequest, JobRequest, ProblemInput
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job
from cupilot.storage.db.tables.people import Team as TeamRow
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user
from cupilot.storage.pool.rows import remember
from tests.service.api.world import SOURCE, Story, Team, World, evolved, rejected
from tests.unit.storage.references import entry as pool_entry
from tests.unit.storage.references import on_builtin

pytestmark = pytest.mark.service


@pytest.fixture
def client(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key) as client:
        yield client


@pytest.fixture
def job(world: World, team: Team) -> str:
    with world.database.transaction() as session:
        return str(evolved(session, team.id).id)


def test_the_fastest_kernel_stands_first_and_only_what_counts_stands_there(client: Client, job: str) -> None:
    [board] = client.leaderboards().items
    assert (board.kernels, board.best_speedup, board.device) == (3, 2.0, "Test CPU")
    found = client.leaderboard(board.problem)
    assert [entry.rank for entry in found.items] == [1, 2, 3]
    assert [entry.speedup.median for entry in found.items] == [2.0, 1.5, 1.2]
    assert found.items[0].techniques == ["simd", "threads"]
    assert str(found.items[0].job) == job
    first = client.leaderboard(board.problem, limit=2)
    rest = client.leaderboard(board.problem, cursor=first.next_cursor)
    assert [entry.rank for entry in first.items + rest.items] == [1, 2, 3]
    assert list(client.ranked(board.problem, device="Test CPU")) == found.items


def test_a_reproduced_kernel_stands_above_faster_ones_that_were_only_audited(
    world: World, client: Client, job: str
) -> None:
    found = client.leaderboard(client.leaderboards().items[0].problem)
    slowest = found.items[-1]
    with world.database.transaction() as session:
        for row in session.scalars(select(Candidate).where(Candidate.job_id == uuid.UUID(job))):
            if row.speedup is not None:
                row.verdict = Verdict.REPRODUCED if row.ordinal == slowest.ordinal else Verdict.AUDITED
    [board] = client.leaderboards().items
    assert board.best_speedup == slowest.speedup.median
    ranked = list(client.ranked(board.problem, device="Test CPU"))
    assert [entry.speedup.median for entry in ranked] == [1.2, 2.0, 1.5]
    first = client.leaderboard(board.problem, limit=1)
    rest = client.leaderboard(board.problem, cursor=first.next_cursor)
    assert [entry.rank for entry in first.items + rest.items] == [1, 2, 3]


def test_few_laws_at_one_workload_warn_as_at_all(world: World, client: Client, job: str) -> None:
    for laws, boards in ((("own", "signed", "wide_range"), 1), (("own",), 0), (("own", "perturbed", "zeros"), 0)):
        with world.database.transaction() as session:
            row = session.get_one(Job, uuid.UUID(job))
            assert row.preparation is not None
            shared = set(WorkloadPreparation.model_fields) - {"workload"}
            own = {name: getattr(row.preparation, name) for name in shared}
            heavy = WorkloadPreparation(**own, workload=Workload(name="heavy", values={}, weight=2))
            light = WorkloadPreparation(**{**own, "laws": laws}, workload=Workload(name="light", values={}))
            row.preparation = row.preparation.model_copy(update={"workloads": (heavy, light)})
            expected = list(row.preparation.warnings)
        told = client.get(job)
        assert len(client.leaderboards().items) == boards
        assert told.preparation is not None
        assert told.preparation.warnings == expected == client.candidate(job, 2).warnings
        assert ["workload 'light'" in warning for warning in expected] == [True] * (1 - boards)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"laws": ("own",)}, "of the input laws only"),
        ({"laws": ("own", "perturbed", "zeros/4")}, "of the input laws only"),
        ({"host_bound": True}, "host"),
    ],
)
def test_problems_that_prove_little_warn_and_stand_nowhere(
    world: World, client: Client, job: str, changes: dict[str, object], words: str
) -> None:
    with world.database.transaction() as session:
        row = session.get_one(Job, uuid.UUID(job))
        assert row.preparation is not None
        row.preparation = row.preparation.model_copy(update=changes)
    assert client.leaderboards().items == []
    told = client.get(job)
    assert told.preparation is not None
    [warning] = told.preparation.warnings
    assert words in warning
    assert client.candidate(job, "0").warnings == [warning]
    assert warning in markdown(client.best(job))


def test_another_teams_kernels_stand_nowhere(world: World, client: Client, job: str) -> None:
    assert job
    [board] = client.leaderboards().items
    stranger = world.team()
    with Client(world.url, stranger.key) as other:
        assert other.leaderboards().items == []
        for ask in (
            lambda: other.leaderboard(board.problem),
            lambda: other.compare(f"{job}:0", f"{job}:1"),
            lambda: other.exports(job),
            lambda: other.export(job, "torch"),
        ):
            with pytest.raises(NotFoundError):
                ask()


def test_a_kernel_stands_on_other_teams_boards_once_its_team_has_opened_it_and_no_longer(
    world: World, team: Team, client: Client
) -> None:
    builtin = load("softmax")
    with world.database.transaction() as session:
        job = str(evolved(session, team.id, problem=builtin).id)
        rows = session.scalars(select(EvaluationRow).where(EvaluationRow.job_id == uuid.UUID(job))).all()
        for row in rows:
            remember(session, on_builtin(pool_entry("softmax", str(row.id), team=str(team.id))))
        winner = next(row.id for row in rows if row.verdict is Verdict.REPRODUCED)
    [board] = client.leaderboards().items
    mine = client.leaderboard(board.problem).items
    stranger = world.team()
    with Client(world.url, stranger.key) as other:
        for sharing in (Sharing.ANONYMOUS, Sharing.PRIVATE):
            client.pool_share(sharing, entries=[winner])
            assert [item for item in other.leaderboards().items if item.problem == board.problem] == [], sharing
        client.pool_share(Sharing.OPEN, entries=[winner])
        assert board.problem in {item.problem for item in other.leaderboards().items}
        [seen] = [item for item in other.leaderboard(board.problem).items if item.kernel == mine[0].kernel]
        assert (seen.own, seen.team, seen.job, seen.candidate, seen.ordinal) == (False, None, None, None, None)
        assert (seen.speedup, seen.techniques) == (mine[0].speedup, mine[0].techniques)
        assert job not in other.leaderboard(board.problem).model_dump_json()
        for hidden in (
            lambda: other.compare(job, job),
            lambda: other.remeasure(job, 4),
            lambda: other.export(job, "torch"),
        ):
            with pytest.raises(NotFoundError):
                hidden()
        with world.database.transaction() as session:
            evolved(session, stranger.id, problem=builtin)  # the same kernels: each stands there once, as one's own
        assert [item.own for item in other.leaderboard(board.problem).items] == [True] * 3
        with pytest.raises(NotAllowedError):
            other.leaderboards(all_teams=True)
        client.pool_share(Sharing.PRIVATE, entries=[winner])
    assert [item.own for item in client.leaderboard(board.problem).items] == [True] * 3


def test_a_cluster_admin_sees_every_teams_kernels_with_their_teams(world: World, team: Team, job: str) -> None:
    with world.database.transaction() as session:
        name = session.get_one(TeamRow, team.id).name
        home, user = ensure_team(session, "operators"), ensure_user(session, "olga")
        user.cluster_admin = True
        _, secret = create_api_key(session, home, "test", user=user)
    with Client(world.url, secret) as olga:
        [board] = [item for item in olga.leaderboards(all_teams=True).items if item.name == "double"]
        entries = [item for item in olga.ranked(board.problem, all_teams=True) if item.team == name]
        assert [str(item.job) for item in entries] == [job] * 3
        assert not any(item.own for item in entries)


def test_two_candidates_are_compared(client: Client, job: str) -> None:
    found = client.compare(f"{job}:0", job)
    assert (found.first.ordinal, found.second.ordinal) == (0, 4)
    assert found.relative_speedup is not None
    assert found.relative_speedup.median == pytest.approx(2.0 / 1.5)
    assert found.strategy is not None
    assert (found.strategy.added, found.strategy.removed) == (["threads"], [])
    assert "+// candidate 4" in found.source_diff
    assert found == client.compare(str(found.first.candidate), str(found.second.candidate))
    assert client.compare(f"{job}:0", f"{job}:2").relative_speedup is None


def test_what_cannot_be_compared_says_so(world: World, team: Team, client: Client, job: str) -> None:
    with world.database.transaction() as session:
        story = Story(session, team.id, Problem(name="other", source=SOURCE + "# other\n")).prepare()
        story.candidate(story.generation(0), rejected())
        other = str(story.end(JobState.FAILED, reason="no_valid_kernel").id)
    with pytest.raises(ConflictError) as caught:
        client.compare(job, f"{other}:0")
    assert caught.value.code == "not_comparable"
    for wrong in ("nonsense", f"{job}:99", f"{job}:x", str(uuid.uuid4()), other):
        with pytest.raises(NotFoundError):
            client.compare(job, wrong)


def test_what_counts_can_be_exported_and_nothing_else(client: Client, job: str) -> None:
    offers = {offer.format: offer.refused for offer in client.exports(job).items}
    assert offers["bundle"] is None
    assert "CPU" in (offers["cupy"] or "")
    for form in ExportFormat:
        if offers[form.value] is None:
            assert client.export(job, form.value).startswith(b"PK")
            assert client.export(job, form.value, 0).startswith(b"PK")
    with pytest.raises(ConflictError) as caught:
        client.export(job, "torch", 2)
    assert caught.value.code == "not_proven"


def test_a_winner_is_measured_again_by_a_job_of_its_own(client: Client, job: str) -> None:
    made = client.remeasure(job, 4, idempotency_key="k")
    assert made.id == client.remeasure(job, 4, idempotency_key="k").id
    assert made.state == "queued"
    assert made.labels["remeasures"] == str(client.candidate(job, 4).id)
    assert made.budgets.candidates == 1
    [once] = client.measurements(job, 4).items
    assert once.speedup is not None
    assert once.speedup.median == 2.0
    with pytest.raises(ConflictError) as caught:
        client.remeasure(job, 2)
    assert caught.value.code == "not_proven"


def test_a_file_is_judged_by_a_job_of_its_own(client: Client) -> None:
    request = ImportRequest(problem=ProblemInput(id="softmax"), target=Target.CPU, source="class ModelNew: ...\n")
    made = client.judge(request, idempotency_key="f")
    assert made.id == client.judge(request, idempotency_key="f").id
    assert (made.state, made.problem.name, made.budgets.candidates) == ("queued", "softmax", 1)
    assert made.labels.keys() == {"imported"}
    extension = {"source": "TORCH_LIBRARY(ours, m) {}\n", "function": "run"}
    assert client.judge(request.model_copy(update=extension)).labels["imported"] != made.labels["imported"]
    with pytest.raises(RejectedError, match="run cannot be chosen"):
        client.judge(request.model_copy(update={"function": "run"}))
    for source in ("class Model: ...", "class ModelNew: ("):
        with pytest.raises(RejectedError) as caught:
            client.judge(request.model_copy(update={"source": source}))
        assert caught.value.code == "invalid_import"


def test_a_new_version_of_a_problem_leaves_the_old_one_with_its_jobs_and_its_board(
    world: World, team: Team, client: Client
) -> None:
    old = Problem(name="double", source=SOURCE)
    new = Problem(name="double", source=SOURCE.replace("x * 2", "x + x"))
    jobs = []
    for each in (old, new):
        with world.database.transaction() as session:  # one each: what a transaction writes is of one moment
            jobs.append(str(evolved(session, team.id, problem=each).id))
    versions = [item for item in client.all_problems() if item.name == "double"]
    assert [each.hash for each in versions] == [new.content_hash(), old.content_hash()], "the newest first"
    assert [client.problem(each.id).source for each in versions] == [new.source, old.source]
    assert [client.get(job).problem.hash for job in jobs] == [old.content_hash(), new.content_hash()]
    assert {item.problem for item in client.leaderboards().items} == {old.content_hash(), new.content_hash()}
    for version, job in zip(versions, reversed(jobs), strict=True):
        board = client.leaderboard(version.id)
        assert board.problem == version.hash
        assert {str(entry.job) for entry in board.items} == {job}
    again = client.submit(JobRequest(problem=ProblemInput(id=versions[1].id), target=Target.CPU))
    assert again.problem.hash == old.content_hash(), "by its id the old version is worked on, as long as anybody asks"
