"""Parts of a prediction, and the choices that it is made from."""

from __future__ import annotations

from dataclasses import dataclass

from agents.playbook.cost.rates import Rates
from agents.playbook.templates.source import Options


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of one run of a kernel, by what they are spent on."""

    memory: float
    arithmetic: float
    launch: float

    @property
    def seconds(self) -> float:
        """Time in all: memory and arithmetic overlap, launches do not."""
        return max(self.memory, self.arithmetic) + self.launch


@dataclass(frozen=True)
class Choice:
    """A strategy's techniques on a device."""

    options: Options
    rates: Rates

    def number(self, technique: str, parameter: str, without: int = 1) -> int:
        """Return a parameter of the strategy."""
        return self.options.number(technique, parameter, without)

    def __contains__(self, technique: str) -> bool:
        return technique in self.options
