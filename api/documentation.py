"""OpenAPI beyond the types: examples, and the errors that a route can answer."""

from __future__ import annotations

from typing import Any

from cupilot.schemas import ErrorEnvelope

DESCRIPTION = """
Give it a PyTorch operator; it evolves kernels for it, proves each one, and returns the fastest that holds up.

Submit with `POST /v1/jobs`, follow with `GET /v1/jobs/{job}` (its `Retry-After` says when to ask again), fetch the
winner with `GET /v1/jobs/{job}/best/download`. Every request but `/healthz`, `/readyz` and `/v1/version` needs an API
key in `Authorization: Bearer cpk_...`. Every error has the same envelope, with a stable `code` and a `request_id`.
"""

TAGS = [
    {"name": "jobs", "description": "Submit, follow, cancel."},
    {"name": "steering", "description": "Pause, resume, retry, fork, pin, ban, inject; quotas."},
    {"name": "people", "description": "Teams, users, roles and API keys."},
    {"name": "experiments", "description": "Matched jobs over arms, problems and seeds, and what they show."},
    {"name": "events", "description": "What happens, as pages and as streams."},
    {"name": "webhooks", "description": "Events sent to you, signed."},
    {"name": "results", "description": "Candidates with their lineage, and the winner."},
    {"name": "pool", "description": "What earlier jobs learned: search, share, export, import."},
    {"name": "problems", "description": "Built-in problems and those that your team submitted."},
    {"name": "batches", "description": "Steps for machines without a network, and their results."},
    {"name": "service", "description": "What the service runs on, and how it is."},
]

SOURCE_EXAMPLE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(2048, 8192)]


def get_init_inputs():
    return []
"""

JOB_EXAMPLES: dict[str, Any] = {
    "builtin": {"summary": "A built-in problem", "value": {"problem": {"id": "softmax"}, "target": "cpu"}},
    "own": {
        "summary": "Your own file, with budgets",
        "value": {
            "problem": {"name": "row softmax", "source": SOURCE_EXAMPLE, "policy": "fp32"},
            "target": "cuda",
            "method": {"name": "sce", "population": 8, "generations": 4},
            "budgets": {"candidates": 64, "wall_seconds": 1800, "cost_usd": 0},
            "seed": 7,
            "labels": {"model": "llama"},
        },
    },
    "code_crossover": {
        "summary": "An ablation: crossover of code, without the pool",
        "value": {
            "problem": {"id": "layer_norm"},
            "target": "cpu",
            "method": {"name": "sce", "crossover": "code", "pool": False, "epochs": 2},
            "agents": "llm",
        },
    },
    "evoengineer": {
        "summary": "Another method, with a model",
        "value": {
            "problem": {"id": "softmax"},
            "target": "cuda",
            "method": {"name": "evoengineer-full", "samples": 45},
            "agents": "llm",
            "budgets": {"cost_usd": 5},
        },
    },
    "ai_cuda_engineer": {
        "summary": "The AI CUDA Engineer, seeded by the playbook",
        "value": {
            "problem": {"id": "softmax"},
            "target": "cuda",
            "method": {"name": "ai-cuda-engineer", "generations": 5},
            "agents": "hybrid",
        },
    },
}

EXPERIMENT_EXAMPLES: dict[str, Any] = {
    "switches": {
        "summary": "Two switches of one method: four arms",
        "value": {
            "name": "pool and roofline",
            "target": "cpu",
            "method": {"name": "sce", "population": 4, "generations": 2},
            "switches": {"pool": [True, False], "roofline_guidance": [True, False]},
            "problems": [{"id": "softmax"}, {"id": "layer_norm_rows"}],
            "seeds": [0, 1, 2],
            "budgets": {"candidates": 12, "wall_seconds": 3600, "cost_usd": 0},
        },
    },
    "arms": {
        "summary": "Arms by name, a total to share",
        "value": {
            "name": "how long to search",
            "target": "cuda",
            "device_class": "sm_90",
            "method": {"name": "sce", "population": 8},
            "arms": [
                {"name": "short", "method": {"generations": 2}},
                {"name": "long", "method": {"generations": 8}},
            ],
            "reference": "short",
            "problems": [{"id": "softmax"}],
            "seeds": [0, 1, 2, 3, 4, 5],
            "total": {"candidates": 600},
        },
    },
}

POOL_EXAMPLES: dict[str, Any] = {
    "job": {
        "summary": "Plan a job without starting it shown",
        "value": {"job": "3f2c8a52-9d0e-4a62-9a3f-0c3f8f1f6a10", "limit": 8},
    },
    "description": {
        "summary": "A description",
        "value": {
            "question": {
                "name": "row softmax",
                "op_class": "softmax",
                "operators": ["aten._softmax.default"],
                "shapes": [[4096, 8192]],
                "target": "cuda",
            }
        },
    },
}

TECHNIQUES_EXAMPLE: dict[str, Any] = {
    "items": [
        {
            "id": "two_rows_a_warp",
            "target": "cuda",
            "kind": "promoted",
            "meaning": "Each warp keeps two rows in flight, so that one row's loads hide the other's reduction.",
            "tries": 9,
            "wins": 7,
            "problems": 3,
            "families": ["norm", "softmax"],
            "failures": {"wrong_value": 2},
            "effect": {"factor": 1.19, "low": 1.04, "high": 1.36, "places": 3},
            "origin": "idea",
            "job": "3f2c8a52-9d0e-4a62-9a3f-0c3f8f1f6a10",
            "since": "2026-01-12T09:30:00Z",
        }
    ],
    "next_cursor": None,
}

_ERRORS = {
    401: ("No API key, or not a valid one.", "unauthorized", "the API key is unknown or was revoked"),
    403: ("Your role, or your key's scope, does not allow this.", "role_too_low", "this needs the role member"),
    404: ("No such thing, or it belongs to another team.", "not_found", "no such job"),
    409: ("Its state does not allow this.", "conflict", "the job has ended already: succeeded"),
    410: (
        "It was pruned by the operator's retention.",
        "pruned",
        "the step's log was pruned on 2026-01-31 09:30 UTC: its job ended more than CUPILOT_JOB_KEEP_DAYS days before",
    ),
    413: ("The body is too large.", "body_too_large", "the request body is larger than 1048576 bytes"),
    422: (
        "The request is not acceptable; `details` names every field.",
        "invalid_input",
        "body.target: Field required",
    ),
    429: (
        "Too much at once; `Retry-After` says when to try again.",
        "rate_limited",
        "too many requests from this API key: 1200 a minute",
    ),
    503: ("A dependency does not answer; try again.", "unavailable", "the database does not answer"),
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route, each with an example; 503 is always among them."""
    anything_else = {"description": "Any other error has the same envelope.", "model": ErrorEnvelope}
    return {**{status: _error(status) for status in (*statuses, 503)}, "default": anything_else}


def _error(status: int) -> dict[str, Any]:
    description, code, message = _ERRORS[status]
    example = {"error": {"code": code, "message": message, "request_id": "4bf92f3577b34da6a3ce929d0e0e4736"}}
    return {
        "description": description,
        "model": ErrorEnvelope,
        "content": {"application/json": {"example": example}},
    }
