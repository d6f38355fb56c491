"""Every method and every switch from its submission over REST to its kernel: the API and the steps are production's."""

from __future__ import annotations

from typing import Any

import pytest

from cupilot.client import Client
from cupilot.settings import Settings
from tests.scripted_model import ScriptedModel
from tests.service.api.world import Team, World
from tests.service.method_models import competent
from tests.service.workers.test_models import ModelRig

pytestmark = [
    pytest.mark.service,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore::DeprecationWarning"),
]

SCE = {"name": "sce", "population": 2, "generations": 2, "elites": 1, "repair_rounds": 1}
SMALL: dict[str, dict[str, Any]] = {
    "sce": SCE,
    "crossover of code": SCE | {"crossover": "code"},
    "no roofline guidance": SCE | {"roofline_guidance": False},
    "no pool": SCE | {"pool": False},
    "no alignment": SCE | {"alignment": False},
    "epochs": SCE | {"generations": 1, "epochs": 2},
    "free": {"name": "evoengineer-free", "generations": 2, "samplers": 1},
    "insight": {"name": "evoengineer-insight", "generations": 2, "samplers": 1},
    "full": {"name": "evoengineer-full", "generations": 2, "samplers": 1},
    "ai-cuda-engineer": {"name": "ai-cuda-engineer", "retries": 2, "generations": 1, "proposals": 1, "compositions": 1},
}


@pytest.mark.parametrize("name", SMALL)
def test_a_job_of_every_method_and_switch_ends_with_its_kernel(world: World, team: Team, name: str) -> None:
    with ScriptedModel(competent) as server, Client(world.url, team.key) as client:
        rig = ModelRig(world.database, Settings(), server)
        job = team.submit(method=SMALL[name], agents="llm", labels={"case": name})["id"]
        rig.run()
        view = client.get(job)
        assert (view.state, view.reason) == ("succeeded", None), view.message
        assert SMALL[name].items() <= view.method.model_dump(mode="json").items()
        found = list(client.all_candidates(job))
        assert view.cost_usd == pytest.approx(sum(call.cost_usd for call in client.all_model_calls(job)))
        assert view.best is not None
        assert view.best.speedup.median == max(item.speedup or 0 for item in found)
        assert client.download(job)
