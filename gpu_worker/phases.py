"""What an evaluation spent its time on: one phase after the other, by the supervisor's own clock.

The judge tells which stage it has begun; it is never asked how long anything took.
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
    """Marks of one evaluation."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._marks: list[tuple[str, float]] = []

    def enter(self, name: str) -> None:
        """A phase begins, and with it the one before ends; going on with the same one is one phase."""
        if not self._marks or self._marks[-1][0] != name:
            self._marks.append((name, time.monotonic() - self._began))

    def stage(self, name: str) -> None:
        """The judge has begun this."""
        self.enter(_STAGES.get(name, "judge"))

    def until_now(self) -> tuple[Phase, ...]:
        """All phases, the last one up to now."""
        starts = [start for _, start in self._marks] + [time.monotonic() - self._began]
        return tuple(
            Phase(name=name, start=start, seconds=max(end - start, 0.0))
            for (name, start), end in zip(self._marks, starts[1:], strict=True)
        )
