"""Roles that may use each route. A route of the application without a line here fails ``test_roles.py``.

A line is the smallest role that suffices and, where the route needs one, a body (``{name}`` in it is replaced by the
thing's id, as in the path). See ``docs/how-to/declare-a-role.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cupilot.domain.states import JobState
from tests.service.api.world import job_request

OPEN = "open"
"""Needs no key."""
CLUSTER_ADMIN = "cluster_admin"
"""Only for those who run the service."""


@dataclass(frozen=True)
class Line:
    """Requirements of a route."""

    role: str
    """``viewer``, ``member`` or ``admin`` of the team; or :data:`OPEN` or :data:`CLUSTER_ADMIN`."""
    body: Any = None
    query: str = ""
    job: JobState = JobState.SUCCEEDED
    """In which state the job that the path names has to be."""
    shared: bool = False
    """True if what the path names is the same for all teams, so that no team is a stranger to it."""


EXPERIMENT = {
    "name": "roles",
    "target": "cpu",
    "arms": [{"name": "with"}, {"name": "without", "method": {"name": "sce", "pool": False}}],
    "problems": [job_request()["problem"]],
    "seeds": [0],
}

IMPORT = {"problem": job_request()["problem"], "target": "cpu", "source": "class ModelNew: ..."}

WEBHOOK = {"url": "https://93.184.216.34/hook"}

MATRIX: dict[str, Line] = {
    "POST /v1/jobs": Line("member", job_request()),
    "POST /v1/jobs/plan": Line("member", job_request()),
    "GET /v1/jobs": Line("viewer"),
    "GET /v1/jobs/{job}": Line("viewer"),
    "POST /v1/jobs/{job}/cancel": Line("member", job=JobState.EVOLVING),
    "GET /v1/jobs/{job}/events": Line("viewer"),
    "GET /v1/jobs/{job}/events/stream": Line("viewer"),
    "GET /v1/events": Line("viewer"),
    "GET /v1/events/stream": Line("viewer"),
    "GET /v1/jobs/{job}/candidates": Line("viewer"),
    "GET /v1/jobs/{job}/candidates/{candidate}": Line("viewer"),
    "GET /v1/jobs/{job}/steps": Line("viewer"),
    "GET /v1/jobs/{job}/log": Line("viewer"),
    "GET /v1/jobs/{job}/steps/{step}/log": Line("viewer"),
    "GET /v1/jobs/{job}/best": Line("viewer"),
    "GET /v1/jobs/{job}/best/download": Line("viewer"),
    "POST /v1/experiments": Line("member", EXPERIMENT),
    "POST /v1/experiments/plan": Line("member", EXPERIMENT),
    "PATCH /v1/jobs/{job}": Line("member", {"labels": {"colour": "red"}}),
    "POST /v1/jobs/{job}/pause": Line("member", job=JobState.EVOLVING),
    "POST /v1/jobs/{job}/resume": Line("member", job=JobState.EVOLVING),
    "POST /v1/jobs/{job}/retry": Line("member", {}, job=JobState.BUDGET_EXHAUSTED),
    "POST /v1/jobs/{job}/candidates/{candidate}/fork": Line("member", {}),
    "GET /v1/jobs/{job}/directives": Line("viewer"),
    "POST /v1/jobs/{job}/directives": Line("member", {"kind": "ban", "technique": "simd"}, job=JobState.EVOLVING),
    "DELETE /v1/jobs/{job}/directives/{directive}": Line("member", job=JobState.EVOLVING),
    "GET /v1/quota": Line("viewer"),
    "GET /v1/me": Line("viewer"),
    "GET /v1/teams": Line("viewer"),
    "POST /v1/teams": Line(CLUSTER_ADMIN, {"name": "{new}"}),
    "GET /v1/teams/{team}": Line("viewer"),
    "PATCH /v1/teams/{team}": Line(CLUSTER_ADMIN, {"weight": 2}),
    "GET /v1/teams/{team}/members": Line("viewer"),
    "PUT /v1/teams/{team}/members/{user}": Line("admin", {"role": "viewer"}),
    "DELETE /v1/teams/{team}/members/{user}": Line("admin"),
    "POST /v1/teams/{team}/accounts": Line("admin", {"name": "{new}"}),
    "GET /v1/users": Line(CLUSTER_ADMIN),
    "POST /v1/users": Line(CLUSTER_ADMIN, {"name": "{new}"}),
    "GET /v1/users/{user}": Line(CLUSTER_ADMIN, shared=True),
    "PATCH /v1/users/{user}": Line(CLUSTER_ADMIN, {"disabled": False}, shared=True),
    "GET /v1/keys": Line("viewer"),
    "POST /v1/keys": Line("viewer", {"name": "for a test", "scope": "read"}),
    "DELETE /v1/keys/{key}": Line("admin"),
    "GET /v1/experiments": Line("viewer"),
    "GET /v1/experiments/{experiment}": Line("viewer"),
    "POST /v1/experiments/{experiment}/cancel": Line("member"),
    "GET /v1/experiments/{experiment}/jobs": Line("viewer"),
    "GET /v1/experiments/{experiment}/report": Line("viewer"),
    "GET /v1/experiments/{experiment}/report/tables/{table}": Line("viewer"),
    "GET /v1/experiments/{experiment}/report/figures/{figure}": Line("viewer"),
    "GET /v1/experiments/{experiment}/report/download": Line("viewer"),
    "GET /v1/pool/entries": Line("viewer"),
    "GET /v1/pool/entries/{entry}": Line("viewer"),
    "POST /v1/pool/search": Line("viewer", {"question": {"op_class": "softmax", "target": "cpu"}}),
    "PUT /v1/pool/sharing": Line("member", {"job": "{job}", "sharing": "private"}),
    "GET /v1/pool/export": Line("viewer"),
    "POST /v1/pool/import": Line("member"),
    "GET /v1/pool/stats": Line("viewer"),
    "GET /v1/problems": Line("viewer"),
    "GET /v1/problems/{problem}": Line("viewer"),
    "POST /v1/webhooks": Line("admin", WEBHOOK),
    "GET /v1/webhooks": Line("viewer"),
    "GET /v1/webhooks/{webhook}": Line("viewer"),
    "PATCH /v1/webhooks/{webhook}": Line("admin", {"description": "changed"}),
    "DELETE /v1/webhooks/{webhook}": Line("admin"),
    "POST /v1/webhooks/{webhook}/secret": Line("admin"),
    "POST /v1/webhooks/{webhook}/ping": Line("admin"),
    "GET /v1/webhooks/{webhook}/deliveries": Line("viewer"),
    "GET /v1/webhooks/{webhook}/deliveries/{delivery}": Line("viewer"),
    "POST /v1/webhooks/{webhook}/deliveries/{delivery}/redeliver": Line("admin"),
    "GET /v1/audit": Line("admin"),
    "POST /v1/batches": Line(CLUSTER_ADMIN, {"target": "cpu"}),
    "GET /v1/batches": Line(CLUSTER_ADMIN),
    "GET /v1/batches/{batch}": Line(CLUSTER_ADMIN, shared=True),
    "GET /v1/batches/{batch}/steps": Line(CLUSTER_ADMIN, shared=True),
    "GET /v1/batches/{batch}/file": Line(CLUSTER_ADMIN, shared=True),
    "POST /v1/batches/{batch}/results": Line(CLUSTER_ADMIN, shared=True),
    "POST /v1/batches/{batch}/cancel": Line(CLUSTER_ADMIN, shared=True),
    "GET /v1/cluster": Line("viewer"),
    "GET /v1/jobs/{job}/exports": Line("viewer"),
    "GET /v1/jobs/{job}/exports/{form}": Line("viewer"),
    "GET /v1/jobs/{job}/candidates/{candidate}/exports": Line("viewer"),
    "GET /v1/jobs/{job}/candidates/{candidate}/exports/{form}": Line("viewer"),
    "GET /v1/jobs/{job}/calls": Line("viewer"),
    "GET /v1/jobs/{job}/calls/{call}": Line("viewer"),
    "GET /v1/jobs/{job}/candidates/{candidate}/calls": Line("viewer"),
    "GET /v1/jobs/{job}/candidates/{candidate}/measurements": Line("viewer"),
    "POST /v1/imports": Line("member", IMPORT),
    "POST /v1/jobs/{job}/candidates/{candidate}/remeasure": Line("member"),
    "GET /v1/leaderboards": Line("viewer"),
    "GET /v1/leaderboards/{problem}": Line("viewer"),
    "GET /v1/techniques": Line("viewer"),
    "GET /v1/compare": Line("viewer", query="first={job}:0&second={job}:1"),
    "GET /v1/version": Line(OPEN),
    "GET /healthz": Line(OPEN),
    "GET /readyz": Line(OPEN),
    "GET /metrics": Line(OPEN),
}
