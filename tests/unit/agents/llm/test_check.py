"""``cupilot models test``: what each configured model answers to one cheap call."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from agents.llm.check import MAX_TOKENS, examine
from agents.llm.models import AgentRole, Model, RoleModels
from cupilot.cli.app import app
from tests.scripted_model import Reply, ScriptedModel

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning")


def test_each_model_is_tried_once_and_cheaply() -> None:
    with ScriptedModel([Reply(text='{"ready": true}'), Reply(text="Hello!")]) as server:
        good = Model(name="openai/a", api_base=server.api_base, input_usd_per_million=1.0, output_usd_per_million=10.0)
        small = Model(name="openai/b", api_base=server.api_base)
        models = RoleModels(default=(good, good), roles={AgentRole.REVISOR: (small,)})
        first, second = examine(models)
        assert [request["max_tokens"] for request in server.requests] == [MAX_TOKENS] * 2
    assert first.works
    assert first.mend is None
    assert first.cost_usd == pytest.approx(0.0006)
    assert second.works
    assert "cannot do the work" in (second.mend or "")
    assert "price is not known" in (second.mend or "")


def test_what_fails_is_said_with_how_to_mend_it() -> None:
    with ScriptedModel([Reply(status=401)]) as server:
        (check,) = examine(RoleModels(default=(Model(name="openai/a", api_base=server.api_base),)))
    assert not check.works
    assert "refused_by_provider" in check.found
    assert "CUPILOT_LLM_API_KEY" in (check.mend or "")


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
