"""An example of each request body, for people and for models that read the OpenAPI document. Adds them, checks none.

Those of answers are made from their schemas: :mod:`api.response_examples`.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from api.response_examples import add_response_examples

SOURCE = """import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 1)
"""

BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("patch", "/v1/jobs/{job}"): {"labels": {"model": "llama", "old": None}, "priority": "high"},
    ("put", "/v1/pool/sharing"): {"sharing": "anonymous", "job": "3f2c8a52-9d0e-4a62-9a3f-0c3f8f1f6a10"},
    ("post", "/v1/jobs/{job}/retry"): {"budgets": {"candidates": 400, "wall_seconds": 7200}},
    ("post", "/v1/jobs/{job}/candidates/{candidate}/fork"): {"agents": "hybrid", "seed": 7},
    ("post", "/v1/teams"): {"name": "kernels", "weight": 2},
    ("patch", "/v1/teams/{team}"): {"weight": 1.5, "quota": {"max_running_jobs": 4}},
    ("put", "/v1/teams/{team}/members/{user}"): {"role": "member"},
    ("post", "/v1/teams/{team}/accounts"): {"name": "ci", "role": "member"},
    ("post", "/v1/teams/{team}/invitations"): {"role": "member", "expires_days": 7},
    ("post", "/v1/invitations/accept"): {"secret": "cpi_the-secret-that-the-invitation-showed"},
    ("post", "/v1/users"): {"name": "ann"},
    ("patch", "/v1/users/{user}"): {"disabled": False},
    ("post", "/v1/keys"): {"name": "laptop", "scope": "submit", "expires_days": 90},
    ("patch", "/v1/webhooks/{webhook}"): {"enabled": True},
    ("post", "/v1/imports"): {"problem": {"id": "softmax"}, "target": "cuda", "source": SOURCE},
    ("post", "/v1/batches"): {"target": "cuda"},
}
"""By method and path: those whose routes say none themselves."""


def document_with_examples(app: FastAPI) -> None:
    """Have the application's OpenAPI document hold these examples."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        document = original()
        for (method, path), body in BODIES.items():
            content = document["paths"][path][method]["requestBody"]["content"]["application/json"]
            content["example"] = body
        add_response_examples(document)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
