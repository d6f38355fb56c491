"""Jobs whose agents are language models: a scripted server over HTTP, the ledger in Postgres."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select

from agents.interface import Agents, Attempt, Briefing
from agents.llm.assembly import hybrid, llm
from agents.llm.ledger import MemoryLedger
from agents.llm.models import Model, RoleModels
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.states import JobState, LlmCallState, StepKind, StepState, WorkerKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Event
from cupilot.storage.db.tables.models import LlmCall
from cupilot.storage.db.tables.pool import NovelTechnique
from cupilot.storage.jobs.jobs import request_cancel
from cupilot.storage.queue.cluster import register_worker
from cupilot.storage.queue.steps import MODELS_QUEUE, Claim, claim_step
from tests.scripted_model import Reply, Script, ScriptedModel
from tests.service.doubles import preparation
from tests.service.rig import Message, Rig, job_spec
from workers.devices import StepCancelled
from workers.ledger import StepLedger
from workers.steps import run_step

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings(
        "ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning", "ignore:Item .* on TypedDict:UserWarning"
    ),
]

CALL_USD = 100 * 1e-6 + 50 * 10e-6
"""Cost of one scripted call at 1 and 10 dollars a million tokens."""


def competent(request: dict[str, Any]) -> Reply:
    """Knows its trade: strategies ``t1`` to ``t4``, their unions, kernels that name their techniques."""
    text = request["messages"][1]["content"]
    if "different strategies" in text:
        made = [{"techniques": [{"id": f"t{number}x"}], "rationale": "idea"} for number in range(1, 5)]
        return Reply(text=json.dumps({"strategies": made}))
    if "You combine two" in text:
        parents = text.split("# First parent")[1].split("# Techniques you may use")[0]
        names = sorted(set(re.findall(r'"id": "(t\d+x)"', parents)))
        return Reply(text=json.dumps({"techniques": [{"id": name} for name in names], "rationale": "both"}))
    if "Rewrite the strategy" in text:
        source = text.split('<data name="kernel">')[1].split("</data>")[0].strip()
        uses = [{"id": f"{name}x", "evidence": source} for name in source.split()]
        return Reply(text=json.dumps({"techniques": uses, "rationale": "read"}))
    names = re.findall(r'"id": "(t\d+)x"', text.split("# Strategy")[1].split("# Kernel to start from")[0])
    plan = {"launches": [{"kernel": "k", "args": ["x", "out"]}]}
    return Reply(text=f"```cpp\n{' '.join(names)}\n```\n```json\n{json.dumps(plan)}\n```")


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Nobody dies here unless he is killed: a lease must not run out on a machine that is busy with other things."""
    return settings.model_copy(update={"lease_seconds": 600.0})


class ModelRig(Rig):
    """A rig whose agent worker has a model."""

    def __init__(self, database: Database, settings: Settings, server: ScriptedModel) -> None:
        super().__init__(database, settings)
        scripted = Model(
            name="openai/scripted",
            api_base=server.api_base,
            input_usd_per_million=1.0,
            output_usd_per_million=10.0,
            max_output_tokens=1_000,
        )
        models = RoleModels(default=(scripted,))

        def agents(kind: AgentKind, claim: Claim, cancelled: Callable[[], bool]) -> Agents:
            return (llm if kind is AgentKind.LLM else hybrid)(models, StepLedger(database, claim, cancelled))

        self.tools = replace(self.tools, agents=agents)
        with database.transaction() as session:
            register_worker(
                session, "llm-1", WorkerKind.AGENT, queues=[MODELS_QUEUE], slots=1, version="test", device=None
            )

    def told(self, job_id: uuid.UUID, kind: str) -> list[dict[str, Any]]:
        """Data of a job's events of a kind."""
        query = select(Event.data).where(Event.job_id == job_id, Event.kind == kind).order_by(Event.id)
        with self.database.transaction() as session:
            return list(session.scalars(query))

    def calls(self, job_id: uuid.UUID) -> list[LlmCall]:
        with self.database.transaction() as session:
            return list(session.scalars(select(LlmCall).where(LlmCall.job_id == job_id).order_by(LlmCall.created_at)))


def test_a_model_evolves_a_job_and_every_cent_is_accounted_for(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM)
        rig.run()
        job = rig.job(job_id)
        assert job.state is JobState.SUCCEEDED
        best = max(rig.candidates(job_id), key=lambda one: one.speedup or 0)
        assert best.generation_id != rig.candidates(job_id)[0].generation_id
        calls = rig.calls(job_id)
        assert {call.state for call in calls} == {LlmCallState.ANSWERED}
        assert len(calls) == len(server.paid)
        assert job.cost_usd == pytest.approx(CALL_USD * len(server.paid))
        assert all(call.request.prompt_hash and call.response.text for call in calls if call.response)


def test_an_answer_that_was_stored_is_not_paid_again_when_its_step_is_repeated(
    database: Database, settings: Settings
) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM)
        message = rig.run_until(job_id, "initialise/0")
        _die_after_the_answer(rig, message)
        assert len(server.paid) == 1
        rig.make_ready(uuid.UUID(message[1][0]))
        rig.run()
        assert rig.job(job_id).state is JobState.SUCCEEDED
        assert len(rig.calls(job_id)) == len(server.paid)
        assert rig.job(job_id).cost_usd == pytest.approx(CALL_USD * len(server.paid))


def _die_after_the_answer(rig: Rig, message: Message) -> None:
    """A worker that breaks between the stored answer and its use."""
    whole = rig.tools

    def broken(kind: AgentKind, claim: Any, cancelled: Any) -> Any:
        agents = whole.agents(kind, claim, cancelled)

        class Manager:
            def initial_strategies(self, *arguments: Any, **named: Any) -> Any:
                agents.manager.initial_strategies(*arguments, **named)
                raise RuntimeError("the worker breaks here")

        return replace(agents, manager=Manager())

    rig.tools = replace(whole, agents=broken)
    rig.do(message)
    rig.tools = whole


@pytest.mark.parametrize(
    "script",
    [
        [Reply(text="I am sorry, but I cannot help with that.")],
        [Reply(text="")],
        [Reply(status=401)],
        [Reply(text='{"strategies": [{"techniques": "all"}]}')],
    ],
    ids=["refuses", "empty", "unauthorised", "wrong-schema"],
)
def test_a_useless_model_ends_the_job_cleanly_with_a_reason(
    database: Database, settings: Settings, script: Script
) -> None:
    with ScriptedModel(script) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM)
        rig.run()
        job = rig.job(job_id)
        assert job.state is JobState.FAILED
        assert job.reason in ("bad_model_answer", "model_unavailable")
        assert job.message
        assert "openai/scripted" in job.message
        silent = job.reason == "model_unavailable"
        assert ("cupilot models test" if silent else "choose a more capable one") in job.message
        assert job.cost_usd == pytest.approx(CALL_USD * len(server.paid))


def test_odd_characters_and_numbers_fail_no_job(database: Database, settings: Settings) -> None:
    odd = {"id": "odd_idea", "meaning": "a\0b\ud800c", "parameters": {"n": "\0"}}
    seen: list[str] = []

    def oddly(request: dict[str, Any]) -> Reply:
        seen.append(request["messages"][-1]["content"])
        if len(seen) == 1:
            return Reply(text='{"strategies": [' + "9" * 5_000 + "]}")
        if len(seen) == 2:
            uses = [{"techniques": [odd], "rationale": "\0"}, {"techniques": [{"id": "t1x"}]}]
            return Reply(text=json.dumps({"strategies": uses}))
        return competent(request)

    with ScriptedModel(oddly) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=SceConfig(population=2, generations=1, elites=1))
        rig.run()
    assert "cannot be used" in seen[1]
    assert rig.job(job_id).state is JobState.SUCCEEDED
    with database.transaction() as session:
        assert "a\ufffdb\ufffdc" in session.scalars(select(NovelTechnique.meaning)).all()


def test_a_worker_at_fault_is_not_blamed_on_kernels(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        whole = rig.tools

        def broken(*_: Any) -> Any:
            raise RuntimeError("the worker is at fault")

        rig.tools = replace(whole, agents=broken)
        job_id = rig.submit(agents=AgentKind.LLM)
        while not rig.job(job_id).state.final:
            rig.run()
            for step in rig.steps(job_id):
                rig.make_ready(step.id)
    assert rig.job(job_id).reason == "internal_error"
    assert "Kernels were written" not in (rig.job(job_id).message or "")


def test_a_model_that_writes_no_kernel_leaves_a_job_without_one(database: Database, settings: Settings) -> None:
    def planner(request: dict[str, Any]) -> Reply:
        wants_code = "```json" in request["messages"][1]["content"].rpartition("# Answer")[2]
        return Reply(text="as you wish") if wants_code else competent(request)

    with ScriptedModel(planner) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=SceConfig(population=2, generations=1, elites=1))
        rig.run()
        assert (rig.job(job_id).state, rig.job(job_id).reason) == (JobState.FAILED, "no_valid_kernel")
        assert {candidate.reason for candidate in rig.candidates(job_id)} == {"bad_model_answer"}
        message = rig.job(job_id).message or ""
        for words in ("2 bad_model_answer", "of 5 model calls 4 answers were unusable", "no fenced", "more capable"):
            assert words in message


def test_a_job_never_spends_more_than_its_budget(database: Database, settings: Settings) -> None:
    # The worst case of one call is some 12 tenths of a cent: 1,000 tokens out, a prompt of some 2,000 tokens in.
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, budgets=Budgets(cost_usd=0.03))
        rig.run()
        job = rig.job(job_id)
        assert job.state.final
        assert 0 < job.cost_usd <= 0.03
        assert job.cost_usd == pytest.approx(CALL_USD * len(server.paid))


def test_a_job_whose_money_pays_for_no_further_call_ends_as_exhausted_and_warns_on_the_way(
    database: Database, settings: Settings
) -> None:
    # An answer of 0.0091 dollars each time; the worst case of a call is some two cents.
    with ScriptedModel(lambda request: replace(competent(request), completion_tokens=900)) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, budgets=Budgets(cost_usd=0.06, call_usd=1.0))
        rig.run()
        job = rig.job(job_id)
        assert (job.state, job.reason) == (JobState.BUDGET_EXHAUSTED, "cost_budget")
        assert [data["budget"] for data in rig.told(job_id, "budget.reached")] == ["cost_budget"]
        assert [data["share"] for data in rig.told(job_id, "budget.warned")][:1] == [0.5]
        assert job.cost_usd == pytest.approx(0.0091 * len(server.paid))


@pytest.mark.parametrize("reply", [Reply(text="no strategies"), Reply(status=503)], ids=["repair", "retry"])
def test_a_cancelled_job_pays_no_further_call(database: Database, settings: Settings, reply: Reply) -> None:
    def cancelling(_request: dict[str, Any]) -> Reply:
        with database.transaction() as session:
            request_cancel(session, rig.job(job_id).team_id, job_id)
        return reply

    with ScriptedModel(cancelling) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM)
        rig.run()
        assert len(server.requests) == 1
        assert rig.job(job_id).state is JobState.CANCELLED


def test_a_wait_for_the_provider_ends_with_the_job(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM)
        message = rig.run_until(job_id, "initialise/0")
        with database.transaction() as session:
            claim = claim_step(session, uuid.UUID(message[1][0]), message[1][1], "w", timedelta(minutes=5))
        assert claim is not None
        slept: list[float] = []
        ledger = StepLedger(database, claim, lambda: len(slept) > 5, sleep=slept.append)
        ledger.pause(3.0)
        assert sum(slept) == 3.0
        with pytest.raises(StepCancelled, match="its worker ends"):
            ledger.pause(600.0)
        assert sum(slept) < 20
        slept.clear()
        with database.transaction() as session:
            request_cancel(session, rig.job(job_id).team_id, job_id)
        with pytest.raises(StepCancelled, match="nobody waits"):
            ledger.pause(600.0)
        assert sum(slept) < 10


def test_a_worker_that_ends_awaits_the_call_in_flight_and_another_goes_on_after_it(
    database: Database, settings: Settings
) -> None:
    ending = threading.Event()

    def complained_of(request: dict[str, Any]) -> Reply:
        reply = Reply(text="no strategies") if not ending.is_set() else competent(request)
        ending.set()  # SIGTERM comes while the call is in flight
        return reply

    with ScriptedModel(complained_of) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM)
        message = rig.run_until(job_id, "initialise/0")
        run_step(uuid.UUID(message[1][0]), message[1][1], "llm-1", rig.tools, ending.is_set)
        step = rig.step(job_id, "initialise/0")
        assert (step.state, step.attempt, len(server.paid)) == (StepState.QUEUED, 1, 1), "given back, uncharged"
        assert [call.state for call in rig.calls(job_id)] == [LlmCallState.ANSWERED]
        rig.make_ready(step.id)
        rig.do(rig.publish()[0])
        assert rig.step(job_id, "initialise/0").state is StepState.SUCCEEDED
        assert len(server.paid) == 2, "the answer that was stored is not paid again"


def test_a_call_that_is_too_dear_is_refused_alone(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, budgets=Budgets(call_usd=0.001))
        rig.run()
        assert (rig.job(job_id).state, rig.job(job_id).reason) == (JobState.FAILED, "call_budget")
        assert not server.paid


def test_a_team_s_money_is_one_purse_for_all_its_jobs(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = settings.model_copy(update={"team_model_usd": 0.05})
    monkeypatch.setattr("cupilot.storage.models.money.settings_of", lambda _session: limited)
    with ScriptedModel(lambda request: replace(competent(request), completion_tokens=900)) as server:
        rig = ModelRig(database, settings, server)
        jobs = [rig.submit(agents=AgentKind.LLM, seed=seed) for seed in range(2)]
        rig.run()
        ends = {(rig.job(job_id).state, rig.job(job_id).reason) for job_id in jobs}
        assert (JobState.BUDGET_EXHAUSTED, "team_budget") in ends
        spent = sum(rig.job(job_id).cost_usd for job_id in jobs)
        assert spent == pytest.approx(0.0091 * len(server.paid))
        assert spent <= 0.05
        warned = [data["share"] for job_id in jobs for data in rig.told(job_id, "budget.warned")]
        assert warned in ([0.5], [0.5, 0.8])


def test_an_equal_call_of_the_team_is_answered_from_what_was_paid_unless_switched_off(
    database: Database, settings: Settings
) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        alone = SceConfig(population=4, generations=2, elites=1, pool=False)
        first = rig.submit(agents=AgentKind.LLM, seed=1, method=alone)
        rig.run()
        paid = len(server.paid)
        again = rig.submit(agents=AgentKind.LLM, seed=1, method=alone)
        rig.run()
        assert rig.job(again).state is JobState.SUCCEEDED
        assert len(server.paid) == paid
        assert rig.job(again).cost_usd == 0
        assert all(call.cached for call in rig.calls(again))
        assert not any(call.cached for call in rig.calls(first))
        other = rig.submit(agents=AgentKind.LLM, seed=1, method=alone, team="green")
        fresh = rig.submit(agents=AgentKind.LLM, seed=1, method=alone, budgets=Budgets(reuse_answers=False))
        rig.run()
        assert rig.job(other).cost_usd == rig.job(fresh).cost_usd == rig.job(first).cost_usd
        assert len(server.paid) == 3 * paid


def test_steps_of_models_wait_for_a_worker_that_has_one(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    job_id = rig.submit(agents=AgentKind.LLM)
    rig.run()
    waiting = [step for step in rig.steps(job_id) if step.kind is StepKind.INITIALISE]
    assert [step.queue for step in waiting] == [MODELS_QUEUE]
    with database.transaction() as session:
        assert session.scalar(select(func.count()).select_from(LlmCall)) == 0


def test_hybrid_agents_ask_the_model_only_where_the_playbook_has_no_template() -> None:
    spec = job_spec()
    with ScriptedModel(competent) as server:
        model = Model(name="openai/scripted", api_base=server.api_base)
        players = hybrid(RoleModels(default=(model,)), MemoryLedger())
        # The doubles' graph names softmax without its dimension, so no template fits it.
        unknown = Briefing.of(spec, preparation(spec.problem))
        assert players.manager.initial_strategies(unknown, [], 4, 1)
        assert len(server.paid) == 1
        node = unknown.facts.graph.nodes[0].model_copy(update={"args": ({"ref": "x"}, 1, False)})
        graph = unknown.facts.graph.model_copy(update={"nodes": (node,)})
        known = unknown.model_copy(update={"facts": unknown.facts.model_copy(update={"graph": graph})})
        seeds = players.manager.initial_strategies(known, [], 4, 1)
        rendered = players.translator.translate(known, seeds[0].strategy, (), 1)
        attempt = Attempt(strategy=seeds[0].strategy, kernel=rendered)
        assert players.translator.align(known, attempt).fidelity > 0
        assert len(server.paid) == 1
        changed = rendered.model_copy(update={"source": rendered.source + "\n"})
        players.translator.align(known, attempt.model_copy(update={"kernel": changed}))
        assert len(server.paid) > 1, "no template wrote that: a model reads it"
