"""A model that words diagnoses and reads code: believed only as far as rules, source and binary go."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agents.interface import Advice, Attempt, Briefing, Diagnosis
from agents.llm.alignment import AligningTranslator
from agents.llm.gateway import Gateway, ModelUnavailable, Question, T
from agents.llm.ledger import MemoryLedger
from agents.llm.models import AgentRole, Model, RoleModels
from agents.llm.prophet import LlmProphet
from agents.playbook import agents
from cupilot.domain.evaluation import BuildReport, Evaluation, Failure, FailureKind, Verdict
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, TechniqueUse
from tests.scripted_model import Reply, Script, ScriptedModel

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning")

SOURCE = """#include "problem.h"
extern "C" void k(const float* x, float* out) {
    // prefetch: __builtin_prefetch would go here
    #pragma omp parallel for
    for (long long r = 0; r < X_ROWS; ++r) row_tile(x, out, r);
}
"""
FOUND = Diagnosis(
    severity="major",
    cause="memory is waited for",
    evidence="floor_pct = 40",
    advice=(
        Advice(technique="simd", reason="rule", expected="simd_512 up"),
        Advice(technique="threads", reason="rule", expected="floor_pct up"),
    ),
)


class Rules:
    def diagnose(self, briefing: Briefing, attempt: Attempt) -> Diagnosis:  # noqa: ARG002
        return FOUND


def gateway(model: ScriptedModel) -> Gateway:
    scripted = Model(name="openai/scripted", api_base=model.api_base, max_output_tokens=1_000)
    return Gateway(RoleModels(default=(scripted,)), MemoryLedger(), sleep=lambda _: None)


def written(*techniques: str) -> Attempt:
    kernel = Kernel(
        target=Target.CPU, source=SOURCE, plan=LaunchPlan(launches=(Launch(kernel="k", args=("x", "out")),))
    )
    build = BuildReport(ok=True, compiler="g++", seconds=0.1, instructions={"omp_parallel": 1, "instructions": 50})
    evaluation = Evaluation(
        kernel_hash=kernel.content_hash(),
        problem_hash="0" * 64,
        verdict=Verdict.COMPILED,
        failure=Failure(kind=FailureKind.WRONG_VALUE, message="wrong"),
        build=build,
    )
    strategy = Strategy(techniques=tuple(TechniqueUse(id=name) for name in techniques))
    return Attempt(strategy=strategy, kernel=kernel, evaluation=evaluation)


def answer(body: Any) -> Reply:
    return Reply(text=json.dumps(body))


def test_the_model_words_and_ranks_what_the_rules_found(briefing: Briefing) -> None:
    reply = answer({"cause": "one core works", "advice": [{"technique": "threads", "reason": "two cores idle"}]})
    with ScriptedModel([reply]) as model:
        found = LlmProphet(gateway(model), Rules()).diagnose(briefing, written())
    assert (found.severity, found.evidence) == (FOUND.severity, FOUND.evidence)
    assert found.cause == "one core works"
    assert [(advice.technique, advice.reason, advice.expected) for advice in found.advice] == [
        ("threads", "two cores idle", "floor_pct up")
    ]


@pytest.mark.parametrize(
    "script",
    [
        [answer({"cause": "x", "advice": [{"technique": "magic", "reason": "y"}]})],
        [Reply(text="I refuse")],
        [Reply(status=401)],
    ],
    ids=["invents", "refuses", "unauthorised"],
)
def test_the_rules_stand_where_the_model_is_of_no_use(briefing: Briefing, script: Script) -> None:
    with ScriptedModel(script) as model:
        assert LlmProphet(gateway(model), Rules()).diagnose(briefing, written()) == FOUND


def test_claims_that_neither_binary_nor_source_shows_are_struck_and_scored(briefing: Briefing) -> None:
    claims = [
        {"id": "threads", "evidence": "#pragma omp parallel for"},
        {"id": "simd", "evidence": "row_tile(x, out, r);"},
        {"id": "prefetch", "evidence": "// prefetch: __builtin_prefetch would go here"},
        {"id": "row_tiles", "evidence": "for (long long r = 0; r < X_ROWS; ++r) row_tile(x, out, r);"},
        {"id": "pure_fantasy", "evidence": 'asm volatile ("magic");'},
        {"id": "fragments", "evidence": "for ("},
        {"id": "brackets", "evidence": "}"},
    ]
    asked = written("simd", "threads", "prefetch", "pure_fantasy")
    with ScriptedModel([answer({"techniques": claims, "rationale": "threads over rows"})]) as model:
        aligned = AligningTranslator(gateway(model), agents().translator).align(briefing, asked)
        assert "omp_parallel = 1" in model.requests[0]["messages"][1]["content"]
    assert aligned.strategy.ids() == ("threads", "row_tiles")
    assert set(aligned.struck) == {"simd", "prefetch", "pure_fantasy"}
    assert aligned.fidelity == pytest.approx(1 / 4)
    assert "Struck after the build" in aligned.strategy.rationale


def test_values_that_the_catalogue_does_not_list_cost_no_second_call(briefing: Briefing) -> None:
    line = "#pragma omp parallel for"
    claims = [{"id": "threads", "parameters": {"schedule": "guided", "chunk": 3}, "evidence": line}]
    with ScriptedModel([answer({"techniques": claims, "rationale": "threads over rows"})]) as model:
        aligned = AligningTranslator(gateway(model), agents().translator).align(briefing, written("threads"))
        assert len(model.requests) == 1
    assert aligned.strategy == Strategy(techniques=(TechniqueUse(id="threads"),), rationale="threads over rows")


class Listener(Gateway):
    """Hears what would be asked, and answers nothing."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def ask(self, question: Question, parse: Callable[[str], T]) -> T:  # noqa: ARG002
        self.asked.append(question)
        raise ModelUnavailable("nobody is there")


def test_what_was_asked_for_and_left_its_trace_comes_back_where_the_answer_omits_it(briefing: Briefing) -> None:
    reply = answer({"techniques": [], "rationale": "plain rows"})
    with ScriptedModel([reply]) as model:
        aligned = AligningTranslator(gateway(model), agents().translator).align(briefing, written("threads", "simd"))
    assert aligned.strategy.ids() == ("threads",)
    assert aligned.struck == ("simd",)


def test_a_misquoted_line_gets_one_repair_turn_and_a_corrected_meaning_stands(briefing: Briefing) -> None:
    wrong = {"id": "row_tiles", "evidence": "for (row in rows)", "meaning": "one row at a time"}
    right = wrong | {"evidence": "for (long long r = 0; r < X_ROWS; ++r) row_tile(x, out, r);"}
    meant = Strategy(techniques=(TechniqueUse(id="row_tiles", meaning="four rows at a time"),))
    asked = written().model_copy(update={"strategy": meant})
    replies = [answer({"techniques": [claim], "rationale": "rows"}) for claim in (wrong, right)]
    with ScriptedModel(replies) as model:
        aligned = AligningTranslator(gateway(model), agents().translator).align(briefing, asked)
        assert "row_tiles does not stand in the source" in model.requests[1]["messages"][-1]["content"]
    assert [(use.id, use.meaning) for use in aligned.strategy.techniques] == [("row_tiles", "one row at a time")]
    with ScriptedModel([replies[0]]) as model:
        aligned = AligningTranslator(gateway(model), agents().translator).align(briefing, asked)
        assert len(model.requests) == 2
    assert aligned.struck == ("row_tiles",)


def test_an_ensemble_shares_the_reading_of_kernels(briefing: Briefing) -> None:
    """Each kernel draws its model for alignment and diagnosis; the same kernel always draws the same one."""
    pair = RoleModels(default=(Model(name="openai/a"), Model(name="openai/b")))
    listener, again = Listener(), Listener()
    for gateway in (listener, again):
        for number in range(8):
            attempt = written("threads")
            assert attempt.kernel is not None
            kernel = attempt.kernel.model_copy(update={"source": f"{SOURCE}// {number}\n"})
            AligningTranslator(gateway, agents().translator).align(
                briefing, attempt.model_copy(update={"kernel": kernel})
            )
            LlmProphet(gateway, Rules()).diagnose(briefing, attempt.model_copy(update={"kernel": kernel}))
    assert [item.seed for item in listener.asked] == [item.seed for item in again.asked]
    for role in (AgentRole.TRANSLATOR, AgentRole.PROPHET):
        drawn = {pair.choose(role, item.seed).name for item in listener.asked if item.role is role}
        assert drawn == {"openai/a", "openai/b"}


def test_alignment_goes_by_the_rules_where_the_model_is_of_no_use(briefing: Briefing) -> None:
    asked = written("threads", "prefetch")
    with ScriptedModel([Reply(text="no")]) as model:
        aligned = AligningTranslator(gateway(model), agents().translator).align(briefing, asked)
    assert aligned.strategy.ids() == ("threads",)
    assert aligned.struck == ("prefetch",)
