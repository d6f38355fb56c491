"""The stopwatch of an evaluation: one phase after the other, by the supervisor's own clock.

The judge reports which stage it has begun; it is never asked how long anything took.
"""

from __future__ import annotations

import time

from cupilot.domain.evaluation import Phase

_STAGES = {
    "loading the problem file": "open",
    "the first forward pass": "open",
    "drawing inputs": "open",
    "loading the kernel": "load",
    "auditing": "verify",
    "timing": "time",
    "compiling the torch.compile baseline": "compile_baseline",
    "compiling the torch.compile max-autotune baseline": "compile_baseline",
}
"""The judge's stages in fewer words; any other is ``judge``."""


class Phases:
    """Phases of one evaluation, which begins when this is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._marks: list[tuple[str, float]] = []

    def enter(self, name: str) -> None:
        """Begin a phase, which ends the one before; entering the same one again continues it."""
        if not self._marks or self._marks[-1][0] != name:
            self._marks.append((name, self.elapsed()))

    def stage(self, name: str) -> None:
        """Begin the phase of a stage that the judge has begun."""
        self.enter(_STAGES.get(name, "judge"))

    def elapsed(self) -> float:
        """Return the seconds since the evaluation began."""
        return time.monotonic() - self._began

    def until_now(self) -> tuple[Phase, ...]:
        """Return all phases, the last one up to now."""
        starts = [*(start for _, start in self._marks), self.elapsed()]
        return tuple(
            Phase(name=name, start=start, seconds=max(end - start, 0.0))
            for (name, start), end in zip(self._marks, starts[1:], strict=True)
        )
