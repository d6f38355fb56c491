"""The registry of evolution methods: a new one adds a module and a line here.

A method decides; it never does: whoever drives it (workers, the local driver) runs the candidates it proposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from cupilot.evolution.population import Member, Proposal, StopReason
from cupilot.evolution.sce import Sce, SceConfig


class Method(Protocol):
    """Three pure functions.

    A driver's round: ``propose`` from the survivors, run the candidates, ``select`` from survivors plus candidates,
    ``should_stop``, and again.
    """

    def propose(self, population: Sequence[Member], generation: int, rng: Random) -> list[Proposal]:
        """The candidates that a generation (from 0) should have, given the survivors of the former ones."""
        ...

    def select(self, population: Sequence[Member]) -> tuple[str, ...]:
        """Ids of the candidates that survive a finished generation, best first."""
        ...

    def should_stop(self, population: Sequence[Member], generation: int) -> StopReason | None:
        """Why no generation should follow the finished ``generation``, or None."""
        ...


_METHODS = {SceConfig: Sce}


def method_for(config: SceConfig) -> Method:
    """The method that a job's configuration asks for."""
    return _METHODS[type(config)](config)
