"""A short seeded run over every operation of the service's OpenAPI; ``python -m benchmarks.fuzz`` is the long one."""

from __future__ import annotations

import pytest

from tests.service.api.openapi_fuzz import fuzz, operations
from tests.service.api.things import Asker, asker
from tests.service.api.world import Team, World, documentation, evolved

pytestmark = [pytest.mark.service, pytest.mark.filterwarnings("ignore")]

EXAMPLES = 5
SEED = 20261121
OPERATIONS = {operation.label: operation for operation in operations(documentation())}
NEEDS_MORE = {"GET /readyz"}
"""Operations that succeed on a whole stack only."""


@pytest.fixture(scope="module")
def team(world: World) -> Team:
    return world.cluster_admin()


@pytest.fixture(scope="module")
def ask(world: World, team: Team) -> Asker:
    """Requests about a job that has everything."""
    with world.database.transaction() as session:
        return asker(world, team, evolved(session, team.id).id)


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_one_that_the_documentation_promises(world: World, team: Team, ask: Asker, label: str) -> None:
    outcome = fuzz(OPERATIONS[label], world.url, team.key, ask, examples=EXAMPLES, number=SEED)
    assert outcome.failures == []
    assert outcome.succeeded or label in NEEDS_MORE, outcome.statuses
