"""Batches from export to settlement, with real Postgres; what happens in between is scripted or goes wrong."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

import workers.steps
from cupilot.domain.batches.errors import BatchNotReady, ForeignBatch, InvalidBatchFile, TamperedBatch
from cupilot.domain.batches.files import BatchFile, pack, sha256
from cupilot.domain.batches.results import ResultHeader, read_header, read_record, write_header, write_record
from cupilot.domain.errors import NotFound
from cupilot.domain.evaluation import Failure, FailureKind, PreparationResult
from cupilot.domain.states import JobState, StepKind, StepState
from cupilot.domain.value import Value
from cupilot.jobs.batches import receive_results
from cupilot.jobs.remeasuring import submit_remeasurement
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.batches import Batch, BatchObject
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, Job
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.jobs.steering import pause_job, resume_job
from cupilot.storage.jobs.wall_time import over_time, wall_seconds
from cupilot.storage.queue.steps import claim_step
from tests.service.box import LONG, Batches, id_of, judged
from tests.service.doubles import PlacedJudge, device, strategy
from tests.service.rig import Rig
from workers.batches import exporting, judges, settling
from workers.handlers.registry import HANDLERS
from workers.reaper import end_cancelled, end_overtime, reap

pytestmark = pytest.mark.service

HOUR = timedelta(hours=1)


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


@pytest.fixture
def batches(rig: Rig) -> Batches:
    return Batches.of(rig)


@pytest.fixture
def evaluating(rig: Rig, batches: Batches, tmp_path: Path) -> uuid.UUID:
    """A job with four kernels to be evaluated."""
    job = rig.submit()
    path = batches.export(tmp_path)
    batches.hand_in(id_of(path), judged(path))
    batches.run_agents()
    return job


def evaluations(rig: Rig) -> int:
    with rig.database.transaction() as session:
        return session.execute(select(func.count()).select_from(EvaluationRow)).scalar_one()


def expire(rig: Rig, batch: uuid.UUID) -> None:
    """As if the batch's lease had just ended."""
    with rig.database.transaction() as session:
        session.execute(update(Batch).where(Batch.id == batch).values(expires_at=func.now() - HOUR))
        session.execute(update(Step).where(Step.batch_id == batch).values(lease_expires_at=func.now() - HOUR))


def outcomes(receipts: list[object]) -> list[str]:
    return [receipt.outcome for receipt in receipts]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("evaluating")
def test_results_count_after_an_upgrade_that_writes_values_in_another_way(
    rig: Rig, batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = batches.export(tmp_path)

    def with_a_new_field(value: Value) -> tuple[str, str]:
        text = f'{{"new": 1, {value.model_dump_json()[1:]}'
        return sha256(text.encode()), text

    monkeypatch.setattr(judges, "to_object", with_a_new_field)
    batches.hand_in(id_of(path), judged(path))
    assert evaluations(rig) == 4


def test_whole_jobs_are_judged_in_batches(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    jobs = [rig.submit(), rig.submit(team="green")]
    visits = 0
    while not all(rig.job(job).state.final for job in jobs):
        batches.run_agents()
        path = batches.export(tmp_path)
        lines = judged(path)
        receipts = batches.hand_in(id_of(path), lines)
        assert set(outcomes(receipts)) == {"received"}
        view = batches.view(id_of(path))
        assert view.state == "finished"
        assert view.counts.settled == len(receipts) == view.steps
        visits += 1
        assert visits < 20
    for job in jobs:
        assert rig.job(job).state is JobState.SUCCEEDED
        assert {step.state for step in rig.steps(job)} == {StepState.SUCCEEDED}
        devices = [step for step in rig.steps(job) if step.kind.on_device]
        assert rig.job(job).gpu_seconds == pytest.approx(0.25 * len(devices), abs=0.2 * len(devices))


def test_no_worker_gets_what_a_batch_holds_and_workers_keep_their_slots(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path
) -> None:
    batches.export(tmp_path, limit=3)
    assert len([step for step in rig.steps(evaluating) if step.state is StepState.RUNNING]) == 3
    [message] = rig.publish()
    rig.do(message)
    held = [step for step in rig.steps(evaluating) if step.batch_id is not None and step.state is StepState.RUNNING]
    assert len(held) == 3
    assert len(rig.judge.calls) == 1


def test_a_problem_too_large_for_the_batches_machine_ends_its_job_with_that_reason(
    rig: Rig, batches: Batches, tmp_path: Path
) -> None:
    rig.players.initial = [strategy("large")]
    job = rig.submit()
    while not rig.job(job).state.final:
        path = batches.export(tmp_path)
        assert set(outcomes(batches.hand_in(id_of(path), judged(path)))) == {"received"}
        batches.run_agents()
        for step in rig.steps(job):
            rig.make_ready(step.id)
    assert (rig.job(job).state, rig.job(job).reason) == (JobState.FAILED, "out_of_memory")


def test_a_limit_and_a_job_narrow_an_export(rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path) -> None:
    other = rig.submit(team="green")
    with BatchFile(batches.export(tmp_path, job=evaluating, limit=2)) as batch:
        assert {entry.job for entry in batch.manifest.steps} == {evaluating}
        assert len(batch.manifest.steps) == 2
    with BatchFile(batches.export(tmp_path, job=other)) as batch:
        assert [entry.key for entry in batch.manifest.steps] == ["prepare"]
    with pytest.raises(NotFound):
        batches.export(tmp_path, job=uuid.uuid4())


def test_an_export_without_anything_to_do_is_empty(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    rig.submit()
    with pytest.raises(BatchNotReady, match="empty"):
        batches.export(tmp_path, target="cuda", arch="sm_90")


def test_half_a_result_is_settled_and_the_rest_stays_held(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path
) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)
    torn = [*lines[:3], lines[3][: len(lines[3]) // 2]]
    assert outcomes(batches.hand_in(id_of(path), torn)) == ["received", "received", "damaged"]
    view = batches.view(id_of(path))
    assert (view.state, view.counts.settled, view.counts.waiting) == ("open", 2, 2)
    assert len([step for step in rig.steps(evaluating) if step.state is StepState.RUNNING]) == 2
    assert outcomes(batches.hand_in(id_of(path), lines)) == ["duplicate", "duplicate", "received", "received"]
    assert batches.view(id_of(path)).state == "finished"


@pytest.mark.usefixtures("evaluating")
def test_a_result_that_is_imported_twice_counts_once(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)
    batches.hand_in(id_of(path), lines)
    counted, spent = evaluations(rig), [rig.job(job).gpu_seconds for job in all_jobs(rig)]
    assert set(outcomes(batches.hand_in(id_of(path), [*lines, *lines[1:]]))) == {"duplicate"}
    assert evaluations(rig) == counted
    assert [rig.job(job).gpu_seconds for job in all_jobs(rig)] == spent


def all_jobs(rig: Rig) -> list[uuid.UUID]:
    with rig.database.transaction() as session:
        return list(session.scalars(select(Job.id).order_by(Job.id)))


def test_a_lost_file_can_be_fetched_again_and_a_lost_batch_ends_with_its_lease(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path
) -> None:
    path = batches.export(tmp_path)
    content = path.read_bytes()
    path.unlink()
    assert batches.fetch(uuid.UUID(path.stem), tmp_path).read_bytes() == content
    before = rig.job(evaluating).gpu_seconds
    held = {step.id: step for step in rig.steps(evaluating) if step.state is StepState.RUNNING}
    expire(rig, id_of(path))
    reap(rig.database)
    batches.keeper.work(LONG)
    for step in rig.steps(evaluating):
        if step.id in held:
            assert step.state is StepState.QUEUED
            assert step.max_attempts - step.attempt == held[step.id].max_attempts - held[step.id].attempt + 1
    assert rig.job(evaluating).gpu_seconds == before
    assert batches.view(id_of(path)).state == "expired"
    assert batches.view(id_of(path)).counts.released == len(held)
    with rig.database.transaction() as session:
        assert session.scalars(select(BatchObject)).all() == []
    rig.run()
    assert rig.job(evaluating).state is JobState.SUCCEEDED


def test_what_comes_too_late_is_refused(rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)
    expire(rig, id_of(path))
    reap(rig.database)
    # Received before anybody has noted that the lease has ended, settled when it has.
    assert set(outcomes(batches.hand_in(id_of(path), lines[:2]))) == {"received"}
    assert batches.view(id_of(path)).counts.stale == 1
    counted = evaluations(rig)
    assert outcomes(batches.hand_in(id_of(path), lines)) == ["duplicate", "late", "late", "late"]
    assert evaluations(rig) == counted
    rig.run()
    assert rig.job(evaluating).state is JobState.SUCCEEDED


def test_what_somebody_else_has_done_meanwhile_is_stale(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path
) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)
    batches.cancel(id_of(path))
    assert batches.view(id_of(path)).state == "cancelled"
    assert batches.view(id_of(path)).counts.released == 4
    rig.run()
    assert rig.job(evaluating).state is JobState.SUCCEEDED
    counted = evaluations(rig)
    assert set(outcomes(batches.hand_in(id_of(path), lines))) == {"late"}
    assert evaluations(rig) == counted


@pytest.mark.usefixtures("evaluating")
def test_a_result_that_comes_while_its_batch_is_being_cancelled_counts(
    rig: Rig, batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = batches.export(tmp_path)
    lines, unresolved = judged(path), settling.unresolved

    def receive_one_after_it(*values: Any) -> Any:
        rows = unresolved(*values)
        with rig.database.transaction() as session:
            receive_results(session, id_of(path), lines[:2])
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(settling, "unresolved", receive_one_after_it)
        batches.cancel(id_of(path))
    batches.keeper.work(LONG)
    view = batches.view(id_of(path))
    assert (view.state, view.counts.settled, view.counts.released) == ("cancelled", 1, 3)
    assert view.ended_at is not None


def test_a_job_is_cancelled_at_once_and_results_that_come_later_are_dropped(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path
) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)
    with rig.database.transaction() as session:
        request_cancel(session, rig.job(evaluating).team_id, evaluating)
    assert rig.job(evaluating).state is JobState.CANCELLED
    assert StepState.RUNNING not in {step.state for step in rig.steps(evaluating)}
    counted, spent = evaluations(rig), rig.job(evaluating).gpu_seconds
    assert outcomes(batches.hand_in(id_of(path), lines[:2])) == ["received"]
    assert batches.view(id_of(path)).counts.stale == 1
    assert set(outcomes(batches.hand_in(id_of(path), lines))) == {"duplicate", "late"}
    assert (evaluations(rig), rig.job(evaluating).gpu_seconds) == (counted, spent)
    assert batches.view(id_of(path)).state == "finished"


def test_a_cancel_waits_for_what_a_worker_has_and_for_no_batch(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path
) -> None:
    batches.export(tmp_path, limit=3)
    [message] = rig.publish()
    with rig.database.transaction() as session:
        assert claim_step(session, uuid.UUID(message[1][0]), 0, "gpu-1", HOUR) is not None
        request_cancel(session, rig.job(evaluating).team_id, evaluating)
    end_cancelled(rig.database, HOUR)
    assert rig.job(evaluating).state is JobState.CANCELLING
    with rig.database.transaction() as session:
        values = {"lease_expires_at": func.now() - HOUR}
        session.execute(update(Step).where(Step.id == uuid.UUID(message[1][0])).values(values))
    reap(rig.database)
    end_cancelled(rig.database, HOUR)
    assert rig.job(evaluating).state is JobState.CANCELLED


def test_a_result_that_cannot_be_stored_is_a_failed_attempt(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)

    def store(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    evaluate = HANDLERS[StepKind.EVALUATE]
    with monkeypatch.context() as patched:
        patched.setattr(workers.steps, "HANDLERS", {**HANDLERS, StepKind.EVALUATE: replace(evaluate, store=store)})
        batches.hand_in(id_of(path), lines[:2])
    assert batches.view(id_of(path)).counts.retried == 1
    [failed] = [step for step in rig.steps(evaluating) if step.error is not None]
    assert (failed.state, failed.attempt) == (StepState.QUEUED, 1)
    assert (failed.error or {})["reason"] == "internal_error"


def test_a_step_whose_result_cannot_be_settled_goes_back_to_the_queue(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(settling, "run_claimed", broken)
        batches.hand_in(id_of(path), lines[:2])
    monkeypatch.setattr(settling, "run_claimed", lambda *_: "stale")  # it asks for something else by now
    batches.hand_in(id_of(path), lines[:3])
    assert (batches.view(id_of(path)).counts.stale, batches.view(id_of(path)).counts.waiting) == (2, 2)
    returned = [step for step in rig.steps(evaluating) if step.state is StepState.QUEUED]
    assert [(step.attempt, step.max_attempts) for step in returned] == [(1, 4), (1, 4)]
    batches.cancel(id_of(path))
    rig.run()
    assert rig.job(evaluating).state is JobState.SUCCEEDED


def test_a_result_of_another_service_is_foreign(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    rig.submit()
    lines = judged(batches.export(tmp_path))
    with pytest.raises(ForeignBatch):
        batches.hand_in(uuid.uuid4(), lines)


def test_a_batch_that_was_changed_on_its_way_is_refused_as_a_whole(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    job = rig.submit()
    path = batches.export(tmp_path)
    with BatchFile(path) as batch:
        easier = batch.manifest.model_copy(update={"sweep": 3})
        objects = {name: stored_object(rig, name) for name in batch.manifest.objects()}
        path.write_bytes(pack(easier.model_dump_json().encode(), batch.signature, objects))
    with pytest.raises(TamperedBatch):
        batches.hand_in(id_of(path), judged(path))
    assert rig.step(job, "prepare").state is StepState.RUNNING


def stored_object(rig: Rig, name: str) -> str:
    with rig.database.transaction() as session:
        return session.scalars(select(BatchObject.body).where(BatchObject.hash == name)).one()


@pytest.mark.usefixtures("evaluating")
def test_a_changed_kernel_is_not_judged(batches: Batches, rig: Rig, tmp_path: Path) -> None:
    path = batches.export(tmp_path)
    with BatchFile(path) as batch:
        kernels = {entry.question.kernel for entry in batch.manifest.steps}
        objects = {name: stored_object(rig, name) for name in batch.manifest.objects()}
        changed = {name: text.replace('"k"', '"kk"') if name in kernels else text for name, text in objects.items()}
        path.write_bytes(pack(batch.manifest.model_dump_json().encode(), batch.signature, changed))
    with BatchFile(path) as batch, pytest.raises(InvalidBatchFile, match="was changed"):
        batch.check()


@pytest.mark.usefixtures("evaluating")
def test_lines_that_answer_something_else_are_refused_one_by_one(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)
    header = read_header(lines[0])
    unusable = PreparationResult(failure=Failure(kind=FailureKind.INVALID_PROBLEM, message="no"))
    first, second = (read_record(header, line) for line in lines[1:3])
    forged = [
        first.model_copy(update={"evaluation": second.evaluation}),
        first.model_copy(update={"attempt": 2}),
        first.model_copy(update={"entry": second.entry}),
        first.model_copy(update={"device": device(uid="another")}),
        first.model_copy(update={"evaluation": None, "preparation": unusable}),
        first.model_copy(update={"step": uuid.uuid4()}),
    ]
    other = ResultHeader(batch=header.batch, manifest=header.manifest, signature="0" * 64)
    written = [*(write_record(header, record) for record in forged), write_record(other, first)]
    receipts = batches.hand_in(id_of(path), [lines[0], *written, lines[1].replace("1", "2"), "?"])
    assert outcomes(receipts) == [*["mismatched"] * 5, "unknown", *["damaged"] * 3]
    assert batches.view(id_of(path)).counts.waiting == 4
    assert evaluations(rig) == 0
    with pytest.raises(TamperedBatch):
        batches.hand_in(id_of(path), [write_header(other), *lines[1:]])


def test_a_failed_machine_costs_an_attempt_and_then_the_step(
    database: Database, settings: Settings, tmp_path: Path
) -> None:
    rig = Rig(database, settings, initial=[strategy("lost"), *(strategy(f"t{number}") for number in range(1, 4))])
    batches = Batches.of(rig)
    job = rig.submit()
    path = batches.export(tmp_path)
    batches.hand_in(id_of(path), judged(path))
    batches.run_agents()
    seen = []
    for _ in range(3):
        path = batches.export(tmp_path)
        batches.hand_in(id_of(path), judged(path))
        counts = batches.view(id_of(path)).counts
        seen.append((counts.retried, counts.failed))
        for step in rig.steps(job):
            rig.make_ready(step.id)
    assert seen == [(1, 0), (1, 0), (0, 1)]
    rig.run()
    assert rig.job(job).state is JobState.SUCCEEDED


def test_an_invalid_reference_fails_its_job(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    job = rig.submit()
    path = batches.export(tmp_path)
    batches.hand_in(id_of(path), judged(path, PlacedJudge(invalid=True)))
    assert (rig.job(job).state, rig.job(job).reason) == (JobState.FAILED, "invalid_problem")


def test_time_in_a_batch_is_no_wall_time(rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path) -> None:
    path = batches.export(tmp_path)
    lines = judged(path)
    with rig.database.transaction() as session:
        back = 3 * HOUR
        values = {"started_at": Job.started_at - back, "batched_at": Job.batched_at - back}
        session.execute(update(Job).values(**values))
        assert over_time(session) == []
    end_overtime(rig.database)
    assert not rig.job(evaluating).state.final
    batches.hand_in(id_of(path), lines[:3])
    assert rig.job(evaluating).batched_at is not None
    batches.hand_in(id_of(path), lines)
    job = rig.job(evaluating)
    assert job.batched_at is None
    assert job.paused_seconds == pytest.approx(back.total_seconds(), abs=300)
    with rig.database.transaction() as session:
        now = session.execute(select(func.now())).scalar_one()
        assert wall_seconds(job, lambda: now) < HOUR.total_seconds()
        assert over_time(session) == []


def test_a_pause_during_a_batch_is_not_taken_out_twice(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path
) -> None:
    path = batches.export(tmp_path)
    team = rig.job(evaluating).team_id
    with rig.database.transaction() as session:
        pause_job(session, team, evaluating, "operator")
    with rig.database.transaction() as session:
        values = {name: getattr(Job, name) - HOUR for name in ("started_at", "batched_at", "paused_at")}
        session.execute(update(Job).values(**values))
    with rig.database.transaction() as session:
        resume_job(session, team, evaluating, "operator")
    assert rig.job(evaluating).paused_seconds < HOUR.total_seconds()
    batches.hand_in(id_of(path), judged(path))
    assert rig.job(evaluating).paused_seconds == pytest.approx(HOUR.total_seconds(), abs=300)


@pytest.mark.usefixtures("evaluating")
def test_an_export_goes_on_where_a_scheduler_died(
    rig: Rig, batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, added = exporting.add_step, []

    def die_at_the_third(*values: Any) -> None:
        if len(added) == 2:
            raise KeyboardInterrupt
        add(*values)
        added.append(values)

    with monkeypatch.context() as patched:
        patched.setattr(exporting, "add_step", die_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            batches.export(tmp_path)
    with rig.database.transaction() as session:
        [batch] = session.scalars(select(Batch.id).where(Batch.ended_at.is_(None)))
    assert batches.view(batch).state == "exporting"
    Batches.of(rig).keeper.work(LONG)
    with BatchFile(batches.fetch(batch, tmp_path)) as file:
        assert len({entry.step for entry in file.manifest.steps}) == len(file.manifest.steps) == 4


def test_a_worker_that_claims_first_has_the_step(
    rig: Rig, batches: Batches, evaluating: uuid.UUID, tmp_path: Path
) -> None:
    messages = rig.publish()
    path = batches.export(tmp_path)
    for message in messages:
        rig.do(message)
    assert rig.judge.calls == []  # the batch had claimed them all
    batches.hand_in(id_of(path), judged(path))
    rig.run()
    assert rig.job(evaluating).state is JobState.SUCCEEDED


def test_a_remeasurement_is_exported_as_one_that_must_be_measured(rig: Rig, batches: Batches, tmp_path: Path) -> None:
    job_id = rig.submit()
    rig.run()
    with rig.database.transaction() as session:
        winner = session.get_one(Candidate, rig.job(job_id).best_candidate_id)
        submit_remeasurement(session, rig.job(job_id).team_id, winner, author="ann", idempotency_key=None)
    versions = []
    for _ in range(2):
        path = batches.export(tmp_path)
        with BatchFile(path) as batch:
            versions.append((batch.manifest.version, [entry.question.fresh for entry in batch.manifest.steps]))
        batches.hand_in(id_of(path), judged(path))
    assert versions == [(1, [False]), (2, [True])]
