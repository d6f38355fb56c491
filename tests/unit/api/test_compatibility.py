"""Clients of the last release can use today's service; and what they could not is seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from api import compatibility, contract
from api.compatibility import broken

Contract = dict[str, Any]

JOB = {"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}, "state": {"type": "string"},
       "kind": {"type": "string", "x-extensible-enum": ["a"]}, "size": {"type": "string", "enum": ["s", "m"]},
       "speedup": {"anyOf": [{"type": "number", "minimum": 1}, {"type": "null"}]},
       "parent": {"anyOf": [{"$ref": "#/components/schemas/Job-Output"}, {"type": "null"}]}},
       "required": ["id", "state"]}  # fmt: skip
REQUEST = {"type": "object", "additionalProperties": False, "required": ["target"],
           "properties": {"target": {"$ref": "#/components/schemas/Target-Input"},
                          "seed": {"type": "integer", "minimum": 0, "maximum": 9},
                          "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 5}},
                          "name": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}  # fmt: skip


def small() -> Contract:
    """A service that takes jobs."""
    answer = {"202": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Job-Output"}}}},
              "404": {"content": {"application/json": {"schema": {"type": "object"}}}}}  # fmt: skip
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Request"}}}}
    limit = {"in": "query", "name": "limit", "required": False, "schema": {"type": "integer", "maximum": 200}}
    return copy.deepcopy({
        "paths": {"/jobs": {"post": {"parameters": [limit], "requestBody": body, "responses": answer},
                            "get": {"responses": answer}}},
        "components": {"schemas": {"Job-Output": JOB, "Request": REQUEST,
                                   "Target-Input": {"type": "string", "enum": ["cpu", "cuda"]}}},
    })  # fmt: skip


def post(service: Contract) -> Any:
    return service["paths"]["/jobs"]["post"]


def job(service: Contract) -> Any:
    return service["components"]["schemas"]["Job-Output"]


def request(service: Contract) -> Any:
    return service["components"]["schemas"]["Request"]


def test_clients_of_the_last_release_can_use_todays_service() -> None:
    found = broken(contract.read(contract.RELEASED), contract.served())
    assert not found, "clients of the last release break; see docs/rest.md, Compatibility\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s["paths"]["/jobs"].pop("get"), "GET /jobs is gone"),
        (lambda s: s["paths"].pop("/jobs"), "POST /jobs is gone"),
        (lambda s: post(s)["parameters"].clear(), "POST /jobs query limit is gone"),
        (lambda s: post(s)["parameters"][0].update(required=True), "POST /jobs query limit has to be given"),
        (
            lambda s: post(s)["parameters"].append({"in": "query", "name": "team", "required": True, "schema": {}}),
            "POST /jobs query team has to be given",
        ),
        (
            lambda s: post(s)["parameters"][0]["schema"].update(maximum=100),
            "POST /jobs query limit: maximum 200 is above 100",
        ),
        (lambda s: post(s)["requestBody"]["content"].clear(), "POST /jobs body may not be application/json any more"),
        (lambda s: post(s)["responses"].pop("202"), "POST /jobs answers 202 no more"),
        (lambda s: post(s)["responses"]["202"]["content"].clear(), "POST /jobs 202 is not application/json any more"),
        (lambda s: job(s)["properties"].pop("kind"), "Job.kind is gone"),
        (lambda s: job(s)["required"].remove("state"), "Job.state may be left out"),
        (lambda s: job(s)["properties"]["state"].update(type="integer"), "Job.state may be integer"),
        (lambda s: job(s)["properties"]["id"].pop("format"), 'Job.id: format is "uuid" and was not'),
        (lambda s: job(s)["properties"]["size"]["enum"].append("l"), 'Job.size "l" is not among "s", "m"'),
        (lambda s: job(s)["properties"]["size"].pop("enum"), 'Job.size may be other than "s", "m"'),
        (lambda s: job(s)["properties"]["speedup"]["anyOf"].append({"type": "string"}), "Job.speedup may be string"),
        (
            lambda s: job(s)["properties"]["speedup"]["anyOf"][0].update(minimum=0),
            "Job.speedup: minimum 0 is below 1",
        ),
        (lambda s: job(s)["properties"]["state"].update(nullable=True), "Job.state: nullable is another"),
        (lambda s: request(s)["properties"].pop("seed"), "Request.seed is gone"),
        (lambda s: request(s)["required"].append("seed"), "Request.seed has to be given"),
        (
            lambda s: (request(s)["properties"].update(new={}), request(s)["required"].append("new")),
            "Request.new has to be given",
        ),
        (lambda s: request(s)["properties"]["seed"].update(minimum=1), "Request.seed: minimum 0 is below 1"),
        (lambda s: request(s)["properties"]["name"]["anyOf"].pop(), "Request.name may not be null"),
        (
            lambda s: request(s)["properties"]["labels"]["additionalProperties"].update(maxLength=4),
            "Request.labels.*: maxLength 5 is above 4",
        ),
        (
            lambda s: s["components"]["schemas"]["Target-Input"]["enum"].remove("cpu"),
            'Target "cpu" is not among "cuda"',
        ),
    ],
)
def test_what_breaks_a_client_is_told(change: Callable[[Contract], object], sentence: str) -> None:
    now = small()
    change(now)
    assert sentence in broken(small(), now)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s["paths"].update({"/teams": {"get": {"responses": {}}}}),
        lambda s: post(s)["parameters"].append({"in": "query", "name": "team", "schema": {"type": "string"}}),
        lambda s: post(s)["parameters"][0]["schema"].update(maximum=500),
        lambda s: post(s)["responses"].pop("404"),
        lambda s: job(s)["properties"].update(more={"type": "string"}),
        lambda s: job(s)["required"].append("kind"),
        lambda s: job(s)["properties"]["kind"]["x-extensible-enum"].append("b"),
        lambda s: job(s)["properties"]["size"]["enum"].remove("m"),
        lambda s: job(s)["properties"]["speedup"]["anyOf"].pop(),
        lambda s: request(s)["properties"].update(more={"type": "string"}),
        lambda s: request(s)["required"].clear(),
        lambda s: request(s)["properties"]["seed"].update(maximum=99, type="number"),
        lambda s: s["components"]["schemas"]["Target-Input"]["enum"].append("rocm"),
        lambda s: request(s).update(additionalProperties=True),
    ],
)
def test_what_is_only_added_breaks_nobody(change: Callable[[Contract], object]) -> None:
    now = small()
    change(now)
    assert broken(small(), now) == []


def test_an_answer_that_repeats_the_request_may_have_more_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    now = small()
    job(now)["properties"]["size"]["enum"].append("l")
    assert broken(small(), now) != []
    monkeypatch.setattr(compatibility, "ECHOES", frozenset({"Job.size"}))
    assert broken(small(), now) == []
