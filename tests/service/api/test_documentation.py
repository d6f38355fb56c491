"""OpenAPI is complete and true, and /docs works with no other server in reach."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import httpx
import pytest

import api.routes
from api.app import create_app
from cupilot.schemas import ErrorEnvelope
from cupilot.settings import Settings
from tests.service.api.world import Team, World, live

pytestmark = pytest.mark.service

OPEN = {"/healthz", "/readyz", "/v1/version"}
"""Routes that take no key."""


@pytest.fixture(scope="module")
def document(world: World) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{world.url}/openapi.json", timeout=60).raise_for_status().json()
    return found


def _operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, item) for path, methods in document["paths"].items() for method, item in methods.items()]


def test_every_route_of_the_application_is_described(document: dict[str, Any]) -> None:
    modules = [import_module(f"api.routes.{found.name}") for found in iter_modules(api.routes.__path__)]
    routes = {
        (route.path, method.lower()) for module in modules for route in module.router.routes for method in route.methods
    }
    assert {(path, method) for path, method, _ in _operations(document)} == routes
    assert len(routes) >= 18


def test_every_operation_has_words_a_tag_and_its_errors(document: dict[str, Any]) -> None:
    for path, method, operation in _operations(document):
        assert operation["summary"], path
        assert operation["description"], path
        assert operation["tags"], path
        responses = operation["responses"]
        if path in OPEN:
            assert "security" not in operation
            continue
        assert operation["security"] == [{"ApiKey": []}], path
        expected = (
            {"401", "503"}
            | ({"404"} if "{" in path else set())
            | ({"409", "413", "422"} if (path, method) == ("/v1/jobs", "post") else set())
        )
        assert expected <= set(responses), path
        for status in expected | ({"422"} & set(responses)):
            schema = responses[status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorEnvelope"}, (path, status)


def test_the_frameworks_own_error_format_is_nowhere(document: dict[str, Any]) -> None:
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_the_examples_of_a_submission_are_accepted(document: dict[str, Any], team: Team) -> None:
    content = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]
    assert len(content["examples"]) >= 2
    for example in content["examples"].values():
        response = team.http.post("/v1/jobs", json=example["value"])
        if example["value"].get("agents", "playbook") != "playbook":  # no agent worker with a model runs here
            assert response.json()["error"]["code"] == "agents_unavailable"
            continue
        assert response.status_code == 202, response.text


def test_the_examples_of_errors_are_errors(document: dict[str, Any]) -> None:
    count = 0
    for _, _, operation in _operations(document):
        for status, response in operation["responses"].items():
            if status.startswith("2"):
                continue
            example = response.get("content", {}).get("application/json", {}).get("example")
            if example:
                ErrorEnvelope.model_validate(example, extra="forbid")
                count += 1
    assert count > 20


def test_operation_ids_are_unique(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, _, operation in _operations(document)]
    assert len(ids) == len(set(ids))


def test_the_documentation_page_needs_no_other_server(world: World) -> None:
    with httpx.Client(base_url=world.url, timeout=60) as http:
        page = http.get("/docs")
        assert page.status_code == 200
        assert re.findall(r"""(?:src|href)\s*=\s*["'](?:https?:)?//""", page.text) == []
        assert "http://" not in page.text
        assert "https://" not in page.text
        linked = re.findall(r"""(?:src|href)\s*=\s*["'](/[^"']+)["']""", page.text)
        assert len(linked) >= 3
        for path in [*linked, "/openapi.json"]:
            assert http.get(path).status_code == 200, path
        assert http.get("/redoc").status_code == 404
        assert page.headers["Content-Security-Policy"].startswith("default-src 'self'")
        assert '"validatorUrl": null' in page.text


def test_documentation_can_be_turned_off() -> None:
    app = create_app(Settings(api_docs="off"))
    with live(app) as url, httpx.Client(base_url=url, timeout=60) as http:
        assert {http.get(path).status_code for path in ("/docs", "/openapi.json", "/redoc")} == {404}
        assert http.get("/healthz").status_code == 200
    app.state.database.close()


def test_no_page_of_another_origin_may_call(world: World, team: Team) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    with httpx.Client(base_url=world.url, timeout=60) as http:
        preflight = http.options("/v1/jobs", headers=asked)
        simple = http.get("/v1/jobs", headers={"Origin": asked["Origin"], "Authorization": f"Bearer {team.key}"})
    for response in (preflight, simple):
        assert not [name for name in response.headers if name.lower().startswith("access-control-")]
