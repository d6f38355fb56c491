"""One application a module, on a database of its own; every test has teams of its own."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest
from pydantic import SecretStr

from api.app import create_app
from cupilot.settings import Settings
from tests.service.api.world import Team, World, live

anyio.open_file  # noqa: B018  loaded on first use, by a server's thread, which CPython 3.11 can fail at (gh-106905)


@pytest.fixture(scope="module")
def world(database_url: str) -> Iterator[World]:
    app = create_app(Settings(database_url=SecretStr(database_url)))
    with live(app) as url:
        world = World(app.state.database, url)
        yield world
        world.close()
    world.database.close()


@pytest.fixture
def team(world: World) -> Team:
    return world.team()


@pytest.fixture
def stranger(world: World) -> Team:
    return world.team()
