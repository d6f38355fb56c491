"""A file that somebody has is judged through the service: marked, comparable, in the pool, on no leaderboard."""

from __future__ import annotations

import io
import zipfile

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from cupilot.domain.errors import NotFound
from cupilot.domain.evaluation import Verdict
from cupilot.domain.imported import ImportedFile, ImportedKernel, KernelKind
from cupilot.domain.problem import Target
from cupilot.domain.states import JobState, StepKind
from cupilot.exports import result_archive
from cupilot.exports.winner import Winner
from cupilot.jobs.continuing import fork_job
from cupilot.jobs.importing import LABEL, submit_import
from cupilot.jobs.remeasuring import ONE_KERNEL, ONE_MEASUREMENT, submit_remeasurement
from cupilot.reports.job import markdown
from cupilot.schemas import PoolEntryView
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.comparison_views import compare_candidates
from cupilot.storage.jobs.jobs import job_spec
from cupilot.storage.jobs.progress import file_of, kernel_of
from cupilot.storage.jobs.report_views import report
from cupilot.storage.people.teams import ensure_team
from cupilot.storage.pool.leaderboards import BoardViewer, leaderboard
from cupilot.storage.pool.views import list_entries
from tests.service.doubles import PlacedJudge, problem
from tests.service.rig import Rig

pytestmark = pytest.mark.service

FILE = '''
SOURCE = """
#pragma omp parallel for simd
"""  # t7
class ModelNew: ...
'''


@pytest.fixture
def rig(database: Database, settings: Settings) -> Rig:
    return Rig(database, settings)


def judged(rig: Rig, source: str = FILE, key: str | None = None) -> Job:
    with rig.database.transaction() as session:
        team = ensure_team(session, "blue").id
        kernel = ImportedKernel(target=Target.CPU, source=source)
        return submit_import(session, team, problem(), kernel, author="ann", idempotency_key=key)[0]


def entries(session: Session, job: Job) -> list[PoolEntryView]:
    everything = {"shared": False, "target": None, "op_class": None, "technique": None, "cursor": None}
    return list_entries(session, job.team_id, job=job.id, limit=5, **everything).items  # type: ignore[arg-type]


def best_of(rig: Rig, job: Job) -> Candidate:
    ended = rig.job(job.id)
    return next(candidate for candidate in rig.candidates(job.id) if candidate.id == ended.best_candidate_id)


def test_a_file_is_judged_marked_and_learned_from(rig: Rig) -> None:
    job = judged(rig)
    rig.run()
    ended = rig.job(job.id)
    assert ended.state is JobState.SUCCEEDED
    assert [step.kind for step in rig.steps(job.id)] == [StepKind.PREPARE, StepKind.EVALUATE, StepKind.CONFIRM]
    best = best_of(rig, job)
    assert (best.verdict, best.kernel_hash) == (Verdict.REPRODUCED, ended.labels[LABEL])
    with rig.database.transaction() as session:
        found = report(session, ended.team_id, job.id)
        [item] = entries(session, ended)
        imported = session.scalars(select(PoolRow.imported).where(PoolRow.id == item.id)).one()
        assert file_of(session, ended.labels[LABEL]) == ImportedKernel(target=Target.CPU, source=FILE)
    assert found.job.best is not None
    assert found.job.best.kernel_kind is KernelKind.IMPORTED
    assert found.headline.startswith("The imported file is 1.70x")
    assert str(job.id) in found.next_steps[0]
    assert found.candidate.kernel is not None
    assert (found.candidate.kernel.kind, found.candidate.kernel.plan) == (KernelKind.IMPORTED, None)
    assert item.entry.provenance.kernel_kind is KernelKind.IMPORTED
    assert (item.entry.provenance.method, item.entry.provenance.agents) == (None, None)
    assert item.entry.strategy.ids() == ("threads", "simd"), "what the text shows"
    assert item.entry.speedup == pytest.approx(1.7)
    assert item.measured_here
    assert imported, "it counts little for its techniques"
    with zipfile.ZipFile(io.BytesIO(result_archive(found))) as archive:
        assert archive.read("modelnew.py").decode() == FILE
        assert "plan.json" not in archive.namelist()
    assert "judge problem.py modelnew.py" in markdown(found)
    with rig.database.transaction() as session:
        spec = job_spec(session, session.get_one(Job, job.id))
        with pytest.raises(ImportedFile):
            Winner.of(found)
        with pytest.raises(ImportedFile):
            kernel_of(session, best.kernel_hash or "")
        with pytest.raises(ImportedFile):
            fork_job(session, job.team_id, job.id, "0", spec, author="ann", idempotency_key=None, request_hash="0")


def test_it_stands_beside_other_kernels_but_on_no_leaderboard(rig: Rig) -> None:
    rig.judge = PlacedJudge()
    theirs = judged(rig, FILE.replace("t7", "t99"))
    rig.run()
    team = rig.job(theirs.id).team_id
    with rig.database.transaction() as session, pytest.raises(NotFound):
        leaderboard(session, BoardViewer(team), problem().content_hash(), device=None, after=0, limit=5)
    ours = rig.submit(method=ONE_KERNEL, budgets=ONE_MEASUREMENT)
    rig.run()
    with rig.database.transaction() as session:
        found = compare_candidates(session, team, str(ours), str(theirs.id))
        board = leaderboard(session, BoardViewer(team), problem().content_hash(), device=None, after=0, limit=50)
    assert found.relative_speedup is not None
    assert found.relative_speedup.median > 1
    assert [str(item.job) for item in board.items] == [str(ours)]


def test_it_can_be_measured_again_and_a_key_asks_once(rig: Rig) -> None:
    job = judged(rig, key="once")
    assert judged(rig, key="once").id == job.id
    rig.run()
    with rig.database.transaction() as session:
        winner = session.get_one(Candidate, best_of(rig, job).id)
        again = submit_remeasurement(session, job.team_id, winner, author="ann", idempotency_key=None)[0].id
    rig.run()
    assert rig.job(again).state is JobState.SUCCEEDED
    with rig.database.transaction() as session:
        count = select(func.count()).select_from(Job).where(Job.idempotency_key == "once")
        assert session.execute(count).scalar_one() == 1


def test_a_file_that_fails_ends_its_job_and_is_remembered(rig: Rig) -> None:
    job = judged(rig, FILE.replace("t7", "broken"))
    rig.run()
    ended = rig.job(job.id)
    assert (ended.state, ended.reason) == (JobState.FAILED, "no_valid_kernel")
    with rig.database.transaction() as session:
        [item] = entries(session, ended)
    assert item.entry.failure is not None
