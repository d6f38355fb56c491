"""``cupilot models test``: what each configured model answers to one cheap call."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from agents.llm.check import examine
from agents.llm.models import AgentRole, Model, RoleModels
from agents.llm.probe import Trouble
from cupilot.cli.app import app
from tests.scripted_model import Reply, ScriptedModel

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning")


def test_each_model_is_tried_once_with_the_limit_that_jobs_use() -> None:
    with ScriptedModel([Reply(text='{"ready": true}'), Reply(text="Hello!")]) as server:
        good = Model(name="openai/a", api_base=server.api_base, input_usd_per_million=1.0, output_usd_per_million=10.0)
        small = Model(name="openai/b", api_base=server.api_base, max_output_tokens=3_000)
        models = RoleModels(default=(good, good), roles={AgentRole.REVISOR: (small,)})
        first, second = examine(models)
        assert [request["max_tokens"] for request in server.requests] == [16_000, 3_000]
    assert first.works
    assert first.mend is None
    assert first.cost_usd == pytest.approx(0.0006)
    assert second.works
    assert second.trouble is Trouble.NO_JSON
    assert "said: Hello!" in (second.mend or "")
    assert "cannot do the work" in (second.mend or "")


HTML = Reply(raw=b"<html>Welcome</html>")
NO_SUCH_MODEL = Reply(raw=b'{"error": {"message": "The model `b` does not exist."}}', status=404)


@pytest.mark.parametrize(
    ("name", "path", "reply", "trouble", "advice"),
    [
        ("openai/scripted", "/v1", Reply(status=401), Trouble.WRONG_KEY, "CUPILOT_LLM_API_KEY"),
        ("openai/scripted", "", Reply(), Trouble.WRONG_URL, "/v1: set CUPILOT_LLM_API_BASE"),
        ("openai/scripted", "/elsewhere", Reply(), Trouble.WRONG_URL, "usually ends in /v1"),
        ("openai/b", "/v1", NO_SUCH_MODEL, Trouble.WRONG_MODEL, "it has: scripted"),
        ("scripted", "/v1", Reply(), Trouble.WRONG_MODEL, "openai/scripted"),
        ("openai/scripted", "/v1", Reply(status=400), Trouble.REFUSED, "`omit`"),
        ("openai/scripted", "/v1", Reply(status=500), Trouble.UNAVAILABLE, "log"),
        ("openai/scripted", "/v1", Reply(status=429), Trouble.RATE_LIMITED, "requests_per_minute"),
    ],
    ids=["key", "no-v1", "path", "model", "provider", "parameters", "500", "429"],
)
def test_what_fails_is_told_apart_with_how_to_mend_it(
    name: str, path: str, reply: Reply, trouble: Trouble, advice: str
) -> None:
    with ScriptedModel([reply]) as server:
        model = Model(name=name, api_base=server.api_base.removesuffix("/v1") + path, api_key=SecretStr("k"))
        (check,) = examine(RoleModels(default=(model,)))
    assert not check.works
    assert (check.trouble, check.found) == (trouble, check.found)
    assert advice in (check.mend or "")


def test_nobody_there_and_something_else_there_are_told_apart() -> None:
    with ScriptedModel([HTML]) as server:
        (other,) = examine(RoleModels(default=(Model(name="openai/scripted", api_base=server.api_base),)))
    (nobody,) = examine(RoleModels(default=(Model(name="openai/scripted", api_base="http://127.0.0.1:9/v1"),)))
    assert not other.works
    assert other.trouble is not Trouble.UNREACHABLE
    assert nobody.trouble is Trouble.UNREACHABLE
    assert "nothing answers at http://127.0.0.1:9/v1" in (nobody.mend or "")


def test_the_command_tells_it_to_people_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedModel([Reply(text='{"ready": true}')]) as server:
        monkeypatch.setenv("CUPILOT_LLM_MODEL", "openai/a")
        monkeypatch.setenv("CUPILOT_LLM_API_BASE", server.api_base)
        result = CliRunner().invoke(app, ["models", "test", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["checks"][0]["works"]
    monkeypatch.delenv("CUPILOT_LLM_MODEL")
    result = CliRunner().invoke(app, ["models", "test"])
    assert result.exit_code == 1
    assert "no model is configured" in result.output
