"""Performance revisions: a right kernel made faster within its strategy, with the better of the two kept."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from cupilot.domain.evaluation import Verdict
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import AgentKind, Budgets
from cupilot.domain.states import CandidateState, EvaluationPurpose, JobState, LlmCallState, StepKind
from cupilot.reports.job import markdown
from cupilot.settings import Settings
from cupilot.storage.db.engine import Database
from cupilot.storage.db.tables.jobs import Candidate, EvaluationRow, KernelRow
from cupilot.storage.db.tables.pool import PoolRow
from cupilot.storage.jobs.candidate_views import candidate_view
from cupilot.storage.jobs.progress import rounds_of
from cupilot.storage.jobs.report_views import report
from tests.scripted_model import Reply, ScriptedModel
from tests.service.doubles import problem
from tests.service.method_models import competent, kind_of, text_of
from tests.service.rig import Message, Rig
from tests.service.workers.test_models import CALL_USD, ModelRig

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings(
        "ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning", "ignore:Item .* on TypedDict:UserWarning"
    ),
]

METHOD = SceConfig(population=2, generations=1, elites=1, repair_rounds=1, performance_rounds=1)
Script = Callable[[dict[str, Any]], Reply]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Nobody dies here unless he is killed: a lease must not run out on a machine that is busy with other things."""
    return settings.model_copy(update={"lease_seconds": 600.0})


def answering(source: str | None) -> Script:
    """Competent, but its performance revisions are this, or no kernel at all."""

    def script(request: dict[str, Any]) -> Reply:
        good = competent(request)
        if kind_of(request) != "improve":
            return good
        if source is None:
            return Reply(text="It is quick enough, I think.")
        return Reply(text=f"NOTE: other tiles\n```cpp\n{source} s{request['seed']}\n```\n```json\n{PLAN}\n```")

    return script


PLAN = '{"launches": [{"kernel": "k", "args": ["x", "out"]}]}'


def sources(rig: Rig, job_id: uuid.UUID) -> list[str]:
    with rig.database.transaction() as session:
        query = (
            select(KernelRow.source)
            .join(Candidate, Candidate.kernel_hash == KernelRow.hash)
            .where(Candidate.job_id == job_id)
            .order_by(Candidate.ordinal)
        )
        return [source.strip() for source in session.scalars(query)]


def kinds(rig: Rig, job_id: uuid.UUID) -> Counter[StepKind]:
    return Counter(step.kind for step in rig.steps(job_id))


def until(rig: Rig, job_id: uuid.UUID, key: str) -> Message:
    """Do everything else that is published with a step of this key, too; the step's message."""
    for _ in range(100):
        messages = rig.publish()
        wanted = rig.step_or_none(job_id, key)
        chosen = [message for message in messages if wanted is not None and message[1][0] == str(wanted.id)]
        for message in messages:
            if message not in chosen:
                rig.do(message)
        if chosen:
            return chosen[0]
    raise AssertionError(f"there is no step {key}")


def test_the_faster_kernel_becomes_the_candidate_and_the_pool_learns_what_it_was_made_from(
    database: Database, settings: Settings
) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
        job = rig.job(job_id)
        assert job.state is JobState.SUCCEEDED
        assert sources(rig, job_id) == ["t1 ; t1", "t2 ; t1"]
        assert [item.speedup for item in rig.candidates(job_id)] == [pytest.approx(1.2), pytest.approx(1.3)]
        assert kinds(rig, job_id)[StepKind.IMPROVE] == 2
        assert kinds(rig, job_id)[StepKind.EVALUATE] == 4
        prompt = next(text_of(item) for item in server.requests if kind_of(item) == "improve")
        assert "1.100 times as fast as PyTorch eager (95 % interval" in prompt
        assert "Nothing." in prompt.split("# What else was tried")[1]
        aligned = [text_of(item) for item in server.requests if kind_of(item) == "align"]
        assert all(" t1" in text.split('<data name="kernel">')[1] for text in aligned)
        assert job.cost_usd == pytest.approx(CALL_USD * len(server.paid))
        assert len(rig.calls(job_id)) == len(server.paid)
    first, _ = rig.candidates(job_id)
    with database.transaction() as session:
        trials = rounds_of(session, first)
        assert [trial.kernel.source.strip() for trial in trials] == ["t1 ;", "t1 ; t1"]
        view = candidate_view(session, job.team_id, job_id, "0")
        assert (view.repair_rounds, view.repairs) == (0, ["wider loads"])
        entries = session.scalars(select(PoolRow.body)).all()
        parents = {entry.kernel_hash: entry.parent_hash for entry in entries}
        assert parents[trials[1].kernel.content_hash()] == trials[0].kernel.content_hash()
        assert parents[trials[0].kernel.content_hash()] is None


@pytest.mark.parametrize("worse", ["t0", "wrong1", "cheat", "broken"])
def test_a_slower_a_wrong_and_an_unbelievable_kernel_leave_the_candidate_as_it_is(
    database: Database, settings: Settings, worse: str
) -> None:
    with ScriptedModel(answering(worse)) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
        assert len(rig.calls(job_id)) == len(server.paid)
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert sources(rig, job_id) == ["t1 ;", "t2 ;"]
    candidates = rig.candidates(job_id)
    assert [candidate.speedup for candidate in candidates] == [pytest.approx(1.1), pytest.approx(1.2)]
    assert all(candidate.aligned_strategy_id is not None for candidate in candidates)
    assert StepKind.REVISE not in kinds(rig, job_id)
    with database.transaction() as session:
        query = select(EvaluationRow).where(
            EvaluationRow.candidate_id == candidates[0].id, EvaluationRow.purpose == EvaluationPurpose.EVALUATE
        )
        measured = session.scalars(query).all()
        assert len(measured) == 2
        assert candidates[0].evaluation_id in {row.id for row in measured if row.verdict.counts}


def test_garbage_costs_two_calls_and_no_evaluation(database: Database, settings: Settings) -> None:
    with ScriptedModel(answering(None)) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        rig.run()
        asked = [item for item in server.paid if kind_of(item) == "improve"]
    assert len(asked) == 4
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert kinds(rig, job_id)[StepKind.EVALUATE] == 2
    assert all(item.aligned_strategy_id is not None for item in rig.candidates(job_id))
    assert {item.state for item in rig.candidates(job_id)} == {CandidateState.EVALUATED}


def test_the_next_round_begins_from_the_better_kernel_and_is_told_of_the_worse(
    database: Database, settings: Settings
) -> None:
    method = METHOD.model_copy(update={"performance_rounds": 2})
    with ScriptedModel(answering("t0")) as server:
        rig = ModelRig(database, settings, server)
        rig.submit(agents=AgentKind.LLM, method=method)
        rig.run()
        asked = [text_of(item) for item in server.requests if kind_of(item) == "improve"]
    assert len(asked) == 4
    second = next(text for text in asked if "other tiles" in text)
    assert '<data name="kernel">\nt1 ;\n' in second
    assert "other tiles: Verdict audited, 1.000 times as fast" in second


def test_no_revision_is_paid_for_that_could_not_be_measured(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD, budgets=Budgets(candidates=2))
        rig.run()
        assert "improve" not in {kind_of(request) for request in server.requests}
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert all(candidate.aligned_strategy_id is not None for candidate in rig.candidates(job_id))


def test_no_repair_is_paid_for_that_could_not_be_measured(database: Database, settings: Settings) -> None:
    def unlucky(request: dict[str, Any]) -> Reply:
        if kind_of(request) != "translate_strategy":
            return competent(request)
        return Reply(text=f"```cpp\nwrong1 s{request['seed']}\n```\n```json\n{PLAN}\n```")

    with ScriptedModel(unlucky) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD, budgets=Budgets(candidates=2))
        rig.run()
        assert "revise" not in {kind_of(request) for request in server.requests}
    assert {candidate.reason for candidate in rig.candidates(job_id)} == {"candidates_budget"}
    assert all(candidate.evaluation_id is not None for candidate in rig.candidates(job_id))


def test_a_report_shows_what_each_generation_came_to(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD.model_copy(update={"generations": 2}))
        rig.run()
    assert [(candidate.state, candidate.reason) for candidate in rig.candidates(job_id)] == [
        (CandidateState.EVALUATED, None)
    ] * 3
    with database.transaction() as session:
        found = report(session, rig.job(job_id).team_id, job_id)
    assert [(point.generation, point.candidates, point.counting) for point in found.trajectory] == [
        (1, 2, 2),
        (2, 1, 1),
    ]
    first, second = found.trajectory
    assert first.speedup == first.best_so_far == pytest.approx(1.3)
    assert second.best_so_far == max(first.speedup or 0, second.speedup or 0)
    assert "## By generation\n\n1. 2 of 2 count, highest median 1.30x, so far 1.30x\n2. 1 of 1 count" in markdown(found)


def test_later_jobs_are_shown_what_changes_were_worth_on_similar_problems(
    database: Database, settings: Settings
) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        rig.submit(agents=AgentKind.LLM, problem=problem("log_softmax"), method=METHOD)
        rig.run()
        assert not [item for item in server.requests if "lesson" in text_of(item)]
        server.requests.clear()
        rig.submit(agents=AgentKind.LLM, method=METHOD, seed=3)
        rig.submit(agents=AgentKind.LLM, method=METHOD.model_copy(update={"pool": False}), seed=4)
        rig.run()
        asked = [text_of(item) for item in server.requests if kind_of(item) == "translate_strategy"]
    told = [text for text in asked if '<data name="lesson">' in text]
    assert 0 < len(told) < len(asked)
    for text in told:
        learned = text.split("# What was learned on similar operators")[1].split("# Strategy to follow")[0]
        assert learned.split("over eager")[0].endswith("log_softmax: from 1.10x to 1.20x ")
        assert "log_softmax: from 1.10x to 1.20x over eager, 1.09 times as fast: wider loads" in learned
        kernels = re.findall(r'<data name="(\w+): kernel">\n(.*?)\n', learned)
        assert kernels == [("before", "t1 ;"), ("after", "t1 ; t1")]


def test_a_lesson_tells_the_change_that_gained_and_not_a_later_one(database: Database, settings: Settings) -> None:
    def improving(request: dict[str, Any]) -> Reply:
        good = competent(request)
        if kind_of(request) != "improve":
            return good
        source, note = ("t9", "other tiles") if "t9" not in text_of(request) else ("t0", "fewer stages")
        return Reply(text=f"NOTE: {note}\n```cpp\n{source} s{request['seed']}\n```\n```json\n{PLAN}\n```")

    with ScriptedModel(improving) as server:
        rig = ModelRig(database, settings, server)
        method = METHOD.model_copy(update={"performance_rounds": 2})
        rig.submit(agents=AgentKind.LLM, problem=problem("log_softmax"), method=method)
        rig.run()
        server.requests.clear()
        rig.submit(agents=AgentKind.LLM, method=METHOD, seed=3)
        rig.run()
        asked = [text_of(item) for item in server.requests if kind_of(item) == "translate_strategy"]
    told = [text for text in asked if '<data name="lesson">' in text]
    assert told
    assert all("times as fast: other tiles" in text and "fewer stages" not in text for text in told)


def test_templates_are_not_improved(database: Database, settings: Settings) -> None:
    rig = Rig(database, settings)
    job_id = rig.submit(method=METHOD)
    rig.run()
    assert rig.job(job_id).state is JobState.SUCCEEDED
    assert StepKind.IMPROVE not in kinds(rig, job_id)


def test_a_worker_that_dies_between_answer_and_measurement_pays_once(database: Database, settings: Settings) -> None:
    with ScriptedModel(competent) as server:
        rig = ModelRig(database, settings, server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        message = until(rig, job_id, "c0/improve/1")
        before = len(server.paid)
        whole = rig.tools

        def broken(kind: AgentKind, claim: Any, cancelled: Any) -> Any:
            agents = whole.agents(kind, claim, cancelled)

            class Revisor:
                def improve(self, *arguments: Any) -> Any:
                    agents.revisor.improve(*arguments)
                    raise RuntimeError("the worker breaks here")

            return replace(agents, revisor=Revisor())

        rig.tools = replace(whole, agents=broken)
        rig.do(message)
        rig.tools = whole
        assert len(server.paid) == before + 1
        rig.make_ready(uuid.UUID(message[1][0]))
        rig.run()
        assert rig.job(job_id).state is JobState.SUCCEEDED
        assert {call.state for call in rig.calls(job_id)} == {LlmCallState.ANSWERED}
        assert len(rig.calls(job_id)) == len(server.paid)
        assert rig.job(job_id).cost_usd == pytest.approx(CALL_USD * len(server.paid))
    assert sources(rig, job_id) == ["t1 ; t1", "t2 ; t1"]


def test_a_measurement_that_is_never_had_leaves_the_kernel_and_its_alignment(
    database: Database, settings: Settings
) -> None:
    with ScriptedModel(answering("lost")) as server:
        rig = ModelRig(database, settings.model_copy(update={"step_attempts": 1}), server)
        job_id = rig.submit(agents=AgentKind.LLM, method=METHOD)
        for _ in range(20):
            rig.run()
            for step in rig.steps(job_id):
                rig.make_ready(step.id)
    job = rig.job(job_id)
    assert job.state is JobState.SUCCEEDED
    assert [candidate.verdict for candidate in rig.candidates(job_id)].count(Verdict.REPRODUCED) >= 1
    assert all(candidate.aligned_strategy_id is not None for candidate in rig.candidates(job_id))
