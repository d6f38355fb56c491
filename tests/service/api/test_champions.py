"""Champions over REST: listed on a fresh installation, judged again by one request, and what jobs begin from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from cupilot.client import Client, NotFoundError
from cupilot.domain.champions import best, champions
from cupilot.domain.evolution.sce import SceConfig
from cupilot.domain.job import Budgets
from cupilot.domain.problem import Target
from cupilot.schemas import JobRequest, ProblemInput
from cupilot.storage.db.tables.jobs import Directive
from tests.service.api.world import Team, World

pytestmark = pytest.mark.service
PROBLEM = "max_pool2d"


@pytest.fixture
def client(world: World, team: Team) -> Iterator[Client]:
    with Client(world.url, team.key) as client:
        yield client


def injected(world: World, job: object) -> list[tuple[str, str | None]]:
    with world.database.transaction() as session:
        rows = session.scalars(select(Directive).where(Directive.job_id == job)).all()
        return [(row.author, row.kernel_hash) for row in rows]


def test_a_fresh_installation_lists_champions_with_their_evidence(client: Client) -> None:
    listed = client.champions().items
    assert len(listed) == len(champions())
    [one] = client.champions(PROBLEM, target="cuda").items
    report = client.champion(one.kernel)
    assert report.candidate.kernel is not None
    assert report.candidate.kernel.source == best(PROBLEM, Target.CUDA).kernel.source
    assert report.candidate.verdict == "reproduced"
    with pytest.raises(NotFoundError):
        client.champion("0" * 64)


def test_one_request_has_a_champion_judged_again_and_nothing_else(client: Client, world: World) -> None:
    kernel = best(PROBLEM, Target.CUDA).kernel.content_hash()
    job = client.judge_champion(kernel[:12], idempotency_key="once")
    assert client.judge_champion(kernel, idempotency_key="once").id == job.id
    assert (job.problem.name, job.budgets.candidates, job.labels) == (PROBLEM, 1, {"champion": kernel})
    assert injected(world, job.id) == [("release", kernel)]


def test_a_job_begins_from_the_champion_of_its_problem_unless_it_learns_from_no_pool(
    client: Client, world: World
) -> None:
    kernel = best(PROBLEM, Target.CUDA).kernel.content_hash()
    request = JobRequest(problem=ProblemInput(id=PROBLEM), target=Target.CUDA)
    assert injected(world, client.submit(request).id) == [("release", kernel)]
    without = request.model_copy(update={"method": SceConfig(pool=False)})
    assert injected(world, client.submit(without).id) == []
    smaller = request.model_copy(update={"problem": ProblemInput(id=PROBLEM, size="small")})
    assert injected(world, client.submit(smaller).id) == []
    single = request.model_copy(update={"budgets": Budgets(candidates=1)})
    assert injected(world, client.submit(single).id) == []
