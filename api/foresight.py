"""Ask the playbook about a problem before its job is queued. Imports the agents only then."""

from __future__ import annotations

from cupilot.domain.problem import NumericsPolicy, ProblemFacts, Target


def foreseen(source: str, policy: NumericsPolicy, target: Target, facts: ProblemFacts | None) -> list[str]:
    """Return whether the playbook has a kernel, as far as an earlier trace or else the file's text shows it."""
    from agents.playbook.foresight import foreseen as look  # only here: the API starts without loading agents

    return look(source, policy, target, facts)
