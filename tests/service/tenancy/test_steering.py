"""Pause, resume, retry, fork, pin, ban, inject: each falls between two decisions of the evolution, never into one."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update

from cupilot.domain.errors import Conflict
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.experiments.matrix import ExperimentSpec
from cupilot.domain.job import Budgets
from cupilot.domain.problem import Target
from cupilot.domain.states import CandidateState, JobState, StepState
from cupilot.jobs.continuing import fork_job, retry_job
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, Event, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs import steering
from cupilot.storage.jobs.jobs import job_spec, request_cancel
from cupilot.storage.jobs.progress import strategy_of
from cupilot.storage.jobs.wall_time import over_time
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.queue.steps import claim_step
from tests.service.doubles import kernel, strategy
from tests.service.rig import Rig

pytestmark = pytest.mark.service

SPEC = ExperimentSpec(target=Target.CPU, arms=(), reference="-", problems=(), seeds=(), budgets=Budgets())


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def team_of(rig: Rig) -> uuid.UUID:
    with rig.database.transaction() as session:
        return ensure_team(session, "blue").id


def pause(rig: Rig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        steering.pause_job(session, ensure_team(session, "blue").id, job_id, "ann")


def resume(rig: Rig, job_id: uuid.UUID) -> None:
    with rig.database.transaction() as session:
        steering.resume_job(session, ensure_team(session, "blue").id, job_id, "ann")


def finish(rig: Rig) -> None:
    """Do all that was published, and all that follows. What was done before is not done again."""
    for message in list(rig.postbox.sent):
        rig.do(message)
    rig.run()


def once(rig: Rig, job_id: uuid.UUID) -> None:
    """Everything has ended, and once."""
    assert rig.job(job_id).state.final
    assert all(step.finished_at is not None for step in rig.steps(job_id))
    with rig.database.transaction() as session:
        ends = session.scalars(
            select(Event.step_id).where(
                Event.job_id == job_id, Event.kind == "step.succeeded", Event.step_id.is_not(None)
            )
        ).all()
    assert max(Counter(ends).values()) == 1


@pytest.mark.parametrize("key", ["prepare", "initialise/0", "c0/translate/0", "c1/evaluate/0", "confirm/0"])
def test_a_job_paused_while_a_step_runs_goes_on_after_it(rig: Rig, key: str) -> None:
    """The step finishes into the paused job; nothing else begins; after the resume all is as without the pause."""
    job_id = rig.submit()
    message = rig.run_until(job_id, key)
    with rig.database.transaction() as session:
        claim = claim_step(session, uuid.UUID(message[1][0]), message[1][1], "other", timedelta(seconds=30))
        assert claim is not None
    pause(rig, job_id)
    assert rig.publish() == []
    with rig.database.transaction() as session:  # the worker that holds it is stopped, and gives it back
        session.execute(
            update(Step)
            .where(Step.id == claim.step_id)
            .values(state=StepState.QUEUED, lease_owner=None, lease_expires_at=None, dispatched_at=None)
        )
    assert rig.publish() == [], "a paused job's steps are not handed out"
    rig.do(message)
    assert rig.step(job_id, key).state is StepState.QUEUED, "nor to be had from an old message"
    resume(rig, job_id)
    finish(rig)
    assert rig.job(job_id).state is JobState.SUCCEEDED
    once(rig, job_id)


def test_a_step_that_finishes_while_its_job_is_paused_is_kept(rig: Rig) -> None:
    job_id = rig.submit()
    message = rig.run_until(job_id, "c0/evaluate/0")
    rig.judge.hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(rig.do, message)
        assert rig.judge.held.wait(30)
        pause(rig, job_id)
        rig.judge.hold.set()
        done.result()
    rig.judge.hold = None
    assert rig.job(job_id).state is JobState.PAUSED
    assert rig.step(job_id, "c0/evaluate/0").state is StepState.SUCCEEDED
    assert rig.publish() == []
    pause(rig, job_id)  # harmless
    resume(rig, job_id)
    resume(rig, job_id)
    finish(rig)
    once(rig, job_id)
    assert {"job.paused", "job.resumed"} <= set(rig.events(job_id))


def test_preparation_that_finishes_while_paused_is_resumed_as_evolving(rig: Rig) -> None:
    job_id = rig.submit()
    (message,) = rig.publish()
    rig.judge.hold = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(rig.do, message)
        assert rig.judge.held.wait(30)
        pause(rig, job_id)
        rig.judge.hold.set()
        done.result()
    rig.judge.hold = None
    assert rig.job(job_id).state is JobState.PAUSED
    resume(rig, job_id)
    assert rig.job(job_id).state is JobState.EVOLVING
    finish(rig)
    once(rig, job_id)


def test_a_paused_job_can_be_cancelled_and_its_pause_is_no_wall_time(rig: Rig) -> None:
    job_id = rig.submit(budgets=Budgets(candidates=50, wall_seconds=600))
    rig.run_until(job_id, "c0/translate/0")
    pause(rig, job_id)
    with rig.database.transaction() as session:
        hour = timedelta(hours=1)
        times = {"started_at": Job.started_at - hour, "paused_at": Job.paused_at - hour}
        session.execute(update(Job).where(Job.id == job_id).values(times))
    resume(rig, job_id)
    with rig.database.transaction() as session:
        assert over_time(session) == []
        assert session.get_one(Job, job_id).paused_seconds == pytest.approx(3600, abs=60)
    pause(rig, job_id)
    with rig.database.transaction() as session:
        request_cancel(session, ensure_team(session, "blue").id, job_id)
    assert rig.job(job_id).state is JobState.CANCELLED
    with pytest.raises(Conflict, match="ended already"):
        resume(rig, job_id)


def test_a_pinned_candidate_survives_every_selection(rig: Rig) -> None:
    job_id = rig.submit(method=SceConfig(population=4, generations=3, elites=1))
    rig.run_until(job_id, "c4/cross/0")
    worst = min(rig.candidates(job_id), key=lambda one: one.speedup or 0)
    with rig.database.transaction() as session:
        first = steering.pin(session, team_of(rig), job_id, str(worst.ordinal), "ann")
        assert steering.pin(session, team_of(rig), job_id, str(worst.id), "bob").id == first.id
    finish(rig)
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert next(candidate for candidate in rig.candidates(job_id) if candidate.id == worst.id).survives


def test_a_technique_banned_while_a_crossover_runs_is_in_none_of_its_children(rig: Rig) -> None:
    job_id = rig.submit(method=SceConfig(population=4, generations=3, elites=1))
    message = rig.run_until(job_id, "c4/cross/0")
    with rig.database.transaction() as session:
        parents = [
            strategy_of(session, candidate)
            for candidate in session.scalars(select(Candidate).where(Candidate.survives))
        ]
    banned = parents[0].ids()[0]

    asked: list[tuple[str, ...]] = []
    crossover = rig.players.crossover

    def ban_meanwhile(briefing: object, *rest: object, **named: object) -> object:
        if not asked:
            with rig.database.transaction() as session:
                steering.ban(session, team_of(rig), job_id, "ann", technique=banned)
        asked.append(briefing.banned)  # type: ignore[attr-defined]
        return crossover(briefing, *rest, **named)  # type: ignore[arg-type]

    rig.players.crossover = ban_meanwhile  # type: ignore[method-assign,assignment]
    rig.do(message)
    finish(rig)
    assert asked[0] == ()
    assert all(known == (banned,) for known in asked[1:]), "agents are told"
    later = [candidate for candidate in rig.candidates(job_id) if candidate.ordinal >= 4]
    with rig.database.transaction() as session:
        uses = {item.ordinal: banned in strategy_of(session, item).ids() for item in later if item.strategy_id}
    refused = [item for item in later if uses.get(item.ordinal)]
    assert all((item.state, item.reason) == (CandidateState.FAILED, "banned") for item in refused)
    once(rig, job_id)


def test_a_banned_strategy_is_no_parent_and_is_not_proposed_again(rig: Rig) -> None:
    job_id = rig.submit(method=SceConfig(population=4, generations=3, elites=1))
    rig.run_until(job_id, "c2/translate/0")
    with rig.database.transaction() as session:
        candidate = session.scalars(select(Candidate).where(Candidate.job_id == job_id, Candidate.ordinal == 1)).one()
        banned = strategy_of(session, candidate)
        directive = steering.ban(session, team_of(rig), job_id, "ann", candidate="1")
        assert steering.ban(session, team_of(rig), job_id, "ann", strategy=banned).id == directive.id
    finish(rig)
    assert not rig.candidates(job_id)[1].survives
    with rig.database.transaction() as session:
        assert steering.lift(session, team_of(rig), job_id, directive.id, "ann").lifted_at is not None
    once(rig, job_id)


def test_what_is_injected_becomes_a_candidate_of_the_next_generation(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run_until(job_id, "c0/translate/0")
    with rig.database.transaction() as session:
        steering.inject(session, team_of(rig), job_id, "ann", strategy=strategy("t9"), kernel=kernel("t9"))
        steering.inject(session, team_of(rig), job_id, "ann", strategy=strategy("t7"))
    finish(rig)
    injected = [candidate for candidate in rig.candidates(job_id) if candidate.operator is Operator.INJECTED]
    assert [item.state for item in injected] == [CandidateState.EVALUATED] * 2
    assert [item.speedup for item in injected] == [pytest.approx(1.9), pytest.approx(1.7)]
    assert rig.step_or_none(job_id, f"c{injected[0].ordinal}/translate/0") is None, "it came with its kernel"
    assert rig.step_or_none(job_id, f"c{injected[1].ordinal}/translate/0") is not None
    once(rig, job_id)


def test_what_is_injected_into_the_last_generation_gets_one_of_its_own(rig: Rig) -> None:
    job_id = rig.submit(method=SceConfig(population=3, generations=1, elites=1))
    message = rig.run_until(job_id, "c2/evaluate/0")
    with rig.database.transaction() as session:
        steering.inject(session, team_of(rig), job_id, "ann", strategy=strategy("t9"), kernel=kernel("t9"))
    rig.do(message)
    finish(rig)
    job = rig.job(job_id)
    assert (job.state, job.generation) == (JobState.SUCCEEDED, 1)
    assert rig.candidates(job_id)[-1].operator is Operator.INJECTED
    with pytest.raises(Conflict), rig.database.transaction() as session:
        steering.inject(session, team_of(rig), job_id, "ann", strategy=strategy("t8"))


def test_nothing_can_be_injected_once_the_search_has_ended(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run_until(job_id, "confirm/0")
    with pytest.raises(steering.SearchEnded), rig.database.transaction() as session:
        steering.inject(session, team_of(rig), job_id, "ann", strategy=strategy("t8"))


def test_a_retry_goes_on_with_the_best_kernels_and_the_bans(rig: Rig) -> None:
    job_id = rig.submit(budgets=Budgets(candidates=5))
    with rig.database.transaction() as session:
        steering.ban(session, team_of(rig), job_id, "ann", technique="t8")
    finish(rig)
    old = rig.job(job_id)
    assert old.state is JobState.BUDGET_EXHAUSTED
    best = max(candidate.speedup or 0 for candidate in rig.candidates(job_id))
    with rig.database.transaction() as session:
        spec = job_spec(session, session.get_one(Job, job_id)).model_copy(update={"budgets": Budgets(candidates=40)})
        arguments = {"author": "ann", "idempotency_key": "again", "request_hash": "a"}
        job, is_new = retry_job(session, old.team_id, job_id, spec, **arguments)  # type: ignore[arg-type]
        same, repeated = retry_job(session, old.team_id, job_id, spec, **arguments)  # type: ignore[arg-type]
        assert (is_new, repeated, same.id, job.retry_of_id) == (True, False, job.id, job_id)
    finish(rig)
    new = rig.job(job.id)
    assert new.state is JobState.SUCCEEDED
    first = [candidate for candidate in rig.candidates(job.id) if candidate.operator is Operator.INJECTED]
    assert max(item.speedup or 0 for item in first) == pytest.approx(best)
    with rig.database.transaction() as session:
        assert steering.banned_techniques(session, job.id) == ("t8",)
    with pytest.raises(Conflict, match="succeeded"), rig.database.transaction() as session:
        retry_job(session, new.team_id, new.id, spec, author="a", idempotency_key=None, request_hash="b")


def test_a_fork_begins_with_the_candidates_strategy_and_kernel(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run_until(job_id, "c4/cross/0")
    source = rig.candidates(job_id)[2]
    with rig.database.transaction() as session:
        spec = job_spec(session, session.get_one(Job, job_id))
        fork, _ = fork_job(
            session, team_of(rig), job_id, "2", spec, author="ann", idempotency_key=None, request_hash="a"
        )
        assert fork.forked_from_id == source.id
    finish(rig)
    (injected,) = [candidate for candidate in rig.candidates(fork.id) if candidate.operator is Operator.INJECTED]
    assert (injected.kernel_hash, injected.generation_id) == (
        source.kernel_hash,
        min(rig.candidates(fork.id), key=lambda one: one.ordinal).generation_id,
    )
    once(rig, fork.id)
    once(rig, job_id)


def test_a_retry_of_a_fork_that_never_began_begins_with_the_same_kernel(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run_until(job_id, "c4/cross/0")
    source = rig.candidates(job_id)[2]
    told: dict[str, Any] = {"author": "ann", "idempotency_key": None}
    with rig.database.transaction() as session:
        spec = job_spec(session, session.get_one(Job, job_id))
        fork, _ = fork_job(session, team_of(rig), job_id, "2", spec, request_hash="a", **told)
        request_cancel(session, team_of(rig), fork.id)
        again, _ = retry_job(session, team_of(rig), fork.id, spec, request_hash="b", **told)
        (injection,) = steering.in_force(session, again.id)
        assert (again.forked_from_id, injection.kernel_hash) == (source.id, source.kernel_hash)


def test_a_directive_and_a_finishing_step_do_not_deadlock(rig: Rig) -> None:
    """Many at once: each of them is done, and the job ends once."""
    job_id = rig.submit(method=SceConfig(population=4, generations=3, elites=1))
    rig.run_until(job_id, "c0/translate/0")
    stop = threading.Event()

    def steer() -> int:
        count = 0
        while not stop.is_set():
            try:
                pause(rig, job_id)
                resume(rig, job_id)
                with rig.database.transaction() as session:
                    steering.ban(session, team_of(rig), job_id, "ann", technique=f"banned{count % 3}")
            except Conflict:
                return count  # it has ended
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        steered = pool.submit(steer)
        try:
            while not rig.job(job_id).state.final:
                for message in rig.publish():
                    rig.do(message)
        finally:
            stop.set()
        assert steered.result() > 0
    assert rig.job(job_id).state is JobState.SUCCEEDED
    once(rig, job_id)


def test_labels_are_changed_one_by_one(rig: Rig) -> None:
    from cupilot.storage.jobs.jobs import change_job

    job_id = rig.submit(labels={"a": "1", "b": "2"})
    with rig.database.transaction() as session:
        change_job(session, team_of(rig), job_id, "ann", labels={"b": None, "c": "3"}, priority=None)
    assert rig.job(job_id).labels == {"a": "1", "c": "3"}


def test_idempotency_keys_are_released_after_a_week(rig: Rig) -> None:
    from cupilot.storage.jobs.jobs import release_keys

    first = rig.submit(idempotency_key="k", request_hash="a")
    with rig.database.transaction() as session:
        release_keys(session)
    assert rig.submit(idempotency_key="k", request_hash="a") == first
    with rig.database.transaction() as session:
        session.execute(update(Job).values(created_at=func.now() - timedelta(days=8)))
        release_keys(session)
    assert rig.submit(idempotency_key="k", request_hash="b") != first


def test_experiments_keys_are_released_as_jobs_are(rig: Rig) -> None:
    from cupilot.storage.db.tables.experiments import Experiment
    from cupilot.storage.experiments.experiments import earlier_experiment
    from cupilot.storage.jobs.jobs import release_keys

    rig.submit()
    with rig.database.transaction() as session:
        old = {"idempotency_key": "k", "created_at": func.now() - timedelta(days=8)}
        session.add(Experiment(team_id=team_of(rig), name="e", spec=SPEC, request_hash="a", **old))
        session.flush()
        assert earlier_experiment(session, team_of(rig), "k", "a") is not None
        release_keys(session)
        assert earlier_experiment(session, team_of(rig), "k", "b") is None
