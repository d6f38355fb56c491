"""Worth of each technique of a winner, through the whole flow: measured once each, within the budget."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from agents.interface import Briefing
from agents.playbook.ablation import Ablation
from cupilot.domain.attribution import MAX_UNASKED_EVALUATIONS, AblationWay, Credit, CreditOutcome
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets, Learning
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Tunable
from cupilot.domain.pool import PoolEntry
from cupilot.domain.states import EvaluationPurpose, JobState, StepKind, StepState
from cupilot.domain.strategy import Strategy
from cupilot.jobs.attribution import switches
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import EvaluationRow, Job
from cupilot.storage.db.tables.people import Team
from cupilot.storage.jobs.credits import credits_of
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.jobs.report_views import report
from cupilot.storage.pool.rows import recall
from tests.service.doubles import kernel, strategy
from tests.service.rig import Rig
from workers.reaper import end_over_quota, end_overtime

pytestmark = pytest.mark.service

METHOD = SceConfig(population=2, generations=1, elites=1)


def without_each(_: Briefing, given: Strategy, winner: Kernel) -> list[Ablation]:
    """Takes technique names out of a scripted kernel; ``t0`` changes nothing, ``stuck`` cannot be taken out."""
    found = []
    for name in given.ids():
        rest = tuple(use for use in given.techniques if use.id != name)
        left = Strategy(techniques=rest)
        if name == "stuck":
            found.append(Ablation(name, left, note="no template without it"))
            continue
        made = kernel(" ".join(left.ids()) or "plain", winner.target)
        found.append(Ablation(name, left, (), AblationWay.PLAYBOOK, made, same_code=name == "t0"))
    return found


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    rig = Rig(database, settings, [strategy("t1", "t4", "t0", "stuck"), strategy("t2")])
    object.__setattr__(rig.tools, "ablations", without_each)
    return rig


def credits(rig: Rig, job_id: UUID) -> dict[str, Credit]:
    with rig.database.transaction() as session:
        best = session.get_one(Job, job_id).best_candidate_id
        assert best is not None
        return {credit.technique: credit for credit in credits_of(session, best)}


def entry_of_winner(rig: Rig, job_id: UUID) -> PoolEntry:
    with rig.database.transaction() as session:
        query = select(EvaluationRow.id).where(
            EvaluationRow.candidate_id == session.get_one(Job, job_id).best_candidate_id,
            EvaluationRow.purpose == EvaluationPurpose.EVALUATE,
        )
        return recall(session, session.scalars(query).one())


def test_each_technique_of_the_winner_is_measured(rig: Rig) -> None:
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4))
    rig.run()
    job = rig.job(job_id)
    assert job.state is JobState.SUCCEEDED
    found = credits(rig, job_id)
    assert list(found) == ["t1", "t4", "t0", "stuck"]
    large = found["t4"].factor
    small = found["t1"].factor
    assert large is not None
    assert small is not None
    assert large.median == pytest.approx(1.5 / 1.1)
    assert small.median == pytest.approx(1.5 / 1.4)
    assert large.low < large.median < large.high
    assert found["t0"].outcome is CreditOutcome.SAME_CODE
    assert found["stuck"].outcome is CreditOutcome.NOT_SEPARABLE
    assert entry_of_winner(rig, job_id).credits == tuple(found.values())
    with rig.database.transaction() as session:
        told = report(session, job.team_id, job_id)
        measured = session.scalars(
            select(EvaluationRow.purpose).where(EvaluationRow.job_id == job_id, EvaluationRow.purpose == "attribute")
        ).all()
    assert [credit.technique for credit in told.candidate.credits] == list(found)
    assert told.candidate.speedup == pytest.approx(1.5), "the winner stands by its own measurement"
    assert len(measured) == 2


def test_nothing_is_attributed_where_nobody_asked(rig: Rig) -> None:
    job_id = rig.submit(method=METHOD)
    rig.run()
    assert credits(rig, job_id) == {}
    assert {step.kind for step in rig.steps(job_id)}.isdisjoint({StepKind.ABLATE, StepKind.ATTRIBUTE})


def _after(rig: Rig, gpu_seconds: float, **spec: Any) -> UUID:
    """A job that had taken so many seconds of a device when its winner was confirmed."""
    job_id = rig.submit(**{"method": METHOD, **spec})
    message = rig.run_until(job_id, "confirm/0")
    with rig.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(gpu_seconds=gpu_seconds))
    rig.do(message)
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    return job_id


def _measured(rig: Rig, job_id: UUID) -> int:
    return sum(step.kind is StepKind.ATTRIBUTE for step in rig.steps(job_id))


@pytest.mark.parametrize(("gpu_seconds", "kernels"), [(4.0, 0), (6.0, 1), (1_000.0, 2)])
def test_unasked_it_takes_a_tenth_of_the_time_at_most(rig: Rig, gpu_seconds: float, kernels: int) -> None:
    """The scripted judge's evaluations take half a second, and two of the winner's techniques can be measured."""
    assert _measured(rig, _after(rig, gpu_seconds)) == kernels


def test_unasked_it_is_bounded_in_number(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("t1", "t4", "t5", "t6", "t7"), strategy("t2")])
    object.__setattr__(rig.tools, "ablations", without_each)
    assert _measured(rig, _after(rig, 1_000.0)) == MAX_UNASKED_EVALUATIONS


def test_who_wants_none_has_none(rig: Rig) -> None:
    job_id = _after(rig, 1_000.0, learning=Learning(cheap_attribution=False))
    assert {step.kind for step in rig.steps(job_id)}.isdisjoint({StepKind.ABLATE, StepKind.ATTRIBUTE})


def test_unasked_a_models_kernel_is_measured_only_where_a_tunable_switches_a_technique_off() -> None:
    """Nothing else about such a kernel can be taken away without asking the model."""
    plan = LaunchPlan(
        launches=(Launch(kernel="k", args=("x", "out")),),
        tunables={"UNROLLING_FACTOR": Tunable(value=4, choices=(1, 4)), "BLOCK": Tunable(value=64, choices=(64,))},
    )
    assert switches(plan, strategy("unrolling"))
    assert not switches(plan, strategy("other", "unroll"))


def test_the_budget_bounds_the_extra_evaluations(rig: Rig) -> None:
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4), budgets=Budgets(candidates=3))
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    found = credits(rig, job_id)
    assert found["t1"].outcome is CreditOutcome.MEASURED
    assert found["t4"].outcome is CreditOutcome.NOT_MEASURED
    assert sum(call.startswith("evaluate") for call in rig.judge.calls) == 3
    attributed = sum(step.kind is StepKind.ATTRIBUTE for step in rig.steps(job_id))
    assert rig.judge.candidates == [True] * (3 - attributed) + [False] * attributed


def test_an_exhausted_budget_attributes_nothing(rig: Rig) -> None:
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4), budgets=Budgets(candidates=1))
    rig.run()
    assert rig.job(job_id).state is JobState.BUDGET_EXHAUSTED
    assert StepKind.ABLATE not in {step.kind for step in rig.steps(job_id)}


def test_a_kernel_that_breaks_without_a_technique_says_so(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("t5", "t3"), strategy("t1")])

    def broken(_: Briefing, __: Strategy, winner: Kernel) -> list[Ablation]:
        left = strategy("t3")
        return [Ablation("t5", left, ("t4",), AblationWay.TUNABLES, kernel("broken", winner.target))]

    object.__setattr__(rig.tools, "ablations", broken)
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=2))
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    (credit,) = credits(rig, job_id).values()
    assert (credit.outcome, credit.failure, credit.removed) == (CreditOutcome.BROKEN, "wrong_value", ("t4",))


def test_a_message_that_comes_twice_and_a_lost_worker_change_nothing(rig: Rig) -> None:
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4))
    message = rig.run_until(job_id, "ablate")
    rig.do(message)
    rig.do(message)
    for item in rig.publish() * 2:
        rig.do(item)
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert len(credits(rig, job_id)) == 4
    assert len([step for step in rig.steps(job_id) if step.kind is StepKind.ATTRIBUTE]) == 2
    assert all(step.state is StepState.SUCCEEDED for step in rig.steps(job_id))


def test_steps_that_fail_for_good_leave_the_winner_alone(rig: Rig) -> None:
    def breaks(*_: object) -> list[Ablation]:
        raise RuntimeError("a bug")

    object.__setattr__(rig.tools, "ablations", breaks)
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4))
    for _ in range(30):
        rig.run()
        for step in rig.steps(job_id):
            rig.make_ready(step.id)
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert credits(rig, job_id) == {}


def test_time_that_is_up_during_attribution_is_no_failure(rig: Rig) -> None:
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4))
    rig.do(rig.run_until(job_id, "ablate"))
    with rig.database.transaction() as session:
        session.execute(update(Job).values(budgets=Budgets(wall_seconds=1e-6)))
    end_overtime(rig.database)
    job = rig.job(job_id)
    assert job.state is JobState.SUCCEEDED
    assert {step.state for step in rig.steps(job_id)} == {StepState.SUCCEEDED, StepState.CANCELLED}
    assert set(credits(rig, job_id)) == {"t0", "stuck"}


def test_a_cancel_during_attribution_keeps_the_winner(rig: Rig) -> None:
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4))
    rig.do(rig.run_until(job_id, "ablate"))
    with rig.database.transaction() as session:
        request_cancel(session, rig.job(job_id).team_id, job_id)
    rig.run()
    job = rig.job(job_id)
    assert (job.state, job.best_candidate_id is not None) == (JobState.CANCELLED, True)


def test_a_quota_that_is_used_up_during_attribution_is_no_failure_either(rig: Rig) -> None:
    """Measurements until then are kept, and the pool knows them."""
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4))
    rig.do(rig.run_until(job_id, "ablate"))
    rig.do(rig.publish()[0])
    with rig.database.transaction() as session:
        session.execute(update(Team).values(gpu_seconds=1e-9))
    end_over_quota(rig.database)
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.SUCCEEDED, None)
    assert set(credits(rig, job_id)) > {"t0", "stuck"}
    assert entry_of_winner(rig, job_id).credits == tuple(credits(rig, job_id).values())


def test_a_job_at_its_gpu_seconds_attributes_nothing(rig: Rig) -> None:
    """It begins no further evaluation: those of the attribution are no exception."""
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4), budgets=Budgets(gpu_seconds=1_000.0))
    message = rig.run_until(job_id, "confirm/0")
    with rig.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(gpu_seconds=1_000.0))
    rig.do(message)
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert _measured(rig, job_id) == 0


def test_gpu_seconds_that_are_used_up_during_attribution_end_it(rig: Rig) -> None:
    job_id = rig.submit(method=METHOD, learning=Learning(attribution=4), budgets=Budgets(gpu_seconds=1_000.0))
    message = rig.run_until(job_id, "attribute/0")
    with rig.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(gpu_seconds=1_000.0))
    rig.do(message)
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    found = credits(rig, job_id)
    assert (found["t1"].outcome, found["t4"].outcome) == (CreditOutcome.MEASURED, CreditOutcome.NOT_MEASURED)
