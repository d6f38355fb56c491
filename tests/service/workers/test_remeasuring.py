"""An old winner is measured again: one kernel, no agents, and the same recovery as every job."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from cupilot.evaluation import Evaluation, Verdict
from cupilot.evolution.sce import SceConfig
from cupilot.kernel import Kernel
from cupilot.problem import Problem
from cupilot.settings import Settings
from cupilot.storage.database import Database
from cupilot.storage.jobs import request_cancel
from cupilot.storage.remeasuring import LABEL, submit_remeasurement
from cupilot.storage.states import JobState, StepKind, StepState
from cupilot.storage.tables import Candidate, Job
from cupilot.storage.views.measurements import measurements
from cupilot.storage.views.operations import quarantine
from tests.service import doubles
from tests.service.doubles import strategy
from tests.service.rig import Rig

pytestmark = pytest.mark.service


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def _winner(rig: Rig) -> Candidate:
    job = rig.submit()
    rig.run()
    return next(one for one in rig.candidates(job) if one.id == rig.job(job).best_candidate_id)


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
    assert [(one.job, one.purpose) for one in found] == [
        (job.id, "confirm"), (job.id, "evaluate"), (winner.job_id, "confirm"), (winner.job_id, "evaluate"),
    ]  # fmt: skip


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


def test_it_can_be_cancelled(rig: Rig) -> None:
    winner = _winner(rig)
    job = _again(rig, winner)
    rig.run_until(job.id, "c0/evaluate/0")
    with rig.database.transaction() as session:
        request_cancel(session, job.team_id, job.id)
    rig.run()
    assert rig.job(job.id).state is JobState.CANCELLED
    assert uuid.UUID(rig.job(job.id).labels[LABEL]) == winner.id


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
