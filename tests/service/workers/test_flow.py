"""A job's way from submission to its end, step by step in one process."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import func, select

from agents.interface import Briefing
from cupilot.domain.evaluation import Verdict
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets
from cupilot.domain.kernel import Kernel
from cupilot.domain.states import CandidateState, GenerationState, JobState, StepKind, StepState
from cupilot.domain.strategy import Strategy
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, CandidateParent, EvaluationRow, Generation
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.progress import strategy_of
from tests.service.doubles import kernel, strategy
from tests.service.rig import Rig
from workers.indexing import index_pool, rebuild_pool

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def test_a_job_evolves_to_a_reproduced_kernel(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run()
    job = rig.job(job_id)
    assert job.state is JobState.SUCCEEDED
    assert job.reason is None
    assert job.started_at is not None
    assert job.finished_at is not None
    best = max(rig.candidates(job_id), key=lambda one: one.speedup or 0)
    assert job.best_candidate_id == best.id
    assert best.verdict is Verdict.REPRODUCED
    # Four initial ones (t1 to t4), then three crossovers beside one elite; the sums of two beat every single one.
    assert [candidate.operator.value for candidate in rig.candidates(job_id)] == ["initial"] * 4 + ["crossover"] * 3
    assert best.speedup is not None
    assert best.speedup > 1.4
    assert all(step.state is StepState.SUCCEEDED for step in rig.steps(job_id))


def test_the_judge_is_told_what_has_to_be_beaten(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run()
    known = [speedup for speedup in rig.judge.incumbents if speedup is not None]
    assert rig.judge.incumbents == [None] * (len(rig.judge.incumbents) - len(known)) + sorted(known)
    assert known[-1] in {candidate.speedup for candidate in rig.candidates(job_id)}


def test_equal_jobs_evolve_alike(rig: Rig) -> None:
    first = rig.submit(seed=7)
    rig.run()
    second = rig.submit(seed=7)
    rig.run()
    other = rig.submit(seed=8)
    rig.run()

    def story(job: UUID) -> list[tuple[object, ...]]:
        return [
            (candidate.ordinal, candidate.kernel_hash, candidate.speedup, candidate.survives)
            for candidate in rig.candidates(job)
        ]

    assert story(first) == story(second)
    assert story(first) != story(other)


def test_every_evaluation_is_kept_and_remembered(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run()
    job = rig.job(job_id)
    with rig.database.transaction() as session:
        rows = session.scalars(select(EvaluationRow).where(EvaluationRow.job_id == job_id)).all()
        entries = {row.id: row for row in session.scalars(select(PoolRow))}
    measured = {row.id for row in rows if row.purpose.value == "evaluate"}
    assert set(entries) == measured
    assert len(measured) == len(rig.candidates(job_id))
    held = sum(step.busy_seconds for step in rig.steps(job_id) if step.kind.on_device)
    assert job.gpu_seconds == pytest.approx(held)
    assert held > 0
    confirmed = next(entry for entry in entries.values() if entry.body.verdict == "reproduced")
    assert confirmed.team_id == job.team_id


def test_lineage_names_the_fitter_parent_first(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run()
    by_id = {candidate.id: candidate for candidate in rig.candidates(job_id)}
    with rig.database.transaction() as session:
        rows = session.scalars(select(CandidateParent).order_by(CandidateParent.position)).all()
    parents: dict[UUID, list[Candidate]] = {}
    for row in rows:
        parents.setdefault(row.candidate_id, []).append(by_id[row.parent_id])
    assert len(parents) == 3
    assert all(first.fitness > second.fitness for first, second in parents.values())  # type: ignore[operator]


def test_a_wrong_kernel_is_revised_until_it_is_right(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("t3", "wrong2"), strategy("t1"), strategy("t2"), strategy("broken")])
    job_id = rig.submit(method=SceConfig(population=4, generations=1, elites=1, repair_rounds=2))
    rig.run()
    mended, _, _, broken = rig.candidates(job_id)
    assert (mended.verdict, mended.repair_rounds) == (Verdict.REPRODUCED, 2)
    assert (broken.state, broken.verdict, broken.repair_rounds) == (CandidateState.EVALUATED, Verdict.REJECTED, 2)
    kinds = [step.kind for step in rig.steps(job_id) if step.candidate_id == mended.id]
    assert kinds.count(StepKind.REVISE) == 2
    assert kinds.count(StepKind.EVALUATE) == 3


def test_alignment_can_be_switched_off(rig: Rig) -> None:
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1, alignment=False))
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert StepKind.ALIGN not in {step.kind for step in rig.steps(job_id)}
    assert all(candidate.aligned_strategy_id is None for candidate in rig.candidates(job_id))


def test_crossovers_do_not_repeat_a_strategy(rig: Rig) -> None:
    job_id = rig.submit(method=SceConfig(population=6, generations=3, elites=1))
    rig.run()
    with rig.database.transaction() as session:
        signatures = [
            strategy_of(session, session.get_one(Candidate, candidate.id)).signature()
            for candidate in rig.candidates(job_id)
            if candidate.strategy_id
        ]
    assert len(set(signatures)) == len(signatures)


def test_a_duplicate_kernel_is_not_measured(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("t1", "y1"), strategy("t1", "y2")])

    def translate(_: Briefing, wanted: Strategy, *__: object, **___: object) -> Kernel:
        return kernel(wanted.ids()[0])

    rig.players.translate = translate  # type: ignore[assignment,method-assign]
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.run()
    first, second = rig.candidates(job_id)
    assert (first.state, second.state) == (CandidateState.EVALUATED, CandidateState.DUPLICATE)
    assert second.reason == "duplicate_kernel"
    assert rig.job(job_id).state is JobState.SUCCEEDED


def test_an_unsteady_kernel_is_not_the_winner(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("unsteady9"), strategy("t3"), strategy("t1"), strategy("unsteady7")])
    job_id = rig.submit(method=SceConfig(population=4, generations=1, elites=1))
    rig.run()
    job, candidates = rig.job(job_id), rig.candidates(job_id)
    assert job.state is JobState.SUCCEEDED
    assert job.best_candidate_id == candidates[1].id
    assert [candidate.verdict for candidate in candidates] == [
        Verdict.REJECTED,
        Verdict.REPRODUCED,
        Verdict.AUDITED,
        Verdict.REJECTED,
    ]
    assert [call for call in rig.judge.calls if call.startswith("confirm")] == [
        "confirm unsteady9",
        "confirm unsteady7",
        "confirm t3",
    ]


def test_no_more_than_three_kernels_are_confirmed(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy(f"unsteady{number}") for number in range(1, 5)])
    job_id = rig.submit(method=SceConfig(population=4, generations=1, elites=1))
    rig.run()
    job = rig.job(job_id)
    assert sum(call.startswith("confirm") for call in rig.judge.calls) == 3
    assert (job.state, job.reason) == (JobState.SUCCEEDED, "not_reproduced")
    assert job.best_candidate_id == rig.candidates(job_id)[0].id


def test_a_cheat_is_neither_scored_nor_revised(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("cheat"), strategy("t1")])
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.run()
    cheat = rig.candidates(job_id)[0]
    assert (cheat.verdict, cheat.speedup, cheat.fitness) == (Verdict.QUARANTINED, None, None)
    assert StepKind.REVISE not in {step.kind for step in rig.steps(job_id)}


def test_a_kernel_at_the_floor_ends_the_evolution(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("floor"), strategy("t1")])
    job_id = rig.submit(method=SceConfig(population=2, generations=9, elites=1))
    rig.run()
    job = rig.job(job_id)
    assert job.state is JobState.SUCCEEDED
    assert job.generation == 0
    assert job.best_candidate_id == rig.candidates(job_id)[0].id


def test_a_job_without_any_valid_kernel_fails_and_keeps_its_candidates(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("broken"), strategy("cheat")])
    job_id = rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.run()
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "no_valid_kernel")
    assert [candidate.verdict for candidate in rig.candidates(job_id)] == [Verdict.REJECTED, Verdict.QUARANTINED]


def test_an_invalid_problem_fails_with_what_the_judge_said(rig: Rig) -> None:
    rig.judge.invalid = True
    job_id = rig.submit()
    rig.run()
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "invalid_problem")
    assert job.message == "forward() raised ValueError"


def test_an_operator_without_template_fails_clearly(rig: Rig) -> None:
    rig.players.refuses = True
    job_id = rig.submit()
    rig.run()
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.FAILED, "no_template")
    assert job.message == "no template fits this operator"


def test_the_candidates_budget_bounds_evaluations(rig: Rig) -> None:
    job_id = rig.submit(budgets=Budgets(candidates=5))
    rig.run()
    job = rig.job(job_id)
    assert (job.state, job.reason) == (JobState.BUDGET_EXHAUSTED, "candidates_budget")
    assert sum(call.startswith("evaluate") for call in rig.judge.calls) == 5
    assert job.best_candidate_id is not None


def test_repairs_count_against_the_candidates_budget(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings, [strategy("broken"), strategy("broken", "y1")])
    job_id = rig.submit(
        budgets=Budgets(candidates=3), method=SceConfig(population=2, generations=3, elites=1, repair_rounds=5)
    )
    rig.run()
    assert rig.job(job_id).state is JobState.BUDGET_EXHAUSTED
    assert sum(call.startswith("evaluate") for call in rig.judge.calls) == 3
    assert {candidate.reason for candidate in rig.candidates(job_id)} == {"candidates_budget"}


def test_generations_end_once_each(rig: Rig) -> None:
    job_id = rig.submit(method=SceConfig(population=4, generations=3, elites=1))
    rig.run()
    with rig.database.transaction() as session:
        generations = session.scalars(select(Generation).where(Generation.job_id == job_id)).all()
        survivors = session.execute(select(func.count()).where(Candidate.survives)).scalar_one()
    assert sorted(generation.number for generation in generations) == [0, 1, 2]
    assert {(generation.state, generation.pending) for generation in generations} == {(GenerationState.FINISHED, 0)}
    assert 1 <= survivors <= 4
    assert rig.events(job_id).count("generation.finished") == 3


def test_a_second_job_is_shown_what_the_first_one_learned(rig: Rig) -> None:
    rig.submit()
    rig.run()
    assert rig.players.shown == []
    rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.run()
    assert {match.entry.verdict for match in rig.players.shown} >= {Verdict.REPRODUCED, Verdict.AUDITED}
    rig.submit(team="red")
    rig.run()
    assert rig.players.shown == [], "another team's entries are private"


def test_a_lost_pool_index_is_made_anew_from_postgres(rig: Rig) -> None:
    rig.submit()
    rig.run()
    index_pool(rig.tools)
    known = dict(rig.pool.entries)
    assert known
    rig.pool.entries.clear()
    assert index_pool(rig.tools) == len(known)
    assert rig.pool.entries == known
    assert index_pool(rig.tools) == 0
    assert rebuild_pool(rig.tools) == len(known)
