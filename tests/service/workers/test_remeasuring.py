"""An old winner is measured again: one kernel, no agents, and the same recovery as every job."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import select

from cupilot.domain import problems
from cupilot.domain.errors import Conflict
from cupilot.domain.evaluation import Evaluation, Verdict
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Learning
from cupilot.domain.kernel import Kernel
from cupilot.domain.pool import Sharing
from cupilot.domain.problem import Problem
from cupilot.domain.states import JobState, StepKind, StepState
from cupilot.jobs.continuing import retry_job
from cupilot.jobs.remeasuring import LABEL, submit_remeasurement
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs import steering
from cupilot.storage.jobs.jobs import job_spec, request_cancel
from cupilot.storage.jobs.measurements import measurements
from cupilot.storage.operations.views import quarantine
from cupilot.storage.pool.leaderboards import BoardViewer, leaderboard, list_leaderboards
from cupilot.storage.pool.views import share_entries
from tests.service import doubles
from tests.service.doubles import PlacedJudge, device, strategy
from tests.service.rig import Rig

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def _winner(rig: Rig) -> Candidate:
    job = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.run()
    return next(candidate for candidate in rig.candidates(job) if candidate.id == rig.job(job).best_candidate_id)


def _again(rig: Rig, winner: Candidate, key: str | None = None) -> Job:
    with rig.database.transaction() as session:
        team = session.get_one(Job, winner.job_id).team_id
        return submit_remeasurement(session, team, winner, author="ann", idempotency_key=key)[0]


def test_only_the_kernel_is_measured_and_stands_beside_the_old_one(rig: Rig) -> None:
    winner = _winner(rig)
    job = _again(rig, winner)
    rig.run()
    ended = rig.job(job.id)
    assert ended.state is JobState.SUCCEEDED
    assert ended.labels[LABEL] == str(winner.id)
    [measured] = rig.candidates(job.id)
    assert measured.kernel_hash == winner.kernel_hash
    assert measured.verdict is Verdict.REPRODUCED
    kinds = [step.kind for step in rig.steps(job.id)]
    assert kinds == [StepKind.PREPARE, StepKind.EVALUATE, StepKind.CONFIRM]
    with rig.database.transaction() as session:
        found = measurements(session, ended.team_id, winner.job_id, str(winner.id)).items
    assert [(each.job, each.purpose) for each in found] == [
        (job.id, "confirm"), (job.id, "evaluate"), (winner.job_id, "confirm"), (winner.job_id, "evaluate"),
    ]  # fmt: skip


def test_a_remeasurement_is_measured_and_not_recalled(rig: Rig) -> None:
    winner = _winner(rig)
    assert not any(rig.judge.fresh)
    rig.judge.fresh.clear()
    _again(rig, winner)
    rig.run()
    assert rig.judge.fresh == [True]


def test_what_measures_one_kernel_takes_no_injection(rig: Rig) -> None:
    winner = _winner(rig)
    job = _again(rig, winner)
    with pytest.raises(Conflict, match="measures one kernel"), rig.database.transaction() as session:
        steering.inject(session, job.team_id, job.id, "ann", strategy=strategy("t9"))


def test_asking_twice_with_one_key_measures_once(rig: Rig) -> None:
    winner = _winner(rig)
    assert _again(rig, winner, "k").id == _again(rig, winner, "k").id
    assert _again(rig, winner).id != _again(rig, winner, "k").id


@pytest.mark.parametrize("key", ["prepare", "c0/evaluate/0", "confirm/0"])
def test_a_message_twice_and_a_worker_that_died_change_nothing(rig: Rig, key: str) -> None:
    winner = _winner(rig)
    job = _again(rig, winner)
    message = rig.run_until(job.id, key)
    rig.do(message)
    rig.do(message)
    rig.run()
    assert rig.job(job.id).state is JobState.SUCCEEDED
    assert len(rig.candidates(job.id)) == 1
    assert all(step.state is StepState.SUCCEEDED for step in rig.steps(job.id))


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("submitted", "entry", "again"),
    [
        (Sharing.PRIVATE, None, Sharing.PRIVATE),
        (Sharing.PRIVATE, Sharing.OPEN, Sharing.PRIVATE),
        (Sharing.ANONYMOUS, None, Sharing.ANONYMOUS),
        (None, None, Sharing.OPEN),
        (None, Sharing.PRIVATE, Sharing.PRIVATE),
    ],
)
def test_it_is_shared_as_the_job_before_and_its_entry_are(
    settings: Settings, submitted: Sharing | None, entry: Sharing | None, again: Sharing
) -> None:
    opened = settings.model_copy(update={"pool_sharing": "open"})
    rig = Rig(Database(settings.database_url.get_secret_value(), settings=opened), opened)
    learning, method = Learning(sharing=submitted), SceConfig(population=2, generations=1, elites=1)
    job = rig.submit(problem=problems.load("softmax"), learning=learning, method=method)
    rig.run()
    winner = next(candidate for candidate in rig.candidates(job) if candidate.id == rig.job(job).best_candidate_id)
    if entry is not None:
        with rig.database.transaction() as session:
            share_entries(session, rig.job(job).team_id, entry, entries=[], job=job)
    measured = _again(rig, winner)
    rig.run()
    assert rig.job(measured.id).learning.sharing is again
    with rig.database.transaction() as session:
        query = select(PoolRow.sharing).join(EvaluationRow, EvaluationRow.id == PoolRow.id)
        assert {*session.scalars(query.where(EvaluationRow.job_id == measured.id))} == {again.value}


def test_it_can_be_cancelled(rig: Rig) -> None:
    winner = _winner(rig)
    job = _again(rig, winner)
    rig.run_until(job.id, "c0/evaluate/0")
    with rig.database.transaction() as session:
        request_cancel(session, job.team_id, job.id)
    rig.run()
    assert rig.job(job.id).state is JobState.CANCELLED
    assert uuid.UUID(rig.job(job.id).labels[LABEL]) == winner.id


def test_a_retry_measures_the_kernel_too_and_nothing_else(rig: Rig) -> None:
    winner = _winner(rig)
    job = _again(rig, winner)
    with rig.database.transaction() as session:
        request_cancel(session, job.team_id, job.id)
        spec = job_spec(session, session.get_one(Job, job.id))
        again, _ = retry_job(session, job.team_id, job.id, spec, author="ann", idempotency_key=None, request_hash="a")
    rig.run()
    assert rig.job(again.id).state is JobState.SUCCEEDED
    assert rig.judge.fresh[-1]
    assert [step.kind for step in rig.steps(again.id)] == [StepKind.PREPARE, StepKind.EVALUATE, StepKind.CONFIRM]
    assert [candidate.kernel_hash for candidate in rig.candidates(again.id)] == [winner.kernel_hash]


def test_a_kernel_in_quarantine_is_judged_anew_and_counts_for_what_it_proves(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting() -> list[uuid.UUID]:
        with rig.database.transaction() as session:
            return [one.job for one in quarantine(session, 10)]

    rig = Rig(database, settings, [strategy("cheat"), strategy("broken")])
    job = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.run()
    odd = rig.candidates(job)[0]
    assert waiting() == [job]

    still = _again(rig, odd)
    rig.run()
    assert (rig.job(still.id).state, rig.candidates(still.id)[0].verdict) == (JobState.FAILED, Verdict.QUARANTINED)
    assert waiting() == [still.id], "the latest judgement of the kernel"

    judged = doubles.evaluation

    def mended(one: Problem, of: Kernel, **more: Any) -> Evaluation:
        honest = judged(one, of.model_copy(update={"source": "t1"}), **more)
        return honest.model_copy(update={"kernel_hash": of.content_hash()})

    monkeypatch.setattr(doubles, "evaluation", mended)  # the worker's peaks are right now
    proven = _again(rig, odd)
    rig.run()
    assert (rig.job(proven.id).state, rig.candidates(proven.id)[0].verdict) == (JobState.SUCCEEDED, Verdict.REPRODUCED)
    assert waiting() == []


class Boards:
    """Boards of one kernel, and a judge that changes its mind about it."""

    def __init__(self, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig = Rig(database, settings, [strategy("t5"), strategy("broken")])
        self.rig.judge = self.judge = PlacedJudge()
        self.monkeypatch = monkeypatch
        job = self.rig.submit(method=SceConfig(population=2, generations=1, elites=1))
        self.rig.run()
        self.winner = self.rig.candidates(job)[0]
        self.team = self.rig.job(job).team_id

    def measured_again(self, mind: str) -> Job:
        """The job that did."""
        judged = doubles.evaluation

        def changed(one: Problem, of: Kernel, **more: Any) -> Evaluation:
            found = judged(one, of.model_copy(update={"source": mind}), **more)
            return found.model_copy(update={"kernel_hash": of.content_hash()})

        again = _again(self.rig, self.winner)
        with self.monkeypatch.context() as patched:
            patched.setattr(doubles, "evaluation", changed)
            self.rig.run()
        return self.rig.job(again.id)

    def shown(self, viewer: BoardViewer | None = None) -> dict[str, list[float]]:
        """Speedups by device, where list and board agree."""
        with self.rig.database.transaction() as session:
            viewer = viewer or BoardViewer(self.team)
            found = {}
            for item in list_leaderboards(session, viewer, after=0, limit=10).items:
                board = leaderboard(session, viewer, item.problem, device=item.device, after=0, limit=10)
                found[item.device] = [entry.speedup.median for entry in board.items]
                assert (item.kernels, item.best_speedup) == (len(board.items), board.items[0].speedup.median)
        return found


@pytest.fixture
def boards(database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Boards:
    return Boards(database, settings, monkeypatch)


@pytest.mark.parametrize("mind", ["broken", "cheat", "unsteady5"])
def test_a_kernel_that_fails_later_stands_on_no_board_until_it_counts_again(boards: Boards, mind: str) -> None:
    assert boards.shown() == {"test device": [1.5]}
    assert boards.measured_again(mind).state is JobState.FAILED
    assert boards.shown() == boards.shown(BoardViewer(uuid.uuid4(), everything=True)) == {}
    assert boards.measured_again("t3").state is JobState.SUCCEEDED
    assert boards.shown() == {"test device": [1.3]}


def test_list_and_board_show_the_latest_value_and_not_the_highest(boards: Boards) -> None:
    boards.measured_again("t2")
    assert boards.shown() == boards.shown(BoardViewer(uuid.uuid4(), everything=True)) == {"test device": [1.2]}


def test_a_failure_of_the_machine_says_nothing_about_a_kernel(boards: Boards) -> None:
    assert boards.measured_again("lost").state is not JobState.SUCCEEDED
    assert boards.shown() == {"test device": [1.5]}


def test_a_kernel_that_fails_on_another_device_stays_where_it_held(boards: Boards) -> None:
    boards.judge.on = device().model_copy(update={"name": "another device"})
    boards.measured_again("broken")
    assert boards.shown() == {"test device": [1.5]}


def test_what_another_team_finds_does_not_show(boards: Boards) -> None:
    theirs = boards.rig.submit("red", method=SceConfig(population=2, generations=1, elites=1))
    boards.rig.run()
    winner, team = boards.winner, boards.team
    boards.winner = boards.rig.candidates(theirs)[0]
    assert boards.winner.kernel_hash == winner.kernel_hash
    boards.measured_again("broken")
    assert boards.shown() == {"test device": [1.5]}
    boards.team = boards.rig.job(theirs).team_id
    assert boards.shown() == {}
    assert team != boards.team
