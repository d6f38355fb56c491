"""Hybrid agents: templates first, as far as they go, and a model for the rest."""

from __future__ import annotations

import json

import pytest
import torch

from agents.interface import Briefing, NoTemplate, SceManager
from agents.llm.assembly import hybrid
from agents.llm.gateway import BadModelAnswer
from agents.llm.ledger import MemoryLedger
from agents.llm.models import Model, RoleModels
from agents.playbook import agents as playbook
from cupilot.domain.problem import Target
from cupilot.domain.strategy import Strategy, TechniqueUse
from cupilot.domain.workload import Workload
from tests.scripted_model import Reply, ScriptedModel
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.references import trace

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning")

IDEAS = Reply(
    text=json.dumps({"strategies": [{"techniques": [{"id": name}], "rationale": "new"} for name in ("one", "two")]})
)


@pytest.fixture
def transposed() -> Briefing:
    """A graph for which the playbook has one strategy."""
    facts, _ = trace(lambda x, y: x.T + y, {"x": torch.zeros(64, 16), "y": torch.zeros(16, 64)})
    return briefing(facts, Target.CPU)


def manager(model: ScriptedModel, budget_usd: float = 1.0) -> SceManager:
    scripted = Model(name="openai/scripted", api_base=model.api_base, output_usd_per_million=10.0)
    return hybrid(RoleModels(default=(scripted,)), MemoryLedger(budget_usd)).manager


def test_a_model_writes_the_first_strategies_that_the_playbook_lacks(transposed: Briefing) -> None:
    [template] = playbook().manager.initial_strategies(transposed, [], 3, 1)
    with ScriptedModel([IDEAS]) as model:
        made = manager(model).initial_strategies(transposed, [], 3, 1)
        prompt = model.requests[0]["messages"][1]["content"]
    assert [initial.strategy.ids() for initial in made] == [template.strategy.ids(), ("one",), ("two",)]
    assert "Write 2 different strategies." in prompt
    assert '<data name="tried">' in prompt


def test_a_model_goes_on_where_the_playbook_has_no_further_strategy(transposed: Briefing) -> None:
    [template] = playbook().manager.initial_strategies(transposed, [], 3, 1)
    with ScriptedModel([IDEAS]) as model:
        made = manager(model).initial_strategies(transposed, [], 3, 1, taken=[template.strategy])
    assert [initial.strategy.ids() for initial in made] == [("one",), ("two",)]


@pytest.mark.parametrize("budget_usd", [1.0, 0.0])
def test_the_playbooks_strategies_stand_where_the_model_gives_none(transposed: Briefing, budget_usd: float) -> None:
    with ScriptedModel([Reply(text="none")]) as model:
        assert len(manager(model, budget_usd).initial_strategies(transposed, [], 3, 1)) == 1
        assert bool(model.requests) is bool(budget_usd)


def test_a_model_that_gives_none_is_told_of_where_the_playbook_has_none_either(transposed: Briefing) -> None:
    [template] = playbook().manager.initial_strategies(transposed, [], 3, 1)
    with ScriptedModel([Reply(text="none")]) as model, pytest.raises(BadModelAnswer):
        manager(model).initial_strategies(transposed, [], 3, 1, taken=[template.strategy])


def test_no_model_is_asked_where_the_playbook_has_enough() -> None:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 4096)}, op_class="softmax")
    with ScriptedModel([IDEAS]) as model:
        taken = [Strategy(techniques=(TechniqueUse(id="other"),))]
        assert len(manager(model).initial_strategies(briefing(facts, Target.CPU), [], 4, 1, taken=taken)) == 4
        assert not model.requests


def test_no_template_of_one_shape_is_begun_from_where_there_are_several() -> None:
    facts, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 4096)}, op_class="softmax")
    one = briefing(facts, Target.CPU)
    several = one.model_copy(update={"workloads": ((Workload(name="all", values={"ROWS": 64}), facts),)})
    [template] = playbook().manager.initial_strategies(one, [], 1, 1)
    assert playbook().translator.translate(one, template.strategy, (), 1).source
    with pytest.raises(NoTemplate, match="several workloads"):
        playbook().translator.translate(several, template.strategy, (), 1)
    with ScriptedModel([IDEAS]) as model:
        made = manager(model).initial_strategies(several, [], 3, 1)
    assert [initial.strategy.ids() for initial in made] == [("one",), ("two",)]
