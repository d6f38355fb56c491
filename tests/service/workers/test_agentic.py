"""Kernels that a model works on with tools: turns, measurements, what stands in the end, and what is paid."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from cupilot.domain.evaluation import Verdict
from cupilot.domain.evolution.agentic import AgenticConfig
from cupilot.domain.evolution.population import Operator
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.states import CandidateState, JobState, LlmCallState, StepKind
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.call_views import call_view
from cupilot.storage.jobs.progress import rounds_of, strategy_of
from tests.scripted_model import Reply, ScriptedModel
from tests.service.method_models import PLAN, competent, text_of
from tests.service.rig import Rig
from tests.service.workers.test_models import CALL_USD, ModelRig
from tests.service.workers.test_performance import kinds, sources

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings(
        "ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning", "ignore:Item .* on TypedDict:UserWarning"
    ),
]

METHOD = AgenticConfig(generations=1, agents=1, measurements=4)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Nobody dies here unless he is killed: a lease must not run out on a machine that is busy with other things."""
    return settings.model_copy(update={"lease_seconds": 600.0})


class Working:
    """A model that has these kernels measured, one a turn, each after a look at what it knows; then it finishes."""

    def __init__(self, *kernels: str) -> None:
        self.kernels = kernels

    def __call__(self, request: dict[str, Any]) -> Reply:
        if "tools" not in request:
            return competent(request)
        text, again = text_of(request), request["messages"][-1]["role"] == "tool"
        measured = text.split("# What you have measured so far")[1].count("Verdict ")
        if not again:
            return _call("details", number=measured) if measured else _call("techniques")
        if measured == len(self.kernels):
            return _call("finish", why="done")
        source = f"{self.kernels[measured]} s{request['seed']}"
        named = {"why": f"try {source}", "note": f"saw {measured}", "name": f"number {measured}"}
        return _call("measure", source=source, plan=json.loads(PLAN), **named)


def _call(tool: str, **arguments: Any) -> Reply:
    return Reply(text=None, finish_reason="tool_calls", tool_calls=((tool, json.dumps(arguments)),))


def _measure(source: str) -> Reply:
    return _call("measure", source=source, plan=json.loads(PLAN), why=f"try {source}")


class _Stubborn:
    """A model that begins with the first kernel whatever its seed, and goes to the next where that is refused."""

    def __init__(self, *kernels: str) -> None:
        self.kernels = kernels

    def __call__(self, request: dict[str, Any]) -> Reply:
        if "tools" not in request:
            return competent(request)
        text = text_of(request)
        measured = text.split("# What you have measured so far")[1].count("Verdict ")
        if measured == 2:
            return _call("finish", why="done")
        if "already has it from another candidate" in text:
            return _measure(f"{self.kernels[measured]} s{request['seed']}")
        return _measure(self.kernels[measured])


def speeds(rig: Rig, job_id: uuid.UUID) -> Sequence[float | None]:
    return [candidate.speedup for candidate in rig.candidates(job_id)]


def test_turns_and_measurements_alternate_until_the_agent_finishes(database: Database, settings: Settings) -> None:
    with ScriptedModel(Working("wrong1", "t1", "t3")) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
        job = rig.job(job_id)
        prompts = [text_of(request) for request in server.requests if "tools" in request]
    assert job.state is JobState.SUCCEEDED
    assert speeds(rig, job_id) == [pytest.approx(1.3)]
    assert kinds(rig, job_id) == Counter(
        {StepKind.PREPARE: 1, StepKind.ACT: 4, StepKind.EVALUATE: 3, StepKind.CONFIRM: 1}
    )
    assert "saw 2" in prompts[-1]
    assert "wrong_value" in prompts[2]
    calls = rig.calls(job_id)
    assert {call.state for call in calls} == {LlmCallState.ANSWERED}
    assert len(calls) == len(server.paid) == 8
    assert job.cost_usd == pytest.approx(CALL_USD * 8)
    (candidate,) = rig.candidates(job_id)
    assert candidate.operator is Operator.AGENTIC
    assert candidate.notes.book.tool_calls == 8
    with database.transaction() as session:
        view = call_view(session, job.team_id, job_id, calls[1].id)
        assert [tool.name for tool in view.tool_calls] == ["measure"]
        assert [turn.role for turn in view.messages] == ["system", "user", "assistant", "tool"]
        assert view.messages[2].tool_calls[0].name == "techniques"


def test_each_measured_kernel_carries_what_its_own_source_shows(database: Database, settings: Settings) -> None:
    sources = ("t1\n#pragma omp parallel for", "t3\n#pragma omp simd", "t2 __builtin_prefetch")
    with ScriptedModel(Working(*sources)) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
    (candidate,) = rig.candidates(job_id)
    assert candidate.speedup == pytest.approx(1.3)
    with database.transaction() as session:
        shown = [(trial.strategy.ids(), trial.strategy.rationale[:6]) for trial in rounds_of(session, candidate)]
        assert shown == [(("threads",), "try t1"), (("simd",), "try t3"), (("prefetch",), "try t2")]
        assert strategy_of(session, candidate).ids() == ("simd",)
        entries = session.scalars(select(PoolRow.body)).all()
        learned = sorted((entry.speedup, *entry.strategy.ids()) for entry in entries)
        assert [names for _, *names in learned] == [["threads"], ["prefetch"], ["simd"]]
    assert candidate.notes.insight.startswith("try t3")
    assert candidate.notes.name == "number 1"


def test_a_kernel_that_another_candidate_has_ends_no_work(database: Database, settings: Settings) -> None:
    twins = METHOD.model_copy(update={"agents": 2})
    with ScriptedModel(_Stubborn("t1", "t2", "t3")) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=twins)
        rig.run()
        prompts = [text_of(request) for request in server.requests if "tools" in request]
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert {candidate.state for candidate in rig.candidates(job_id)} == {CandidateState.EVALUATED}
    assert sum("already has it from another candidate" in prompt for prompt in prompts) > 0
    assert kinds(rig, job_id)[StepKind.EVALUATE] == 4


def test_an_agent_that_only_repeats_others_ends_with_its_budget(database: Database, settings: Settings) -> None:
    twins = METHOD.model_copy(update={"agents": 2, "tool_calls": 6})
    with ScriptedModel([_measure("t1")]) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=twins)
        rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    ends = {(candidate.state, candidate.reason) for candidate in rig.candidates(job_id)}
    assert (CandidateState.FAILED, "agent_budget") in ends


@pytest.mark.parametrize("worse", ["t0", "wrong1", "cheat", "broken"])
def test_the_fastest_right_kernel_stands_whatever_came_after(
    database: Database, settings: Settings, worse: str
) -> None:
    with ScriptedModel(Working("t2", worse, worse + " ;")) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert speeds(rig, job_id) == [pytest.approx(1.2)]
    assert sources(rig, job_id)[0].startswith("t2 s")


def test_measurements_end_with_the_candidates_budget(database: Database, settings: Settings) -> None:
    method = METHOD.model_copy(update={"measurements": 2})
    with ScriptedModel(Working("t1", "t2", "t3")) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=method)
        rig.run()
    assert speeds(rig, job_id) == [pytest.approx(1.2)]
    assert kinds(rig, job_id)[StepKind.EVALUATE] == 2


def test_kernels_that_are_all_wrong_end_without_one(database: Database, settings: Settings) -> None:
    with ScriptedModel(Working("wrong1", "wrong2")) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
    assert rig.job(job_id).state is JobState.FAILED
    (candidate,) = rig.candidates(job_id)
    assert (candidate.state, candidate.verdict) == (CandidateState.EVALUATED, Verdict.REJECTED)


def test_a_turn_that_breaks_off_is_gone_through_again_and_paid_once(database: Database, settings: Settings) -> None:
    with ScriptedModel(Working("t1", "t2")) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        message = rig.run_until(job_id, "c0/act/1")
        before, whole = len(server.paid), rig.tools

        def broken(kind: AgentKind, claim: Any, cancelled: Any) -> Any:
            agents = whole.agents(kind, claim, cancelled)

            class Agent:
                def act(self, *arguments: Any) -> Any:
                    agents.agent.act(*arguments)
                    raise RuntimeError("the worker breaks here")

            return replace(agents, agent=Agent())

        rig.tools = replace(whole, agents=broken)
        rig.do(message)
        rig.tools = whole
        assert len(server.paid) == before + 2
        rig.make_ready(uuid.UUID(message[1][0]))
        rig.run()
        assert rig.job(job_id).state is JobState.SUCCEEDED
        assert len(rig.calls(job_id)) == len(server.paid)
        assert rig.job(job_id).cost_usd == pytest.approx(CALL_USD * len(server.paid))
    assert speeds(rig, job_id) == [pytest.approx(1.2)]


def test_a_jobs_evaluations_and_money_bound_the_work_too(database: Database, settings: Settings) -> None:
    with ScriptedModel(Working("t1", "t2", "t3")) as server:
        rig = ModelRig(database, settings, server)
        few = rig.submit(agents=AgentKind.LLM, method=METHOD, budgets=Budgets(candidates=2))
        poor = rig.submit(agents=AgentKind.LLM, method=METHOD, seed=5, budgets=Budgets(cost_usd=CALL_USD))
        rig.run()
    assert speeds(rig, few) == [pytest.approx(1.2)]
    assert rig.job(poor).state is JobState.BUDGET_EXHAUSTED
    assert rig.job(poor).cost_usd == 0


def test_in_sce_agents_work_on_the_best_kernels_beside_crossovers(database: Database, settings: Settings) -> None:
    method = SceConfig(population=3, generations=2, elites=1, performance_rounds=0, agentic=1, agentic_measurements=2)
    with ScriptedModel(Working("t8", "t9")) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=method)
        rig.run()
        prompts = [text_of(request) for request in server.requests if "tools" in request]
    operators = Counter(candidate.operator for candidate in rig.candidates(job_id))
    assert operators == Counter({Operator.INITIAL: 3, Operator.AGENTIC: 1, Operator.CROSSOVER: 1})
    worked_on = next(item for item in rig.candidates(job_id) if item.operator is Operator.AGENTIC)
    assert worked_on.speedup == pytest.approx(1.9)
    assert worked_on.aligned_strategy_id is not None
    assert "1.300 times as fast" in prompts[0].split("# What you begin from")[1]
