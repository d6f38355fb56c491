"""Submit what nobody should submit: a clear error or a failed job with a stable code, and the next job runs."""

from __future__ import annotations

import httpx
import pytest

from cupilot.embedded import stack as embedded
from tests.service.faults.stack import Stack, ran_through, wait_until

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

SETTINGS = {"CUPILOT_PREPARE_TIMEOUT_SECONDS": "20", "CUPILOT_TEST_FORWARD_SECONDS": "5"}
"""One of the references below ends with the preparation's limit, one with its stage's. The good one takes 2 s, on a
busy machine 10, and its first forward pass 0.02 s."""

GOOD = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(256, 1024)]


def get_init_inputs():
    return []
"""
FORWARD = "return torch.relu(x)"
INPUTS = "return [torch.randn(256, 1024)]"


def post(stack: Stack, body: object) -> httpx.Response:
    key = (stack.data / "api_key").read_text().strip()
    with httpx.Client(base_url=stack.client.url, trust_env=False, timeout=60) as http:
        return http.post("/v1/jobs", json=body, headers={"Authorization": f"Bearer {key}"})


def job(source: str, **fields: object) -> dict[str, object]:
    small = {
        "method": {"population": 2, "generations": 1, "elites": 1},
        "learning": {"cheap_attribution": False},
    }
    return {"problem": {"name": "broken", "source": source}, "target": "cpu", **small, **fields}


@pytest.mark.parametrize(
    ("body", "status", "code", "part"),
    [
        (job(GOOD.replace("class Model", "class Model(")), 422, "invalid_problem", "line 6"),
        (job(GOOD.replace("get_inputs", "inputs")), 422, "invalid_problem", "get_inputs"),
        (job(GOOD.replace("def forward", "def backward")), 422, "invalid_problem", "forward"),
        (job(GOOD + "#" * 300_000), 422, "invalid_problem", "at most"),
        (job(GOOD, target="tpu"), 422, "invalid_input", "target"),
        (job(GOOD, seed="seven"), 422, "invalid_input", "seed"),
        (job(GOOD, budgets={"candidates": -1}), 422, "invalid_input", "candidates"),
        (job(GOOD, budgets={"candidate": 5}), 422, "invalid_input", "unknown field; did you mean candidates?"),
        (job(GOOD, method={"population": 4, "elites": 4}), 422, "invalid_input", "elites"),
        ([], 422, "invalid_input", "body"),
        ({"problem": {"source": 5}, "target": "cpu"}, 422, "invalid_input", "source"),
        (job(GOOD + "#" * 50_000_000), 413, "body_too_large", "larger than"),
    ],
    ids=[
        "syntax error", "missing name", "missing forward", "long file", "unknown target", "wrong type", "out of range",
        "misspelt field", "contradiction", "not an object", "source is no text", "50 MB",
    ],
)  # fmt: skip
def test_the_api_refuses_what_it_can_see(stack: Stack, body: object, status: int, code: str, part: str) -> None:
    response = post(stack, body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert part in error["message"]
    assert error["request_id"] == response.headers["X-Request-ID"]


HOSTILE = {
    "raises at import": (GOOD.replace("class Model", "raise RuntimeError('boom')\n\n\nclass Model"), "boom"),
    "raises in forward": (GOOD.replace(FORWARD, "raise ValueError('boom')"), "boom"),
    "inputs are no list": (GOOD.replace(INPUTS, "return 'text'"), ""),
    "output is no tensor": (GOOD.replace(FORWARD, "return {'a': 'text'}"), ""),
    "loops at import": (
        GOOD.replace("class Model", "import time\nwhile True:\n    time.sleep(1)\n\n\nclass Model"),
        "",
    ),
    "allocates 8 TB": (GOOD.replace(FORWARD, "return torch.ones(2**41) + x.sum()"), ""),
    "leaves by the back door": (GOOD.replace(FORWARD, "import os; os._exit(0)"), ""),
    "leaves at import": ("import os\nos._exit(0)\n" + GOOD, ""),
    "fork bomb": (GOOD.replace(FORWARD, "import os\n        while True:\n            os.fork()"), ""),
    "calls home": (
        GOOD.replace(FORWARD, "import urllib.request as u; u.urlopen('http://127.0.0.1:1', timeout=5); return x"),
        "",
    ),
    "prints without end": (GOOD.replace(FORWARD, "while True:\n            print('x' * 10**6)"), ""),
}


@pytest.fixture(scope="module")
def hostile(stack: Stack) -> dict[str, object]:
    """All of them at once: they must not hurt each other either."""
    return {name: stack.submit(**job(source)) for name, (source, _) in HOSTILE.items()}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_only_running_shows_fails_the_job_clearly(stack: Stack, hostile: dict[str, object], name: str) -> None:
    view = stack.wait(hostile[name])  # type: ignore[arg-type]
    reason = "out_of_memory" if name == "allocates 8 TB" else "invalid_problem"
    assert (view.state, view.reason) == ("failed", reason), view.message
    assert view.message
    assert HOSTILE[name][1] in view.message
    assert view.best is None


def test_the_next_job_runs(stack: Stack, hostile: dict[str, object]) -> None:
    assert hostile
    view = stack.wait(stack.submit(**job(GOOD)))
    assert ran_through(view), (view.state, view.reason, view.message)


def test_every_part_is_still_the_first(stack: Stack, hostile: dict[str, object]) -> None:
    """Nothing that a user submits may take a process of the service along."""
    assert hostile
    assert {part.name: part.restarts for part in embedded.status(stack.data).parts if part.restarts} == {}
    wait_until(lambda: not stack.orphans(), "no process is left that nobody owns", 30.0)
