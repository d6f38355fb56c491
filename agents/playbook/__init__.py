"""The playbook: the four agents without a language model, over parametric kernel templates.

An operator is recognised exactly from its ATen graph, or refused; strategies change the generated code; everything is
deterministic in the arguments and the seed.
"""

from __future__ import annotations

from agents.interface import Agents
from agents.playbook.manager import PlaybookManager
from agents.playbook.prophet import PlaybookProphet
from agents.playbook.revisor import PlaybookRevisor
from agents.playbook.translator import PlaybookTranslator


def agents() -> Agents:
    """Return the playbook's player for each role."""
    return Agents(
        prophet=PlaybookProphet(),
        manager=PlaybookManager(),
        translator=PlaybookTranslator(),
        revisor=PlaybookRevisor(),
    )


__all__ = ["agents"]
