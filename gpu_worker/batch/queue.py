"""The order in which the cards of this machine take a batch's steps. Pure: starts nothing, reads no clock.

A judge process keeps one problem open, and opening one takes seconds. So a card goes through one problem's steps before
it takes another problem; a card that finds none left helps with the problem that has most. Confirmations need fresh
processes, and so come after the evaluations of their problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cupilot.domain.batches.manifest import BatchEntry, Operation

_ORDER = (Operation.TRACE, Operation.PREPARE, Operation.EVALUATE, Operation.CONFIRM)
"""A trace closes the problem that is open; a preparation opens it; a confirmation ends all processes."""

MAX_TRIES = 2
"""Attempts at a step here where the machine fails; then the service decides what becomes of it."""


class StepQueue:
    """Steps that are left, and what each card is at."""

    def __init__(self, steps: Sequence[BatchEntry]) -> None:
        ordered = sorted(enumerate(steps), key=lambda pair: (_ORDER.index(pair[1].question.operation), pair[0]))
        self._groups: dict[str, list[BatchEntry]] = {}
        for _, entry in ordered:
            self._groups.setdefault(entry.question.problem_hash, []).append(entry)
        self._problems: dict[str, str] = {}
        """Problem that each card is at."""
        self._failed: dict[UUID, list[str]] = {}
        """Cards that failed at a step, by step."""

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def take(self, card: str, cards: Sequence[str]) -> BatchEntry | None:
        """Return the next step for one of the ``cards``, or None where nothing is left that it may do."""
        for problem in self._preferred(card):
            for entry in self._groups[problem]:
                if self._may(entry, card, cards):
                    self._remove(problem, entry)
                    self._problems[card] = problem
                    return entry
        return None

    def following(self, card: str, count: int) -> list[BatchEntry]:
        """Return steps that this card is likely to get next."""
        waiting = (entry for problem in self._preferred(card) for entry in self._groups[problem])
        return [entry for entry, _ in zip(waiting, range(count), strict=False)]

    def put_back(self, entry: BatchEntry, card: str) -> bool:
        """Queue a step again that a card failed at, for another one; False where it was tried often enough."""
        failed = self._failed.setdefault(entry.step, [])
        failed.append(card)
        if len(failed) >= MAX_TRIES:
            return False
        self._groups.setdefault(entry.question.problem_hash, []).append(entry)
        return True

    def _preferred(self, card: str) -> list[str]:
        """Return problems with steps left: this card's own, then those that no card is at, then the largest."""
        own, others = self._problems.get(card), {at for name, at in self._problems.items() if name != card}
        return sorted(
            self._groups,
            key=lambda problem: (problem != own, problem in others, -len(self._groups[problem]), problem),
        )

    def _may(self, entry: BatchEntry, card: str, cards: Sequence[str]) -> bool:
        """Return whether a card may have a step; one that the step avoids, or that failed at it, only for want of
        another."""
        barred = {entry.avoids, *self._failed.get(entry.step, ())}
        return card not in barred or barred.issuperset(cards)

    def _remove(self, problem: str, entry: BatchEntry) -> None:
        self._groups[problem].remove(entry)
        if not self._groups[problem]:
            del self._groups[problem]
