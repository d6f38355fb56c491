"""Model steps in real processes that are killed at every point, by a model that misbehaves: each paid answer is used.

The short form of ``python -m benchmarks.model_faults``, which goes through all methods, points and faults.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr
from sqlalchemy import update
from sqlalchemy.orm import Session

from cupilot.domain.errors import Unavailable
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.model_call import Answer, Call
from cupilot.domain.states import JobState, LlmCallState
from cupilot.embedded.servers import Running
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.queue import Step
from cupilot.storage.db.transitions import lock_job
from cupilot.storage.jobs.endings import end_job
from cupilot.storage.queue.steps import Claim, claim_step
from tests.scripted_model import ScriptedModel
from tests.service.method_models import competent
from tests.service.model_faults.moods import FAULTS, SLOW, always, at_first
from tests.service.model_faults.sweep import Worker, run
from tests.service.model_faults.worker import Point
from tests.service.workers.test_models import ModelRig
from workers.ledger import StepLedger
from workers.reaper import reap

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning"),
]

LEASE = 600.0
"""Nobody's lease runs out here but of those who were killed."""


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"lease_seconds": LEASE})


@pytest.fixture(scope="module")
def worker(database_url: str, valkey: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    urls = {"database_url": SecretStr(database_url), "redis_url": SecretStr(valkey.url)}
    started = Worker(Settings(**urls), tmp_path_factory.mktemp("worker") / "log")
    yield started
    started.close()


@pytest.mark.parametrize(
    "method", ["sce", "sce, code crossover", "evoengineer-full", "ai-cuda-engineer", "sce, hybrid"]
)
def test_kills_and_bad_answers_cost_no_result_and_no_cent(
    database: Database, settings: Settings, worker: Worker, method: str
) -> None:
    usual = run(database, settings, worker, method, competent)
    assert (usual.state, usual.breaches) == (JobState.SUCCEEDED, [])
    faults = [name for name in FAULTS if name not in SLOW]
    hurt = run(database, settings, worker, method, at_first(faults), points=tuple(Point), rotate=True)
    assert (hurt.state, hurt.breaches) == (JobState.SUCCEEDED, [])
    assert hurt.departures(usual, bad_answers="hybrid" in method) == []
    assert hurt.kills
    assert hurt.lost >= sum(count for name, count in hurt.kills.items() if name.endswith((Point.SENT, "not stored")))


@pytest.mark.parametrize("fault", sorted(SLOW))
def test_a_model_that_never_finishes_an_answer_ends_the_job_and_no_cent_is_forgotten(
    database: Database, settings: Settings, worker: Worker, fault: str
) -> None:
    outcome = run(database, settings, worker, "sce", always(fault), slow=True)
    assert (outcome.state, outcome.breaches) == (JobState.FAILED, [])
    assert outcome.charged_usd == 0
    assert outcome.lost == len(outcome.asked) > 0
    assert outcome.reserved_usd >= sum(item.usd for item in outcome.asked)


class Late:
    """Two workers on one step: the first was taken for dead while its model thought."""

    def __init__(self, rig: ModelRig, budgets: Budgets | None = None) -> None:
        self.rig = rig
        self.job_id = rig.submit(agents=AgentKind.LLM, budgets=budgets or Budgets())
        _, (step, _), _ = rig.run_until(self.job_id, "initialise/0")
        self.step_id = uuid.UUID(step)

    def claim(self) -> Claim:
        with self.rig.database.transaction() as session:
            step = self.rig.step(self.job_id, "initialise/0")
            claim = claim_step(session, self.step_id, step.attempt, "llm-1", timedelta(seconds=LEASE))
        assert claim is not None
        return claim

    def lose(self) -> None:
        """The lease runs out."""
        with self.rig.database.transaction() as session:
            gone = datetime(2020, 1, 1, tzinfo=UTC)
            session.execute(update(Step).where(Step.id == self.step_id).values(lease_expires_at=gone))
        reap(self.rig.database)
        self.rig.make_ready(self.step_id)

    def calls(self) -> list[tuple[LlmCallState, float]]:
        return [(call.state, call.cost_usd) for call in self.rig.calls(self.job_id)]


def call(prompt: str = "strategies, please") -> Call:
    """Worth at most a dollar."""
    messages = ({"role": "user", "content": prompt},)
    return Call(role="manager", purpose="initial", model="m", prompt_hash="0", messages=messages, worst_cost_usd=0.5)


def answer(usd: float) -> Answer:
    return Answer(text="{}", prompt_tokens=1, completion_tokens=1, cost_usd=usd)


@pytest.fixture
def late(database: Database, settings: Settings) -> Iterator[Late]:
    with ScriptedModel(competent) as server:
        yield Late(ModelRig(database, settings, server))


def test_a_worker_that_was_taken_for_dead_settles_its_own_call_and_no_other(database: Database, late: Late) -> None:
    first = StepLedger(database, late.claim(), lambda: False)
    assert first.begin(call()) is None
    late.lose()
    assert late.calls() == [(LlmCallState.LOST, 0.5)]
    second = StepLedger(database, late.claim(), lambda: False)
    assert second.begin(call()) is None
    first.answered(call(), answer(0.1))
    assert late.calls() == [(LlmCallState.ANSWERED, 0.1), (LlmCallState.STARTED, 0.5)]
    second.answered(call(), answer(0.2))
    assert late.calls() == [(LlmCallState.ANSWERED, 0.1), (LlmCallState.ANSWERED, 0.2)]
    assert late.rig.job(late.job_id).cost_usd == pytest.approx(0.3)


def test_budgets_are_warned_of_by_what_stays_reserved_for_lost_calls_too(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = settings.model_copy(update={"team_model_usd": 2.0})
    monkeypatch.setattr("cupilot.storage.models.money.settings_of", lambda _session: limited)
    with ScriptedModel(competent) as server:
        late = Late(ModelRig(database, settings, server), Budgets(cost_usd=1.25))

        def warned() -> list[tuple[str, float, float]]:
            told = late.rig.told(late.job_id, "budget.warned")
            return [(data["budget"], data["share"], data["spent_usd"]) for data in told]

        silent = StepLedger(database, late.claim(), lambda: False)
        silent.begin(call())
        late.lose()
        assert warned() == []
        second = StepLedger(database, late.claim(), lambda: False)
        second.begin(call())
        second.answered(call(), answer(0.2))
        assert warned() == [("cost_budget", 0.5, pytest.approx(0.7))]
        other = call("strategies, again").model_copy(update={"purpose": "other"})
        second.begin(other)
        second.failed(other, "timeout", lost=True)
        assert warned()[1:] == [("cost_budget", 0.8, pytest.approx(1.2)), ("team_budget", 0.5, pytest.approx(1.2))]
        silent.answered(call(), answer(0.1))
        assert len(warned()) == 3
        assert late.rig.job(late.job_id).cost_usd == pytest.approx(0.3)


def test_a_stored_answer_stands_although_the_next_attempt_would_ask_in_other_words(
    database: Database, late: Late
) -> None:
    first = StepLedger(database, late.claim(), lambda: False)
    assert first.begin(call()) is None
    first.answered(call(), answer(0.1))
    late.lose()
    assert StepLedger(database, late.claim(), lambda: False).begin(call("strategies, but not those")) == answer(0.1)
    assert late.rig.job(late.job_id).cost_usd == pytest.approx(0.1)


def test_a_paid_answer_waits_for_a_database_that_is_away_and_is_charged_once(database: Database, late: Late) -> None:
    away = [True, True]

    class Restarting(Database):
        """Gone once before and once after the answer is committed."""

        def __init__(self) -> None:
            pass

        @contextmanager
        def transaction(self) -> Iterator[Session]:
            if away == [True, True]:
                away.pop()
                raise Unavailable("the database does not answer")
            with database.transaction() as session:
                yield session
            if away:
                away.pop()
                raise Unavailable("the connection to the database was lost")

    ledger = StepLedger(database, late.claim(), lambda: False, sleep=lambda _: None)
    assert ledger.begin(call()) is None
    ledger._database = Restarting()
    ledger.answered(call(), answer(0.1))
    assert late.calls() == [(LlmCallState.ANSWERED, 0.1)]
    assert late.rig.job(late.job_id).cost_usd == pytest.approx(0.1)


def test_a_job_that_ends_meanwhile_leaves_no_call_on_its_way(database: Database, late: Late) -> None:
    ledger = StepLedger(database, late.claim(), lambda: False)
    assert ledger.begin(call()) is None
    with database.transaction() as session:
        job = lock_job(session, late.job_id)
        end_job(session, job, JobState.BUDGET_EXHAUSTED, reason="wall_budget")
    assert late.calls() == [(LlmCallState.LOST, 0.5)]
    ledger.answered(call(), answer(0.1))
    assert late.calls() == [(LlmCallState.ANSWERED, 0.1)]
