"""Predictions for one problem's strategies: their order, and which are not worth trying first.

Says nothing where roofline guidance is off: strategies keep the order they come in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import inf

from agents.playbook.cost import HOPELESS, predicted, ranks
from agents.playbook.cost.rates import rates_of
from agents.playbook.ladders import ladder
from agents.playbook.search import Space
from cupilot.domain.errors import InvalidPlan
from cupilot.domain.strategy import Strategy


class Forecast:
    """Predictions for one problem on one device, each made once."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.rates = rates_of(space.briefing)
        self._seconds: dict[str, float] = {}

    def seconds(self, strategy: Strategy) -> float | None:
        """Return the predicted time of a strategy that can be rendered; None where nothing is to be said."""
        if self.rates is None:
            return None
        signature = strategy.signature()
        if signature not in self._seconds:
            try:
                cost = predicted(self.space.operator, strategy, self.space.briefing.facts, self.rates)
                self._seconds[signature] = cost.seconds
            except InvalidPlan:
                self._seconds[signature] = inf
        return self._seconds[signature]

    def order(self, strategies: Sequence[Strategy]) -> list[int]:
        """Return each strategy's class, 0 for those predicted fastest; equal ones keep their order."""
        times = [self.seconds(strategy) for strategy in strategies]
        known = [time for time in times if time is not None]
        return ranks(known) if len(known) == len(times) else [0] * len(times)

    def hopeless(self, strategy: Strategy) -> bool:
        """Return whether a strategy is predicted many times slower than the best of the ladder."""
        time = self.seconds(strategy)
        return time is not None and time > HOPELESS * self._best

    @cached_property
    def _best(self) -> float:
        rungs = [self.space.fitted(rung)[0] for rung in ladder(self.space.operator, self.space.briefing.target)]
        times = [self.seconds(rung) for rung in rungs]
        return min((time for time in times if time is not None), default=inf)
