"""More requests at once than there are threads and connections: each waits for its turn, none is turned away."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.service.api.world import Team, World

pytestmark = pytest.mark.service

CROWD = 120
"""Three times the threads that endpoints run in, and the connections."""


def test_a_crowd_is_served(world: World, team: Team) -> None:
    key = {"Authorization": f"Bearer {team.key}"}

    async def ask(client: httpx.AsyncClient, path: str) -> int:
        return (await client.get(path, headers=key)).status_code

    async def crowd() -> list[int]:
        limits = httpx.Limits(max_connections=CROWD)
        async with httpx.AsyncClient(base_url=world.url, timeout=300, limits=limits, trust_env=False) as client:
            paths = ("/v1/jobs", "/v1/cluster", "/v1/events?wait=0.1")
            return await asyncio.gather(*(ask(client, paths[number % 3]) for number in range(CROWD)))

    assert set(asyncio.run(crowd())) == {200}
