"""Problems, cluster, health, readiness, version."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from api.app import create_app
from cupilot import __version__
from cupilot.domain import problems
from cupilot.domain.states import WorkerKind
from cupilot.schemas import ClusterView, ProblemPage, ProblemView
from cupilot.settings import Settings
from cupilot.storage.jobs.wall_time import Tick, record_tick
from cupilot.storage.operations.metrics import open_work, totals
from cupilot.storage.queue.cluster import SCHEDULER_LOCK, mark_unhealthy, register_worker
from tests.service.api.world import DEVICE, SOURCE, Team, World, live

pytestmark = pytest.mark.service

NOBODYS = "a0c2446c-97b9-435a-8dcd-eaad6b591c1f"
"""An id that no problem has; each process that collects the tests must name them alike."""


def test_builtin_problems_come_first_then_the_teams_own(team: Team, stranger: Team) -> None:
    stranger.submit(problem={"name": "secret", "source": SOURCE})
    for number in range(3):
        team.submit(problem={"name": f"mine {number}", "source": f"{SOURCE}# {number}\n"})
    page = ProblemPage.model_validate_json(team.http.get("/v1/problems", params={"limit": 2}).content)
    builtin = [problem.id for problem in page.items if problem.builtin]
    assert builtin == problems.names()
    own = [problem for problem in page.items if not problem.builtin]
    assert [problem.name for problem in own] == ["mine 2", "mine 1"]
    rest = ProblemPage.model_validate_json(
        team.http.get("/v1/problems", params={"limit": 2, "cursor": page.next_cursor}).content
    )
    assert [problem.name for problem in rest.items] == ["mine 0"]
    assert rest.next_cursor is None


def test_a_problem_shows_its_source(team: Team) -> None:
    job = team.submit()
    own = ProblemView.model_validate_json(team.http.get(f"/v1/problems/{job['problem']['id']}").content)
    assert (own.source, own.builtin, own.policy) == (SOURCE, False, "fp32")
    builtin = ProblemView.model_validate_json(team.http.get("/v1/problems/softmax").content)
    assert builtin.source == problems.load("softmax").source
    assert builtin.summary


@pytest.mark.parametrize("problem", ["nothing", NOBODYS, "%00", "..%2F..%2Fetc", "softmax%00"])
def test_a_problem_that_is_not_there_is_not_found(team: Team, problem: str) -> None:
    response = team.http.get(f"/v1/problems/{problem}")
    assert response.status_code == 404


def test_the_cluster_shows_workers_queues_and_the_scheduler(world: World, team: Team) -> None:
    with world.database.transaction() as session:
        register_worker(session, "gpu-1", WorkerKind.GPU, queues=["gpu.cpu"], slots=1, version="1", device=DEVICE)
        register_worker(session, "agent-1", WorkerKind.AGENT, queues=["agents"], slots=4, version="1", device=None)
        register_worker(session, "gpu-2", WorkerKind.GPU, queues=["gpu.cpu"], slots=1, version="1", device=DEVICE)
        mark_unhealthy(session, "gpu-2", "the device fell off the bus")
    team.submit()
    with world.database.engine.connect() as scheduler:
        scheduler.execute(text("SELECT pg_advisory_lock(:key)"), {"key": SCHEDULER_LOCK})
        _look(world, seconds_ago=300)
        assert not ClusterView.model_validate_json(team.http.get("/v1/cluster").content).scheduler_alive, "it hangs"
        _look(world, seconds_ago=0)
        view = ClusterView.model_validate_json(team.http.get("/v1/cluster").content)
        scheduler.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": SCHEDULER_LOCK})
    workers = {worker.name: worker for worker in view.workers}
    assert view.scheduler_alive
    assert workers["gpu-1"].alive
    assert workers["gpu-1"].device == DEVICE
    assert (workers["gpu-2"].alive, workers["gpu-2"].note) == (False, "the device fell off the bus")
    assert (workers["agent-1"].kind, workers["agent-1"].slots) == ("agent", 4)
    assert view.targets == ["cpu"]
    assert view.agents == ["playbook"]
    assert {queue.name: queue.queued for queue in view.queues}["gpu.cpu"] >= 1
    assert not ClusterView.model_validate_json(team.http.get("/v1/cluster").content).scheduler_alive


def _look(world: World, *, seconds_ago: float) -> None:
    """Record the look of a scheduler in charge."""
    with world.database.transaction() as session:
        at = session.scalars(text("SELECT extract(epoch FROM now())")).one()
        record_tick(session, Tick(uuid.uuid4(), float(at) - seconds_ago))


def test_health_and_version_need_no_key(world: World) -> None:
    with httpx.Client(base_url=world.url, timeout=60) as http:
        assert http.get("/healthz").json() == {"status": "ok"}
        assert http.get("/v1/version").json() == {"version": __version__, "api": "v1"}


def test_a_service_without_redis_and_chroma_is_ready_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = Settings(redis_url=SecretStr("redis://user:hunter2@127.0.0.1:1/0"), chroma_url="http://127.0.0.1:1")
    monkeypatch.setattr("api.readiness.settings", lambda: lonely)
    with httpx.Client(base_url=world.url, timeout=60) as http:
        response = http.get("/readyz")
    assert response.status_code == 200
    body = response.json()
    assert body["ready"]
    assert (body["checks"]["database"], body["checks"]["migrations"]) == ("ok", "ok")
    assert "does not answer" in body["checks"]["redis"]
    assert "does not answer" in body["checks"]["chroma"]
    for kind in ("agent", "gpu"):  # other tests of this database leave workers behind
        assert body["checks"][kind] in ("ok", f"no live {kind} worker: its steps wait")
    assert "hunter2" not in response.text


def test_without_a_database_the_service_is_alive_but_not_ready() -> None:
    nowhere = Settings(database_url=SecretStr("postgresql+psycopg2://nobody:hunter2@127.0.0.1:1/nothing"))
    app = create_app(nowhere)
    with live(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        assert http.get("/healthz").status_code == 200
        ready = http.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (503, False)
        answer = http.get("/v1/jobs", headers={"Authorization": "Bearer cpk_00000000_" + "x" * 43})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert answer.headers["Retry-After"] == "2"
        page = http.get("/ui", headers={"Cookie": "cupilot_key=cpk_00000000_" + "x" * 43})
        assert page.status_code == 503
        assert "migrations: the database does not answer" in page.text, "a page says what is down"
        assert "hunter2" not in ready.text + answer.text + page.text
    app.state.database.close()


@pytest.fixture
def unmigrated(database_url: str, world: World) -> Iterator[str]:
    with world.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE DATABASE unmigrated"))
        yield database_url.rsplit("/", 1)[0] + "/unmigrated"
        connection.execute(text("DROP DATABASE unmigrated WITH (FORCE)"))


def test_an_unmigrated_database_is_not_ready(unmigrated: str) -> None:
    app = create_app(Settings(database_url=SecretStr(unmigrated)))
    with live(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        response = http.get("/readyz")
        assert response.status_code == 503
        assert response.json()["checks"]["database"] == "ok"
        assert "migrations" in response.json()["checks"]["migrations"]
    app.state.database.close()


CALL = text(
    "INSERT INTO llm_calls (id, team_id, job_id, step_id, role, purpose, model, request, request_hash, state)"
    " SELECT :id, jobs.team_id, jobs.id, steps.id, 'translator', :purpose, 'm', '{}', '', :state"
    " FROM jobs JOIN steps ON steps.job_id = jobs.id WHERE jobs.id = :job"
)


def test_metrics_come_from_the_database_and_count_requests(world: World) -> None:
    team = world.team()
    job = team.submit()
    with world.database.transaction() as session:
        session.execute(
            text("INSERT INTO events (job_id, kind) VALUES (:job, 'step.reaped'), (:job, 'step.reaped')"),
            {"job": job["id"]},
        )
        session.execute(text("UPDATE jobs SET gpu_seconds = 12.5 WHERE id = :job"), {"job": job["id"]})
        session.execute(text("INSERT INTO outbox (topic, payload) VALUES ('step', '{}')"))
        for number, state in enumerate(("started", "started", "lost")):
            session.execute(CALL, {"id": uuid.uuid4(), "job": job["id"], "purpose": f"p{number}", "state": state})
    app = create_app(Settings(database_url=SecretStr(world.database.engine.url.render_as_string(hide_password=False))))
    with live(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        http.get(f"/v1/jobs/{job['id']}", headers={"Authorization": f"Bearer {team.key}"})
        first = metric_values(http.get("/metrics").text)
        team.submit()
        second = metric_values(http.get("/metrics").text)
    app.state.database.close()
    with world.database.transaction() as session:
        session.execute(text("DELETE FROM outbox"))
        name = session.execute(text("SELECT name FROM teams WHERE id = :id"), {"id": team.id}).scalar_one()
    assert first['cupilot_jobs{state="queued"}'] >= 1
    assert first['cupilot_steps_waiting{queue="gpu.cpu"}'] >= 1
    assert first['cupilot_oldest_waiting_step_seconds{queue="gpu.cpu"}'] > 0
    assert first["cupilot_lease_expirations_total"] >= 2
    assert first[f'cupilot_gpu_seconds_total{{team="{name}"}}'] == 12.5
    assert first["cupilot_outbox_unsent"] >= 1
    assert first['cupilot_llm_calls_open{model="m"}'] == 2
    calls = {name: count for name, count in first.items() if name.startswith("cupilot_llm_calls_total")}
    assert calls == {'cupilot_llm_calls_total{model="m",state="lost"}': 1}, "what is under way is not counted yet"
    assert first["cupilot_scheduler_up"] == 0
    counted = 'cupilot_http_request_duration_seconds_count{method="GET",route="/v1/jobs/{job}",status="200"}'
    assert first[counted] == 1
    # One look in a few seconds, however often somebody asks.
    assert second['cupilot_jobs{state="queued"}'] == first['cupilot_jobs{state="queued"}']
    assert second["cupilot_snapshot_age_seconds"] > first["cupilot_snapshot_age_seconds"]


def test_jobs_that_have_ended_are_counted_with_the_totals(world: World, team: Team) -> None:
    team.submit()
    team.http.post(f"/v1/jobs/{team.submit()['id']}/cancel")
    with world.database.transaction() as session:
        now, ended = open_work(session).jobs, totals(session).jobs
        assert now["queued"] >= 1
        assert "cancelled" not in now
        assert ended["cancelled"] >= 1
        assert "queued" not in ended
    values = metric_values(team.http.get("/metrics").text)
    assert {state for state in ("queued", "cancelled") if f'cupilot_jobs{{state="{state}"}}' in values}


RIGHT = "a token of some length"


@pytest.mark.parametrize(
    ("changes", "given", "status"),
    [
        ({"environment": "production"}, None, 404),
        ({"environment": "production", "metrics_token": RIGHT}, None, 401),
        ({"environment": "production", "metrics_token": RIGHT}, "wrong", 401),
        ({"environment": "production", "metrics_token": RIGHT}, RIGHT, 200),
    ],
)
def test_metrics_are_guarded(changes: dict[str, str], given: str | None, status: int) -> None:
    nowhere = "postgresql+psycopg2://nobody:hunter2@127.0.0.1:1/nothing"
    broker = "redis://:hunter2hunter2@127.0.0.1:1/0"
    app = create_app(Settings.model_validate({"database_url": nowhere, "redis_url": broker, **changes}))
    with live(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        response = http.get("/metrics", headers={"Authorization": f"Bearer {given}"} if given else {})
    app.state.database.close()
    assert response.status_code == status
    if status == 200:  # the database is away, and that is what they say
        assert metric_values(response.text)["cupilot_snapshot_failures_total"] == 2
        assert metric_values(response.text)["cupilot_snapshot_age_seconds"] > 0


def metric_values(exposition: str) -> dict[str, float]:
    """Samples by name and labels."""
    lines = [line.rpartition(" ") for line in exposition.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}
