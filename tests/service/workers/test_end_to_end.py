"""One small job through all that is real: servers, scheduler, Celery workers, playbook, compiler, judge, pool."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from cupilot.domain.evaluation import Baseline, Verdict
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Learning
from cupilot.domain.problem import Problem
from cupilot.domain.states import JobState, StepKind
from cupilot.embedded.servers import Running, start_chroma
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.jobs.progress import evaluation_of, preparation_of
from cupilot.storage.people.teams import ensure_team
from tests.service.operators import RELU
from tests.service.rig import job_spec

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 800.0


@pytest.fixture
def service(settings: Settings, database: Database, tmp_path: Path) -> Iterator[Running]:
    """A scheduler, an agent worker and a CPU worker, as production starts them; yields the pool's server."""
    chroma = start_chroma(tmp_path / "data")
    environment = os.environ | {
        "CUPILOT_DATABASE_URL": settings.database_url.get_secret_value(),
        "CUPILOT_REDIS_URL": settings.redis_url.get_secret_value(),
        "CUPILOT_CHROMA_URL": chroma.url,
        "CUPILOT_WORK_DIR": str(tmp_path / "work"),
        "CUPILOT_SWEEP_POINTS": "0",
        "PYTHONPATH": str(ROOT),
    }
    roles = (["scheduler"], ["agent"], ["gpu", "--target", "cpu"])
    processes = [
        subprocess.Popen([sys.executable, "-m", "workers", *role], env=environment, cwd=tmp_path) for role in roles
    ]
    yield chroma
    for process in processes:
        process.terminate()
    for process in processes:
        assert process.wait(60) == 0
    chroma.stop()
    database.close()


@pytest.mark.usefixtures("service")
def test_a_softmax_evolves_to_an_audited_kernel(database: Database) -> None:
    spec = job_spec(
        problem=Problem(name="softmax", source=RELU.replace("torch.relu(x)", "torch.softmax(x, dim=1)")),
        method=SceConfig(population=2, generations=1, elites=1, repair_rounds=1),
        learning=Learning(cheap_attribution=False),
    )
    with database.transaction() as session:
        team = ensure_team(session, "blue")
        job, _ = submit_job(session, team.id, spec, idempotency_key=None, request_hash="0")
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        with database.transaction() as session:
            job = session.get_one(Job, job.id, populate_existing=True)
        if job.state.final:
            break
        assert time.monotonic() < end, f"still {job.state.value}: {job.message}"
        time.sleep(0.5)
    assert job.state is JobState.SUCCEEDED, f"{job.reason}: {job.message}"
    with database.transaction() as session:
        best = session.get_one(Candidate, job.best_candidate_id)
        assert best.verdict in (Verdict.AUDITED, Verdict.REPRODUCED)
        assert best.speedup is not None
        assert best.fidelity is not None
        evaluation = evaluation_of(session, best.evaluation_id)
        assert evaluation.environment is not None
        assert session.scalars(select(Step).where(Step.kind == StepKind.CONFIRM)).all()
        if best.verdict is Verdict.REPRODUCED:  # else this machine was too busy for it
            assert evaluation.comparison(Baseline.COMPILE) is not None
        preparation = preparation_of(session.get_one(Job, job.id))
        assert evaluation.environment.device.uid == preparation.environment.device.uid
        learned = session.scalars(select(PoolRow)).all()
        # on a busy machine so small a reference is bound by the host, and nothing is learned from it
        assert {row.team_id for row in learned} == (set() if preparation.host_bound else {job.team_id})
        assert preparation.host_bound or len(learned) >= 2
    assert job.gpu_seconds > 0
