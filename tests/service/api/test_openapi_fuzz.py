"""A short seeded run over every operation of the service's OpenAPI; ``python -m benchmarks.fuzz`` is the long one."""

from __future__ import annotations

import pytest

from api.app import create_app
from cupilot.settings import Settings
from tests.service.api.openapi_fuzz import fuzz, operations
from tests.service.api.world import Story, World, evolved

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore")]

EXAMPLES = 6
SEED = 20261121
OPERATIONS = {operation.label: operation for operation in operations(create_app(Settings()).openapi())}


@pytest.fixture(scope="module")
def known(world: World) -> dict[str, list[str]]:
    """Ids of a job that has everything, and its team."""
    team = world.team()
    with world.database.transaction() as session:
        job = evolved(session, team.id)
        other = Story(session, team.id).prepare().job
        return {"team-key": [team.key], "job": [str(job.id), str(other.id)], "candidate": [str(job.best_candidate_id)]}


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_one_that_the_documentation_promises(
    world: World, known: dict[str, list[str]], label: str
) -> None:
    [key] = known["team-key"]
    outcome = fuzz(OPERATIONS[label], world.url, key, known, examples=EXAMPLES, number=SEED)
    assert outcome.calls > 0
    assert outcome.failures == []
