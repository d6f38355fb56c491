"""The application: routes, middleware, documentation and the database put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from api import errors, mcp, single_sign_on
from api.audit import AuditLog
from api.documentation import DESCRIPTION, TAGS
from api.examples import document_with_examples
from api.limits import RateLimits
from api.metrics import Metrics
from api.middleware import BodyLimit, RequestContext
from api.pages import routes as pages
from api.pages import visits
from api.rate_limiter import Limiter
from api.routes import (
    audit,
    batches,
    calls,
    champions,
    events,
    experiments,
    exports,
    imports,
    jobs,
    leaderboards,
    measurements,
    people,
    pool,
    problems,
    results,
    service,
    steering,
    steps,
    techniques,
    webhooks,
)
from api.streams import Hub
from api.turns import Turns
from cupilot import __version__
from cupilot.settings import Settings, settings
from cupilot.storage.db.engine import Database
from cupilot.storage.pool.index import StrategyPool

POOL_SIZE = 20
"""Connections; in need as many again, so that each of the 40 threads that Starlette runs endpoints in finds one."""
POOL_SECONDS, POOL_REST_SECONDS = 2.0, 5.0
"""Seconds that a search, which holds a turn, waits for Chroma; a Chroma that did not answer is not asked for as long.
A search without it goes by words."""


def create_app(config: Settings | None = None) -> FastAPI:
    """Return the API as an ASGI application, on the database that the settings name."""
    config = config or settings()
    documented = config.api_docs == "on"
    app: FastAPI = (FastAPIOffline if documented else FastAPI)(
        title="cuPilot",
        version=__version__,
        description=DESCRIPTION,
        openapi_tags=TAGS,
        redoc_url=None,
        openapi_url="/openapi.json" if documented else None,
        redirect_slashes=False,
        # Swagger UI would show a badge from validator.swagger.io.
        swagger_ui_parameters={"validatorUrl": None},
        lifespan=_lifespan,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.database = Database(config.database_url.get_secret_value(), settings=config, pool_size=POOL_SIZE)
    app.state.turns = Turns()
    app.state.metrics = Metrics(app.state.database, config.metrics_seconds)
    app.state.hub = Hub(app.state.database, config.streams, config.streams_per_team)
    app.state.settings = config
    app.state.provider = single_sign_on.provider_of(config)
    app.state.pool = StrategyPool(config.chroma_url, timeout=POOL_SECONDS, rest=POOL_REST_SECONDS)
    for module in (
        jobs,
        events,
        results,
        steps,
        calls,
        experiments,
        pool,
        problems,
        service,
        exports,
        steering,
        people,
        webhooks,
        audit,
        leaderboards,
        measurements,
        imports,
        techniques,
        champions,
        batches,
    ):
        app.include_router(module.router)
    for router in pages.ROUTERS:
        app.include_router(router)
    document_with_examples(app)
    app.state.mcp = mcp.mount(app, app.state.database)
    errors.install(app)
    visits.install(app)
    app.state.limiter = Limiter(config.redis_url.get_secret_value())
    app.add_middleware(BodyLimit, limit=config.max_body_bytes)
    app.add_middleware(RateLimits, settings=config, limiter=app.state.limiter, metrics=app.state.metrics)
    app.add_middleware(AuditLog, database=app.state.database)
    app.add_middleware(RequestContext, metrics=app.state.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with app.state.mcp.run():
        yield {}
    app.state.pool.close()
    await app.state.limiter.close()
    app.state.database.close()
