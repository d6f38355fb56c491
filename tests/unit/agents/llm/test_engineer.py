"""The Kernel Engineer: what is read out of a reply, and what a ban means to whoever writes code."""

from __future__ import annotations

import json

import pytest

from agents.interface import Attempt, Briefing, WriteInput
from agents.llm.engineer import LlmEngineer, draft
from agents.llm.gateway import BadModelAnswer, Gateway
from agents.llm.ledger import MemoryLedger
from agents.llm.models import Model, RoleModels
from agents.llm.translator import LlmTranslator
from cupilot.domain.evaluation import Evaluation, Failure, FailureKind, Verdict
from cupilot.domain.evolution.population import Operator
from cupilot.domain.strategy import Strategy, TechniqueUse
from tests.scripted_model import Reply, ScriptedModel

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning")

PLAN = json.dumps({"launches": [{"kernel": "k", "args": ["x", "out"]}]})
PLAIN = "for (long long i = 0; i < X_SIZE; ++i) out[i] = x[i];"
THREADS = "#pragma omp parallel for\n" + PLAIN
PREFETCHING = PLAIN.replace("out[i]", "__builtin_prefetch(x + i + 64), out[i]")


def reply(body: str, head: str = "") -> str:
    source = f'#include "problem.h"\nextern "C" void k(const float* x, float* out) {{\n{body}\n}}'
    return f"{head}```cpp\n{source}\n```\n```json\n{PLAN}\n```"


def gateway(model: ScriptedModel) -> Gateway:
    scripted = Model(name="openai/scripted", api_base=model.api_base, max_output_tokens=1_000)
    return Gateway(RoleModels(default=(scripted,)), MemoryLedger(), sleep=lambda _: None)


def test_a_draft_has_name_thought_and_the_techniques_that_its_code_tells(briefing: Briefing) -> None:
    made = draft(reply(THREADS, "NAME: rows\nTHOUGHT: One thread a row,\nno waiting.\n"), briefing)
    assert (made.name, made.insight) == ("rows", "One thread a row,\nno waiting.")
    assert made.strategy.ids() == ("threads",)
    assert made.strategy.rationale == made.insight
    silent = draft(reply("// __builtin_prefetch would go here\n" + PLAIN), briefing)
    assert (silent.name, silent.insight, silent.strategy.ids()) == ("", "", ())


def test_code_that_shows_what_is_banned_gets_the_repair_turn(briefing: Briefing) -> None:
    banned = briefing.model_copy(update={"banned": ("prefetch",)})
    free = WriteInput(method="evoengineer-free", operator=Operator.REWRITE)
    with ScriptedModel([Reply(text=reply(PREFETCHING)), Reply(text=reply(PLAIN))]) as model:
        made = LlmEngineer(gateway(model)).write(banned, free, seed=1)
        assert "banned from this job: prefetch" in model.requests[1]["messages"][-1]["content"]
    assert "__builtin_prefetch" not in made.kernel.source
    with ScriptedModel([Reply(text=reply(PREFETCHING))]) as model, pytest.raises(BadModelAnswer, match="prefetch"):
        LlmEngineer(gateway(model)).write(banned, free, seed=1)


def test_what_a_person_injects_may_use_what_was_banned_since(briefing: Briefing) -> None:
    banned = briefing.model_copy(update={"banned": ("prefetch", "threads")})
    asked = Strategy(techniques=(TechniqueUse(id="prefetch"),))
    with ScriptedModel([Reply(text=reply(PREFETCHING))]) as model:
        kernel = LlmTranslator(gateway(model)).translate(banned, asked, (), seed=1)
        told = model.requests[0]["messages"][1]["content"]
    assert "__builtin_prefetch" in kernel.source
    assert "Banned from this job, under any name: threads (" in told


def test_a_mended_kernel_is_read_again(briefing: Briefing) -> None:
    wrong = draft(reply(PREFETCHING), briefing)
    evaluation = Evaluation(
        kernel_hash=wrong.kernel.content_hash(),
        problem_hash=briefing.problem.content_hash(),
        verdict=Verdict.REJECTED,
        failure=Failure(kind=FailureKind.WRONG_VALUE, message="off by one"),
    )
    history = [Attempt(strategy=wrong.strategy, kernel=wrong.kernel, evaluation=evaluation)]
    mended = Reply(text=reply(THREADS, "NOTE: another loop\n"))
    with ScriptedModel([Reply(text="The loop is wrong."), mended]) as model:
        revision = LlmEngineer(gateway(model)).repair(briefing, history, seed=1)
    assert revision is not None
    assert (wrong.strategy.ids(), revision.strategy.ids()) == (("prefetch",), ("threads",))
