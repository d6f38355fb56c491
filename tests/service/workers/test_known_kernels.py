"""A confirmation corrects the pool's entry; a later job at the same problem begins from what was reproduced."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select

from cupilot.domain.champions import champions
from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, Interval, PreparationResult, Verdict
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets
from cupilot.domain.problem import NumericsPolicy, Problem, Target
from cupilot.domain.states import JobState, StepKind, WorkerKind
from cupilot.jobs.champions import judge
from cupilot.jobs.continuing import retry_job
from cupilot.jobs.submission import submit
from cupilot.schemas import JobRequest, ProblemInput
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Directive, EvaluationRow, Job
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.evolving import store_kernel
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.pool.rows import remember
from cupilot.storage.queue.cluster import register_worker
from cupilot.storage.queue.steps import device_queue
from tests.service.box import CALLER
from tests.service.doubles import ScriptedJudge, device, kernel, preparation, problem, strategy
from tests.service.rig import Rig

pytestmark = pytest.mark.service
ONE_GENERATION = SceConfig(population=2, generations=1, elites=1)


class SecondThoughts(ScriptedJudge):
    """Measures half of the speed when it confirms."""

    def confirm(self, *given: Any, **more: Any) -> Evaluation:
        evaluation = super().confirm(*given, **more)
        halved = [
            comparison.model_copy(update={"speedup": _halved(comparison.speedup)})
            for comparison in evaluation.comparisons
        ]
        return evaluation.model_copy(update={"comparisons": tuple(halved)})


def _halved(interval: Interval) -> Interval:
    return Interval(low=interval.low / 2, median=interval.median / 2, high=interval.high / 2)


def entries(rig: Rig) -> dict[str, PoolRow]:
    """The pool's rows, by the techniques of their strategies."""
    with rig.database.transaction() as session:
        return {" ".join(row.techniques): row for row in session.scalars(select(PoolRow))}


def test_a_confirmation_corrects_the_entry_to_the_speed_that_it_measured(
    database: Database, settings: Settings
) -> None:
    rig = Rig(database, settings, [strategy("t8"), strategy("t1")])
    rig.judge = SecondThoughts()
    job = rig.submit(method=ONE_GENERATION)
    rig.run()
    assert rig.job(job).state is JobState.SUCCEEDED
    known = entries(rig)
    fast, slow = known["t8"], known["t1"]
    assert (fast.body.verdict, slow.body.verdict) == (Verdict.REPRODUCED, Verdict.REPRODUCED)
    assert fast.body.speedup == pytest.approx(0.9)
    assert fast.gain == pytest.approx(log(0.9))
    assert fast.body.failure is None
    best = next(item for item in rig.candidates(job) if item.id == rig.job(job).best_candidate_id)
    assert best.speedup == pytest.approx(fast.body.speedup), "the pool says what the job says"


def test_a_confirmation_that_fails_takes_the_gain_from_the_entry(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("unsteady9"), strategy("t3")])
    job = rig.submit(method=ONE_GENERATION)
    confirmation = rig.run_until(job, "confirm/0")
    assert entries(rig)["unsteady9"].body.verdict is Verdict.AUDITED
    assert entries(rig)["unsteady9"].gain == pytest.approx(log(1.9))
    rig.do(confirmation)
    rig.run()
    refuted, held = entries(rig)["unsteady9"], entries(rig)["t3"]
    assert (refuted.body.verdict, refuted.body.speedup, refuted.gain) == (Verdict.REJECTED, None, None)
    assert (refuted.body.failure, refuted.failure) == (FailureKind.WRONG_VALUE, "wrong_value")
    assert (held.body.verdict, held.body.speedup) == (Verdict.REPRODUCED, pytest.approx(1.3))


class Remembering(ScriptedJudge):
    """Gives its first evaluation of a kernel again, and measures anew when it confirms."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str | None, Evaluation] = {}

    def evaluate(self, *given: Any, **more: Any) -> Evaluation:
        found = super().evaluate(*given, **more)
        known = self.known.get(found.kernel_hash)
        if known is not None:
            return known.model_copy(update={"reused": True})
        return self.known.setdefault(found.kernel_hash, found.model_copy(update={"measurement": uuid4().hex}))


def test_a_measurement_that_is_given_again_is_no_further_evidence(database: Database, settings: Settings) -> None:
    def learned(job: UUID) -> list[tuple[str, Verdict]]:
        with rig.database.transaction() as session:
            query = select(PoolRow).join(EvaluationRow, EvaluationRow.id == PoolRow.id)
            rows = session.scalars(query.where(EvaluationRow.job_id == job)).all()
            return sorted((" ".join(row.techniques), row.body.verdict) for row in rows)

    rig = Rig(database, settings, [strategy("t8"), strategy("t1"), strategy("broken")])
    rig.judge = Remembering()
    method = SceConfig(population=3, generations=1, elites=1, repair_rounds=0)
    first, again, theirs = (rig.submit(team, method=method) for team in ("blue", "blue", "red"))
    rig.run()
    assert [name for name, _ in learned(first)] == ["broken", "t1", "t8"]
    assert {verdict for _, verdict in learned(again)} == {Verdict.REPRODUCED}, "only confirmations are new"
    assert ("t8", Verdict.REPRODUCED) in learned(again)
    assert [name for name, _ in learned(theirs)] == ["broken", "t1", "t8"], "their first"


def submitted(rig: Rig, team: str = "blue", **changes: Any) -> UUID:
    """Submit the rig's problem as a request over REST would."""
    one = problem()
    request = JobRequest.model_validate(
        {
            "problem": ProblemInput(source=one.source, name=one.name, policy=one.policy),
            "target": Target.CPU,
            "method": ONE_GENERATION,
            **changes,
        }
    )
    with rig.database.transaction() as session:
        caller = CALLER.model_copy(update={"team_id": ensure_team(session, team).id})
        job, is_new = submit(session, caller, request, None)
        assert is_new
        return job.id


def injected(rig: Rig, job: UUID) -> list[tuple[str, str | None]]:
    """Author and kernel of a job's injections."""
    with rig.database.transaction() as session:
        rows = session.scalars(select(Directive).where(Directive.job_id == job).order_by(Directive.created_at)).all()
        return [(row.author, row.kernel_hash) for row in rows]


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    """A rig whose team has solved its problem: t8 is reproduced."""
    rig = Rig(database, settings, [strategy("t8"), strategy("t3")])
    assert injected(rig, submitted(rig)) == [], "nothing is known of the problem yet"
    rig.run()
    assert entries(rig)["t8"].body.verdict is Verdict.REPRODUCED
    return rig


def test_a_job_begins_from_the_kernel_that_its_team_reproduced_for_the_problem(rig: Rig) -> None:
    best = kernel("t8").content_hash()
    rig.players.initial = [strategy("t1"), strategy("t2")]
    rig.judge.calls.clear()
    job = submitted(rig)
    assert injected(rig, job) == [("pool", best)]
    rig.run()
    candidates = rig.candidates(job)
    assert sorted(str(item.kernel_hash) for item in candidates) == sorted([best, kernel("t1").content_hash()])
    assert rig.judge.calls.count("evaluate t8") == 1, "it is measured like any other"
    winner = next(item for item in candidates if item.id == rig.job(job).best_candidate_id)
    assert (winner.kernel_hash, winner.verdict) == (best, Verdict.REPRODUCED)


def test_agents_are_not_asked_for_its_strategy_again(rig: Rig) -> None:
    job = submitted(rig)
    rig.run()
    kernels = [candidate.kernel_hash for candidate in rig.candidates(job)]
    assert sorted(map(str, kernels)) == sorted(kernel(name).content_hash() for name in ("t8", "t3"))


def test_other_teams_and_jobs_that_learn_from_no_pool_begin_without_it(rig: Rig) -> None:
    assert injected(rig, submitted(rig, "red")) == []
    assert injected(rig, submitted(rig, method=ONE_GENERATION.model_copy(update={"pool": False}))) == []
    assert injected(rig, submitted(rig, budgets=Budgets(candidates=1))) == []
    other = problem("softmax", NumericsPolicy.TF32)
    half = ProblemInput(source=other.source, name=other.name, policy=other.policy)
    assert injected(rig, submitted(rig, problem=half)) == []
    assert injected(rig, submitted(rig, target=Target.CUDA)) == []


def _later(rig: Rig, **changes: Any) -> str:
    """Add an entry as of a later measurement of t8; the hash of its kernel."""
    entry = entries(rig)["t8"].body
    later = entry.model_copy(update={"id": str(uuid4()), "created_at": "2100-01-01T00:00:00+00:00", **changes})
    with rig.database.transaction() as session:
        remember(session, later)
    assert later.kernel_hash is not None
    return later.kernel_hash


def test_a_kernel_that_was_refuted_since_is_not_begun_from(rig: Rig) -> None:
    failed = {"verdict": Verdict.REJECTED, "speedup": None}
    best = _later(rig, **failed, failure=FailureKind.INFRASTRUCTURE)
    assert injected(rig, submitted(rig)) == [("pool", best)], "a lost measurement says nothing of the kernel"
    _later(rig, **failed, failure=FailureKind.WRONG_VALUE)
    assert injected(rig, submitted(rig)) == []


def test_only_a_kernel_of_the_devices_architecture_is_begun_from(rig: Rig) -> None:
    faster = kernel("t9")
    with rig.database.transaction() as session:
        store_kernel(session, faster)
    elsewhere = {
        "kernel_hash": faster.content_hash(),
        "speedup": 9.0,
        "target": Target.CUDA,
        "strategy": strategy("t9"),
    }
    _later(rig, **elsewhere, device_class="sm_90")
    assert injected(rig, submitted(rig)) == [("pool", kernel("t8").content_hash())]
    assert injected(rig, submitted(rig, target=Target.CUDA)) == [("pool", faster.content_hash())], "no card lives yet"
    _register_card(rig, "sm_80")
    assert injected(rig, submitted(rig, target=Target.CUDA)) == []
    _register_card(rig, "sm_90")
    assert injected(rig, submitted(rig, target=Target.CUDA)) == [("pool", faster.content_hash())]


def _register_card(rig: Rig, arch: str, worker: str | None = None) -> None:
    card, name = device(Target.CUDA, arch, f"card-{arch}"), worker or arch
    with rig.database.transaction() as session:
        register_worker(
            session, name, WorkerKind.GPU, queues=[device_queue(card)], slots=1, version="test", device=card
        )


@dataclass
class CardJudge(ScriptedJudge):
    """Judges on a card, and finds every kernel wrong where it ``refuses``."""

    refuses: bool = False

    def prepare(self, problem: Problem, **_: Any) -> PreparationResult:
        return PreparationResult(preparation=preparation(problem, device(Target.CUDA, "sm_90", "card-sm_90")))

    def evaluate(self, *given: Any, **more: Any) -> Evaluation:
        failure = Failure(kind=FailureKind.WRONG_VALUE, message="out[0] is wrong")
        wrong = {"verdict": Verdict.REJECTED, "failure": failure, "comparisons": ()}
        return super().evaluate(*given, **more).model_copy(update=wrong if self.refuses else {})


def _judged(rig: Rig, **how: bool) -> Job:
    """Have a champion judged on a card, to the end of the job."""
    rig.judge = CardJudge(**how)
    _register_card(rig, "sm_90", "gpu-1")
    with rig.database.transaction() as session:
        caller = CALLER.model_copy(update={"team_id": ensure_team(session, "blue").id})
        job, _ = judge(session, caller, champions()[0].kernel.content_hash(), None)
    rig.run()
    return rig.job(job.id)


def test_a_champion_that_counts_here_succeeds(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    job = _judged(rig)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, None)
    [champion] = rig.candidates(job.id)
    assert (champion.id, champion.verdict) == (job.best_candidate_id, Verdict.REPRODUCED)
    assert [step.kind for step in rig.steps(job.id)] == [StepKind.PREPARE, StepKind.EVALUATE, StepKind.CONFIRM]


def test_a_champion_that_does_not_count_here_fails_with_its_reason(database: Database, settings: Settings) -> None:
    job = _judged(Rig(database, settings), refuses=True)
    assert (job.state, job.reason) == (JobState.FAILED, "no_valid_kernel")
    assert "1 wrong_value" in (job.message or "")


def test_a_retry_judges_the_champion_too_and_nothing_else(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    job = _judged(rig, refuses=True)
    rig.judge = CardJudge()
    with rig.database.transaction() as session:
        spec = job_spec(session, session.get_one(Job, job.id))
        again, _ = retry_job(session, job.team_id, job.id, spec, author="ann", idempotency_key=None, request_hash="a")
    rig.run()
    assert rig.job(again.id).state is JobState.SUCCEEDED
    assert [step.kind for step in rig.steps(again.id)] == [StepKind.PREPARE, StepKind.EVALUATE, StepKind.CONFIRM]
    assert len(rig.candidates(again.id)) == 1
