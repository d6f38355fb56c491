"""Ask the agents, in a process of their own, whether the configured models work. Calls no model itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

MODEL_VARIABLES = ("CUPILOT_LLM_MODEL", "CUPILOT_LLM_MODELS_FILE")
"""Either names the models of the agent worker."""
SECONDS = 300.0


@dataclass(frozen=True)
class ModelsReport:
    """The answer of ``python -m agents.llm``."""

    error: str | None
    checks: tuple[dict[str, Any], ...]
    """Each with ``model``, ``roles``, ``works``, ``found``, ``mend``, ``trouble``, ``cost_usd``."""

    @property
    def fine(self) -> bool:
        """True if there are models, and all of them work."""
        return self.error is None and all(check["works"] for check in self.checks)


def try_models() -> ModelsReport:
    """Make one cheap call to each configured model, with this process's environment."""
    argv = [sys.executable, "-m", "agents.llm"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
        answer = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return ModelsReport(f"no answer within {SECONDS:.0f} s", ())
    except (IndexError, json.JSONDecodeError):
        return ModelsReport("the agents are not installed here: run this from a checkout, after 'make install'", ())
    return ModelsReport(answer["error"], tuple(answer["checks"]))
