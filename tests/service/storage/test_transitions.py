"""State changes: only along the edges, only once, each with its event."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.states import CandidateState, JobState, StepState
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import (
    CANDIDATE_EDGES,
    JOB_EDGES,
    STEP_EDGES,
    IllegalTransition,
    Stale,
    lock_job,
    move_candidate,
    move_job,
    move_step,
)
from cupilot.storage.queue.steps import claim_step
from tests.service.rig import Rig

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def _force(rig: Rig, job_id: object, state: JobState) -> None:
    """Put a job into a state past its owner, with what the schema demands of that state."""
    values = {"state": state, "finished_at": None, "reason": "test"}
    if state.final:
        values["finished_at"] = Job.created_at
    if state is JobState.PAUSED:
        values["paused_at"] = Job.created_at
    with rig.database.transaction() as session:
        session.execute(update(Job).where(Job.id == job_id).values(values))


@pytest.mark.parametrize("one", JobState)
def test_a_job_moves_along_its_edges_only(rig: Rig, one: JobState) -> None:
    job_id = rig.submit()
    _force(rig, job_id, one)
    events = rig.events(job_id)
    for other in set(JobState) - JOB_EDGES.get(one, frozenset()):
        with pytest.raises(IllegalTransition), rig.database.transaction() as session:
            move_job(session, lock_job(session, job_id), other, reason="test")
    assert rig.job(job_id).state is one
    assert rig.events(job_id) == events


def test_final_states_have_no_way_out() -> None:
    assert all(not JOB_EDGES.get(state) for state in JobState if state.final)
    assert all(not CANDIDATE_EDGES.get(state) for state in CandidateState if state is not CandidateState.ACTIVE)
    finished = (StepState.SUCCEEDED, StepState.FAILED, StepState.CANCELLED)
    assert all(not STEP_EDGES.get(state) for state in finished)


def test_a_move_from_a_state_that_has_passed_is_stale(rig: Rig) -> None:
    job_id = rig.submit()
    with rig.database.transaction() as session:
        known = session.get_one(Job, job_id)
    with rig.database.transaction() as session:
        move_job(session, lock_job(session, job_id), JobState.PREPARING)
    with rig.database.transaction() as session:
        session.add(known)
        with pytest.raises(Stale):
            move_job(session, known, JobState.CANCELLED)


def test_a_step_of_another_attempt_is_stale(rig: Rig) -> None:
    job_id = rig.submit()
    step_id = rig.step(job_id, "prepare").id
    with rig.database.transaction() as session:
        assert claim_step(session, step_id, 0, "w", timedelta(seconds=10)) is not None
    with rig.database.transaction() as session:
        step = session.get_one(Step, step_id)
        with pytest.raises(Stale):
            move_step(session, step, StepState.SUCCEEDED, attempt=0)


def test_each_move_is_one_event(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run()
    events = rig.events(job_id)
    assert events[0] == "job.queued"
    assert [kind for kind in events if kind.startswith("job.") and kind != "job.best"] == [
        "job.queued",
        "job.preparing",
        "job.evolving",
        "job.evolved",
        "job.succeeded",
    ]
    steps = len(rig.steps(job_id))
    assert [events.count(f"step.{name}") for name in ("queued", "running", "succeeded")] == [steps] * 3
    assert events.count("candidate.active") == events.count("candidate.evaluated") == len(rig.candidates(job_id))


def test_a_rolled_back_move_leaves_no_event(rig: Rig) -> None:
    job_id = rig.submit()
    events = rig.events(job_id)

    def fail() -> None:
        with rig.database.transaction() as session:
            move_job(session, lock_job(session, job_id), JobState.PREPARING)
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fail()
    assert rig.job(job_id).state is JobState.QUEUED
    assert rig.events(job_id) == events


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (Job, {"state": JobState.EVOLVING}),
        (Job, {"state": JobState.FAILED, "finished_at": Job.created_at, "reason": None}),
        (Job, {"cost_usd": -1.0}),
        (Step, {"state": StepState.RUNNING}),
        (Step, {"attempt": 99}),
        (Candidate, {"state": CandidateState.ACTIVE}),
        (Candidate, {"verdict": "rejected"}),
    ],
    ids=["unfinished", "no reason", "negative", "no lease", "too many attempts", "finished but active", "speedup"],
)
def test_the_schema_refuses_rows_that_cannot_be(rig: Rig, table: type, values: dict[str, object]) -> None:
    rig.submit(method=SceConfig(population=2, generations=1, elites=1))
    rig.run()
    with pytest.raises(IntegrityError), rig.database.transaction() as session:
        session.execute(update(table).values(values))


def test_a_candidate_ends_once(rig: Rig) -> None:
    job_id = rig.submit()
    rig.run()
    candidate = rig.candidates(job_id)[0]
    with pytest.raises(IllegalTransition), rig.database.transaction() as session:
        move_candidate(session, session.get_one(Candidate, candidate.id), CandidateState.FAILED)
