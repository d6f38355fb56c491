"""The gateway against a real HTTP server that behaves as badly as providers do."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic import SecretStr

from agents.llm.gateway import (
    MAX_LOST_TRIES,
    MAX_PAUSE_SECONDS,
    AnswerError,
    BadModelAnswer,
    Gateway,
    ModelUnavailable,
    Question,
)
from agents.llm.ledger import Limits, MemoryLedger, NoLimits
from agents.llm.models import AgentRole, Model, RoleModels, from_environment
from agents.llm.transport import CALL_THREAD, TransportError, answer_tokens, complete, litellm, parameters
from cupilot.domain.errors import InvalidInput
from cupilot.domain.model_call import CostBudgetReached
from tests.scripted_model import Reply, ScriptedModel

# LiteLLM closes its clients at exit rather than after each call.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning")

GOOD = Reply(text='{"answer": 42}')


def parse(text: str) -> int:
    try:
        return int(json.loads(text)["answer"])
    except (ValueError, KeyError, TypeError) as error:
        raise AnswerError(f"not the JSON asked for: {error}") from error


def question(content: str = "what is it?") -> Question:
    messages = ({"role": "user", "content": content},)
    return Question(AgentRole.MANAGER, "initial", messages, prompt_hash="p", seed=1, json_answer=True)


class Setup:
    def __init__(
        self,
        model: ScriptedModel,
        *,
        budget: float = 1.0,
        timeout: float = 120.0,
        limits: Limits | None = None,
        **fields: Any,
    ) -> None:
        self.ledger = MemoryLedger(budget)
        self.slept: list[float] = []
        scripted = Model(
            name="openai/scripted",
            api_base=model.api_base,
            api_key=SecretStr("sk-0123456789abcdef0123"),
            input_usd_per_million=1.0,
            output_usd_per_million=10.0,
            max_output_tokens=1_000,
            timeout_seconds=timeout,
            **fields,
        )
        self.gateway = Gateway(RoleModels(default=(scripted,)), self.ledger, limits, sleep=self.slept.append)


def test_a_good_answer_is_parsed_and_charged_to_the_cent() -> None:
    with ScriptedModel([GOOD]) as model:
        setup = Setup(model)
        assert setup.gateway.ask(question(), parse) == 42
        assert setup.ledger.spent_usd == pytest.approx(100 * 1e-6 + 50 * 10e-6)
        assert "temperature" not in model.requests[0]
        assert model.requests[0]["response_format"] == {"type": "json_object"}


def test_an_answered_call_is_never_paid_again() -> None:
    with ScriptedModel([GOOD]) as model:
        setup = Setup(model)
        assert [setup.gateway.ask(question(), parse) for _ in range(3)] == [42, 42, 42]
        assert len(model.paid) == 1


@pytest.mark.parametrize(
    "bad",
    [
        Reply(status=500),
        Reply(status=503),
        Reply(status=429, headers={"retry-after": "7"}),
        Reply(raw=b"<html>gateway error</html>"),
        Reply(hang_up=True),
    ],
    ids=["500", "503", "429", "html", "half-closed"],
)
def test_a_passing_fault_is_tried_again(bad: Reply) -> None:
    with ScriptedModel([bad, bad, GOOD]) as model:
        setup = Setup(model)
        assert setup.gateway.ask(question(), parse) == 42
        assert len(model.requests) == 3
        assert len(setup.slept) == 2
        if bad.status == 429:
            assert min(setup.slept) >= 7


@pytest.mark.slow
def test_a_slow_answer_times_out_and_is_tried_again() -> None:
    with ScriptedModel([GOOD, Reply(delay=60.0), GOOD]) as model:
        Setup(model).gateway.ask(question(), parse)  # what a first call imports takes its time
        setup = Setup(model, timeout=3.0)
        assert setup.gateway.ask(question(), parse) == 42
        assert len(model.requests) == 3


def test_a_whole_try_has_a_limit_and_leaves_neither_a_connection_nor_a_thread() -> None:
    with ScriptedModel([GOOD, Reply(drip=0.1)]) as model:  # some 300 bytes: half a minute
        Setup(model).gateway.ask(question(), parse)  # what a first call imports takes its time
        scripted = Model(name="openai/scripted", api_base=model.api_base, timeout_seconds=2.0)
        with pytest.raises(TransportError, match="within 2 s") as raised:
            complete(scripted, question().messages, parameters(scripted, json_answer=True, seed=1))
        assert (raised.value.reason, raised.value.maybe_charged) == ("timeout", True)
        for thread in threading.enumerate():
            if thread.name == CALL_THREAD:
                thread.join()
        assert model.dropped.wait(60)


def test_what_may_have_been_charged_without_an_answer_stays_reserved_and_is_not_tried_for_ever() -> None:
    with ScriptedModel([Reply(hang_up=True)]) as model:
        setup = Setup(model)
        with pytest.raises(ModelUnavailable):
            setup.gateway.ask(question(), parse)
        assert len(model.requests) == MAX_LOST_TRIES
        worst = setup.ledger.calls[0][0].worst_cost_usd
        assert setup.ledger.spent_usd == pytest.approx(MAX_LOST_TRIES * worst)


@pytest.mark.slow
def test_a_server_that_takes_no_connection_is_charged_nothing() -> None:
    with ScriptedModel([GOOD]) as model:
        Setup(model).gateway.ask(question(), parse)  # what a first call imports takes its time
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # fill its queue: further ones get no answer at all
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(server.getsockname())
        address = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        scripted = Model(name="openai/scripted", api_base=address, timeout_seconds=8.0)
        with pytest.raises(TransportError) as raised:
            complete(scripted, question().messages, parameters(scripted, json_answer=False, seed=1))
    assert (raised.value.reason, raised.value.retryable) == ("unavailable", True)
    assert (raised.value.maybe_charged, raised.value.connected) == (False, False)


@pytest.mark.parametrize("provider", ["ollama_chat", "gemini"])
def test_what_fails_before_it_is_sent_is_not_charged(provider: str) -> None:
    function = {"name": "f", "arguments": "{not json"}
    said = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    with ScriptedModel([GOOD]) as model:
        scripted = Model(name=f"{provider}/scripted", api_base=model.api_base)
        with pytest.raises(TransportError) as raised:
            complete(scripted, [*question().messages, said], parameters(scripted, json_answer=False, seed=1))
        assert (model.requests, raised.value.maybe_charged) == ([], False)


def test_text_that_cannot_be_stored_is_replaced() -> None:
    odd = Reply(text="a\0b\ud800c", tool_calls=(("f\0", '{"a": "\0"}'),))
    with ScriptedModel([odd]) as model:
        answer = Setup(model).gateway.turn(question())
    assert answer.text == "a\ufffdb\ufffdc"
    assert (answer.tool_calls[0].name, answer.tool_calls[0].arguments) == ("f\ufffd", '{"a": "\ufffd"}')


def test_a_long_retry_after_is_waited_for_in_full() -> None:
    with ScriptedModel([Reply(status=429, headers={"retry-after": "300"}), GOOD]) as model:
        setup = Setup(model)
        assert setup.gateway.ask(question(), parse) == 42
        assert sum(setup.slept) == 300
        assert max(setup.slept) <= 60


def test_a_provider_that_says_to_come_back_much_later_is_not_asked_again() -> None:
    with ScriptedModel([Reply(status=429, headers={"retry-after": "3600"})]) as model:
        setup = Setup(model)
        with pytest.raises(ModelUnavailable):
            setup.gateway.ask(question(), parse)
        assert (len(model.requests), setup.slept) == (1, [])


def test_a_retry_after_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=500), usegmt=True)
    with ScriptedModel([Reply(status=429, headers={"retry-after": soon}), GOOD]) as model:
        setup = Setup(model)
        assert setup.gateway.ask(question(), parse) == 42
        # However slowly this test runs: minutes are left, and they are slept in pieces.
        assert setup.slept[0] == MAX_PAUSE_SECONDS
        assert sum(setup.slept) <= 500


@pytest.mark.parametrize(
    "text",
    [
        '<think>42? {"answer": 1}</think>\n{"answer": 42}',
        'Maybe {"answer": 1}.\n</think>\n{"answer": 42}',  # the chat template holds the beginning
    ],
)
def test_a_reasoning_model_gets_its_own_parameters_and_its_thoughts_are_left_out(text: str) -> None:
    thoughtful = Reply(text=text)
    with ScriptedModel([thoughtful]) as model:
        setup = Setup(model, reasoning=True, reasoning_effort="high", temperature=0.5, extra={"top_p": 0.9})
        assert setup.gateway.ask(question(), parse) == 42
        sent = model.requests[0]
        assert sent["max_completion_tokens"] == 1_000
        assert sent["reasoning_effort"] == "high"
        assert sent["top_p"] == 0.9
        assert {"temperature", "max_tokens"}.isdisjoint(sent)


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("openai/unknown", None),
        ("azure/unknown", None),
        ("hosted_vllm/unknown", None),
        ("openai/gpt-5-mini", "max_completion_tokens"),
        ("anthropic/claude-sonnet-4-5", "max_tokens"),
        ("mistral/magistral-medium-latest", "max_tokens"),
        ("bedrock/converse/unknown", "maxTokens"),
        ("xai/grok-4", "max_tokens"),
        ("groq/openai/gpt-oss-120b", "max_tokens"),
        ("ollama_chat/unknown", "num_predict"),
        ("gemini/gemini-2.5-pro", "max_output_tokens"),
        ("moonshot/unknown", "max_tokens"),
        ("fireworks_ai/unknown", "max_tokens"),
    ],
)
def test_every_provider_gets_one_limit_of_tokens_under_its_own_name(
    name: str, field: str | None, reasoning: bool
) -> None:
    model = Model(name=name, reasoning=reasoning, max_output_tokens=1_234)
    known, provider, *_ = litellm().get_llm_provider(name)
    sent = litellm().utils.get_optional_params(
        known, custom_llm_provider=provider, drop_params=True, **parameters(model, json_answer=False, seed=1)
    )
    asked = "max_completion_tokens" if reasoning else "max_tokens"
    assert [key for key, value in sent.items() if value == 1_234] == [field or asked]


@pytest.mark.parametrize(
    ("name", "configured", "sent"),
    [
        ("deepseek/deepseek-chat", {}, 8_192),
        ("deepseek/deepseek-chat", {"max_output_tokens": 2_000}, 2_000),
        ("openai/unknown", {}, 16_000),
    ],
)
def test_no_more_tokens_are_asked_for_than_the_model_is_listed_with(
    name: str, configured: dict[str, int], sent: int
) -> None:
    model = Model(name=name, **configured)  # type: ignore[arg-type]
    assert parameters(model, json_answer=True, seed=1)["max_tokens"] == sent


@pytest.mark.parametrize(
    ("name", "reasoning", "omit", "reserved"),
    [
        ("deepseek/deepseek-chat", False, ("max_tokens",), 8_192),
        ("deepseek/deepseek-chat", True, ("max_completion_tokens",), 8_192),
        ("deepseek/deepseek-chat", True, ("max_tokens",), 2_000),
        ("openai/unknown", False, ("max_tokens",), 2_000),
    ],
)
def test_what_is_reserved_is_what_the_model_may_answer(
    name: str, reasoning: bool, omit: tuple[str, ...], reserved: int
) -> None:
    model = Model(name=name, max_output_tokens=2_000, reasoning=reasoning, omit=omit)
    assert answer_tokens(model) == reserved
    assert not set(omit) & set(parameters(model, json_answer=False, seed=1))


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_limit_among_the_extras_is_refused_by_name(limit: str) -> None:
    with pytest.raises(ValueError, match="max_output_tokens"):
        Model(name="openai/x", extra={limit: 9})


def test_the_tools_of_a_call_are_reserved_too() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 10_000, "parameters": {}}}
    with ScriptedModel([GOOD]) as model:
        setup = Setup(model)
        for tools in ((), (tool,)):
            setup.gateway.turn(replace(question(), tools=tools))
        without, beside = (call.worst_cost_usd for call, _ in setup.ledger.calls)
    assert beside - without >= 5_000 * 1e-6


def test_what_a_server_refuses_is_left_out() -> None:
    with ScriptedModel([GOOD]) as model:
        setup = Setup(model, omit=("seed", "response_format"), headers={"x-project": "kernels"})
        assert setup.gateway.ask(question(), parse) == 42
        assert {"seed", "response_format"}.isdisjoint(model.requests[0])


def test_a_seed_that_is_not_sent_is_a_sample_of_its_own_all_the_same() -> None:
    with ScriptedModel([GOOD]) as model:
        setup = Setup(model, omit=("seed",))
        for seed in (1, 2, 1):
            assert setup.gateway.ask(replace(question(), seed=seed), parse) == 42
        assert len(model.paid) == 2
        assert all("seed" not in request for request in model.requests)


def test_an_answer_that_went_into_thoughts_is_explained() -> None:
    with ScriptedModel([Reply(text="<think>hm", finish_reason="length"), GOOD]) as model:
        setup = Setup(model)
        assert setup.gateway.ask(question(), parse) == 42
        assert "think less" in setup.ledger.complaints[0]


class OneAMinute(NoLimits):
    """Lets the first call wait twice."""

    def __init__(self) -> None:
        self.waits = [30.0, 10.0]
        self.held: list[float] = []
        self.settled: list[int] = []

    def take(self, model: str, **_: object) -> float:  # noqa: ARG002
        return self.waits.pop(0) if self.waits else 0.0

    def settle(self, model: str, *, taken: int, used: int) -> None:  # noqa: ARG002
        self.settled.append(used)

    def back_off(self, model: str, seconds: float) -> None:  # noqa: ARG002
        self.held.append(seconds)


def test_a_call_waits_for_its_turn_and_tells_the_others_to_wait() -> None:
    limits = OneAMinute()
    with ScriptedModel([Reply(status=429, headers={"retry-after": "7"}), GOOD]) as model:
        setup = Setup(model, limits=limits, requests_per_minute=1)
        assert setup.gateway.ask(question(), parse) == 42
        assert setup.slept[:2] == [30.0, 10.0]
        assert limits.held == [7.0]
        assert limits.settled == [150]


class WorkerEndsError(Exception):
    """Raised by whoever waits, as the workers' ledger does."""


def test_a_call_that_is_left_while_it_waits_for_its_turn_reserves_nothing() -> None:
    def leave(_seconds: float) -> None:
        raise WorkerEndsError

    with ScriptedModel([GOOD]) as model:
        setup = Setup(model, limits=OneAMinute(), requests_per_minute=1)
        setup.gateway._sleep = leave
        with pytest.raises(WorkerEndsError):
            setup.gateway.ask(question(), parse)
        assert not model.requests
        [(_, outcome)] = setup.ledger.calls
        assert "not sent" in str(outcome)
        assert setup.ledger.spent_usd == 0


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_bad_minute_of_a_provider_is_outlasted(status: int) -> None:
    with ScriptedModel([*[Reply(status=status)] * 4, GOOD]) as model:
        setup = Setup(model)
        assert setup.gateway.ask(question(), parse) == 42
    assert sum(setup.slept) > 60


@pytest.mark.parametrize(("status", "held"), [(429, [1.0, 4.0, 16.0, 60.0, 60.0]), (500, [1.0] * 5), (503, [1.0] * 5)])
def test_a_call_that_always_fails_holds_up_the_others_only_where_a_rate_is_limited(
    status: int, held: list[float]
) -> None:
    limits = OneAMinute()
    limits.waits = []
    with ScriptedModel([Reply(status=status)]) as model, pytest.raises(ModelUnavailable):
        Setup(model, limits=limits).gateway.ask(question(), parse)
    assert limits.held == held


def test_calls_of_one_seed_that_failed_together_do_not_come_back_together() -> None:
    slept = []
    for _ in range(2):
        with ScriptedModel([Reply(status=500), GOOD]) as model:
            setup = Setup(model)
            assert setup.gateway.ask(question(), parse) == 42
            slept.append(setup.slept)
    assert slept[0] != slept[1]


def test_a_fault_that_stays_ends_in_a_clear_error_and_costs_nothing() -> None:
    with ScriptedModel([Reply(status=500)]) as model:
        setup = Setup(model)
        with pytest.raises(ModelUnavailable, match="unavailable"):
            setup.gateway.ask(question(), parse)
        assert len(model.requests) == 5
        assert setup.ledger.spent_usd == 0.0


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_by_the_provider_is_not_repeated(status: int) -> None:
    with ScriptedModel([Reply(status=status)]) as model:
        with pytest.raises(ModelUnavailable, match="refused_by_provider"):
            Setup(model).gateway.ask(question(), parse)
        assert len(model.requests) == 1


@pytest.mark.parametrize(
    "sloppy",
    [
        Reply(text="I cannot help with that."),
        Reply(text=""),
        Reply(text=None),
        Reply(text='{"answer": '),
        Reply(text='{"wrong": 1}'),
        Reply(text='{"answer": 4', finish_reason="length"),
    ],
    ids=["refusal", "empty", "null", "malformed", "wrong-schema", "truncated"],
)
def test_a_bad_answer_gets_one_repair_turn(sloppy: Reply) -> None:
    with ScriptedModel([sloppy, GOOD]) as model:
        setup = Setup(model)
        assert setup.gateway.ask(question(), parse) == 42
        turns = model.requests[1]["messages"]
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert "cannot be used" in turns[-1]["content"]
        assert setup.ledger.spent_usd == pytest.approx(2 * (100 * 1e-6 + 50 * 10e-6))


def test_two_bad_answers_end_in_a_clear_error() -> None:
    with ScriptedModel([Reply(text="no")]) as model:
        with pytest.raises(BadModelAnswer, match="twice"):
            Setup(model).gateway.ask(question(), parse)
        assert len(model.requests) == 2


def test_a_call_that_could_break_the_budget_is_not_made() -> None:
    with ScriptedModel([GOOD]) as model:
        with pytest.raises(CostBudgetReached):
            Setup(model, budget=0.001).gateway.ask(question(), parse)
        assert not model.requests


def test_secrets_never_leave_in_a_prompt_nor_stay_in_an_answer() -> None:
    leaked = "sk-abcdefghijklmnop1234"
    with ScriptedModel([Reply(text=f'{{"answer": 1, "key": "{leaked}"}}')]) as model:
        setup = Setup(model)
        setup.gateway.ask(question(f"my key is {leaked}"), parse)
        assert leaked not in json.dumps(model.requests)
        assert leaked not in str(setup.ledger.calls)


def test_a_password_in_the_models_url_is_used_and_never_recorded() -> None:
    with ScriptedModel([GOOD]) as model:
        address = model.api_base.replace("http://", "http://me:hunter2@")
        scripted = Model(name="openai/scripted", api_base=address, max_output_tokens=1_000)
        ledger = MemoryLedger()
        assert Gateway(RoleModels(default=(scripted,)), ledger).ask(question(), parse) == 42
    recorded = ledger.calls[0][0]
    assert "hunter2" not in recorded.model_dump_json() + scripted.endpoint
    assert model.api_base.partition("//")[2] in str(recorded.parameters["api_base"])


def test_the_environment_names_models_and_their_absence() -> None:
    assert from_environment({}) is None
    models = from_environment({"CUPILOT_LLM_MODEL": "ollama/x", "CUPILOT_LLM_API_BASE": "http://h/v1"})
    assert models is not None
    assert models.choose(AgentRole.PROPHET, 0).api_base == "http://h/v1"
    with pytest.raises(InvalidInput, match="CUPILOT_LLM_MODELS_FILE"):
        from_environment({"CUPILOT_LLM_MODELS_FILE": "/nonexistent.json"})


def test_an_ensemble_is_drawn_by_weight_and_repeats_with_its_seed() -> None:
    heavy, light = Model(name="a/heavy", weight=9), Model(name="a/light", weight=1)
    models = RoleModels(default=(heavy, light), roles={AgentRole.REVISOR: (light,)})
    drawn = [models.choose(AgentRole.MANAGER, seed).name for seed in range(200)]
    assert drawn == [models.choose(AgentRole.MANAGER, seed).name for seed in range(200)]
    assert 150 < drawn.count("a/heavy") < 200
    assert models.choose(AgentRole.REVISOR, 3).name == "a/light"


@pytest.mark.slow
def test_litellm_is_loaded_without_network_and_tells_nobody() -> None:
    """In a process of its own, whose sockets all refuse to connect: prices come from the list in the package."""
    program = """
import os, socket
os.environ.pop("LITELLM_LOCAL_MODEL_COST_MAP", None)
def refuse(*_):
    raise AssertionError("connected")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
import agents.llm.gateway, sys
assert "litellm" not in sys.modules
from agents.llm.transport import litellm
module = litellm()
print(module.telemetry, len(module.model_cost) > 100, module.success_callback)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "False True []\n", done.stderr[-2_000:]
