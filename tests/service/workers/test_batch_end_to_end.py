"""A small job whose every measurement is made on a box without a network: real servers, processes, compiler, judge."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import Result
from typer.testing import CliRunner

from api.app import create_app
from cupilot.cli.app import app
from cupilot.domain.evaluation import Verdict
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Learning
from cupilot.domain.problem import Problem
from cupilot.domain.states import JobState
from cupilot.embedded.servers import start_chroma
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, Job
from cupilot.storage.jobs.jobs import submit_job
from cupilot.storage.jobs.progress import evaluation_of, preparation_of
from cupilot.storage.people.teams import create_api_key, ensure_team, ensure_user
from tests.living import still_running
from tests.service.api.world import live
from tests.service.box import start_box
from tests.service.operators import RELU, SHORT_JOBS
from tests.service.rig import job_spec

pytestmark = [pytest.mark.service, pytest.mark.timeout(1_800)]

ROOT = Path(__file__).parents[3]
SCHEDULER = """
import sys
for name in ("agents", "gpu_worker", "api", "httpx", "chromadb", "litellm", "torch"):
    sys.modules[name] = None
from workers.__main__ import main
sys.exit(main())
"""
"""The scheduler as its image has it: without the packages of other roles."""
PATIENCE_SECONDS = 1_500.0
EXPORT = ("batch", "export", "--target", "cpu", "--wait", "1", "-o", "box/next.batch")
RUN = ("batch", "run", "next.batch", "--work-dir", "work", "--threads", "1")


@pytest.fixture
def environment(settings: Settings, database: Database, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A scheduler, an agent worker and an API, no worker with a device; yields the environment of ``cupilot``."""
    chroma = start_chroma(tmp_path / "data")
    variables = os.environ | {
        "CUPILOT_DATABASE_URL": settings.database_url.get_secret_value(),
        "CUPILOT_REDIS_URL": settings.redis_url.get_secret_value(),
        "CUPILOT_CHROMA_URL": chroma.url,
        **SHORT_JOBS,
        "PYTHONPATH": str(ROOT),
    }
    with database.transaction() as session:
        user = ensure_user(session, "operator")
        user.cluster_admin = True
        _, key = create_api_key(session, ensure_team(session, "operators"), "batches", user=user)
    (tmp_path / "scheduler.py").write_text(SCHEDULER)
    roles = (["scheduler.py", "scheduler"], ["-m", "workers", "agent"])
    processes = [subprocess.Popen([sys.executable, *role], env=variables, cwd=tmp_path) for role in roles]
    with live(create_app(settings), "on") as url:
        yield {"CUPILOT_URL": url, "CUPILOT_API_KEY": key}
    for process in processes:
        process.terminate()
    for process in processes:
        assert process.wait(60) == 0
    chroma.stop()
    database.close()


def cupilot(environment: dict[str, str], *arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=environment)


def test_a_job_is_measured_on_a_box_without_a_network(
    environment: dict[str, str], database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job_id = submitted(database)
    box = tmp_path / "box"
    box.mkdir()
    visits = 0
    end = time.monotonic() + PATIENCE_SECONDS
    while not job_of(database, job_id).state.final:
        assert time.monotonic() < end
        exported = cupilot(environment, *EXPORT)
        if exported.exit_code == 1:  # agents are at work
            assert "nothing_to_export" in exported.stderr
            time.sleep(0.5)
            continue
        assert exported.exit_code == 0, exported.stderr
        result = box / "next.batch.results"
        result.unlink(missing_ok=True)
        if visits == 0:
            kill_at_work(box)
        visits += 1
        if visits == 2:
            leave_all(box)
            released = cupilot(environment, "batch", "import", str(result), "--release")
            assert released.exit_code == 0, released.stderr
            assert "released" in released.stdout
            continue
        judge_all(box)
        for _ in range(2):
            imported = cupilot(environment, "batch", "import", str(result))
            assert imported.exit_code == 0, imported.stderr
        assert "duplicate" in imported.stdout
    job = job_of(database, job_id)
    assert job.state is JobState.SUCCEEDED, f"{job.reason}: {job.message}"
    with database.transaction() as session:
        best = session.get_one(Candidate, job.best_candidate_id)
        assert best.verdict in (Verdict.AUDITED, Verdict.REPRODUCED)
        evaluation = evaluation_of(session, best.evaluation_id)
        preparation = preparation_of(session.get_one(Job, job.id))
    assert evaluation.environment is not None
    assert evaluation.environment.device.uid == preparation.peaks.device_uid
    assert job.gpu_seconds > 0
    listed = cupilot(environment, "batch", "list")
    assert "finished" in listed.stdout


def submitted(database: Database) -> object:
    spec = job_spec(
        problem=Problem(name="softmax", source=RELU.replace("torch.relu(x)", "torch.softmax(x, dim=1)")),
        method=SceConfig(population=2, generations=1, elites=1, repair_rounds=1),
        learning=Learning(attribution=0, cheap_attribution=False),
    )
    with database.transaction() as session:
        team = ensure_team(session, "blue")
        job, _ = submit_job(session, team.id, spec, idempotency_key=None, request_hash="0")
        return job.id


def job_of(database: Database, job_id: object) -> Job:
    with database.transaction() as session:
        return session.get_one(Job, job_id, populate_existing=True)


def kill_at_work(box: Path) -> None:
    """Kill a run while it judges: nothing of it stays, and its result file can be continued."""
    process = start_box(box, *RUN)
    family = psutil.Process(process.pid)
    while not any(is_judge(child) for child in family.children(recursive=True)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    children = family.children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert still_running(children) == []


def leave_all(box: Path) -> None:
    """Run out of time before anything has begun."""
    process = start_box(box, *RUN, "--minutes", "0.0001")
    _, progress = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 4, progress


def is_judge(process: psutil.Process) -> bool:
    try:
        return any("judge" in argument for argument in process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False


def judge_all(box: Path) -> None:
    process = start_box(box, *RUN)
    output, progress = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, progress
    assert "bring it back" in output
